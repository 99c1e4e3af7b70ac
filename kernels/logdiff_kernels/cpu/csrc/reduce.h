// R64, the contract's sum of n fp32 values, and T(L), its balanced tree over L partial results.
#pragma once

#include "simd.h"

namespace ld {

// 64 running lanes. The first chunk is copied, each later one is added; finish() halves 64 to 8, then adds pairs.
class R64 {
public:
    static constexpr int64_t kLanes = 64;
    static constexpr int kVectors = 64 / F::W;

    // get(j) is vector j of the chunk: its lanes F::W*j .. F::W*j + F::W - 1.
    template <class Get> void add_chunk(Get get) {
        if (empty_) {
            for (int j = 0; j < kVectors; ++j) lane_[j] = get(j);
            empty_ = false;
        } else {
            for (int j = 0; j < kVectors; ++j) lane_[j] = lane_[j] + get(j);
        }
    }

    float finish() const {
        if (empty_) return 0.0f;
        F v[kVectors];
        for (int j = 0; j < kVectors; ++j) v[j] = lane_[j];
        for (int half = kVectors / 2; half >= 1; half /= 2)
            for (int j = 0; j < half; ++j) {
                // stops at 8 lanes: with 4-lane vectors two of them are left
                if (half * F::W < 8) break;
                v[j] = v[j] + v[j + half];
            }
        float lane[F::W > 8 ? F::W : 8];
        for (int j = 0; j < (F::W < 8 ? 8 / F::W : 1); ++j) v[j].store(lane + j * F::W);
        for (int half = F::W / 2; half >= 8; half /= 2)
            for (int l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
        return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    }

private:
    F lane_[kVectors];
    bool empty_ = true;
};

// R64 of n values: get(i, m) gives elements i .. i + m - 1 (m <= F::W) as a vector; its lanes from m up are ignored.
template <class Get> inline float r64(int64_t n, Get get) {
    R64 sum;
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) sum.add_chunk([&](int j) { return get(i + int64_t(j) * F::W, F::W); });
    if (i < n) {
        sum.add_chunk([&](int j) {
            const int64_t left = n - i - int64_t(j) * F::W;
            if (left >= F::W) return get(n - left, F::W);
            if (left <= 0) return F::zero();
            return select(first(int(left)), get(n - left, int(left)), F::zero());
        });
    }
    return sum.finish();
}

inline float r64(const float* x, int64_t n) {
    return r64(n, [&](int64_t i, int m) { return load_upto<f32_t>(x + i, m); });
}

// The definition, one element after the other.
inline float r64_scalar(const float* x, int64_t n) {
    float acc[64] = {};
    for (int64_t c = 0; c < n; c += 64)
        for (int64_t l = 0; l < 64; ++l) {
            const float value = c + l < n ? x[c + l] : 0.0f;
            acc[l] = c == 0 ? value : acc[l] + value;
        }
    for (int half = 32; half >= 8; half /= 2)
        for (int l = 0; l < half; ++l) acc[l] = acc[l] + acc[l + half];
    return ((acc[0] + acc[1]) + (acc[2] + acc[3])) + ((acc[4] + acc[5]) + (acc[6] + acc[7]));
}

// T(L): p[0..L-1], L a power of two; get(i) is partial i.
template <class Get> inline auto tree(int first_leaf, int leaves, const Get& get) -> decltype(get(0)) {
    if (leaves == 1) return get(first_leaf);
    const int half = leaves / 2;
    return tree(first_leaf, half, get) + tree(first_leaf + half, half, get);
}

inline float tree(const float* p, int leaves) {
    return tree(0, leaves, [&](int i) { return p[i]; });
}

}  // namespace ld
