// Storage types and their scalar conversions: fp32, bf16, fp16; nearest even, every NaN stays a (quiet) NaN.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define LD_API extern "C" __attribute__((visibility("default")))

namespace ld {

enum Dtype : int32_t { kF32 = 0, kBF16 = 1, kF16 = 2 };

// Return codes of every ld_ function.
enum Status : int { kOk = 0, kBadDtype = -1, kBadShape = -2, kBadArgument = -3, kNoMemory = -4 };

struct f32_t { using type = float; static constexpr int32_t code = kF32; };
struct bf16_t { using type = uint16_t; static constexpr int32_t code = kBF16; };
struct f16_t { using type = uint16_t; static constexpr int32_t code = kF16; };

inline uint32_t bits_of(float x) {
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}

inline float float_of(uint32_t u) {
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}

inline float bf16_to_f32(uint16_t h) { return float_of(uint32_t(h) << 16); }

inline uint16_t f32_to_bf16(float x) {
    const uint32_t u = bits_of(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
    return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude > 0x7c00u) return float_of(sign | 0x7fc00000u | (magnitude << 13));  // NaN, made quiet
    if (magnitude == 0x7c00u) return float_of(sign | 0x7f800000u);
    if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + (112u << 23)));
    return float_of(sign | bits_of(float(magnitude) * 0x1p-24f));  // subnormal: exact product
}

inline uint16_t f32_to_f16(float x) {
    const uint32_t u = bits_of(x);
    const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {                                 // below 2^-14: add 0.5 so that fp32 rounds at 2^-24
        const float rounded = float_of(magnitude) + 0.5f;
        return uint16_t(sign | (bits_of(rounded) - bits_of(0.5f)));
    }
    const uint32_t odd = (magnitude >> 13) & 1u;
    return uint16_t(sign | ((magnitude - (112u << 23) + 0xfffu + odd) >> 13));
}

template <class T> inline float load_scalar(const typename T::type* p);
template <> inline float load_scalar<f32_t>(const float* p) { return *p; }
template <> inline float load_scalar<bf16_t>(const uint16_t* p) { return bf16_to_f32(*p); }
template <> inline float load_scalar<f16_t>(const uint16_t* p) { return f16_to_f32(*p); }

template <class T> inline void store_scalar(typename T::type* p, float x);
template <> inline void store_scalar<f32_t>(float* p, float x) { *p = x; }
template <> inline void store_scalar<bf16_t>(uint16_t* p, float x) { *p = f32_to_bf16(x); }
template <> inline void store_scalar<f16_t>(uint16_t* p, float x) { *p = f32_to_f16(x); }

// RINT to T and back: what the contract calls a cast, kept in fp32.
template <class T> inline float round_to(float x);
template <> inline float round_to<f32_t>(float x) { return x; }
template <> inline float round_to<bf16_t>(float x) { return bf16_to_f32(f32_to_bf16(x)); }
template <> inline float round_to<f16_t>(float x) { return f16_to_f32(f32_to_f16(x)); }

// Calls fn(tag) for a dtype code; kBadDtype for an unknown one, else what fn returns.
template <class Fn> inline int dispatch(int32_t dtype, Fn fn) {
    switch (dtype) {
        case kF32: return fn(f32_t{});
        case kBF16: return fn(bf16_t{});
        case kF16: return fn(f16_t{});
        default: return kBadDtype;
    }
}

}  // namespace ld
