// linear, linear_row, their per-expert forms and the gradients of linear: C(m, n) = sum over k of A(m, k) B(n, k).
//
// k is summed in the plan's pieces, each ascending from +0 in one accumulator of a 128 x 128 tile. Where one piece is
// the result, Fixpipe casts it and writes C: a cube kernel. Where pieces are added or a bias is, Fixpipe leaves the
// tiles in a ring in GM and the block's two vector cores finish them, 64 rows each: a mixed kernel.
//
//   cube     L1 2 slabs of A and of B (128 x 256 of 16 bits), L0A and L0B 2, L0C 2: MTE2 of a slab, also the first of
//            the next piece, over the Mmads of this one; Fixpipe of a tile over the Mmads of the next. Tiles may be two
//            accumulators wide (plan.tile_n): then A's slabs serve both
//   vector   UB: slices of 16 rows, in and out double-buffered: MTE2, V and MTE3 of neighbouring slices overlap, all
//            of it with the cube's next tile. kLeaves: the slices of all leaves come in one strided copy, T(leaves) is
//            added in place. kBlocks: the 64 rows stay in UB and each block's tile is added to them.
//
// Cross-core flags: 0 slots filled, 1 slots free.
#pragma once

#include "common/matrix_product.h"
#include "common/reduce.h"
#include "common/tile_ring.h"
#include "linear_walk.h"

namespace ld {

constexpr uint32_t kTileElements = kTile * kTile;
constexpr RingFlags kLinearRing{0, 1};

// Pieces of one ring slot: what the vector cores take at once.
LD_FN uint32_t linear_batch(const LdLinearPlan& plan) { return plan.kind == plan::kLeaves ? plan.leaves : 1; }

// Where in C the first element of a side lies.
LD_FN int64_t linear_output(const LdLinearPlan& plan, const LinearPiece& piece, uint32_t side) {
    const int64_t group = plan.grouping == plan::kGroupedK ? piece.group * plan.c_group : 0;
    return group + piece.row * plan.c_m + piece.column + side * kTile;
}

// Fixpipe writes C.
template <class T, class Out> class LinearOutput {
public:
    LD_FN LinearOutput(const LdLinearPlan& plan, GM_ADDR c) : plan_(plan) {
        c_.SetGlobalBuffer(reinterpret_cast<__gm__ Out*>(c));
    }
    LD_FN void take(CubeCore<T>& cube, const LinearPiece& piece, uint32_t side) {
        cube.store(c_[linear_output(plan_, piece, side)], uint32_t(plan_.c_m), piece.rows, piece.columns_of(side));
    }
    LD_FN void finish() {}

private:
    const LdLinearPlan& plan_;
    GlobalTensor<Out> c_;
};

// Fixpipe writes the ring, whole rows of 128 columns.
template <class T> class LinearSlots {
public:
    LD_FN LinearSlots(const LdLinearPlan& plan, GM_ADDR workspace) : plan_(plan), batch_(linear_batch(plan)) {
        slots_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(workspace));
        base_ = uint64_t(GetBlockIdx()) * plan.ring * kTileElements;
        ring_.init(plan.ring / batch_, kLinearRing);
    }
    LD_FN void take(CubeCore<T>& cube, const LinearPiece& piece, uint32_t side) {
        const uint32_t part = plan_.kind == plan::kLeaves ? piece.index : 0;
        if (part == 0) slot_[side] = ring_.open();
        cube.store(slots_[base_ + (slot_[side] * batch_ + part) * kTileElements], kTile, piece.rows, kTile);
        if (part + 1 == batch_) ring_.close();
    }
    LD_FN void finish() { ring_.finish(); }

private:
    const LdLinearPlan& plan_;
    const uint32_t batch_;
    GlobalTensor<float> slots_;
    uint64_t base_;
    RingWriter ring_;
    uint32_t slot_[2] = {0, 0};
};

template <class T> class LinearCube {
public:
    LD_FN LinearCube(const LdLinearPlan& plan, TPipe& pipe, GM_ADDR a, GM_ADDR b) : plan_(plan) {
        a_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(a));
        b_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(b));
        tile_.init(pipe, plan.l1_k, plan.tile_n / kTile);
    }

    // sink: LinearOutput or LinearSlots.
    template <class Sink> LD_FN void run(GM_ADDR offsets, Sink sink) {
        LinearWalk walk(plan_, offsets, uint32_t(GetBlockIdx()));
        LinearPiece piece{}, next{};
        MatrixProduct<T> product, following;
        tile_.start();
        bool more = filled(walk, piece);
        if (more) product = of(piece);
        while (more) {
            more = filled(walk, next);
            if (more) following = of(next);
            tile_.run(product, more ? &following : nullptr, PieceSink<Sink>{sink, piece});
            piece = next;
            product = following;
        }
        tile_.finish();
        sink.finish();
    }

