// exp1, ln1 and what the contract makes of them: plain Mul and Add in fp32, vectors and scalars from one template.
#pragma once

#include "simd.h"

namespace ld {

template <class V> struct Const;
template <> struct Const<float> {
    static float of(float x) { return x; }
};
template <> struct Const<F> {
    static F of(float x) { return F::set1(x); }
};

template <class V> inline V exp1_of(V x) {
    const auto c = [](float value) { return Const<V>::of(value); };
    const V low = c(-87.33654f), high = c(88.72283f);
    const V inside = min(max(x, low), high);  // NaN becomes `low` here and is put back below
    const V n = rint(inside * c(1.4426950408889634f));
    const V r = (inside - n * c(0.693359375f)) - n * c(-2.12194440e-4f);
    V q = c(0.000199179703486152f);
    q = q * r + c(0.0013946190010756254f);
    q = q * r + c(0.008333264850080013f);
    q = q * r + c(0.041666269302368164f);
    q = q * r + c(0.1666666716337204f);
    q = q * r + c(0.5f);
    V y = add_exponent(((r * r) * q + r) + c(1.0f), n);
    y = select(gt(x, high), c(__builtin_inff()), y);
    y = select(lt(x, low), c(0.0f), y);
    return select(isnan(x), x + x, y);
}

inline F exp1(F x) { return exp1_of(x); }
inline float exp1(float x) { return exp1_of(x); }

// x = m 2^k with m in [sqrt(1/2), sqrt(2)), f = m - 1, s = f / (2 + f):
// ln x = k ln2 + f - (f^2/2 - s (f^2/2 + R(s^2))), s R(s^2) + 2 s = ln((1 + s) / (1 - s)),
// R fitted at the four Chebyshev points of that range.
inline float ln1(float x) {
    if (x != x) return x + x;
    if (x == 0.0f) return -__builtin_inff();
    if (x < 0.0f) return __builtin_nanf("");
    if (x == __builtin_inff()) return x;
    float k = 0.0f;
    if (x < 0x1p-126f) {  // subnormal: exact product
        x = x * 0x1p25f;
        k = -25.0f;
    }
    const uint32_t moved = bits_of(x) + (0x3f800000u - 0x3f3504f3u);
    k = k + float(int32_t(moved >> 23) - 127);
    const float m = float_of((moved & 0x007fffffu) + 0x3f3504f3u);
    const float f = m - 1.0f;
    const float s = f / (2.0f + f);
    const float z = s * s;
    float r = 0.2333046794f;
    r = r * z + 0.2855082154f;
    r = r * z + 0.4000012279f;
    r = r * z + 0.6666666865f;
    r = r * z;
    const float half = (f * f) * 0.5f;
    const float rest = s * (half + r) + k * -2.12194440e-4f;
    return (f - (half - rest)) + k * 0.693359375f;
}

template <class V> inline V sigmoid1_of(V x) {
    const V one = Const<V>::of(1.0f);
    return one / (one + exp1_of(neg(x)));
}
inline F sigmoid1(F x) { return sigmoid1_of(x); }
inline float sigmoid1(float x) { return sigmoid1_of(x); }

template <class V> inline V tanh1_of(V x) {
    const V one = Const<V>::of(1.0f);
    const V t = exp1_of(Const<V>::of(-2.0f) * abs(x));
    return copysign((one - t) / (one + t), x);
}
inline F tanh1(F x) { return tanh1_of(x); }
inline float tanh1(float x) { return tanh1_of(x); }

}  // namespace ld
