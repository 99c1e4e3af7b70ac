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
#include <type_traits>

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

// Every pair with its elements exchanged.
inline __m512i swapped(F pairs) {
    const __m512i words = _mm512_castps_si512(pairs.v);
#ifdef LD_SIMDE
    return _mm512_or_si512(_mm512_slli_epi32(words, 16), _mm512_srli_epi32(words, 16));
#else
    return _mm512_rol_epi32(words, 16);
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
inline int lowest_exponent(const uint16_t* values, int64_t count) {
    uint16_t low = 0xffff;
    for (int64_t i = 0; i < count; ++i) low = std::min(low, uint16_t((values[i] & 0x7fff) - 1));
    return (int(low) + 1) >> 7;
}
inline int lowest_exponent(const uint32_t* pairs, int64_t count) {
    return lowest_exponent(reinterpret_cast<const uint16_t*>(pairs), 2 * count);
}

inline bool dot_is_exact(int a_lowest, int b_lowest) {
    return a_lowest > 0 && b_lowest > 0 && a_lowest + b_lowest >= 2 * 127 - 112;
}

constexpr int kSmall = 64;  // exponent field below which values are looked at one by one

// Whether a stream has met zeros or values below 2^(kSmall - 127), told by the two highest bits of the exponent.
struct Small {
    __mmask32 any = 0;

    __attribute__((always_inline)) void meet(__m512i pairs) {
#ifdef LD_SIMDE
        uint16_t lane[32];
        std::memcpy(lane, &pairs, sizeof lane);
        for (int i = 0; i < 32; ++i) any |= __mmask32((lane[i] & 0x6000) == 0) << i;
#else
        any |= _mm512_testn_epi16_mask(pairs, _mm512_set1_epi16(0x6000));
#endif
    }
};

// c[MT][NV * 16] = the sums over `pairs` pairs of k's (a multiple of kFewWords) of a [pairs][MT] against the NV * 16 rows of
// weights that begin at b + n * stride bytes, transposed in registers: for rows too few to share packed weights.
template <int MT, int NV>
inline void dot_stream(int64_t pairs, const uint32_t* a, const char* b, int64_t stride, float* c, int c_row, Small& small) {
    __m512 acc[NV][MT];
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v)
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) acc[v][m] = F::zero().v;
    Small met = small;
    const auto use = [&](const F* t, int step, const uint32_t* row) __attribute__((always_inline)) {
        __m512i column[NV];
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) met.meet(column[v] = swapped(t[v * step]));
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) {
            const __m512i pair = _mm512_set1_epi32(int(row[m]));
#pragma GCC unroll 2
            for (int v = 0; v < NV; ++v) acc[v][m] = dot_step(acc[v][m], pair, column[v]);
        }
    };
    int64_t k = 0;
    if (NV == 1 && stride % 2048 == 0)  // such rows share few places of the first-level cache: their lines are read whole
        for (; k + kWords <= pairs; k += kWords) {
            F t[kWords];
            prefetch_rows(b + 16 * stride + 4 * k, stride);
            load_transposed(b + 4 * k, stride, t);
#pragma GCC unroll 16
            for (int j = 0; j < kWords; ++j) use(t + j, 0, a + (k + j) * MT);
        }
    for (; k < pairs; k += kFewWords) {
        F t[NV * kFewWords];
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) {
            if (k % 16 == 0) prefetch_rows(b + (NV + v) * 16 * stride + 4 * k, stride);
            load_few_transposed(b + v * 16 * stride + 4 * k, stride, t + v * kFewWords);
        }
#pragma GCC unroll 4
        for (int j = 0; j < kFewWords; ++j) use(t + j, kFewWords, a + (k + j) * MT);
    }
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v)
#pragma GCC unroll 16
        for (int m = 0; m < MT; ++m) F{acc[v][m]}.store(c + m * c_row + v * 16);
    small = met;
}

