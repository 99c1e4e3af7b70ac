// One step of the online softmax for one query row: scores to weights, running maximum and sum.
#pragma once

#include <type_traits>

#include "attention.h"
#include "expln.h"
#include "reduce.h"

namespace ld::attn {

#if defined(LD_ISA_AVX2)
#define LD_PIN(vector) asm volatile("" : "+x"((vector).v))
#elif defined(LD_ISA_AVX512) && !defined(LD_SIMDE)
#define LD_PIN(vector) asm volatile("" : "+v"((vector).v))
#else
#define LD_PIN(vector)
#endif

constexpr float kNegInf = -__builtin_inff();

// exp1 of N vectors of values <= 0 or NaN: the same bits with the upper range left out, N chains side by side.
template <int N> inline void exp1_below(F (&x)[N]) {
    const F low = F::set1(-87.33654f);
    F n[N], r[N], q[N];
// A compiler would walk one chain to its end first, and the scheduler of a CPU sees no further than one or two.
#define LD_SIDE_BY_SIDE(expression)       \
    _Pragma("GCC unroll 8") for (int i = 0; i < N; ++i) { \
        expression;                       \
        LD_PIN(q[i]);                     \
    }
    LD_SIDE_BY_SIDE(r[i] = max(low, x[i]); q[i] = r[i] * F::set1(1.4426950408889634f))  // NaN stays
    LD_SIDE_BY_SIDE(n[i] = rint(q[i]); q[i] = n[i] * F::set1(0.693359375f))
    LD_SIDE_BY_SIDE(r[i] = r[i] - q[i]; q[i] = n[i] * F::set1(-2.12194440e-4f))
    LD_SIDE_BY_SIDE(r[i] = r[i] - q[i]; q[i] = F::set1(0.000199179703486152f) * r[i])
    LD_SIDE_BY_SIDE(q[i] = q[i] + F::set1(0.0013946190010756254f))
    LD_SIDE_BY_SIDE(q[i] = q[i] * r[i] + F::set1(0.008333264850080013f))
    LD_SIDE_BY_SIDE(q[i] = q[i] * r[i] + F::set1(0.041666269302368164f))
    LD_SIDE_BY_SIDE(q[i] = q[i] * r[i] + F::set1(0.1666666716337204f))
    LD_SIDE_BY_SIDE(q[i] = q[i] * r[i] + F::set1(0.5f))
    LD_SIDE_BY_SIDE(q[i] = (r[i] * r[i]) * q[i] + r[i])
    LD_SIDE_BY_SIDE(q[i] = add_exponent(q[i] + F::set1(1.0f), n[i]))
    LD_SIDE_BY_SIDE(x[i] = select(lt(x[i], low), F::zero(), q[i]))
#undef LD_SIDE_BY_SIDE
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
    const int64_t first_vector = begin / F::W * F::W, last = (end + F::W - 1) / F::W * F::W;
    F scale = F::set1(a.scale);
    if (a.softcap > 0.0f) {
        const F cap = F::set1(a.softcap);
        for (int64_t i = first_vector; i < last; i += F::W) (cap * tanh1(F::load(s + i) * scale / cap)).store(s + i);
        scale = F::set1(1.0f);
    }
    F m0 = F::set1(kNegInf), m1 = m0;
    const auto edge = [&](int64_t i) {
        const F x = keep_inside(F::load(s + i) * scale, i, begin, end, F::set1(kNegInf));
        x.store(s + i);
        m0 = max(m0, x);
    };
    int64_t i = first_vector;
    if (i < begin || i + F::W > end) {
        edge(i);
        i += F::W;
    }
    for (; i + 2 * F::W <= end; i += 2 * F::W) {
        const F x = F::load(s + i) * scale, y = F::load(s + i + F::W) * scale;
        x.store(s + i);
        y.store(s + i + F::W);
        m0 = max(m0, x);
        m1 = max(m1, y);
    }
    for (; i < last; i += F::W) edge(i);
    return largest(max(m0, m1));
}

struct RowState {
    float m = kNegInf, l = 0.0f;
};

template <int N> inline void shifted_exp(float* s, F shift) {
    F x[N];
    for (int i = 0; i < N; ++i) x[i] = F::load(s + i * F::W) - shift;
    exp1_below(x);
    for (int i = 0; i < N; ++i) x[i].store(s + i * F::W);
}

// s[begin, end) become weights RINT(p); updates m and l; returns the factor c of what was summed before.
template <class T>
inline float softmax_step(const ld_attention_args& a, float* s, int64_t begin, int64_t end, RowState& state) {
    constexpr int per_chunk = 64 / F::W;
    const float m = max(state.m, finish_scores(a, s, begin, end));
    const float u = m == kNegInf ? 0.0f : m;
    const F shift = F::set1(u);
    // p >= +0 or NaN, so that lanes without a visible key, which are +0, may be left out of the sum.
    const int64_t first_vector = begin / F::W * F::W, last = (end + F::W - 1) / F::W * F::W;
    constexpr int side_by_side = 4;
    int64_t i = first_vector;
    for (; i + side_by_side * F::W <= last; i += side_by_side * F::W) shifted_exp<side_by_side>(s + i, shift);
    for (; i < last; i += F::W) shifted_exp<1>(s + i, shift);
    F lane[per_chunk];
    for (int j = 0; j < per_chunk; ++j) lane[j] = F::zero();
    const auto take = [&](int64_t at, int j) {
        const F p = F::load(s + at);
        lane[j] = lane[j] + p;
        round_to<T>(p).store(s + at);
    };
    i = first_vector;
    for (; i < last && i % 64; i += F::W) take(i, int(i % 64) / F::W);
    for (; i + 64 <= last; i += 64)
#pragma GCC unroll 16
        for (int j = 0; j < per_chunk; ++j) take(i + j * F::W, j);
    for (int j = 0; i < last; i += F::W, ++j) take(i, j);
    R64 sum;
    sum.add_chunk([&](int j) { return lane[j]; });
    const float c = exp1(state.m - u);
    state.l = state.l * c + sum.finish();
    state.m = m;
    return c;
}

}  // namespace ld::attn
