// One native vector `F` of F::W floats and its mask `M`; the scalar functions of the same names give the same bits.
//
// max(a, b) is `a > b ? a : b` and min(a, b) is `a < b ? a : b`, on every instruction set (also for NaN and zeros).
// fma rounds once; everything else is one IEEE operation per call. The compiler must not contract (-ffp-contract=off).
#pragma once

#include "dtype.h"

namespace ld {

inline float fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float max(float a, float b) { return a > b ? a : b; }
inline float min(float a, float b) { return a < b ? a : b; }
inline float sqrt(float a) { return __builtin_sqrtf(a); }
inline float abs(float a) { return float_of(bits_of(a) & 0x7fffffffu); }
inline float neg(float a) { return float_of(bits_of(a) ^ 0x80000000u); }
inline float copysign(float a, float s) { return float_of((bits_of(a) & 0x7fffffffu) | (bits_of(s) & 0x80000000u)); }
inline float rint(float a) { return __builtin_rintf(a); }
// y * 2^n for an integral n with |n| < 2^8, by adding to the exponent field: no overflow or subnormal handling.
inline float add_exponent(float y, float n) { return float_of(bits_of(y) + (uint32_t(int32_t(n)) << 23)); }
inline bool lt(float a, float b) { return a < b; }
inline bool le(float a, float b) { return a <= b; }
inline bool gt(float a, float b) { return a > b; }
inline bool ge(float a, float b) { return a >= b; }
inline bool eq(float a, float b) { return a == b; }
inline bool isnan(float a) { return a != a; }
inline float select(bool m, float a, float b) { return m ? a : b; }

}  // namespace ld

#if defined(LD_ISA_AVX512)
#include "simd_avx512.h"
#elif defined(LD_ISA_AVX2)
#include "simd_avx2.h"
#elif defined(LD_ISA_NEON)
#include "simd_neon.h"
#elif defined(LD_ISA_GENERIC)
#include "simd_generic.h"
#else
#error "define LD_ISA_GENERIC, LD_ISA_AVX2, LD_ISA_AVX512 or LD_ISA_NEON"
#endif

namespace ld {

// F::W values of storage type T as fp32, and back (nearest even).
template <class T> inline F load_as_f32(const typename T::type* p);
template <> inline F load_as_f32<f32_t>(const float* p) { return F::load(p); }
template <> inline F load_as_f32<bf16_t>(const uint16_t* p) { return F::loadu_bf16(p); }
template <> inline F load_as_f32<f16_t>(const uint16_t* p) { return F::loadu_f16(p); }

template <class T> inline void store_from_f32(typename T::type* p, F x);
template <> inline void store_from_f32<f32_t>(float* p, F x) { x.store(p); }
template <> inline void store_from_f32<bf16_t>(uint16_t* p, F x) { x.store_bf16(p); }
template <> inline void store_from_f32<f16_t>(uint16_t* p, F x) { x.store_f16(p); }

// The first n < F::W values only; the other lanes are +0, and memory past n is neither read nor written.
template <class T> inline F load_partial(const typename T::type* p, int n) {
    typename T::type lanes[F::W] = {};
    std::memcpy(lanes, p, size_t(n) * sizeof lanes[0]);
    return load_as_f32<T>(lanes);
}
template <> inline F load_partial<f32_t>(const float* p, int n) { return F::load_partial(p, n); }

template <class T> inline void store_partial(typename T::type* p, F x, int n) {
    typename T::type lanes[F::W];
    store_from_f32<T>(lanes, x);
    std::memcpy(p, lanes, size_t(n) * sizeof lanes[0]);
}
template <> inline void store_partial<f32_t>(float* p, F x, int n) { x.store_partial(p, n); }

// n is F::W or less: one call for a loop's full and last steps.
template <class T> inline F load_upto(const typename T::type* p, int n) {
    return n >= F::W ? load_as_f32<T>(p) : load_partial<T>(p, n);
}
template <class T> inline void store_upto(typename T::type* p, F x, int n) {
    n >= F::W ? store_from_f32<T>(p, x) : store_partial<T>(p, x, n);
}

// RINT to T and back, in registers.
template <class T> inline F round_to(F x) {
    typename T::type lanes[F::W];
    store_from_f32<T>(lanes, x);
    return load_as_f32<T>(lanes);
}
template <> inline F round_to<bf16_t>(F x) { return round_bf16(x); }
template <> inline F round_to<f32_t>(F x) { return x; }

}  // namespace ld
