// rms_norm, add_rms_norm and their backward (numeric contract, table of operators).
#include "packed.h"
#include "parallel.h"
#include "reduce.h"
#include "rows.h"

namespace {

using namespace ld;

template <class T> using Stored = typename T::type;

// Values of one row as vectors in fp32: x itself, or the rounded sum of x and the residual.
template <class T, class Get> float mean_square_root(int64_t n, float eps, Get get) {
    const float ss = r64(n, [&](int64_t i, int m) {
        const F x = get(i, m);
        return x * x;
    });
    return 1.0f / sqrt(ss / float(n) + eps);
}

template <class W> struct Weight {
    const Stored<W>* w;
    float offset;
    F at(int64_t i, int m) const {
        const F value = load_upto<W>(w + i, m);
        return offset == 0.0f ? value : F::set1(offset) + value;
    }
};

template <class T, class W> void scale_row(const Stored<T>* x, Weight<W> w, Stored<T>* y, int64_t n, float rstd) {
    const F r = F::set1(rstd);
    if (w.w == nullptr) {
        each_vector(n, [&](int64_t i, int m) { store_upto<T>(y + i, load_upto<T>(x + i, m) * r, m); });
    } else {
        each_vector(n, [&](int64_t i, int m) { store_upto<T>(y + i, (load_upto<T>(x + i, m) * r) * w.at(i, m), m); });
    }
}

constexpr int64_t kBlock = 512;  // rows of one partial sum of a weight gradient

}  // namespace

// y = (x * rstd) * (offset + w), one cast; rstd (fp32, one per row) is kept where the pointer isn't null.
LD_API int ld_rms_norm(const void* x, const void* w, void* y, float* rstd, int64_t d0, int64_t d1, int64_t n,
                       int64_t s0, int64_t s1, int32_t dtype, int32_t wtype, float eps, float offset) {
    return guard([&] {
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            return dispatch(wtype, [&](auto weight_tag) {
                using W = decltype(weight_tag);
                const Rows rows{d1, s0, s1};
                const Weight<W> weight{static_cast<const Stored<W>*>(w), offset};
                parallel_for(d0 * d1, row_grain(n, 32768), [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                        const Stored<T>* in = static_cast<const Stored<T>*>(x) + rows.at(i);
                        const float r = mean_square_root<T>(n, eps, [&](int64_t j, int m) { return load_upto<T>(in + j, m); });
                        scale_row<T, W>(in, weight, static_cast<Stored<T>*>(y) + i * n, n, r);
                        if (rstd != nullptr) rstd[i] = r;
                    }
                });
                return int(kOk);
            });
        });
    });
}

// sum = RINT(x + residual); y = rms_norm(sum). Both outputs are contiguous; `sum` may be the residual itself.
LD_API int ld_add_rms_norm(const void* x, const void* residual, const void* w, void* y, void* sum, float* rstd,
                           int64_t d0, int64_t d1, int64_t n, int64_t xs0, int64_t xs1, int64_t rs0, int64_t rs1,
                           int32_t dtype, int32_t wtype, float eps, float offset) {
    return guard([&] {
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            return dispatch(wtype, [&](auto weight_tag) {
                using W = decltype(weight_tag);
                const Rows xrows{d1, xs0, xs1}, rrows{d1, rs0, rs1};
                const Weight<W> weight{static_cast<const Stored<W>*>(w), offset};
                parallel_for(d0 * d1, row_grain(n, 32768), [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                        const Stored<T>* in = static_cast<const Stored<T>*>(x) + xrows.at(i);
                        const Stored<T>* old = static_cast<const Stored<T>*>(residual) + rrows.at(i);
                        Stored<T>* total = static_cast<Stored<T>*>(sum) + i * n;
                        const float r = mean_square_root<T>(n, eps, [&](int64_t j, int m) {
                            store_upto<T>(total + j, load_upto<T>(in + j, m) + load_upto<T>(old + j, m), m);
                            return load_upto<T>(total + j, m);
                        });
                        scale_row<T, W>(total, weight, static_cast<Stored<T>*>(y) + i * n, n, r);
                        if (rstd != nullptr) rstd[i] = r;
                    }
                });
                return int(kOk);
            });
        });
    });
}

// All operands contiguous [rows, n]. a = g * w; c = R64(a * x); dx = rstd * (a - x * (((c * rstd) * rstd) / n)) + extra,
// one cast; extra (may be null) is the gradient that reaches the row by another way.
// dw (fp32, may be null): blocks of 512 rows, each from +0, added ascending: g * (x * rstd).
LD_API int ld_rms_norm_backward(const void* g, const void* x, const void* w, const float* rstd, const void* extra,
                                void* dx, float* dw, int64_t rows, int64_t n, int32_t dtype, int32_t wtype,
                                float offset) {
    return guard([&] {
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            return dispatch(wtype, [&](auto weight_tag) {
                using W = decltype(weight_tag);
                const Weight<W> weight{static_cast<const Stored<W>*>(w), offset};
                const Stored<T>* grad = static_cast<const Stored<T>*>(g);
                const Stored<T>* in = static_cast<const Stored<T>*>(x);
                const auto scaled = [&](int64_t at, int64_t j, int m) {
                    const F value = load_upto<T>(grad + at + j, m);
                    return w == nullptr ? value : value * weight.at(j, m);
                };
                if (dx != nullptr) {
                    parallel_for(rows, row_grain(n), [&](int64_t begin, int64_t end) {
                        for (int64_t i = begin; i < end; ++i) {
                            const int64_t at = i * n;
                            const float c = r64(n, [&](int64_t j, int m) { return scaled(at, j, m) * load_upto<T>(in + at + j, m); });
                            const F r = F::set1(rstd[i]), k = F::set1(((c * rstd[i]) * rstd[i]) / float(n));
                            each_vector(n, [&](int64_t j, int m) {
                                F d = r * (scaled(at, j, m) - load_upto<T>(in + at + j, m) * k);
                                if (extra != nullptr) d = d + load_upto<T>(static_cast<const Stored<T>*>(extra) + at + j, m);
                                store_upto<T>(static_cast<Stored<T>*>(dx) + at + j, d, m);
                            });
                        }
                    });
                }
                if (dw != nullptr) {
                    constexpr int64_t kWide = 64;
                    parallel_for((n + kWide - 1) / kWide, 1, [&](int64_t begin, int64_t end) {
                        for (int64_t c = begin * kWide; c < std::min(n, end * kWide); c += kWide) {
                            const int64_t width = std::min(kWide, n - c);
                            float total[kWide] = {};
                            for (int64_t block = 0; block < rows; block += kBlock) {
                                float acc[kWide] = {};
                                for (int64_t i = block; i < std::min(rows, block + kBlock); ++i) {
                                    const F r = F::set1(rstd[i]);
                                    each_vector(width, [&](int64_t j, int m) {
                                        const int64_t at = i * n + c + j;
                                        const F term = load_upto<T>(grad + at, m) * (load_upto<T>(in + at, m) * r);
                                        (F::load(acc + j) + term).store(acc + j);
                                    });
                                }
                                for (int64_t j = 0; j < kWide; ++j) total[j] = total[j] + acc[j];
                            }
                            std::memcpy(dw + c, total, size_t(width) * sizeof(float));
                        }
                    });
                }
                return int(kOk);
            });
        });
    });
}

LD_PACKED(ld_rms_norm)
LD_PACKED(ld_add_rms_norm)
LD_PACKED(ld_rms_norm_backward)
