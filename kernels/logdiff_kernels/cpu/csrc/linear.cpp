// Matrix products: linear, linear_row, their gradients, per-expert groups, and the tree over ranks.
#include <algorithm>
#include <vector>

#include "expln.h"
#include "linear_matmul.h"

namespace {

using namespace ld;
using namespace ld::linear;

int check(const Product& p, const Plan& plan) {
    for (const int32_t dtype : {p.a.dtype, p.b.dtype, p.c_dtype, p.bias ? p.bias_dtype : int32_t(kF32)})
        if (dtype < kF32 || dtype > kF16) return kBadDtype;
    if (p.m < 0 || p.n < 0 || p.k < 0) return kBadShape;
    if (plan.kind < kSingle || plan.kind > kBlocks || plan.count < 1) return kBadArgument;
    if (plan.kind == kTree && (plan.count & (plan.count - 1) || plan.count > 64 || p.k % plan.count)) return kBadArgument;
    return kOk;
}

// Group starts from 0 upwards; the caller has compared the last with the number of rows.
bool rising(const int64_t* offsets, int64_t groups) {
    return offsets[0] == 0 && std::is_sorted(offsets, offsets + groups + 1);
}

}  // namespace

// c[m,n] = a[m,k] b[n,k]^T + bias[n]; see Plan for the order of the sum over k. c has adjacent columns.
LD_API int ld_matmul(int64_t m, int64_t n, int64_t k, const void* a, int32_t a_dtype, int64_t a_row, int64_t a_k,
                     const void* b, int32_t b_dtype, int64_t b_row, int64_t b_k, const void* bias, int32_t bias_dtype,
                     void* c, int32_t c_dtype, int64_t c_row, int32_t plan_kind, int64_t plan_count) {
    return guard([&] {
        const Plan plan{plan_kind, plan_count};
        const Product p{m, n, k, {a, a_dtype, a_row, a_k}, {b, b_dtype, b_row, b_k}, bias, bias ? bias_dtype : 0,
                        c, c_dtype, c_row};
        if (const int status = check(p, plan)) return status;
        products(&p, 1, plan);
        return int(kOk);
    });
}

// Rows offsets[e] .. offsets[e + 1] of a and c belong to group e, whose b and bias lie at e times their group stride.
LD_API int ld_grouped_matmul(int64_t groups, const int64_t* offsets, int64_t n, int64_t k, const void* a,
                             int32_t a_dtype, int64_t a_row, int64_t a_k, const void* b, int32_t b_dtype,
                             int64_t b_group, int64_t b_row, int64_t b_k, const void* bias, int32_t bias_dtype,
                             int64_t bias_group, void* c, int32_t c_dtype, int64_t c_row, int32_t plan_kind,
                             int64_t plan_count) {
    return guard([&] {
        const Plan plan{plan_kind, plan_count};
        static thread_local std::vector<Product> list;
        list.clear();
        const auto shift = [](const void* p, int32_t dtype, int64_t elements) {
            return static_cast<const char*>(p) + elements * (dtype == kF32 ? 4 : 2);
        };
        for (int64_t e = 0; e < groups; ++e) {
            const int64_t first = offsets[e], rows = offsets[e + 1] - first;
            if (rows < 0) return int(kBadShape);
            if (rows == 0) continue;
            const Product p{rows,
                            n,
                            k,
                            {shift(a, a_dtype, first * a_row), a_dtype, a_row, a_k},
                            {shift(b, b_dtype, e * b_group), b_dtype, b_row, b_k},
                            bias ? shift(bias, bias_dtype, e * bias_group) : nullptr,
                            bias ? bias_dtype : 0,
                            const_cast<char*>(shift(c, c_dtype, first * c_row)),
                            c_dtype,
                            c_row};
            if (const int status = check(p, plan)) return status;
            list.push_back(p);
        }
        products(list.data(), int64_t(list.size()), plan);
        return int(kOk);
    });
}

// c[e][m,n] = sum over the rows r of group e, in blocks of `block`, of a[r,m] b[r,n]: the weight gradients.
LD_API int ld_grouped_outer(int64_t groups, const int64_t* offsets, int64_t m, int64_t n, const void* a,
                            int32_t a_dtype, int64_t a_row, const void* b, int32_t b_dtype, int64_t b_row, void* c,
                            int32_t c_dtype, int64_t c_group, int64_t c_row, int64_t block) {
    return guard([&] {
        const Plan plan{kBlocks, block};
        const auto shift = [](const void* p, int32_t dtype, int64_t elements) {
            return static_cast<const char*>(p) + elements * (dtype == kF32 ? 4 : 2);
        };
        if (!rising(offsets, groups)) return int(kBadShape);
        for (int64_t e = 0; e < groups; ++e) {
            const int64_t first = offsets[e], rows = offsets[e + 1] - first;
            const Product p{m,
                            n,
                            rows,
                            {shift(a, a_dtype, first * a_row), a_dtype, 1, a_row},
                            {shift(b, b_dtype, first * b_row), b_dtype, 1, b_row},
                            nullptr,
                            0,
                            const_cast<char*>(shift(c, c_dtype, e * c_group)),
                            c_dtype,
                            c_row};
            if (const int status = check(p, plan)) return status;
            products(&p, 1, plan);
        }
        return int(kOk);
    });
}

