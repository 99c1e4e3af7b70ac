// Transposes of F::W rows by kWords 32-bit words in registers. Words are moved, never computed with.
#pragma once

#include <cstdint>

#include "simd.h"

namespace ld::linear {

#if defined(LD_ISA_AVX512)

constexpr int kWords = 16;
constexpr int kFewWords = 4;

// The 16 bytes at p, p + 4 * stride, p + 8 * stride, p + 12 * stride, one after the other.
__attribute__((always_inline)) inline __m512 load_four(const char* p, int64_t stride) {
#ifdef LD_SIMDE
    __m512 r;
    for (int i = 0; i < 4; ++i) std::memcpy(reinterpret_cast<char*>(&r) + 16 * i, p + 4 * i * stride, 16);
    return r;
#else
    const auto block = [&](int i) { return _mm_loadu_ps(reinterpret_cast<const float*>(p + 4 * i * stride)); };
    __m512 r = _mm512_castps128_ps512(block(0));
    r = _mm512_mask_broadcast_f32x4(r, 0x00f0, block(1));
    r = _mm512_mask_broadcast_f32x4(r, 0x0f00, block(2));
    return _mm512_mask_broadcast_f32x4(r, 0xf000, block(3));
#endif
}

// t[i], i < kFewWords, = word i of each of the F::W rows that begin at from + row * stride bytes.
__attribute__((always_inline)) inline void load_few_transposed(const char* from, int64_t stride, F* t) {
    const __m512 r0 = load_four(from, stride), r1 = load_four(from + stride, stride);
    const __m512 r2 = load_four(from + 2 * stride, stride), r3 = load_four(from + 3 * stride, stride);
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(r0, r1)), b = _mm512_castps_pd(_mm512_unpackhi_ps(r0, r1));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(r2, r3)), d = _mm512_castps_pd(_mm512_unpackhi_ps(r2, r3));
    t[0].v = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    t[1].v = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    t[2].v = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    t[3].v = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
}

// t[i], i < kWords, likewise.
__attribute__((always_inline)) inline void load_transposed(const char* from, int64_t stride, F* t) {
    __m512 r[16], s[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(from + i * stride);
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        const __m512d a0 = _mm512_castps_pd(s[i]), a1 = _mm512_castps_pd(s[i + 1]);
        const __m512d a2 = _mm512_castps_pd(s[i + 2]), a3 = _mm512_castps_pd(s[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a0, a2));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a0, a2));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(a1, a3));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(a1, a3));
    }
    // r[4 g + c]: word 4 b + c of rows 4 g .. 4 g + 3 in 128-bit block b.
    for (int c = 0; c < 4; ++c) {
        const __m512 a = _mm512_shuffle_f32x4(r[c], r[4 + c], 0x88), b = _mm512_shuffle_f32x4(r[c], r[4 + c], 0xdd);
        const __m512 d = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0x88);
        const __m512 e = _mm512_shuffle_f32x4(r[8 + c], r[12 + c], 0xdd);
        t[c].v = _mm512_shuffle_f32x4(a, d, 0x88);
        t[8 + c].v = _mm512_shuffle_f32x4(a, d, 0xdd);
        t[4 + c].v = _mm512_shuffle_f32x4(b, e, 0x88);
        t[12 + c].v = _mm512_shuffle_f32x4(b, e, 0xdd);
    }
}

inline F low_half(F pairs) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs.v), 16))}; }
inline F high_half(F pairs) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs.v), _mm512_set1_epi32(int(0xffff0000u))))};
}

#elif defined(LD_ISA_AVX2)

constexpr int kWords = 4;

__attribute__((always_inline)) inline void load_transposed(const char* from, int64_t stride, F* t) {
    const char* from4 = from + 4 * stride;
    __m256 r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
        const __m128 low = _mm_loadu_ps(reinterpret_cast<const float*>(from + i * stride));
        const __m128 high = _mm_loadu_ps(reinterpret_cast<const float*>(from4 + i * stride));
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
    }
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
    const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
    const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
    const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
    t[0].v = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    t[1].v = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    t[2].v = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    t[3].v = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
}

inline F low_half(F pairs) { return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs.v), 16))}; }
inline F high_half(F pairs) {
    return {_mm256_and_ps(pairs.v, _mm256_castsi256_ps(_mm256_set1_epi32(int(0xffff0000u))))};
}

#elif defined(LD_ISA_NEON)

constexpr int kWords = 4;

__attribute__((always_inline)) inline void load_transposed(const char* from, int64_t stride, F* t) {
    float32x4_t r[4];
    for (int i = 0; i < 4; ++i) r[i] = vld1q_f32(reinterpret_cast<const float*>(from + i * stride));
    const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
    const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
    t[0].v = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    t[1].v = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    t[2].v = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    t[3].v = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

inline F low_half(F pairs) { return {vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(pairs.v), 16))}; }
inline F high_half(F pairs) {
    return {vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(pairs.v), vdupq_n_u32(0xffff0000u)))};
}

#else

constexpr int kWords = F::W;

__attribute__((always_inline)) inline void load_transposed(const char* from, int64_t stride, F* t) {
    for (int row = 0; row < F::W; ++row)
        for (int i = 0; i < F::W; ++i) std::memcpy(&t[i].v[row], from + row * stride + 4 * i, 4);
}

inline F low_half(F pairs) {
    for (float& x : pairs.v) x = float_of(bits_of(x) << 16);
    return pairs;
}
inline F high_half(F pairs) {
    for (float& x : pairs.v) x = float_of(bits_of(x) & 0xffff0000u);
    return pairs;
}

#endif

// Asks for a line of each of F::W rows that are read soon. Past the end of the weights it does nothing.
__attribute__((always_inline)) inline void prefetch_rows(const char* from, int64_t stride) {
#pragma GCC unroll 16
    for (int i = 0; i < F::W; ++i) __builtin_prefetch(from + i * stride, 0, 2);
}

// kStep k's of the F::W rows that begin at from + row * stride bytes: use(j, k = j of every row, widened).
template <class T> struct Columns;

template <> struct Columns<f32_t> {
    static constexpr int kStep = kWords;
    template <class Use> static void each(const char* from, int64_t stride, Use use) {
        F t[kWords];
        load_transposed(from, stride, t);
#pragma GCC unroll 16
        for (int j = 0; j < kWords; ++j) use(j, t[j]);
    }
};

template <> struct Columns<bf16_t> {
    static constexpr int kStep = 2 * kWords;  // two values in each word
    template <class Use> static void each(const char* from, int64_t stride, Use use) {
        F t[kWords];
        load_transposed(from, stride, t);
#pragma GCC unroll 16
        for (int j = 0; j < kWords; ++j) {
            use(2 * j, low_half(t[j]));
            use(2 * j + 1, high_half(t[j]));
        }
    }
};

template <> struct Columns<f16_t> {
    static constexpr int kStep = F::W;
    template <class Use> static void each(const char* from, int64_t stride, Use use) {
        alignas(64) float wide[F::W * F::W];
#pragma GCC unroll 16
        for (int i = 0; i < F::W; ++i)
            F::loadu_f16(reinterpret_cast<const uint16_t*>(from + i * stride)).store(wide + i * F::W);
#pragma GCC unroll 4
        for (int part = 0; part < F::W; part += kWords)
            Columns<f32_t>::each(reinterpret_cast<const char*>(wide + part), 4 * F::W,
                                 [&](int j, F column) { use(part + j, column); });
    }
};

}  // namespace ld::linear
