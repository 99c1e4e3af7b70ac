// One step of the online softmax for one query row: scores to weights, running maximum and sum.
#pragma once

#include "attention.h"
#include "expln.h"
#include "reduce.h"

namespace ld::attn {

constexpr float kNegInf = -__builtin_inff();

// exp1 for x <= 0 or NaN: the same bits with the upper range left out.
inline F exp1_below(F x) {
    const F low = F::set1(-87.33654f);
    const F inside = max(low, x);  // NaN stays
    const F n = rint(inside * F::set1(1.4426950408889634f));
    const F r = (inside - n * F::set1(0.693359375f)) - n * F::set1(-2.12194440e-4f);
    F q = F::set1(0.000199179703486152f);
    q = q * r + F::set1(0.0013946190010756254f);
    q = q * r + F::set1(0.008333264850080013f);
    q = q * r + F::set1(0.041666269302368164f);
    q = q * r + F::set1(0.1666666716337204f);
    q = q * r + F::set1(0.5f);
    const F y = add_exponent(((r * r) * q + r) + F::set1(1.0f), n);
    return select(lt(x, low), F::zero(), y);
}

// Lanes of the vector that starts at `at` and lie in [begin, end) keep x; the others become `other`.
inline F keep_inside(F x, int64_t at, int64_t begin, int64_t end, F other) {
    const int64_t below = std::clamp<int64_t>(begin - at, 0, F::W), upto = std::clamp<int64_t>(end - at, 0, F::W);
    return select(first(int(below)), other, select(first(int(upto)), x, other));
}

inline float largest(F x) {
    float lane[F::W];
    x.store(lane);
    float m = lane[0];
    for (int i = 1; i < F::W; ++i) m = max(lane[i], m);
    return m;
}

// Scaled and capped scores of keys [begin, end) of a step, others -inf; returns the largest.
// Only whole vectors that hold such a key are touched.
inline float finish_scores(const ld_attention_args& a, float* s, int64_t begin, int64_t end) {
    const F scale = F::set1(a.scale), negative = F::set1(kNegInf), cap = F::set1(a.softcap);
    const int64_t last = (end + F::W - 1) / F::W * F::W;
    F m = negative;
    for (int64_t i = begin / F::W * F::W; i < last; i += F::W) {
        F x = F::load(s + i) * scale;
        if (a.softcap > 0.0f) x = cap * tanh1(x / cap);
        if (i < begin || i + F::W > end) x = keep_inside(x, i, begin, end, negative);
        x.store(s + i);
        m = max(m, x);
    }
    return largest(m);
}

struct RowState {
    float m = kNegInf, l = 0.0f;
};

// s[begin, end) become weights RINT(p); updates m and l; returns the factor c of what was summed before.
template <class T>
inline float softmax_step(const ld_attention_args& a, float* s, int64_t begin, int64_t end, RowState& state) {
    constexpr int per_chunk = 64 / F::W;
    const float m = max(state.m, finish_scores(a, s, begin, end));
    const float u = m == kNegInf ? 0.0f : m;
    const F shift = F::set1(u);
    // p >= +0 or NaN, so that lanes without a visible key, which are +0, may be left out of the sum.
    F lane[per_chunk];
    for (int j = 0; j < per_chunk; ++j) lane[j] = F::zero();
    const int64_t vector_begin = begin / F::W, vector_end = (end + F::W - 1) / F::W;
    const auto weigh = [&](int64_t v, int j) {
        const F p = exp1_below(F::load(s + v * F::W) - shift);
        lane[j] = lane[j] + p;
        round_to<T>(p).store(s + v * F::W);
    };
    int64_t v = vector_begin;
    for (; v < vector_end && v % per_chunk; ++v) weigh(v, int(v % per_chunk));
    for (; v + per_chunk <= vector_end; v += per_chunk)
#pragma GCC unroll 2
        for (int j = 0; j < per_chunk; ++j) weigh(v + j, j);
    for (int j = 0; v < vector_end; ++v, ++j) weigh(v, j);
    R64 sum;
    sum.add_chunk([&](int j) { return lane[j]; });
    const float c = exp1(state.m - u);
    state.l = state.l * c + sum.finish();
    state.m = m;
    return c;
}

}  // namespace ld::attn
