// VDPBF16PS with the contract's bits: two products of bf16 per instruction, where no value can be flushed.
//
// The instruction is two fused steps, the odd element of a pair first, and it treats subnormals as zero. With the
// elements of each pair swapped it is therefore ascending fma, if no operand is subnormal and no sum can be: every
// product is a multiple of 2^(ea + eb - 14) for the smallest exponents ea, eb of the nonzero operands, and so is every
// rounded sum of them; from ea + eb >= -112 on, a nonzero one is at least 2^-126. Order and flushing are probed when
// the library is loaded (ld_bf16_dot_probe).
#pragma once

#if defined(LD_HAS_BF16DOT)

#include <algorithm>
#include <cstdint>

#include "linear_pack.h"

namespace ld::linear {

// acc + high(a) * high(b), rounded, then + low(a) * low(b), rounded, in every lane.
inline __m512 dot_step(__m512 acc, __m512i a, __m512i b) {
#ifdef LD_SIMDE
    const auto flushed = [](float x) { return std::fabs(x) < 0x1p-126f ? copysign(0.0f, x) : x; };
    float sum[16];
    uint32_t x[16], y[16];
    std::memcpy(sum, &acc, sizeof sum);
    std::memcpy(x, &a, sizeof x);
    std::memcpy(y, &b, sizeof y);
    for (int i = 0; i < 16; ++i) {
        const auto part = [&](uint32_t word, int half) { return flushed(float_of(half ? word & 0xffff0000u : word << 16)); };
        for (int half = 1; half >= 0; --half)
            sum[i] = flushed(fma(part(x[i], half), part(y[i], half), flushed(sum[i])));
    }
    std::memcpy(&acc, sum, sizeof sum);
    return acc;
#else
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
#endif
}

inline uint32_t pair_of(uint16_t first, uint16_t second) { return uint32_t(first) << 16 | second; }

// As `tile` on pairs of k's: a [MT][pairs], b [pairs][NV * 16].
template <int MT, int NV>
inline void dot_tile(int64_t pairs, const uint32_t* a, int64_t a_row, const uint32_t* b, float* c, bool first) {
    constexpr int width = NV * 16;
    __m512 acc[MT][NV];
#pragma GCC unroll 8
    for (int m = 0; m < MT; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) acc[m][v] = first ? F::zero().v : F::load(c + m * width + v * 16).v;
    for (int64_t k = 0; k < pairs; ++k) {
        __m512i column[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) column[v] = _mm512_loadu_si512(b + k * width + v * 16);
#pragma GCC unroll 8
        for (int m = 0; m < MT; ++m) {
            const __m512i row = _mm512_set1_epi32(int(a[m * a_row + k]));
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) acc[m][v] = dot_step(acc[m][v], row, column[v]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < MT; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) F{acc[m][v]}.store(c + m * width + v * 16);
}

template <int NV>
inline void dot_rows(int rows, int64_t pairs, const uint32_t* a, int64_t a_row, const uint32_t* b, float* c,
                     bool first) {
    switch (rows) {
        case 1: return dot_tile<1, NV>(pairs, a, a_row, b, c, first);
        case 2: return dot_tile<2, NV>(pairs, a, a_row, b, c, first);
        case 3: return dot_tile<3, NV>(pairs, a, a_row, b, c, first);
        case 4: return dot_tile<4, NV>(pairs, a, a_row, b, c, first);
        case 5: return dot_tile<5, NV>(pairs, a, a_row, b, c, first);
        default: return dot_tile<6, NV>(pairs, a, a_row, b, c, first);
    }
}

// Smallest exponent field of the nonzero values; 0 if one of them is subnormal, 255 or more if there is none.
inline int lowest_exponent(const uint32_t* words, int64_t count) {
    uint16_t low = 0xffff;
    const uint16_t* values = reinterpret_cast<const uint16_t*>(words);
    for (int64_t i = 0; i < 2 * count; ++i) low = std::min(low, uint16_t((values[i] & 0x7fff) - 1));
    return (int(low) + 1) >> 7;
}

inline bool dot_is_exact(int a_lowest, int b_lowest) {
    return a_lowest > 0 && b_lowest > 0 && a_lowest + b_lowest >= 2 * 127 - 112;
}

// to[rows][pairs]: pairs of k's of the rows m0, m0 + 1, ...
inline void read_row_pairs(const Operand& x, int64_t m0, int64_t rows, int64_t pairs, uint32_t* to) {
    for (int64_t m = 0; m < rows; ++m) {
        const uint16_t* from = at<bf16_t>(x, m0 + m, 0);
        uint32_t* row = to + m * pairs;
        if (x.s_k == 1)
            for (int64_t k = 0; k < pairs; ++k) row[k] = pair_of(from[2 * k], from[2 * k + 1]);
        else
            for (int64_t k = 0; k < pairs; ++k) row[k] = pair_of(from[2 * k * x.s_k], from[(2 * k + 1) * x.s_k]);
    }
}

// to[pairs][Width]: pairs of k's from k0 on of columns n0, n0 + 1, ...; the other columns are zero.
template <int Width>
inline void read_column_pairs(const Operand& x, int64_t n0, int columns, int64_t k0, int64_t pairs, uint32_t* to) {
    if (columns < Width) std::fill(to, to + pairs * Width, 0u);
    if (x.s_out == 1) {
        for (int64_t k = 0; k < pairs; ++k) {
            const uint16_t *first = at<bf16_t>(x, n0, k0 + 2 * k), *second = first + x.s_k;
            for (int n = 0; n < columns; ++n) to[k * Width + n] = pair_of(first[n], second[n]);
        }
        return;
    }
    const int64_t quick = x.s_k == 1 && columns >= 16 ? pairs / 16 * 16 : 0;
    for (int v = 0; quick > 0 && v < columns; v += 16) {
        const int n = std::min(v, columns - 16);  // the last vector may overlap the one before: same values
        const uint16_t* from = at<bf16_t>(x, n0 + n, k0);
        for (int64_t k = 0; k < quick; k += 16) {
            F t[16];
            load_transposed(reinterpret_cast<const char*>(from + 2 * k), 2 * x.s_out, t);
#pragma GCC unroll 16
            for (int j = 0; j < 16; ++j) {
                const __m512i word = _mm512_castps_si512(t[j].v);
                const __m512i swapped = _mm512_or_si512(_mm512_slli_epi32(word, 16), _mm512_srli_epi32(word, 16));
                F{_mm512_castsi512_ps(swapped)}.store(reinterpret_cast<float*>(to + (k + j) * Width + n));
            }
        }
    }
    for (int n = 0; n < columns; ++n) {
        const uint16_t* from = at<bf16_t>(x, n0 + n, k0);
        for (int64_t k = quick; k < pairs; ++k)
            to[k * Width + n] = pair_of(from[2 * k * x.s_k], from[(2 * k + 1) * x.s_k]);
    }
}

}  // namespace ld::linear

#endif
