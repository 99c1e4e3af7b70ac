// Gated activations: swiglu, geglu_tanh, swiglu_clamped, and their backward (numeric contract).
#include "exp_chains.h"
#include "packed.h"
#include "parallel.h"
#include "rows.h"

namespace {

using namespace ld;

template <class T> using Stored = typename T::type;

enum Kind : int32_t { kSwiglu = 0, kGegluTanh = 1, kSwigluClamped = 2 };

F one() { return F::set1(1.0f); }

constexpr float kGelu = 0.79788456f, kCubic = 0.044715f;

// forward: result(g, u, exp1(argument(g))).
struct Swiglu {
    F argument(F g) const { return neg(g); }
    F result(F g, F u, F e) const { return g / (one() + e) * u; }
    void backward(F dy, F g, F u, F& dg, F& du) const {
        const F s = sigmoid1(g);
        dg = (dy * u) * (s * (one() + g * (one() - s)));
        du = dy * (g * s);
    }
};

struct GegluTanh {
    F argument(F g) const { return F::set1(-2.0f * kGelu) * (g + F::set1(kCubic) * g * g * g); }
    F result(F g, F u, F e) const { return g / (one() + e) * u; }
    void backward(F dy, F g, F u, F& dg, F& du) const {
        const F s = one() / (one() + exp1(argument(g)));
        const F flank = s * (one() - s);  // 0 where the curve is straight: nothing may overflow there
        const F slope = F::set1(2.0f * kGelu) * (one() + F::set1(3.0f * kCubic) * g * g);
        const F bend = select(eq(flank, F::zero()), F::zero(), (g * flank) * slope);
        dg = (dy * u) * (s + bend);
        du = dy * (g * s);
    }
};

struct SwigluClamped {
    F alpha, limit;
    // min and max keep a NaN of their second argument
    F gate(F g) const { return min(limit, g); }
    F up(F u) const { return max(neg(limit), min(limit, u)); }
    F argument(F g) const { return neg(alpha * gate(g)); }
    F result(F g, F u, F e) const { return (up(u) + one()) * (gate(g) / (one() + e)); }
    void backward(F dy, F g, F u, F& dg, F& du) const {
        const F gc = gate(g), s = sigmoid1(alpha * gc);
        const F flank = s * (one() - s);  // 0 far out, where alpha * g may be infinite
        const F slope = s + select(eq(flank, F::zero()), F::zero(), (alpha * gc) * flank);
        dg = select(gt(g, limit), F::zero(), (dy * (up(u) + one())) * slope);
        du = select(gt(abs(u), limit), F::zero(), dy * (gc * s));
    }
};

template <class Fn> int with_kind(int32_t kind, float alpha, float limit, Fn fn) {
    switch (kind) {
        case kSwiglu: return fn(Swiglu{});
        case kGegluTanh: return fn(GegluTanh{});
        case kSwigluClamped: return fn(SwigluClamped{F::set1(alpha), F::set1(limit)});
        default: return kBadArgument;
    }
}

// Elements i .. i + m - 1 that lie `step` apart.
template <class T> F load_stepped(const Stored<T>* p, int64_t i, int m, int64_t step) {
    if (step == 1) return load_upto<T>(p + i, m);
    Stored<T> lanes[F::W] = {};
    for (int j = 0; j < m; ++j) lanes[j] = p[(i + j) * step];
    return load_as_f32<T>(lanes);
}

template <class T, class Unit>
void forward_row(const Unit& unit, const Stored<T>* gate, const Stored<T>* up, Stored<T>* y, int64_t n, int64_t step) {
    constexpr int N = 4;
    int64_t i = 0;
    if (step == 1)
        for (; i + N * F::W <= n; i += N * F::W) {
            F g[N], e[N];
            for (int j = 0; j < N; ++j) e[j] = unit.argument(g[j] = load_as_f32<T>(gate + i + j * F::W));
            exp1_chains<true>(e);
            for (int j = 0; j < N; ++j) e[j] = unit.result(g[j], load_as_f32<T>(up + i + j * F::W), e[j]);
            for (int j = 0; j < N; ++j) store_from_f32<T>(y + i + j * F::W, e[j]);
        }
    for (; i < n; i += F::W) {
        const int m = int(std::min<int64_t>(F::W, n - i));
        const F g = load_stepped<T>(gate, i, m, step), u = load_stepped<T>(up, i, m, step);
        store_upto<T>(y + i, unit.result(g, u, exp1(unit.argument(g))), m);
    }
}

}  // namespace

// y [d0*d1, n] contiguous; gate and up share the leading dimensions and the step between elements.
LD_API int ld_glu(const void* gate, const void* up, void* y, int64_t d0, int64_t d1, int64_t n, int64_t gs0,
                  int64_t gs1, int64_t us0, int64_t us1, int64_t step, int32_t dtype, int32_t kind, float alpha,
                  float limit) {
    return guard([&] {
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            return with_kind(kind, alpha, limit, [&](auto unit) {
                const Rows grows{d1, gs0, gs1}, urows{d1, us0, us1};
                parallel_for(d0 * d1, row_grain(n), [&](int64_t begin, int64_t end) {
                    for (int64_t r = begin; r < end; ++r) {
                        forward_row<T>(unit, static_cast<const Stored<T>*>(gate) + grows.at(r),
                                       static_cast<const Stored<T>*>(up) + urows.at(r),
                                       static_cast<Stored<T>*>(y) + r * n, n, step);
                    }
                });
                return int(kOk);
            });
        });
    });
}

// dy, gate, up, dgate and dup are contiguous [n].
LD_API int ld_glu_backward(const void* dy, const void* gate, const void* up, void* dgate, void* dup, int64_t n,
                           int32_t dtype, int32_t kind, float alpha, float limit) {
    return guard([&] {
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            return with_kind(kind, alpha, limit, [&](auto unit) {
                const int64_t vectors = (n + F::W - 1) / F::W;
                parallel_for(vectors, 512, [&](int64_t begin, int64_t end) {
                    for (int64_t v = begin; v < end; ++v) {
                        const int64_t i = v * F::W;
                        const int m = int(std::min<int64_t>(F::W, n - i));
                        F dg, du;
                        unit.backward(load_upto<T>(static_cast<const Stored<T>*>(dy) + i, m),
                                      load_upto<T>(static_cast<const Stored<T>*>(gate) + i, m),
                                      load_upto<T>(static_cast<const Stored<T>*>(up) + i, m), dg, du);
                        store_upto<T>(static_cast<Stored<T>*>(dgate) + i, dg, m);
                        store_upto<T>(static_cast<Stored<T>*>(dup) + i, du, m);
                    }
                });
                return int(kOk);
            });
        });
    });
}

LD_PACKED(ld_glu)
LD_PACKED(ld_glu_backward)
