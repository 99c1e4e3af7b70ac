// What the library says about itself, the contract's scalar functions over arrays, and the scans and checks of them.
#include "expln.h"
#include "parallel.h"
#include "reduce.h"

namespace {

using namespace ld;

#if defined(LD_HAS_BF16DOT)
constexpr const char* kIsa = "avx512_bf16";
#elif defined(LD_ISA_AVX512)
constexpr const char* kIsa = "avx512";
#elif defined(LD_ISA_AVX2)
constexpr const char* kIsa = "avx2";
#elif defined(LD_ISA_NEON)
constexpr const char* kIsa = "neon";
#else
constexpr const char* kIsa = "generic";
#endif

enum Function : int32_t { kExp1 = 0, kLn1 = 1, kSigmoid1 = 2, kTanh1 = 3 };

template <class V> V apply(int32_t which, V x);
template <> float apply<float>(int32_t which, float x) {
    switch (which) {
        case kExp1: return exp1(x);
        case kLn1: return ln1(x);
        case kSigmoid1: return sigmoid1(x);
        default: return tanh1(x);
    }
}
template <> F apply<F>(int32_t which, F x) {
    switch (which) {
        case kExp1: return exp1(x);
        case kLn1: {
            float lane[F::W];
            x.store(lane);
            for (float& value : lane) value = ln1(value);
            return F::load(lane);
        }
        case kSigmoid1: return sigmoid1(x);
        default: return tanh1(x);
    }
}

}  // namespace

LD_API const char* ld_isa() { return kIsa; }

LD_API const char* ld_pool() { return pool_name(); }

LD_API int ld_max_threads() { return max_threads(); }

// y[i] = f(x[i]); f is a code of Function; vector path, or the scalar one if `scalar`.
LD_API int ld_elementwise(int32_t which, const void* x_, void* y_, int64_t n, int32_t scalar) {
    if (which < kExp1 || which > kTanh1) return kBadArgument;
    const float* x = static_cast<const float*>(x_);
    float* y = static_cast<float*>(y_);
    return guard([&] {
        parallel_for(n, 4096, [&](int64_t begin, int64_t end) {
            if (scalar) {
                for (int64_t i = begin; i < end; ++i) y[i] = apply<float>(which, x[i]);
                return;
            }
            for (int64_t i = begin; i < end; i += F::W) {
                const int m = int(std::min<int64_t>(F::W, end - i));
                store_upto<f32_t>(y + i, apply<F>(which, load_upto<f32_t>(x + i, m)), m);
            }
        });
        return int(kOk);
    });
}

// out[r] = R64 of row r of x[rows, n] (row stride in elements).
LD_API int ld_r64(const void* x_, int64_t rows, int64_t n, int64_t stride, void* out_) {
    const float* x = static_cast<const float*>(x_);
    float* out = static_cast<float*>(out_);
    return guard([&] {
        parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) out[r] = r64(x + r * stride, n);
        });
        return int(kOk);
    });
}

// y[i] = RINT(x[i]) to the dtype, in its storage type; `widen` goes the other way.
LD_API int ld_cast(const void* x, void* y, int64_t n, int32_t dtype, int32_t widen) {
    return guard([&] {
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            using S = typename T::type;
            for (int64_t i = 0; i < n; i += F::W) {
                const int m = int(std::min<int64_t>(F::W, n - i));
                if (widen)
                    store_upto<f32_t>(static_cast<float*>(y) + i, load_upto<T>(static_cast<const S*>(x) + i, m), m);
                else
                    store_upto<T>(static_cast<S*>(y) + i, load_upto<f32_t>(static_cast<const float*>(x) + i, m), m);
            }
            return int(kOk);
        });
    });
}
