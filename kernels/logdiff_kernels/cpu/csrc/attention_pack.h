// Rows of storage into the layouts that the tiles read: keys across lanes, or rows widened and padded.
#pragma once

#include <cstdint>

#include "attention_tile.h"

namespace ld::attn {

#if defined(LD_ISA_AVX2) || (defined(LD_ISA_AVX512) && !defined(LD_SIMDE))
#define LD_ATTENTION_TRANSPOSE 1

inline void transpose8(__m256 r[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 4; ++i) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

// out[d * kPanel + i] = row[i][d] for 8 rows and d in [0, n); n is what this leaves undone at the end of dim.
template <class T> inline int64_t transpose_rows8(const Stored<T>* const* row, int64_t dim, float* out) {
    int64_t d = 0;
    for (; d + 8 <= dim; d += 8) {
        __m256 r[8];
        for (int i = 0; i < 8; ++i) {
            if constexpr (std::is_same_v<T, f32_t>)
                r[i] = _mm256_loadu_ps(row[i] + d);
            else
                r[i] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row[i] + d)));
        }
        transpose8(r);
        for (int i = 0; i < 8; ++i) _mm256_storeu_ps(out + (d + i) * kPanel, r[i]);
    }
    return d;
}

// bf16 moves in pairs: half the shuffles.
template <> inline int64_t transpose_rows8<bf16_t>(const uint16_t* const* row, int64_t dim, float* out) {
    const __m256i high = _mm256_set1_epi32(int(0xffff0000u));
    int64_t d = 0;
    for (; d + 16 <= dim; d += 16) {
        __m256 r[8];
        for (int i = 0; i < 8; ++i)
            r[i] = _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row[i] + d)));
        transpose8(r);
        for (int i = 0; i < 8; ++i) {
            const __m256i pair = _mm256_castps_si256(r[i]);
            _mm256_storeu_ps(out + (d + 2 * i) * kPanel, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)));
            _mm256_storeu_ps(out + (d + 2 * i + 1) * kPanel, _mm256_castsi256_ps(_mm256_and_si256(pair, high)));
        }
    }
    return d;
}
#endif

template <class T> inline void prefetch_row(const Stored<T>* row, int64_t dim) {
    for (int64_t d = 0; d < dim; d += 64 / int64_t(sizeof(*row))) __builtin_prefetch(row + d);
}

// One panel: out[d * kPanel + i] = row[i][d] for the kPanel rows.
template <class T> inline void pack_panel(const Stored<T>* const* row, int64_t dim, float* out) {
    int64_t done = 0;
#ifdef LD_ATTENTION_TRANSPOSE
    for (int i = 0; i < kPanel; i += 8) done = transpose_rows8<T>(row + i, dim, out + i);
#endif
    for (int i = 0; i < kPanel; ++i)
        for (int64_t d = done; d < dim; ++d) out[d * kPanel + i] = load_scalar<T>(row[i] + d);
}

// rows x dim widened, rows `stride` floats apart, the columns past dim +0.
template <class T>
inline void widen_row(const Stored<T>* row, int64_t dim, int64_t stride, float* out) {
    int64_t d = 0;
    for (; d + F::W <= dim; d += F::W) load_as_f32<T>(row + d).store(out + d);
    for (; d < dim; ++d) out[d] = load_scalar<T>(row + d);
    for (; d < stride; ++d) out[d] = 0.0f;
}

}  // namespace ld::attn