private:
    template <class Sink> struct PieceSink {
        Sink& sink;
        const LinearPiece& piece;
        LD_FN void take(CubeCore<T>& cube, uint32_t side) const { sink.take(cube, piece, side); }
    };

    // The next piece that has k; vector cores need no tile for the others.
    LD_FN static bool filled(LinearWalk& walk, LinearPiece& piece) {
        bool more = walk.next(piece);
        while (more && piece.length == 0) more = walk.next(piece);
        return more;
    }

    LD_FN MatrixProduct<T> of(const LinearPiece& piece) {
        const int64_t group = plan_.grouping == plan::kGroupedRows ? piece.group * plan_.b_group : 0;
        const bool a_major = plan_.a_k != 1, b_major = plan_.b_k != 1;
        const int64_t a = piece.row * plan_.a_m + piece.begin * plan_.a_k;
        MatrixProduct<T> product;
        product.a = {a_[a], a_major ? plan_.a_k : plan_.a_m, piece.rows, kTile, a_major};
        product.sides = piece.sides();
        for (uint32_t side = 0; side < product.sides; ++side) {
            const int64_t b = group + (piece.column + side * kTile) * plan_.b_n + piece.begin * plan_.b_k;
            product.b[side] = {b_[b], b_major ? plan_.b_k : plan_.b_n, piece.columns_of(side), kTile, b_major};
        }
        product.k = piece.length;
        return product;
    }

    const LdLinearPlan& plan_;
    GlobalTensor<T> a_, b_;
    MatrixTile<T> tile_;
};

// What the vector cores do with the tiles of the ring.
template <class Out> class LinearVector {
public:
    static constexpr uint32_t kRows = plan::kLinearVectorRows, kSlice = kRows * kTile, kOwn = kTile / 2;

    LD_FN LinearVector(const LdLinearPlan& plan, TPipe& pipe, GM_ADDR bias, GM_ADDR c, GM_ADDR workspace)
        : plan_(plan), batch_(linear_batch(plan)), bias_(bias) {
        block_ = uint32_t(GetBlockIdx() / GetTaskRatio());
        first_ = uint32_t(GetSubBlockIdx()) * kOwn;
        c_.SetGlobalBuffer(reinterpret_cast<__gm__ Out*>(c));
        slots_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(workspace));
        ring_.init(plan.ring / batch_, kLinearRing);
        pipe.InitBuffer(in_, 2, uint32_t(batch_ * kSlice * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(kSlice * sizeof(Out)));
        if (plan.kind == plan::kBlocks) {
            pipe.InitBuffer(sum_buffer_, uint32_t(kOwn * plan.tile_n * sizeof(float)));
            sum_ = sum_buffer_.Get<float>();
        }
        if (plan.bias_dtype != plan::kNoDType) {
            pipe.InitBuffer(bias_in_, 1, uint32_t(kTile * sizeof(float)));
            pipe.InitBuffer(bias_buffer_, uint32_t(kTile * sizeof(float)));
            bias_values_ = bias_buffer_.Get<float>();
            Duplicate(bias_values_, 0.0f, int32_t(kTile));
        }
    }

    LD_FN void run(GM_ADDR offsets) {
        LinearWalk walk(plan_, offsets, block_);
        LinearPiece piece{};
        while (walk.next(piece)) {
            rows_ = piece.rows > first_ ? uint32_t(plan::least(kOwn, piece.rows - first_)) : 0;
            for (uint32_t side = 0; side < piece.sides(); ++side) {
                if (plan_.kind == plan::kBlocks) {
                    add_block(piece, side);
                } else if (piece.index + 1 == piece.pieces) {
                    combine(piece, side);
                }
            }
        }
    }

private:
    // Rows [row, row + count) of this core's half, of every tile of the slot.
    LD_FN LocalTensor<float> take(uint32_t slot, uint32_t row, uint32_t count) {
        LocalTensor<float> in = in_.template AllocTensor<float>();
        constexpr uint32_t floats = plan::kBlockBytes / sizeof(float);
        const uint64_t first = (uint64_t(block_) * plan_.ring + slot * batch_) * kTileElements + (first_ + row) * kTile;
        DataCopyParams params;
        params.blockCount = batch_;
        params.blockLen = count * kTile / floats;
        params.srcStride = (kTileElements - count * kTile) / floats;
        params.dstStride = 0;
        DataCopy(in, slots_[first], params);
        if (row + count == rows_) ring_.close();
        in_.EnQue(in);
        return in_.template DeQue<float>();
    }

    LD_FN void put(const LinearPiece& piece, uint32_t side, const LocalTensor<float>& values, uint32_t row,
                   uint32_t count) {
        LocalTensor<Out> out = out_.template AllocTensor<Out>();
        v_barrier();
        narrow(out, values, count * kTile);
        out_.EnQue(out);
        out = out_.template DeQue<Out>();
        store_rows(c_[linear_output(plan_, piece, side) + (first_ + row) * plan_.c_m], out, count,
                   piece.columns_of(side), plan_.c_m, kTile);
        out_.FreeTensor(out);
    }

    LD_FN void combine(const LinearPiece& piece, uint32_t side) {
        const bool bias = plan_.bias_dtype != plan::kNoDType;
        const uint32_t slot = ring_.open();
        if (rows_ == 0) {
            ring_.close();
            return;
        }
        if (bias) take_bias(piece, side);
        for (uint32_t row = 0; row < rows_; row += kRows) {
            const uint32_t count = uint32_t(plan::least(kRows, rows_ - row));
            LocalTensor<float> in = take(slot, row, count);
            tree_add(in, batch_, count * kTile);
            if (bias) {
                v_barrier();
                each_row<AddRows, Beside::kColumns>(in, in, bias_values_, RowTile{0, count, 0, kTile, kTile});
            }
            put(piece, side, in, row, count);
            in_.FreeTensor(in);
        }
    }

    LD_FN void add_block(const LinearPiece& piece, uint32_t side) {
        const LocalTensor<float> sums = sum_[side * kOwn * kTile];
        if (piece.length == 0) {
            v_barrier();
            if (rows_ != 0) Duplicate(sums, 0.0f, int32_t(rows_ * kTile));
        } else {
            const uint32_t slot = ring_.open();
            if (rows_ == 0) ring_.close();
            for (uint32_t row = 0; row < rows_; row += kRows) {
                const uint32_t count = uint32_t(plan::least(kRows, rows_ - row));
                const LocalTensor<float> in = take(slot, row, count);
                const LocalTensor<float> sum = sums[row * kTile];
                v_barrier();
                if (piece.index == 0) {
                    copy_floats(sum, in, count * kTile);
                } else {
                    Add(sum, sum, in, int32_t(count * kTile));
                }
                in_.FreeTensor(in);
            }
        }
        if (piece.index + 1 < piece.pieces) return;
        for (uint32_t row = 0; row < rows_; row += kRows)
            put(piece, side, sums[row * kTile], row, uint32_t(plan::least(kRows, rows_ - row)));
    }

    LD_FN void take_bias(const LinearPiece& piece, uint32_t side) {
        const uint64_t at = uint64_t(piece.group) * plan_.n + piece.column + side * kTile;
        const uint32_t columns = piece.columns_of(side);
        if (has_bias_ && at == bias_at_) return;
        has_bias_ = true;
        bias_at_ = at;
        LocalTensor<float> in = bias_in_.template AllocTensor<float>();
        if (plan_.bias_dtype == plan::kFloat32) {
            copy_bias<float>(in, columns);
        } else if (plan_.bias_dtype == plan::kBFloat16) {
            copy_bias<bfloat16_t>(in, columns);
        } else {
            copy_bias<half>(in, columns);
        }
        bias_in_.EnQue(in);
        in = bias_in_.template DeQue<float>();
        v_barrier();
        widen_any(bias_values_, in, plan_.bias_dtype, columns);
        bias_in_.FreeTensor(in);
    }

    template <class B> LD_FN void copy_bias(const LocalTensor<float>& in, uint32_t columns) {
        GlobalTensor<B> bias;
        bias.SetGlobalBuffer(reinterpret_cast<__gm__ B*>(bias_));
        load_rows(in.ReinterpretCast<B>(), bias[bias_at_], 1, columns, columns, kTile);
    }

    const LdLinearPlan& plan_;
    const uint32_t batch_;
    GM_ADDR bias_;
    uint32_t block_, first_, rows_ = 0;  // this core's first row of a tile, and how many of its rows exist
    uint64_t bias_at_ = 0;
    bool has_bias_ = false;
    GlobalTensor<Out> c_;
    GlobalTensor<float> slots_;
    RingReader ring_;
    TQue<TPosition::VECIN, 1> in_, bias_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> sum_buffer_, bias_buffer_;
    LocalTensor<float> sum_, bias_values_;
};

