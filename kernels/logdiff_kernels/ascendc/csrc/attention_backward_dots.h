// What the attention backward needs per (token, head): D = R64(dO * O), and lse. Each is written as one data block of
// equal values, which the vector instructions of attention_backward read with block stride 0. lse = -inf, of a row that
// sees nothing, is written as +inf, with which s - lse is -inf and p is +0.
//
// A vector core has a run of rows (token by token, heads within), a tile of up to 64 at a time. dO, O and lse come
// through double-buffered queues, blocks leave through another: MTE2 of a tile overlaps V of the one before and MTE3 of
// the one before that.
#pragma once

#include "common/reduce.h"
#include "plan/csrc/attention_backward.h"

namespace ld {

template <class T> class AttentionDots {
public:
    LD_FN AttentionDots(const LdAttentionBackwardPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.dots) {
        const uint32_t count = tiles_.elements(), rows = plan.dots.tile_rows;
        pipe.InitBuffer(in_, 2, uint32_t(2 * count * sizeof(T)));
        pipe.InitBuffer(lse_in_, 2, uint32_t(kMostRows * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(2 * round8(rows) * kBlockFloats * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t((2 * count + kMostRows + kMostRows * kBlockFloats / 32) * sizeof(float)));
        left_ = work_buffer_.Get<float>();
        right_ = left_[count];
        dots_ = right_[count];
        seen_ = dots_[kMostRows].ReinterpretCast<uint8_t>();
        Duplicate(dots_, 0.0f, int32_t(kMostRows));
        sums_.init(pipe, rows);
    }

    // dots: fp32 [2, tokens * heads, 8], lse and D.
    LD_FN void run(GM_ADDR dout, GM_ADDR out, GM_ADDR lse, GM_ADDR dots) {
        dout_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dout));
        out_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(out));
        lse_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(lse));
        dots_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dots));
        if (tiles_.count() != 0) load(tiles_.at(0));
        for (uint32_t i = 0; i < tiles_.count(); ++i) {
            if (i + 1 < tiles_.count()) load(tiles_.at(i + 1));
            compute(tiles_.at(i));
        }
    }

private:
    static constexpr uint32_t kBlockFloats = plan::kBlockBytes / sizeof(float);

    static LD_FN uint32_t round8(uint32_t rows) { return uint32_t(plan::round_up(rows, 8)); }

    LD_FN void load(const RowTile& tile) {
        const LocalTensor<T> in = in_.template AllocTensor<T>();
        load_heads(in, dout_gm_, plan_.dout_row, plan_.dout_head, tile);
        load_heads(in[tiles_.elements()], out_gm_, plan_.forward.out_row, plan_.forward.out_head, tile);
        in_.EnQue(in);
        const LocalTensor<float> lse = lse_in_.template AllocTensor<float>();
        load_rows(lse, lse_gm_[tile.first], 1, tile.rows, tile.rows, kMostRows);
        lse_in_.EnQue(lse);
    }

    // Rows (token, head) of a tensor: one copy where they lie one stride apart, else one per token.
    LD_FN void load_heads(const LocalTensor<T>& to, const GlobalTensor<T>& from, int64_t row_stride,
                          int64_t head_stride, const RowTile& tile) const {
        const uint32_t heads = plan_.forward.heads;
        const bool even = heads == 1 || row_stride == int64_t(heads) * head_stride;
        const int64_t stride = heads == 1 ? row_stride : head_stride;
        for (uint32_t r = 0; r < tile.rows;) {
            const uint32_t row = tile.first + r, left = tile.rows - r;
            const uint32_t now = even ? left : uint32_t(plan::least(left, heads - row % heads));
            const int64_t at = int64_t(row / heads) * row_stride + int64_t(row % heads) * head_stride;
            load_rows(to[r * tile.pitch], from[uint64_t(at)], now, tile.length, stride, tile.pitch);
            r += now;
        }
    }

    LD_FN void compute(const RowTile& tile) {
        const uint32_t second = tiles_.elements(), rows = round8(tile.rows), blocks = rows * kBlockFloats;
        const LocalTensor<T> in = in_.template DeQue<T>();
        fill_tail(in, tile, T(0.0f));
        fill_tail(in[second], tile, T(0.0f));
        v_barrier();
        widen(left_, in, tile.flat());
        widen(right_, in[second], tile.flat());
        in_.FreeTensor(in);
        v_barrier();
        Mul(left_, left_, right_, int32_t(tile.flat()));
        v_barrier();
        sums_.first(left_, tile);
        sums_.finish(dots_, tile.rows);
        const LocalTensor<float> out = out_.template AllocTensor<float>(), lse = lse_in_.template DeQue<float>();
        v_barrier();
        Brcb(out, lse, uint8_t(rows / 8), BrcbRepeatParams(1, 8));
        Brcb(out[blocks], dots_, uint8_t(rows / 8), BrcbRepeatParams(1, 8));
        lse_in_.FreeTensor(lse);
        v_barrier();
        CompareScalar(seen_, out, -kInfinity, CMPMODE::NE, blocks);  // NaN too stays
        v_barrier();
        Select(out, seen_, out, kInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, blocks);
        out_.EnQue(out);
        const LocalTensor<float> done = out_.template DeQue<float>();
        const uint32_t length = tile.rows * kBlockFloats;
        const uint64_t at = uint64_t(tile.first) * kBlockFloats;
        store_rows(dots_gm_[at], done, 1, length, length, length);
        store_rows(dots_gm_[at + uint64_t(plan_.dots.rows) * kBlockFloats], done[blocks], 1, length, length, length);
        out_.FreeTensor(done);
    }

    const LdAttentionBackwardPlan& plan_;
    RowTiles tiles_;
    TQue<TPosition::VECIN, 2> in_, lse_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    RowSums sums_;
    LocalTensor<float> left_, right_, dots_;
    LocalTensor<uint8_t> seen_;
    GlobalTensor<T> dout_gm_, out_gm_;
    GlobalTensor<float> lse_gm_, dots_gm_;
};

}  // namespace ld