// c[e][n] = sum over the rows r of group e of a[r,n], plain adds: blocks of `block` rows, each from +0, added ascending.
LD_API int ld_grouped_row_sum(int64_t groups, const int64_t* offsets, int64_t n, const void* a, int32_t a_dtype,
                              int64_t a_row, void* c, int32_t c_dtype, int64_t c_group, int64_t block) {
    return guard([&] {
        if (block < 1) return int(kBadArgument);
        if (!rising(offsets, groups)) return int(kBadShape);
        return dispatch(a_dtype, [&](auto from) {
            return dispatch(c_dtype, [&](auto to) {
                using A = decltype(from);
                using C = decltype(to);
                const auto* rows = static_cast<const typename A::type*>(a);
                auto* out = static_cast<typename C::type*>(c);
                const int64_t vectors = (n + F::W - 1) / F::W;
                parallel_for(groups * vectors, 16, [&](int64_t first, int64_t last) {
                    for (int64_t i = first; i < last; ++i) {
                        const int64_t e = i / vectors, column = i % vectors * F::W;
                        const int count = int(std::min<int64_t>(F::W, n - column));
                        F total = F::zero();
                        for (int64_t r = offsets[e]; r < offsets[e + 1]; r += block) {
                            F sum = F::zero();
                            const int64_t end = std::min(offsets[e + 1], r + block);
                            for (int64_t j = r; j < end; ++j) sum = sum + load_upto<A>(rows + j * a_row + column, count);
                            total = r == offsets[e] ? sum : total + sum;
                        }
                        store_upto<C>(out + e * c_group + column, total, count);
                    }
                });
                return int(kOk);
            });
        });
    });
}

// out[rows,n] = T(count) over partials[count][rows,n] (fp32), + bias[n], one cast.
LD_API int ld_tree_combine(int64_t count, int64_t rows, int64_t n, const float* partials, int64_t part_stride,
                           int64_t row_stride, const void* bias, int32_t bias_dtype, void* out, int32_t out_dtype) {
    return guard([&] {
        if (count < 1 || (count & (count - 1)) || count > 64) return int(kBadArgument);
        return dispatch(out_dtype, [&](auto to) {
            return dispatch(bias ? bias_dtype : int32_t(kF32), [&](auto from) {
                using T = decltype(to);
                using B = decltype(from);
                auto* target = static_cast<typename T::type*>(out);
                const auto* add_on = static_cast<const typename B::type*>(bias);
                parallel_for(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n * count)),
                             [&](int64_t first, int64_t last) {
                                 for (int64_t r = first; r < last; ++r)
                                     for (int64_t c = 0; c < n; c += F::W) {
                                         const int width = int(std::min<int64_t>(F::W, n - c));
                                         F part[64];
                                         for (int64_t i = 0; i < count; ++i)
                                             part[i] = load_upto<f32_t>(partials + i * part_stride + r * row_stride + c,
                                                                        width);
                                         for (int64_t step = 1; step < count; step *= 2)
                                             for (int64_t i = 0; i < count; i += 2 * step)
                                                 part[i] = part[i] + part[i + step];
                                         if (add_on) part[0] = part[0] + load_upto<B>(add_on + c, width);
                                         store_upto<T>(target + r * n + c, part[0], width);
                                     }
                             });
                return int(kOk);
            });
        });
    });
}

// In place: z = z * scale (when scale is not 1), then cap * tanh1(z / cap) (when cap is not 0).
LD_API int ld_scale_cap(float* logits, int64_t count, float scale, float cap) {
    return guard([&] {
        parallel_for(count, 16384, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; i += F::W) {
                const int width = int(std::min<int64_t>(F::W, last - i));
                F z = load_upto<f32_t>(logits + i, width);
                if (scale != 1.0f) z = z * F::set1(scale);
                if (cap != 0.0f) z = F::set1(cap) * tanh1(z / F::set1(cap));
                store_upto<f32_t>(logits + i, z, width);
            }
        });
        return int(kOk);
    });
}

#if defined(LD_HAS_BF16DOT)
// 0 when VDPBF16PS is what linear_dot.h takes it for: odd element first, each product fused, subnormals taken as zero.
LD_API int ld_bf16_dot_probe() {
    const IeeeScope ieee;
    uint64_t state = 88172645463325252ull;
    const auto random = [&] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // A sign, an exponent of 90 to 153, a full significand.
        return uint16_t((state >> 40 & 0x8000) | (90 + (state >> 20 & 63)) << 7 | (state & 0x7f));
    };
    constexpr int rows = kRows, width = kVectors * 16, pairs = 32;
    std::vector<uint32_t> a(rows * pairs), b(pairs * width);
    std::vector<float> got(rows * width);
    for (auto& word : a) word = pair_of(random(), random());
    for (auto& word : b) word = pair_of(random(), random());
    dot_rows<kVectors>(rows, pairs, a.data(), pairs, b.data(), got.data(), true);
    for (int m = 0; m < rows; ++m)
        for (int n = 0; n < width; ++n) {
            float sum = 0.0f;
            for (int k = 0; k < pairs; ++k)
                for (int half = 1; half >= 0; --half) {
                    const auto part = [&](uint32_t word) { return bf16_to_f32(uint16_t(half ? word >> 16 : word)); };
                    sum = ld::fma(part(a[m * pairs + k]), part(b[k * width + n]), sum);
                }
            if (bits_of(sum) != bits_of(got[m * width + n])) return 1;
        }
    return 0;
}
#endif
