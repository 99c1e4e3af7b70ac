// Gradient of an embedding's weight: for each id of the batch the sum of its tokens' rows in batch order from +0, times
// the scale, one cast. Rows of other ids are not written.
//
// An item is one id, all of whose tokens one vector core adds, piece by piece of a long row. Rows come one by one
// through a double-buffered queue.
#pragma once

#include "common/row_tiles.h"

namespace ld {

template <class T> class EmbeddingBackward {
public:
    LD_FN EmbeddingBackward(const LdMoePlan& plan, TPipe& pipe) : plan_(plan) {
        const uint32_t tile = plan.rows.tile;
        pipe.InitBuffer(in_, 2, uint32_t(tile * sizeof(T)));
        pipe.InitBuffer(out_, 2, uint32_t(tile * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t(2 * tile * sizeof(float)));
        sum_ = work_buffer_.Get<float>();
        term_ = sum_[tile];
    }

    // runs: int64 [ids + 1], where each id's tokens begin in `order`; run_ids: the ids.
    LD_FN void run(GM_ADDR grad, GM_ADDR order, GM_ADDR runs, GM_ADDR run_ids, GM_ADDR out) {
        grad_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(grad));
        order_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(order));
        runs_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(runs));
        run_ids_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(run_ids));
        out_address_ = out;
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i)
            for (uint32_t p = 0; p < plan_.rows.pieces; ++p) {
                const uint32_t tile = plan_.rows.tile, column = p * tile;
                item(walk.first + i * walk.stride,
                     {0, 1, column, uint32_t(plan::least(tile, plan_.hidden - column)), tile});
            }
    }

private:
    LD_FN void item(uint32_t index, const RowTile& tile) {
        const int32_t width = int32_t(tile.width());
        const uint64_t begin = uint64_t(runs_.GetValue(index)), end = uint64_t(runs_.GetValue(index + 1));
        v_barrier();
        Duplicate(sum_, 0.0f, width);
        for (uint64_t i = begin; i < end; ++i) {
            LocalTensor<T> in = in_.template AllocTensor<T>();
            load_rows(in, grad_[uint64_t(order_.GetValue(i) * plan_.x_stride) + tile.column], 1, tile.length,
                      tile.length, tile.pitch);
            in_.EnQue(in);
            in = in_.template DeQue<T>();
            fill_tail(in, tile, T(0.0f));
            v_barrier();
            widen(term_, in, tile.width());
            in_.FreeTensor(in);
            v_barrier();
            Add(sum_, sum_, term_, width);
        }
        v_barrier();
        if (plan_.has_scale) {
            Muls(sum_, sum_, plan_.scale, width);
            v_barrier();
        }
        LocalTensor<float> out = out_.template AllocTensor<float>();
        narrow_any(out, sum_, plan_.other_dtype, tile.width());
        out_.EnQue(out);
        out = out_.template DeQue<float>();
        const uint64_t place = uint64_t(run_ids_.GetValue(index)) * plan_.hidden + tile.column;
        if (plan_.other_dtype == plan::kFloat32) {
            store<float>(out, place, tile);
        } else if (plan_.other_dtype == plan::kBFloat16) {
            store<bfloat16_t>(out, place, tile);
        } else {
            store<half>(out, place, tile);
        }
        out_.FreeTensor(out);
    }
    template <class Out> LD_FN void store(const LocalTensor<float>& out, uint64_t place, const RowTile& tile) {
        GlobalTensor<Out> to;
        to.SetGlobalBuffer(reinterpret_cast<__gm__ Out*>(out_address_));
        store_rows(to[place], out.ReinterpretCast<Out>(), 1, tile.length, tile.length, tile.pitch);
    }

    const LdMoePlan& plan_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> sum_, term_;
    GM_ADDR out_address_ = nullptr;
    GlobalTensor<T> grad_;
    GlobalTensor<int64_t> order_, runs_, run_ids_;
};

}  // namespace ld
