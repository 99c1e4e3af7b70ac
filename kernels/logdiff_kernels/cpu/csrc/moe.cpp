// What surrounds the products of a mixture-of-experts layer: rows sorted by expert, gathered, combined.
#include <limits>

#include "packed.h"
#include "parallel.h"
#include "reduce.h"
#include "rows.h"

namespace {

using namespace ld;

template <class T> using Stored = typename T::type;

enum MoeStatus : int { kDuplicate = -10, kNoSuchExpert = -11, kNoSuchRow = -12 };

// Slots of one token in the order of their logical experts, those without a row (position < 0) left out.
int64_t order_slots(const int64_t* ids, const int64_t* position, const int64_t* logical, int64_t k, int64_t* slots) {
    const auto key = [&](int64_t slot) { return logical == nullptr ? ids[slot] : logical[ids[slot]]; };
    int64_t count = 0;
    for (int64_t j = 0; j < k; ++j) {
        if (position[j] < 0) continue;
        int64_t at = count++;
        for (; at > 0 && key(slots[at - 1]) > key(j); --at) slots[at] = slots[at - 1];
        slots[at] = j;
    }
    return count;
}

}  // namespace

// ids [T, k]; those below 0 belong to another rank and get position -1. Rows are sorted by expert, within an expert by
// token: order[row] is the flat slot t*k + j, position[slot] its row, offsets [E + 1] the first row of each expert.
// logical [E] (may be null): the expert that a weight row is a copy of. Two slots of a token with one logical expert:
// kDuplicate.
LD_API int ld_moe_sort(const int64_t* ids, const int64_t* logical, int64_t* offsets, int64_t* order, int64_t* position,
                       int64_t tokens, int64_t k, int64_t experts) {
    return guard([&] {
        std::fill_n(offsets, experts + 1, int64_t(0));
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t j = 0; j < k; ++j) {
                const int64_t e = ids[t * k + j];
                if (e >= experts) return int(kNoSuchExpert);
                if (e < 0) continue;
                ++offsets[e + 1];
                for (int64_t i = 0; i < j; ++i) {
                    const int64_t other = ids[t * k + i];
                    if (other < 0) continue;
                    if (other == e || (logical != nullptr && logical[other] == logical[e])) return int(kDuplicate);
                }
            }
        for (int64_t e = 0; e < experts; ++e) offsets[e + 1] += offsets[e];
        int64_t* next = scratch<int64_t>(experts + 1, 0);
        std::memcpy(next, offsets, size_t(experts) * sizeof(int64_t));
        for (int64_t slot = 0; slot < tokens * k; ++slot) {
            position[slot] = ids[slot] < 0 ? -1 : next[ids[slot]]++;
            if (position[slot] >= 0) order[position[slot]] = slot;
        }
        return int(kOk);
    });
}

// out[row] = x[order[row] / k], copied; x [T, H] with row stride xs, out contiguous.
LD_API int ld_moe_gather(const void* x, const int64_t* order, void* out, int64_t rows, int64_t k, int64_t width,
                         int64_t xs, int32_t dtype) {
    return guard([&] {
        return dispatch(dtype, [&](auto tag) {
            using S = Stored<decltype(tag)>;
            parallel_for(rows, row_grain(width, 65536), [&](int64_t begin, int64_t end) {
                for (int64_t r = begin; r < end; ++r)
                    std::memcpy(static_cast<S*>(out) + r * width, static_cast<const S*>(x) + order[r] / k * xs,
                                size_t(width) * sizeof(S));
            });
            return int(kOk);
        });
    });
}

// out [T, H] = the sum over a token's slots, lowest logical expert first, of w*y (Mul, Add); then + shared; one cast.
// y [rows, H] contiguous, row position[slot]; weights [T, k] or null (all 1); shared [T, H] contiguous or null; logical
// [experts] or null. kNoSuchRow, kNoSuchExpert: a position or an id beyond them.
LD_API int ld_moe_combine(const void* y, const float* weights, const int64_t* ids, const int64_t* position,
                          const int64_t* logical, const void* shared, void* out, int64_t tokens, int64_t k,
                          int64_t width, int64_t rows, int64_t experts, int32_t dtype, int32_t shared_dtype) {
    return guard([&] {
        for (int64_t slot = 0; slot < tokens * k; ++slot) {
            if (position[slot] >= rows) return int(kNoSuchRow);
            if (logical != nullptr && position[slot] >= 0 && (ids[slot] < 0 || ids[slot] >= experts))
                return int(kNoSuchExpert);
        }
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            return dispatch(shared_dtype, [&](auto shared_tag) {
                using S = decltype(shared_tag);
                parallel_for(tokens, row_grain(width * (k + 1), 32768), [&](int64_t begin, int64_t end) {
                    int64_t* slots = scratch<int64_t>(k, 1);
                    for (int64_t t = begin; t < end; ++t) {
                        const int64_t count = order_slots(ids + t * k, position + t * k, logical, k, slots);
                        each_vector(width, [&](int64_t i, int m) {
                            F acc = F::zero();
                            for (int64_t c = 0; c < count; ++c) {
                                const int64_t slot = t * k + slots[c];
                                F term = load_upto<T>(static_cast<const Stored<T>*>(y) + position[slot] * width + i, m);
                                if (weights != nullptr) term = F::set1(weights[slot]) * term;
                                acc = c == 0 ? term : acc + term;
                            }
                            if (shared != nullptr) {
                                const F last = load_upto<S>(static_cast<const Stored<S>*>(shared) + t * width + i, m);
                                acc = count == 0 ? last : acc + last;
                            }
                            store_upto<T>(static_cast<Stored<T>*>(out) + t * width + i, acc, m);
                        });
                    }
                });
                return int(kOk);
            });
        });
    });
}

// dy[row] = RINT(w * dout[t]); dweights[slot] = R64(dout[t] * y[row]), +0 where a slot has no row.
LD_API int ld_moe_combine_backward(const void* dout, const void* y, const float* weights, const int64_t* position,
                                   void* dy, float* dweights, int64_t tokens, int64_t k, int64_t width,
                                   int64_t rows, int32_t dtype) {
    return guard([&] {
        for (int64_t slot = 0; slot < tokens * k; ++slot)
            if (position[slot] >= rows) return int(kNoSuchRow);
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            parallel_for(tokens * k, row_grain(width), [&](int64_t begin, int64_t end) {
                for (int64_t slot = begin; slot < end; ++slot) {
                    dweights[slot] = 0.0f;
                    if (position[slot] < 0) continue;
                    const Stored<T>* g = static_cast<const Stored<T>*>(dout) + slot / k * width;
                    const Stored<T>* row = static_cast<const Stored<T>*>(y) + position[slot] * width;
                    Stored<T>* d = static_cast<Stored<T>*>(dy) + position[slot] * width;
                    const F w = F::set1(weights[slot]);
                    dweights[slot] = r64(width, [&](int64_t i, int m) {
                        const F grad = load_upto<T>(g + i, m);
                        store_upto<T>(d + i, w * grad, m);
                        return grad * load_upto<T>(row + i, m);
                    });
                }
            });
            return int(kOk);
        });
    });
}

LD_PACKED(ld_moe_sort)
LD_PACKED(ld_moe_gather)
LD_PACKED(ld_moe_combine)
LD_PACKED(ld_moe_combine_backward)