template <int MT>
inline void dot_stream_panel(const Operand& b, int64_t n0, int columns, int64_t k0, int64_t pairs, const uint32_t* a, float* c,
                             int c_row, Small& small) {
    constexpr int pair = MT <= 8 ? 2 : 1;  // vectors that share the broadcast rows, as far as registers go
    const int64_t stride = 2 * b.s_out;
    const auto from = [&](int n) { return reinterpret_cast<const char*>(at<bf16_t>(b, n0 + n, k0)); };
    int n = 0;
    if (pair > 1 && stride % 2048)
        for (; n + pair * 16 <= columns; n += pair * 16)
            dot_stream<MT, pair>(pairs, a, from(n), stride, c + n, c_row, small);
    for (; n < columns; n += 16) {
        const int start = std::min(n, columns - 16);  // the last vector may overlap the one before: same sums
        dot_stream<MT, 1>(pairs, a, from(start), stride, c + start, c_row, small);
    }
}

constexpr int kDotRows = 16;  // rows up to which accumulators and transposed weights share the registers

// run(integral_constant `height`), 1 <= height <= Most.
template <int Most, class Run> inline void each_height(int height, const Run& run) {
    if constexpr (Most > 1)
        if (height < Most) return each_height<Most - 1>(height, run);
    run(std::integral_constant<int, Most>{});
}

// As many of the `length` k's from k0 on as the instruction takes, for 1 to kDotRows rows, a [pairs][rows]; returns how
// many: 0 where it would not give the sums of fma.
template <int Width>
inline int64_t dot_stream_rows(const Operand& b, int64_t n0, int columns, int64_t k0, int64_t length, const uint32_t* a,
                               int rows, int a_lowest, float* c) {
    const int64_t pairs = columns < 16 ? 0 : length / 2 / kFewWords * kFewWords;
    if (pairs == 0) return 0;
    Small small;
    const auto run = [&](auto height) {
        dot_stream_panel<decltype(height)::value>(b, n0, columns, k0, pairs, a + k0 / 2 * rows, c, Width, small);
    };
    each_height<kDotRows>(rows, run);
    int lowest = kSmall;
    if (small.any || !dot_is_exact(a_lowest, kSmall)) {
        lowest = 255;
        for (int n = 0; n < columns && lowest > 0; ++n)
            lowest = std::min(lowest, lowest_exponent(at<bf16_t>(b, n0 + n, k0), 2 * pairs));
    }
    return dot_is_exact(a_lowest, lowest) ? 2 * pairs : 0;
}

// to[m * row + k * pair]: pair k of the row m0 + m.
inline void read_row_pairs(const Operand& x, int64_t m0, int64_t rows, int64_t pairs, uint32_t* to, int64_t row, int64_t pair) {
    for (int64_t m = 0; m < rows; ++m) {
        const uint16_t* from = at<bf16_t>(x, m0 + m, 0);
        uint32_t* words = to + m * row;
        if (x.s_k == 1 && pair == 1)
            for (int64_t k = 0; k < pairs; ++k) words[k] = pair_of(from[2 * k], from[2 * k + 1]);
        else
            for (int64_t k = 0; k < pairs; ++k) words[k * pair] = pair_of(from[2 * k * x.s_k], from[(2 * k + 1) * x.s_k]);
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
    const int64_t quick = x.s_k == 1 && columns >= 16 ? pairs / kFewWords * kFewWords : 0;
    for (int v = 0; quick > 0 && v < columns; v += 16) {
        const int n = std::min(v, columns - 16);  // the last vector may overlap the one before: same values
        const char* from = reinterpret_cast<const char*>(at<bf16_t>(x, n0 + n, k0));
        for (int64_t k = 0; k < quick; k += kFewWords) {
            F t[kFewWords];
            if (k % 16 == 0) prefetch_rows(from + 32 * x.s_out + 4 * k, 2 * x.s_out);
            load_few_transposed(from + 4 * k, 2 * x.s_out, t);
#pragma GCC unroll 4
            for (int j = 0; j < kFewWords; ++j)
                F{_mm512_castsi512_ps(swapped(t[j]))}.store(reinterpret_cast<float*>(to + (k + j) * Width + n));
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
