// The register tile: MT rows times NV vectors of columns, k ascending, one fused multiply-add per product.
#pragma once

#include <cstdint>

#include "simd.h"

namespace ld::linear {

constexpr int kRows = 6;  // rows of a full tile
#if defined(LD_ISA_AVX512) || defined(LD_ISA_NEON)
constexpr int kVectors = 4;  // 24 accumulators of 32 registers
#else
constexpr int kVectors = 2;  // 12 accumulators of 16 registers
#endif
constexpr int kWide = 4;  // vectors of a tile of at most two rows: enough chains to hide the latency

// c[MT][NV * W] = (first ? +0 : c) + sum over k of a[m * a_row + k * a_k] * b[k][NV * W].
template <int MT, int NV>
inline void tile(int64_t n_k, const float* a, int64_t a_row, int64_t a_k, const float* b, float* c, bool first) {
    constexpr int width = NV * F::W;
    F acc[MT][NV];
#pragma GCC unroll 8
    for (int m = 0; m < MT; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) acc[m][v] = first ? F::zero() : F::load(c + m * width + v * F::W);
    for (int64_t k = 0; k < n_k; ++k) {
        F col[NV];
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) col[v] = F::load(b + k * width + v * F::W);
#pragma GCC unroll 8
        for (int m = 0; m < MT; ++m) {
            const F row = F::set1(a[m * a_row + k * a_k]);
#pragma GCC unroll 8
            for (int v = 0; v < NV; ++v) acc[m][v] = fma(row, col[v], acc[m][v]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < MT; ++m)
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) acc[m][v].store(c + m * width + v * F::W);
}

template <int NV>
inline void tile_rows(int rows, int64_t n_k, const float* a, int64_t a_row, int64_t a_k, const float* b, float* c,
                      bool first) {
    switch (rows) {
        case 1: return tile<1, NV>(n_k, a, a_row, a_k, b, c, first);
        case 2: return tile<2, NV>(n_k, a, a_row, a_k, b, c, first);
        case 3: return tile<3, NV>(n_k, a, a_row, a_k, b, c, first);
        case 4: return tile<4, NV>(n_k, a, a_row, a_k, b, c, first);
        case 5: return tile<5, NV>(n_k, a, a_row, a_k, b, c, first);
        default: return tile<6, NV>(n_k, a, a_row, a_k, b, c, first);
    }
}

}  // namespace ld::linear
