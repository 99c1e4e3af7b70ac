// Few rows against weights whose k's are adjacent: every weight is read once, transposed and widened in registers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear_pack.h"

namespace ld::linear {

constexpr int kStreamRows = 4;  // rows up to which accumulators and transposed weights share the registers

// Vectors of columns a stream works on at once: enough independent chains for the latency of fma.
constexpr int stream_vectors(int rows) { return rows <= 2 ? 2 : 1; }

// As `tile` for a multiple of Columns<T>::kStep k's, NV vectors wide; row n of the weights begins at b + n * stride bytes.
template <class T, int MT, int NV>
inline void stream(int64_t depth, const float* a, int64_t a_row, const char* b, int64_t stride, float* c, int c_row) {
    using C = Columns<T>;
    constexpr int64_t size = sizeof(typename T::type);
    F acc[NV][MT];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v)
#pragma GCC unroll 8
        for (int m = 0; m < MT; ++m) acc[v][m] = F::zero();
    const auto step = [&](int v, int64_t k) __attribute__((always_inline)) {
        if (k * size % 64 == 0) prefetch_rows(b + (v + NV) * F::W * stride + k * size, stride);
        C::each(b + v * F::W * stride + k * size, stride, [&](int j, F column) {
#pragma GCC unroll 8
            for (int m = 0; m < MT; ++m) acc[v][m] = fma(F::set1(a[m * a_row + k + j]), column, acc[v][m]);
        });
    };
    int64_t k = 0;
    if (NV > 1 && stride % 1024 == 0) {
        // Such rows share few places of the first-level cache: a line is used up before the next vector's are read.
        constexpr int64_t line = std::max<int64_t>(64 / size, C::kStep);
        for (; k + line <= depth; k += line)
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v)
#pragma GCC unroll 16
                for (int64_t i = 0; i < line; i += C::kStep) step(v, k + i);
    }
    for (; k < depth; k += C::kStep)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) step(v, k);
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v)
#pragma GCC unroll 8
        for (int m = 0; m < MT; ++m) acc[v][m].store(c + m * c_row + v * F::W);
}

// A panel of at least F::W columns; the last group may overlap the one before, and gives the same sums again.
template <class T, int MT>
inline void stream_panel(const Operand& b, int64_t n0, int columns, int64_t k0, int64_t depth, const float* a,
                         int64_t a_row, float* c, int c_row) {
    constexpr int NV = stream_vectors(MT);
    const int64_t stride = b.s_out * int64_t(sizeof(typename T::type));
    const auto from = [&](int n) { return reinterpret_cast<const char*>(at<T>(b, n0 + n, k0)); };
    int n = 0;
    for (; n + NV * F::W <= columns; n += NV * F::W)
        stream<T, MT, NV>(depth, a, a_row, from(n), stride, c + n, c_row);
    for (; n < columns; n += F::W) {
        const int start = std::min(n, columns - F::W);
        stream<T, MT, 1>(depth, a, a_row, from(start), stride, c + start, c_row);
    }
}

// As many of the `length` k's as the kernels take, for 1 to kStreamRows rows; returns how many.
template <int Width>
inline int64_t stream_rows(const Operand& b, int64_t n0, int columns, int64_t k0, int64_t length, const float* a,
                           int64_t a_row, int rows, float* c) {
    int64_t depth = 0;
    dispatch(b.dtype, [&](auto tag) {
        using T = decltype(tag);
        depth = length / Columns<T>::kStep * Columns<T>::kStep;
        if (columns < F::W) depth = 0;
        if (depth == 0) return int(kOk);
        a += k0;
        switch (rows) {
            case 1: stream_panel<T, 1>(b, n0, columns, k0, depth, a, a_row, c, Width); break;
            case 2: stream_panel<T, 2>(b, n0, columns, k0, depth, a, a_row, c, Width); break;
            case 3: stream_panel<T, 3>(b, n0, columns, k0, depth, a, a_row, c, Width); break;
            default: stream_panel<T, 4>(b, n0, columns, k0, depth, a, a_row, c, Width); break;
        }
        return int(kOk);
    });
    return depth;
}

}  // namespace ld::linear
