// Register tiles of attention: scores (lanes are keys) and weighted sums (lanes are value dimensions).
//
// Every output is one fp32 accumulator, fused multiply-add, the summed index ascending from +0; tiles only choose
// which outputs are computed together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attention.h"
#include "simd.h"

namespace ld::attn {

constexpr int kRows = 6;  // query rows of a full tile
#if defined(LD_ISA_AVX512) || defined(LD_ISA_NEON)
constexpr int kVectors = 4;
#else
constexpr int kVectors = 2;
#endif
constexpr int kPanel = kVectors * F::W;  // keys of a packed panel

// s[r * s_row + key] = sum over d of q[d * R + r] * k[d][key], for NP panels that lie `panel` floats apart.
template <int R, int NP>
inline void score_block(const float* q, const float* k, int64_t panel, int64_t dim, float* s, int64_t s_row) {
    F acc[R][NP * kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < NP * kVectors; ++c) acc[r][c] = F::zero();
    for (int64_t d = 0; d < dim; ++d) {
        F key[NP * kVectors];
#pragma GCC unroll 16
        for (int c = 0; c < NP * kVectors; ++c)
            key[c] = F::load(k + c / kVectors * panel + d * kPanel + c % kVectors * F::W);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const F row = F::set1(q[d * R + r]);
#pragma GCC unroll 16
            for (int c = 0; c < NP * kVectors; ++c) acc[r][c] = fma(row, key[c], acc[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
        for (int c = 0; c < NP * kVectors; ++c) acc[r][c].store(s + r * s_row + c * F::W);
}

template <int R>
inline void scores_of(const float* q, const float* k, int64_t panels, int64_t dim, float* s, int64_t s_row) {
    constexpr int group = R == 1 ? 8 / kVectors : (R <= 3 && kVectors == 2) ? 2 : 1;
    const int64_t panel = dim * kPanel;
    int64_t p = 0;
    for (; p + group <= panels; p += group)
        score_block<R, group>(q, k + p * panel, panel, dim, s + p * kPanel, s_row);
    for (; p < panels; ++p) score_block<R, 1>(q, k + p * panel, panel, dim, s + p * kPanel, s_row);
}

// Scores of `rows` <= kRows query rows (q packed [dim][rows]) with `panels` packed panels of keys.
inline void scores(int rows, const float* q, const float* k, int64_t panels, int64_t dim, float* s, int64_t s_row) {
    switch (rows) {
        case 1: return scores_of<1>(q, k, panels, dim, s, s_row);
        case 2: return scores_of<2>(q, k, panels, dim, s, s_row);
        case 3: return scores_of<3>(q, k, panels, dim, s, s_row);
        case 4: return scores_of<4>(q, k, panels, dim, s, s_row);
        case 5: return scores_of<5>(q, k, panels, dim, s, s_row);
        default: return scores_of<6>(q, k, panels, dim, s, s_row);
    }
}

// Weights w(r, j) = w[r * row + j * step] of a weighted sum.
struct Weights {
    const float* w;
    int64_t row, step;
};

// out[r * out_row + c] (+)= sum over j in [begin, end) of w(r, j) * value[j][c], NV vectors of columns from `column`.
template <class T, int R, int NV>
inline void sum_block(const Weights& w, const Stored<T>* const* value, int64_t begin, int64_t end, int64_t column,
                      float* out, int64_t out_row, bool first) {
    F acc[R][NV];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < NV; ++c) acc[r][c] = first ? F::zero() : F::load(out + r * out_row + column + c * F::W);
    for (int64_t j = begin; j < end; ++j) {
        const Stored<T>* source = value[j] + column;
        F lane[NV];
#pragma GCC unroll 8
        for (int c = 0; c < NV; ++c) lane[c] = load_as_f32<T>(source + c * F::W);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const F row = F::set1(w.w[r * w.row + j * w.step]);
#pragma GCC unroll 8
            for (int c = 0; c < NV; ++c) acc[r][c] = fma(row, lane[c], acc[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int c = 0; c < NV; ++c) acc[r][c].store(out + r * out_row + column + c * F::W);
}

template <class T, int R>
inline void sums_of(const Weights& w, const Stored<T>* const* value, int64_t begin, int64_t end, int64_t columns,
                    float* out, int64_t out_row, bool first) {
    constexpr int wide = R == 1 ? 8 : R <= 3 ? 4 : kVectors;
    int64_t c = 0;
    for (; c + wide * F::W <= columns; c += wide * F::W)
        sum_block<T, R, wide>(w, value, begin, end, c, out, out_row, first);
    for (; c + 2 * F::W <= columns; c += 2 * F::W) sum_block<T, R, 2>(w, value, begin, end, c, out, out_row, first);
    for (; c < columns; c += F::W) sum_block<T, R, 1>(w, value, begin, end, c, out, out_row, first);
}

// Weighted sums of `rows` <= kRows rows over the values [begin, end); `columns` is a multiple of F::W.
// With `first` they start from +0, else from what `out` holds.
template <class T>
inline void sums(int rows, const Weights& w, const Stored<T>* const* value, int64_t begin, int64_t end,
                 int64_t columns, float* out, int64_t out_row, bool first) {
    switch (rows) {
        case 1: return sums_of<T, 1>(w, value, begin, end, columns, out, out_row, first);
        case 2: return sums_of<T, 2>(w, value, begin, end, columns, out, out_row, first);
        case 3: return sums_of<T, 3>(w, value, begin, end, columns, out, out_row, first);
        case 4: return sums_of<T, 4>(w, value, begin, end, columns, out, out_row, first);
        case 5: return sums_of<T, 5>(w, value, begin, end, columns, out, out_row, first);
        default: return sums_of<T, 6>(w, value, begin, end, columns, out, out_row, first);
    }
}

// The same where row r sums over its own range [begin[r], end[r]): values outside it are not read for that row.
template <class T>
inline void ragged_sums(int rows, const Weights& w, const Stored<T>* const* value, const int64_t* begin,
                        const int64_t* end, int64_t columns, float* out, int64_t out_row, bool first) {
    const int64_t common_begin = *std::max_element(begin, begin + rows);
    const int64_t common_end = *std::min_element(end, end + rows);
    if (common_begin >= common_end) {
        for (int r = 0; r < rows; ++r)
            sums<T>(1, {w.w + r * w.row, w.row, w.step}, value, begin[r], end[r], columns, out + r * out_row,
                    out_row, first);
        return;
    }
    bool head = false;
    for (int r = 0; r < rows; ++r) head = head || begin[r] < common_begin;
    if (head)
        for (int r = 0; r < rows; ++r)
            sums<T>(1, {w.w + r * w.row, w.row, w.step}, value, begin[r], common_begin, columns, out + r * out_row,
                    out_row, first);
    sums<T>(rows, w, value, common_begin, common_end, columns, out, out_row, first && !head);
    for (int r = 0; r < rows; ++r)
        if (common_end < end[r])
            sums<T>(1, {w.w + r * w.row, w.row, w.step}, value, common_end, end[r], columns, out + r * out_row,
                    out_row, false);
}

}  // namespace ld::attn
