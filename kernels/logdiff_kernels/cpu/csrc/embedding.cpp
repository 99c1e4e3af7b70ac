// Embedding rows: copied, or scaled with one rounding; and their gradient, tokens in batch order.
#include <algorithm>

#include "parallel.h"
#include "simd.h"

using namespace ld;

// out[t] = weight[ids[t]] (* scale, rounded once, when scaled). kBadShape when an id is not in [0, vocab).
LD_API int ld_embedding(int64_t tokens, int64_t n, int64_t vocab, const int64_t* ids, const void* weight,
                        int32_t dtype, int64_t weight_row, int32_t scaled, float scale, void* out) {
    return guard([&] {
        for (int64_t t = 0; t < tokens; ++t)
            if (ids[t] < 0 || ids[t] >= vocab) return int(kBadShape);
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            const auto* from = static_cast<const typename T::type*>(weight);
            auto* to = static_cast<typename T::type*>(out);
            parallel_for(tokens, std::max<int64_t>(1, 32768 / std::max<int64_t>(1, n)), [&](int64_t first, int64_t last) {
                for (int64_t t = first; t < last; ++t) {
                    const auto* row = from + ids[t] * weight_row;
                    if (!scaled) {
                        std::memcpy(to + t * n, row, size_t(n) * sizeof *row);
                        continue;
                    }
                    for (int64_t i = 0; i < n; i += F::W) {
                        const int count = int(std::min<int64_t>(F::W, n - i));
                        store_upto<T>(to + t * n + i, load_upto<T>(row + i, count) * F::set1(scale), count);
                    }
                }
            });
            return int(kOk);
        });
    });
}

// out[id] = scale * sum of grad[t] over the tokens of that id, in batch order from +0; rows without a token are left.
// `order` sorts tokens by id, batch order within an id; runs[r] .. runs[r + 1] are one id's places in it.
LD_API int ld_embedding_backward(int64_t runs_count, const int64_t* runs, const int64_t* run_ids, const int64_t* order,
                                 int64_t n, const void* grad, int32_t grad_dtype, int64_t grad_row, int32_t scaled,
                                 float scale, void* out, int32_t out_dtype) {
    return guard([&] {
        return dispatch(grad_dtype, [&](auto from_tag) {
            return dispatch(out_dtype, [&](auto to_tag) {
                using A = decltype(from_tag);
                using T = decltype(to_tag);
                const auto* from = static_cast<const typename A::type*>(grad);
                auto* to = static_cast<typename T::type*>(out);
                const int64_t vectors = (n + F::W - 1) / F::W;
                parallel_for(runs_count * vectors, 256, [&](int64_t first, int64_t last) {
                    for (int64_t i = first; i < last; ++i) {
                        const int64_t run = i / vectors, column = i % vectors * F::W;
                        const int count = int(std::min<int64_t>(F::W, n - column));
                        F sum = F::zero();
                        for (int64_t j = runs[run]; j < runs[run + 1]; ++j)
                            sum = sum + load_upto<A>(from + order[j] * grad_row + column, count);
                        if (scaled) sum = sum * F::set1(scale);
                        store_upto<T>(to + run_ids[run] * n + column, sum, count);
                    }
                });
                return int(kOk);
            });
        });
    });
}
