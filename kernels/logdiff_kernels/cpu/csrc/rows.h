// Rows of a tensor with two leading dimensions of any stride, and loops over the elements of one row.
#pragma once

#include "simd.h"

namespace ld {

// Row i of [d0, d1, n] starts at at(i); elements of a row are neighbours in memory.
struct Rows {
    int64_t d1, s0, s1;
    int64_t at(int64_t i) const { return d1 == 1 ? i * s0 : (i / d1) * s0 + (i % d1) * s1; }
};

// Rows per task so that one task is worth a thread's start.
inline int64_t row_grain(int64_t n, int64_t elements = 16384) {
    const int64_t rows = elements / (n > 0 ? n : 1);
    return rows > 0 ? rows : 1;
}

// fn(i, m) for the vectors of 0 .. n-1; m is F::W but for the last.
template <class Fn> inline void each_vector(int64_t n, Fn fn) {
    int64_t i = 0;
    for (; i + F::W <= n; i += F::W) fn(i, F::W);
    if (i < n) fn(i, int(n - i));
}

}  // namespace ld
