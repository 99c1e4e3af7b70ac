// Operands widened to fp32 in the layout that the register tile reads, and finished rows written back.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear_transpose.h"
#include "simd.h"

namespace ld::linear {

// One operand seen as [out][k]; strides in elements, of any size.
struct Operand {
    const void* data;
    int32_t dtype;
    int64_t s_out, s_k;
};

template <class T> const typename T::type* at(const Operand& x, int64_t out, int64_t k) {
    return static_cast<const typename T::type*>(x.data) + out * x.s_out + k * x.s_k;
}

// `n` adjacent values.
template <class T> void widen(const typename T::type* from, int64_t n, float* to) {
    int64_t i = 0;
    for (; i + F::W <= n; i += F::W) load_as_f32<T>(from + i).store(to + i);
    for (; i < n; ++i) to[i] = load_scalar<T>(from + i);
}

// to[rows][k]: the first k values of rows m0, m0 + 1, ...
template <class T> void read_rows(const Operand& x, int64_t m0, int64_t rows, int64_t k, float* to) {
    if (x.s_k == 1) {
        for (int64_t m = 0; m < rows; ++m) widen<T>(at<T>(x, m0 + m, 0), k, to + m * k);
        return;
    }
    using C = Columns<T>;  // with the roles of rows and k exchanged
    const bool turned = x.s_out == 1;
    const int64_t quick_k = turned ? k / F::W * F::W : 0, quick_m = turned ? rows / C::kStep * C::kStep : 0;
    for (int64_t m = 0; m < quick_m; m += C::kStep)
        for (int64_t j = 0; j < quick_k; j += F::W)
            C::each(reinterpret_cast<const char*>(at<T>(x, m0 + m, j)), x.s_k * int64_t(sizeof(typename T::type)),
                    [&](int i, F values) { values.store(to + (m + i) * k + j); });
    for (int64_t m = 0; m < rows; ++m) {
        const auto* from = at<T>(x, m0 + m, 0);
        for (int64_t j = m < quick_m ? quick_k : 0; j < k; ++j) to[m * k + j] = load_scalar<T>(from + j * x.s_k);
    }
}

// to[depth][Width]: columns n0 .. n0 + columns; the others are undefined and must not be read. `left` is how many k's
// follow these ones: the next block of them is fetched while this one is used.
template <class T, int Width>
void read_columns(const Operand& x, int64_t n0, int columns, int64_t k0, int64_t depth, int64_t left, float* to) {
    if (x.s_out == 1) {
        for (int64_t j = 0; j < depth; ++j) {
            const auto* from = at<T>(x, n0, k0 + j);
            for (int v = 0; v < Width; v += F::W)
                (columns - v >= F::W  ? load_as_f32<T>(from + v)
                 : columns - v > 0 ? load_partial<T>(from + v, columns - v)
                                   : F::zero())
                    .store(to + j * Width + v);
        }
        return;
    }
    using C = Columns<T>;
    const int64_t quick = x.s_k == 1 && columns >= F::W ? depth / C::kStep * C::kStep : 0;
    const int64_t ahead = std::min(depth, left) * int64_t(sizeof(typename T::type));
    if (quick > 0)
        for (int v = 0; v < columns; v += F::W) {
            const int n = std::min(v, columns - F::W);  // the last vector may overlap the one before: same values
            const auto* from = at<T>(x, n0 + n, k0);
            const int64_t stride = x.s_out * int64_t(sizeof *from);
            for (int64_t k = 0; k < quick; k += C::kStep) {
                const char* at_k = reinterpret_cast<const char*>(from + k);
                if (ahead > 0 && k * int64_t(sizeof *from) % 64 == 0) prefetch_rows(at_k + ahead, stride);
                C::each(at_k, stride, [&](int j, F column) { column.store(to + (k + j) * Width + n); });
            }
        }
    for (int n = 0; n < columns; ++n) {
        const auto* from = at<T>(x, n0 + n, k0);
        for (int64_t j = quick; j < depth; ++j) to[j * Width + n] = load_scalar<T>(from + j * x.s_k);
    }
}

// sum = earlier + sum.
inline void add(const float* earlier, float* sum, int64_t n) {
    int64_t i = 0;
    for (; i + F::W <= n; i += F::W) (F::load(earlier + i) + F::load(sum + i)).store(sum + i);
    for (; i < n; ++i) sum[i] = earlier[i] + sum[i];
}

// One row's finished columns: + bias (null for none), one cast.
template <class T, class B>
void write_row(const float* sum, int columns, const typename B::type* bias, typename T::type* to) {
    for (int n = 0; n < columns; n += F::W) {
        const int count = columns - n;
        F x = F::load(sum + n);
        if (bias) x = x + load_upto<B>(bias + n, count);
        store_upto<T>(to + n, x, count);
    }
}

}  // namespace ld::linear
