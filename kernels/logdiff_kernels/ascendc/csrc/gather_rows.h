// Rows picked by an index: out[i] = x[index[i] / top_k], copied, or times a scale in fp32 with one cast (embeddings).
//
// Copied rows pass through two buffers by MTE2 and MTE3 alone. Rows of a tile are loaded one by one, from where the
// index says (a scalar read each), and stored together. Scaled rows go through queues and V.
#pragma once

#include "common/row_copy.h"

namespace ld {

template <class T> class GatherRows {
public:
    LD_FN GatherRows(const LdMoePlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        const uint32_t count = tiles_.elements();
        if (!plan.has_scale) {
            copy_.init(pipe, count);
            return;
        }
        pipe.InitBuffer(in_, 2, uint32_t(count * sizeof(T)));
        pipe.InitBuffer(out_, 2, uint32_t(count * sizeof(T)));
        pipe.InitBuffer(work_buffer_, uint32_t(count * sizeof(float)));
        values_ = work_buffer_.Get<float>();
    }

    // index: int64, one for each row of out.
    LD_FN void run(GM_ADDR x, GM_ADDR index, GM_ADDR out) {
        x_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(x));
        index_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(index));
        out_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(out));
        for (uint32_t i = 0; i < tiles_.count(); ++i)
            for (uint32_t p = 0; p < tiles_.pieces(); ++p) {
                if (plan_.has_scale)
                    scale(tiles_.at(i, p));
                else
                    copy(tiles_.at(i, p));
            }
        if (!plan_.has_scale) copy_.finish();
    }

private:
    LD_FN void load(const LocalTensor<T>& to, const RowTile& tile) {
        for (uint32_t r = 0; r < tile.rows; ++r) {
            const int64_t row = index_.GetValue(tile.first + r) / plan_.top_k;
            load_rows(to[r * tile.pitch], x_[uint64_t(row * plan_.x_stride) + tile.column], 1, tile.length, tile.length,
                      tile.pitch);
        }
    }
    LD_FN void store(const LocalTensor<T>& from, const RowTile& tile) {
        store_rows(out_gm_[uint64_t(tile.first) * plan_.hidden + tile.column], from, tile.rows, tile.length,
                   plan_.hidden, tile.pitch);
    }

    LD_FN void copy(const RowTile& tile) {
        const LocalTensor<T> buffer = copy_.next();
        load(buffer, tile);
        copy_.loaded();
        store(buffer, tile);
        copy_.stored();
    }

    LD_FN void scale(const RowTile& tile) {
        LocalTensor<T> in = in_.template AllocTensor<T>();
        load(in, tile);
        in_.EnQue(in);
        in = in_.template DeQue<T>();
        fill_tail(in, tile, T(0.0f));
        v_barrier();
        widen(values_, in, tile.flat());
        in_.FreeTensor(in);
        v_barrier();
        Muls(values_, values_, plan_.scale, int32_t(tile.flat()));
        v_barrier();
        LocalTensor<T> out = out_.template AllocTensor<T>();
        narrow(out, values_, tile.flat());
        out_.EnQue(out);
        out = out_.template DeQue<T>();
        store(out, tile);
        out_.FreeTensor(out);
    }

    const LdMoePlan& plan_;
    RowTiles tiles_;
    RowCopy<T> copy_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> values_;
    GlobalTensor<T> x_, out_gm_;
    GlobalTensor<int64_t> index_;
};

}  // namespace ld
