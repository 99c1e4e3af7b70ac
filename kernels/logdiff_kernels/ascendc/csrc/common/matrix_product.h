// CubeCore fed from GM through two slabs of A and of each B in L1: products with k of any length.
//
// Events beside those of CubeCore, ids 0 and 1 for the two slabs: MTE1_MTE2 (slab free), MTE2_MTE1 (slab filled). What
// overlaps: MTE2 of a slab, also of the first one of the next product, with MTE1 and Mmads of the slab before.
//
// With two B the accumulators take turns slab by slab, so A is fetched once for both: three quarters of the traffic.
// Fixpipe of the first side then overlaps with the last slab of the second, and that of the second with the first slab
// of the next product.
#pragma once

#include "common/matrix_tile.h"

namespace ld {

// What a tile sums up: A times one or two B, which lie side by side in C. k at least 1.
template <typename T>
struct MatrixProduct {
    MatrixOperand<T> a, b[2];
    uint32_t sides;  // B that there are, 1 or 2
    uint32_t k;
};

//     tile.init(pipe, depth, sides);  tile.start();
//     per product:  tile.run(product, &next_or_null, store);
//     tile.finish();
template <typename T>
class MatrixTile {
public:
    // depth: k of a slab, a multiple of mmad_k. sides: most of a product.
    LD_FN void init(TPipe& pipe, uint32_t depth, uint32_t sides) {
        cube_.init(pipe);
        depth_ = depth;
        const uint32_t elements = kTile * depth, bytes = elements * uint32_t(sizeof(T));
        pipe.InitBuffer(l1a_, 2 * bytes);
        pipe.InitBuffer(l1b_, 2 * sides * bytes);
        for (uint32_t i = 0; i < 2; ++i) {
            a_[i] = {l1a_.template GetWithOffset<T>(elements, i * bytes), kTile, depth, false, kTile};
            for (uint32_t side = 0; side < sides; ++side) {
                const uint32_t offset = (i * sides + side) * bytes;
                b_[i][side] = {l1b_.template GetWithOffset<T>(elements, offset), kTile, depth, false, kTile};
            }
        }
    }

    LD_FN void start() {
        cube_.start();
        for (int32_t i = 0; i < 2; ++i) SetFlag<HardEvent::MTE1_MTE2>(i);
    }

    LD_FN void finish() {
        for (int32_t i = 0; i < 2; ++i) WaitFlag<HardEvent::MTE1_MTE2>(i);
        cube_.finish();
    }

    // The sums of `product`; store.take(cube, side) moves each out of the cube. `next` is what the following run() will
    // be given: its first slab is fetched while the last one of this product is multiplied. (An object, as device code
    // has no lambdas.)
    template <class Store>
    LD_FN void run(const MatrixProduct<T>& product, const MatrixProduct<T>* next, const Store& store) {
        if (!ahead_) load(product, 0);
        for (uint32_t k = 0; k < product.k; k += depth_) {
            const bool last = k + depth_ >= product.k;
            if (!last) {
                load(product, k + depth_);
            } else if (next != nullptr) {
                load(*next, 0);
            }
            WaitFlag<HardEvent::MTE2_MTE1>(use_);
            for (uint32_t side = 0; side < product.sides; ++side) {
                if (product.sides > 1) cube_.choose(side);
                if (k == 0) {
                    cube_.open();
                } else {
                    cube_.resume();
                }
                cube_.multiply(a_[use_], b_[use_][side], 0, uint32_t(plan::least(depth_, product.k - k)));
                if (!last) continue;
                cube_.close();
                store.take(cube_, side);
                cube_.release();
            }
            SetFlag<HardEvent::MTE1_MTE2>(use_);
            use_ = 1 - use_;
        }
        ahead_ = next != nullptr;
    }

private:
    LD_FN void load(const MatrixProduct<T>& product, uint32_t first) {
        const uint32_t count = uint32_t(plan::least(depth_, product.k - first));
        WaitFlag<HardEvent::MTE1_MTE2>(fill_);
        load_l1(a_[fill_], product.a, first, count);
        for (uint32_t side = 0; side < product.sides; ++side) load_l1(b_[fill_][side], product.b[side], first, count);
        SetFlag<HardEvent::MTE2_MTE1>(fill_);
        fill_ = 1 - fill_;
    }

    CubeCore<T> cube_;
    TBuf<TPosition::A1> l1a_;
    TBuf<TPosition::B1> l1b_;
    MatrixSlab<T> a_[2], b_[2][2];
    uint32_t depth_ = 0;
    int32_t fill_ = 0, use_ = 0;  // slab that MTE2 fills next, slab that MTE1 reads next
    bool ahead_ = false;          // the first slab of the next product is on its way
};

}  // namespace ld
