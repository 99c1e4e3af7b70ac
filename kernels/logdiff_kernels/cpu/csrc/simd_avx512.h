// Sixteen lanes of AVX-512 F/BW/VL/DQ. With LD_SIMDE the same source runs on any x86 CPU through SIMDe.
#pragma once

#ifdef LD_SIMDE
#include "simd_simde.h"
#else
#include <immintrin.h>
#endif

namespace ld {

struct F {
    static constexpr int W = 16;
    __m512 v;

    static F load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static F widen(__m256i h) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))}; }
    static F loadu_bf16(const uint16_t* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
    static F loadu_f16(const uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    static __mmask16 lanes_below(int n) { return __mmask16((1u << n) - 1u); }  // n <= 16
    static F load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(lanes_below(n), p)}; }
    static F set1(float x) { return {_mm512_set1_ps(x)}; }
    static F zero() { return {_mm512_setzero_ps()}; }

    void store(float* p) const { _mm512_storeu_ps(p, v); }
    void store_bf16(uint16_t* p) const {  // VCVTNEPS2BF16 flushes subnormals, so the rounding is done here
        const __m512i u = _mm512_castps_si512(v);
        const __m512i high = _mm512_srli_epi32(u, 16);
        const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
        const __m512i r = _mm512_mask_blend_epi32(nan, _mm512_srli_epi32(sum, 16), quiet);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
    }
    void store_f16(uint16_t* p) const {
        const __m256i h = _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
    }
    void store_partial(float* p, int n) const { _mm512_mask_storeu_ps(p, lanes_below(n), v); }
};

struct M {
    __mmask16 v;
};

inline F operator+(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F sqrt(F a) { return {_mm512_sqrt_ps(a.v)}; }
inline F abs(F a) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff)))};
}
inline F neg(F a) {
    return {_mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(int(0x80000000u))))};
}
inline F copysign(F a, F s) {
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(s.v), _mm512_set1_epi32(int(0x80000000u)));
    return {_mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(abs(a).v), sign))};
}
inline F rint(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }
inline F add_exponent(F y, F n) {
    const __m512i shift = _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23);
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y.v), shift))};
}
inline F round_bf16(F a) {
    const __m512i u = _mm512_castps_si512(a.v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(u, _mm512_set1_epi32(0x400000));
    const __m512i r = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), sum, quiet);
    return {_mm512_castsi512_ps(_mm512_and_si512(r, _mm512_set1_epi32(int(0xffff0000u))))};
}
inline M lt(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline M le(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
inline M gt(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
inline M ge(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
inline M eq(F a, F b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
inline M isnan(F a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
inline M operator&(M a, M b) { return {__mmask16(a.v & b.v)}; }
inline M operator|(M a, M b) { return {__mmask16(a.v | b.v)}; }
inline M first(int n) { return {F::lanes_below(n)}; }
inline F select(M m, F a, F b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
inline bool any(M m) { return m.v != 0; }

}  // namespace ld
