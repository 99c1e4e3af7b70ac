// Eight lanes of AVX2 + FMA + F16C.
#pragma once

#include <immintrin.h>

namespace ld {

struct F {
    static constexpr int W = 8;
    __m256 v;

    static F load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static F loadu_bf16(const uint16_t* p) {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
    }
    static F loadu_f16(const uint16_t* p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    static __m256i lanes_below(int n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    }
    static F load_partial(const float* p, int n) { return {_mm256_maskload_ps(p, lanes_below(n))}; }
    static F set1(float x) { return {_mm256_set1_ps(x)}; }
    static F zero() { return {_mm256_setzero_ps()}; }

    void store(float* p) const { _mm256_storeu_ps(p, v); }
    void store_bf16(uint16_t* p) const {
        const __m256i u = _mm256_castps_si256(v);
        const __m256i high = _mm256_srli_epi32(u, 16);
        const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
        const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
        const __m256i r = _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, nan);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0xd8);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
    }
    void store_f16(uint16_t* p) const {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    }
    void store_partial(float* p, int n) const { _mm256_maskstore_ps(p, lanes_below(n), v); }
};

struct M {
    __m256 v;
};

inline F operator+(F a, F b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F operator-(F a, F b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F operator*(F a, F b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F operator/(F a, F b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F sqrt(F a) { return {_mm256_sqrt_ps(a.v)}; }
inline F abs(F a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F neg(F a) { return {_mm256_xor_ps(_mm256_set1_ps(-0.0f), a.v)}; }
inline F copysign(F a, F s) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(_mm256_andnot_ps(sign, a.v), _mm256_and_ps(sign, s.v))};
}
inline F rint(F a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F add_exponent(F y, F n) {
    const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n.v), 23);
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y.v), shift))};
}
inline F round_bf16(F a) {
    const __m256i u = _mm256_castps_si256(a.v), one = _mm256_set1_epi32(1);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), one);
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256 quiet = _mm256_or_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(0x400000)));
    const __m256 r = _mm256_blendv_ps(_mm256_castsi256_ps(sum), quiet, _mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
    return {_mm256_and_ps(r, _mm256_castsi256_ps(_mm256_set1_epi32(int(0xffff0000u))))};
}
inline M lt(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
inline M le(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
inline M gt(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
inline M ge(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
inline M eq(F a, F b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
inline M isnan(F a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
inline M operator&(M a, M b) { return {_mm256_and_ps(a.v, b.v)}; }
inline M operator|(M a, M b) { return {_mm256_or_ps(a.v, b.v)}; }
inline M first(int n) { return {_mm256_castsi256_ps(F::lanes_below(n))}; }
inline F select(M m, F a, F b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }
inline bool any(M m) { return _mm256_movemask_ps(m.v) != 0; }

}  // namespace ld
