// AVX-512 on any x86 through SIMDe, for running that source where the CPU lacks it; with what SIMDe leaves out.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

namespace ld {
namespace simde {

struct Halves {
    __m256 low, high;
    explicit Halves(__m512 x) {
        std::memcpy(&low, &x, sizeof low);
        std::memcpy(&high, reinterpret_cast<const char*>(&x) + sizeof low, sizeof high);
    }
};

template <class Whole, class Half> inline Whole join(Half low, Half high) {
    static_assert(sizeof(Whole) == 2 * sizeof(Half), "two halves");
    Whole x;
    std::memcpy(&x, &low, sizeof low);
    std::memcpy(reinterpret_cast<char*>(&x) + sizeof low, &high, sizeof high);
    return x;
}

// SIMDe's 512-bit product and sum may be rounded twice.
inline __m512 fmadd(__m512 a, __m512 b, __m512 c) {
    const Halves x(a), y(b), z(c);
    return join<__m512>(_mm256_fmadd_ps(x.low, y.low, z.low), _mm256_fmadd_ps(x.high, y.high, z.high));
}

// SIMDe's may follow fmaxf, which treats NaN and zeros in its own way.
inline __m512 max(__m512 a, __m512 b) {
    const Halves x(a), y(b);
    return join<__m512>(_mm256_max_ps(x.low, y.low), _mm256_max_ps(x.high, y.high));
}
inline __m512 min(__m512 a, __m512 b) {
    const Halves x(a), y(b);
    return join<__m512>(_mm256_min_ps(x.low, y.low), _mm256_min_ps(x.high, y.high));
}

inline __m512i cvtps_epi32(__m512 a) {
    const Halves x(a);
    return join<__m512i>(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high));
}

inline __m512 roundscale(__m512 a) {
    const Halves x(a);
    return join<__m512>(_mm256_round_ps(x.low, _MM_FROUND_TO_NEAREST_INT), _mm256_round_ps(x.high, _MM_FROUND_TO_NEAREST_INT));
}

inline __m512 cvtph_ps(__m256i h) {
    __m128i part[2];
    std::memcpy(part, &h, sizeof part);
    return join<__m512>(_mm256_cvtph_ps(part[0]), _mm256_cvtph_ps(part[1]));
}

inline __m256i cvtps_ph(__m512 a) {
    const Halves x(a);
    return join<__m256i>(_mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT));
}

inline __m512i cvtepu16_epi32(__m256i h) {
    uint16_t in[16];
    uint32_t out[16];
    std::memcpy(in, &h, sizeof in);
    for (int i = 0; i < 16; ++i) out[i] = in[i];
    __m512i r;
    std::memcpy(&r, out, sizeof r);
    return r;
}

inline __m256i cvtepi32_epi16(__m512i a) {
    uint32_t in[16];
    uint16_t out[16];
    std::memcpy(in, &a, sizeof in);
    for (int i = 0; i < 16; ++i) out[i] = uint16_t(in[i]);
    __m256i r;
    std::memcpy(&r, out, sizeof r);
    return r;
}

inline __m512 maskz_loadu(__mmask16 mask, const float* p) {
    float lane[16] = {};
    for (int i = 0; i < 16; ++i)
        if (mask >> i & 1) lane[i] = p[i];
    __m512 r;
    std::memcpy(&r, lane, sizeof r);
    return r;
}

inline void mask_storeu(float* p, __mmask16 mask, __m512 a) {
    float lane[16];
    std::memcpy(lane, &a, sizeof lane);
    for (int i = 0; i < 16; ++i)
        if (mask >> i & 1) p[i] = lane[i];
}

// 128-bit blocks: two of a, then two of b, chosen by two bits each.
inline __m512 shuffle_f32x4(__m512 a, __m512 b, int control) {
    float x[16], y[16], out[16];
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    for (int block = 0; block < 4; ++block)
        std::memcpy(out + 4 * block, (block < 2 ? x : y) + 4 * (control >> (2 * block) & 3), 16);
    __m512 r;
    std::memcpy(&r, out, sizeof r);
    return r;
}

}  // namespace simde
}  // namespace ld

#undef _mm512_fmadd_ps
#undef _mm512_max_ps
#undef _mm512_min_ps
#undef _mm512_roundscale_ps
#define _mm512_fmadd_ps(a, b, c) ld::simde::fmadd(a, b, c)
#define _mm512_max_ps(a, b) ld::simde::max(a, b)
#define _mm512_min_ps(a, b) ld::simde::min(a, b)
#define _mm512_roundscale_ps(a, mode) ld::simde::roundscale(a)
#define _mm512_cvtps_epi32(a) ld::simde::cvtps_epi32(a)
#define _mm512_cvtph_ps(h) ld::simde::cvtph_ps(h)
#define _mm512_cvtps_ph(a, mode) ld::simde::cvtps_ph(a)
#define _mm512_cvtepu16_epi32(h) ld::simde::cvtepu16_epi32(h)
#define _mm512_cvtepi32_epi16(a) ld::simde::cvtepi32_epi16(a)
#define _mm512_maskz_loadu_ps(mask, p) ld::simde::maskz_loadu(mask, p)
#define _mm512_mask_storeu_ps(p, mask, a) ld::simde::mask_storeu(p, mask, a)
#define _mm512_shuffle_f32x4(a, b, control) ld::simde::shuffle_f32x4(a, b, control)
