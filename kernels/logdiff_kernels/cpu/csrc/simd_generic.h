// The vector type written out lane by lane: the definition that the other instruction sets are compared with.
#pragma once

namespace ld {

struct F {
    static constexpr int W = 8;
    float v[W];

    static F load(const float* p) {
        F r;
        std::memcpy(r.v, p, sizeof r.v);
        return r;
    }
    static F loadu_bf16(const uint16_t* p) {
        F r;
        for (int i = 0; i < W; ++i) r.v[i] = bf16_to_f32(p[i]);
        return r;
    }
    static F loadu_f16(const uint16_t* p) {
        F r;
        for (int i = 0; i < W; ++i) r.v[i] = f16_to_f32(p[i]);
        return r;
    }
    static F load_partial(const float* p, int n) {
        F r = zero();
        for (int i = 0; i < n; ++i) r.v[i] = p[i];
        return r;
    }
    static F set1(float x) {
        F r;
        for (int i = 0; i < W; ++i) r.v[i] = x;
        return r;
    }
    static F zero() { return set1(0.0f); }

    void store(float* p) const { std::memcpy(p, v, sizeof v); }
    void store_bf16(uint16_t* p) const {
        for (int i = 0; i < W; ++i) p[i] = f32_to_bf16(v[i]);
    }
    void store_f16(uint16_t* p) const {
        for (int i = 0; i < W; ++i) p[i] = f32_to_f16(v[i]);
    }
    void store_partial(float* p, int n) const {
        for (int i = 0; i < n; ++i) p[i] = v[i];
    }
};

struct M {
    bool b[F::W];
};

#define LD_EACH(expr)                             \
    F r;                                          \
    for (int i = 0; i < F::W; ++i) r.v[i] = expr; \
    return r
#define LD_TEST(expr)                             \
    M r;                                          \
    for (int i = 0; i < F::W; ++i) r.b[i] = expr; \
    return r

inline F operator+(F a, F b) { LD_EACH(a.v[i] + b.v[i]); }
inline F operator-(F a, F b) { LD_EACH(a.v[i] - b.v[i]); }
inline F operator*(F a, F b) { LD_EACH(a.v[i] * b.v[i]); }
inline F operator/(F a, F b) { LD_EACH(a.v[i] / b.v[i]); }
inline F fma(F a, F b, F c) { LD_EACH(fma(a.v[i], b.v[i], c.v[i])); }
inline F max(F a, F b) { LD_EACH(max(a.v[i], b.v[i])); }
inline F min(F a, F b) { LD_EACH(min(a.v[i], b.v[i])); }
inline F sqrt(F a) { LD_EACH(sqrt(a.v[i])); }
inline F abs(F a) { LD_EACH(abs(a.v[i])); }
inline F neg(F a) { LD_EACH(neg(a.v[i])); }
inline F copysign(F a, F s) { LD_EACH(copysign(a.v[i], s.v[i])); }
inline F rint(F a) { LD_EACH(rint(a.v[i])); }
inline F add_exponent(F y, F n) { LD_EACH(add_exponent(y.v[i], n.v[i])); }
inline F round_bf16(F a) { LD_EACH(bf16_to_f32(f32_to_bf16(a.v[i]))); }
inline M lt(F a, F b) { LD_TEST(a.v[i] < b.v[i]); }
inline M le(F a, F b) { LD_TEST(a.v[i] <= b.v[i]); }
inline M gt(F a, F b) { LD_TEST(a.v[i] > b.v[i]); }
inline M ge(F a, F b) { LD_TEST(a.v[i] >= b.v[i]); }
inline M eq(F a, F b) { LD_TEST(a.v[i] == b.v[i]); }
inline M isnan(F a) { LD_TEST(a.v[i] != a.v[i]); }
inline M operator&(M a, M b) { LD_TEST(a.b[i] && b.b[i]); }
inline M operator|(M a, M b) { LD_TEST(a.b[i] || b.b[i]); }
inline M first(int n) { LD_TEST(i < n); }
inline F select(M m, F a, F b) { LD_EACH(m.b[i] ? a.v[i] : b.v[i]); }
inline bool any(M m) {
    bool r = false;
    for (int i = 0; i < F::W; ++i) r = r || m.b[i];
    return r;
}

#undef LD_EACH
#undef LD_TEST

}  // namespace ld