template <class T>
LD_FN void linear_cube(GM_ADDR a, GM_ADDR b, GM_ADDR offsets, GM_ADDR c, const LdLinearPlan& plan) {
    reset_core();
    TPipe pipe;
    LinearCube<T> cube(plan, pipe, a, b);
    if (plan.out_dtype == plan::kFloat32) {
        cube.run(offsets, LinearOutput<T, float>(plan, c));
    } else if (plan.out_dtype == plan::kBFloat16) {
        cube.run(offsets, LinearOutput<T, bfloat16_t>(plan, c));
    } else {
        cube.run(offsets, LinearOutput<T, half>(plan, c));
    }
}

template <class T>
LD_FN void linear_mix(GM_ADDR a, GM_ADDR b, GM_ADDR bias, GM_ADDR offsets, GM_ADDR c, GM_ADDR workspace,
                      const LdLinearPlan& plan) {
    reset_core();
    TPipe pipe;
    if ASCEND_IS_AIC {
        LinearCube<T>(plan, pipe, a, b).run(offsets, LinearSlots<T>(plan, workspace));
    } else if (plan.out_dtype == plan::kFloat32) {
        LinearVector<float>(plan, pipe, bias, c, workspace).run(offsets);
    } else if (plan.out_dtype == plan::kBFloat16) {
        LinearVector<bfloat16_t>(plan, pipe, bias, c, workspace).run(offsets);
    } else {
        LinearVector<half>(plan, pipe, bias, c, workspace).run(offsets);
    }
}

}  // namespace ld
