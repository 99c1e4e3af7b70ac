// Gradients of the combine, slot by slot: dy[row] = RINT(w * dout), dw = R64(dout * y[row]), +0 for a slot without row.
//
// An item is one slot of one token; its rows of dout and y come through a double-buffered queue, in pieces if they are
// long, dy leaves through another, so loads, V and stores of neighbouring items overlap.
#pragma once

#include "common/reduce.h"

namespace ld {

template <class T> class MoeCombineBackward {
public:
    LD_FN MoeCombineBackward(const LdMoePlan& plan, TPipe& pipe) : plan_(plan) {
        const uint32_t tile = plan.rows.tile;
        pipe.InitBuffer(in_, 2, uint32_t(2 * tile * sizeof(T)));
        pipe.InitBuffer(out_, 2, uint32_t(tile * sizeof(T)));
        pipe.InitBuffer(weight_out_, 2, uint32_t(kLanes * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t(2 * tile * sizeof(float)));
        dout_values_ = work_buffer_.Get<float>();
        y_values_ = dout_values_[tile];
        sums_.init(pipe, 1);
    }

    LD_FN void run(GM_ADDR dout, GM_ADDR y, GM_ADDR weights, GM_ADDR position, GM_ADDR dy, GM_ADDR dweights) {
        dout_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dout));
        y_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(y));
        weights_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(weights));
        position_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(position));
        dy_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dy));
        dweights_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dweights));
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i) item(walk.first + i * walk.stride);
    }

private:
    LD_FN void item(uint32_t slot) {
        const int64_t row = position_.GetValue(slot);
        LocalTensor<float> weight;
        if (row < 0) {
            weight = weight_out_.template AllocTensor<float>();
            Duplicate(weight, 0.0f, int32_t(kLanes));
        } else {
            for (uint32_t p = 0; p < plan_.rows.pieces; ++p) {
                const uint32_t tile = plan_.rows.tile, column = p * tile;
                piece(slot, uint64_t(row), {0, 1, column, uint32_t(plan::least(tile, plan_.hidden - column)), tile});
            }
            weight = weight_out_.template AllocTensor<float>();
            sums_.finish(weight, 1);
        }
        weight_out_.EnQue(weight);
        weight = weight_out_.template DeQue<float>();
        store_rows(dweights_[slot], weight, 1, 1, 1, kLanes);
        weight_out_.FreeTensor(weight);
    }

    LD_FN void piece(uint32_t slot, uint64_t row, const RowTile& tile) {
        const uint32_t second = plan_.rows.tile, width = tile.width();
        const uint64_t token = slot / plan_.top_k;
        LocalTensor<T> in = in_.template AllocTensor<T>();
        load_rows(in, dout_[token * plan_.hidden + tile.column], 1, tile.length, tile.length, tile.pitch);
        load_rows(in[second], y_[row * plan_.hidden + tile.column], 1, tile.length, tile.length, tile.pitch);
        in_.EnQue(in);
        in = in_.template DeQue<T>();
        fill_tail(in, tile, T(0.0f));
        fill_tail(in[second], tile, T(0.0f));
        v_barrier();
        widen(dout_values_, in, width);
        widen(y_values_, in[second], width);
        in_.FreeTensor(in);
        v_barrier();
        Mul(y_values_, dout_values_, y_values_, int32_t(width));
        v_barrier();
        if (tile.column == 0)
            sums_.first(y_values_, tile);
        else
            sums_.more(y_values_, tile);
        Muls(dout_values_, dout_values_, weights_.GetValue(slot), int32_t(width));
        v_barrier();
        LocalTensor<T> out = out_.template AllocTensor<T>();
        narrow(out, dout_values_, width);
        out_.EnQue(out);
        out = out_.template DeQue<T>();
        store_rows(dy_[row * plan_.hidden + tile.column], out, 1, tile.length, tile.length, tile.pitch);
        out_.FreeTensor(out);
    }

    const LdMoePlan& plan_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_, weight_out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    RowSums sums_;
    LocalTensor<float> dout_values_, y_values_;
    GlobalTensor<T> dout_, y_, dy_;
    GlobalTensor<float> weights_, dweights_;
    GlobalTensor<int64_t> position_;
};

}  // namespace ld
