// dx of rms_norm: a = dy * w', c = R64(a * x), dx = rstd * (a - x * (((c * rstd) * rstd) / n)) + extra, one cast.
//
// Tiles, queues and overlap as in rms_norm: dy and x come through one double-buffered queue, extra through a second,
// dx leaves through a third; a row of more than a tile is read twice.
#pragma once

#include "common/reduce.h"
#include "common/weight_row.h"

namespace ld {

template <class T> class RmsNormBackward {
public:
    LD_FN RmsNormBackward(const LdNormPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows), pipe_(pipe) {
        const uint32_t count = tiles_.elements();
        pipe.InitBuffer(in_, 2, uint32_t(2 * count * sizeof(T)));
        if (plan.extra) pipe.InitBuffer(extra_in_, 2, uint32_t(count * sizeof(T)));
        pipe.InitBuffer(rstd_in_, 2, uint32_t(kMostRows * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(count * sizeof(T)));
        pipe.InitBuffer(work_buffer_, uint32_t((3 * count + kMostRows * 19) * sizeof(float)));
        scaled_ = work_buffer_.Get<float>();
        x_values_ = scaled_[count];
        work_ = x_values_[count];
        rstd_blocks_ = work_[count];
        factor_blocks_ = rstd_blocks_[kMostRows * 8];
        rstd_ = factor_blocks_[kMostRows * 8];
        factor_ = rstd_[kMostRows];
        length_ = factor_[kMostRows];
        sums_.init(pipe, plan.rows.tile_rows);
    }

    LD_FN void run(GM_ADDR dy, GM_ADDR x, GM_ADDR weight, GM_ADDR rstd, GM_ADDR extra, GM_ADDR dx) {
        dy_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dy));
        x_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(x));
        rstd_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(rstd));
        extra_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(extra));
        dx_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dx));
        weight_.init(pipe_, plan_, weight);
        Duplicate(length_, float(plan_.rows.length), int32_t(kMostRows));
        Duplicate(rstd_, 0.0f, int32_t(kMostRows));
        Duplicate(factor_, 0.0f, int32_t(kMostRows));
        const bool whole = tiles_.pieces() == 1;
        if (whole && tiles_.count() != 0) weight_.take(tiles_.at(0));
        for (uint32_t i = 0; i < tiles_.count(); ++i) {
            take_rstd(tiles_.at(i));
            for (uint32_t p = 0; p < tiles_.pieces(); ++p) {
                const RowTile tile = tiles_.at(i, p);
                take(tile, !whole);
                v_barrier();
                Mul(work_, scaled_, x_values_, int32_t(tile.flat()));
                v_barrier();
                if (p == 0)
                    sums_.first(work_, tile);
                else
                    sums_.more(work_, tile);
            }
            factor(tiles_.at(i).rows);
            for (uint32_t p = 0; p < tiles_.pieces(); ++p) {
                const RowTile tile = tiles_.at(i, p);
                if (!whole) take(tile, true);
                apply(tile);
            }
        }
    }

private:
    LD_FN uint64_t place(const RowTile& tile) const { return uint64_t(tile.first) * plan_.rows.length + tile.column; }

    // a and x of a tile in fp32.
    LD_FN void take(const RowTile& tile, bool weight) {
        const uint32_t count = tile.flat(), second = tiles_.elements(), n = plan_.rows.length;
        LocalTensor<T> in = in_.template AllocTensor<T>();
        load_rows(in, dy_[place(tile)], tile.rows, tile.length, n, tile.pitch);
        load_rows(in[second], x_[place(tile)], tile.rows, tile.length, n, tile.pitch);
        in_.EnQue(in);
        v_barrier();
        if (weight) weight_.take(tile);
        in = in_.template DeQue<T>();
        fill_tail(in, tile, T(0.0f));
        fill_tail(in[second], tile, T(0.0f));
        v_barrier();
        widen(scaled_, in, count);
        widen(x_values_, in[second], count);
        in_.FreeTensor(in);
        if (weight_.given()) {
            v_barrier();
            each_row<MulRows, Beside::kColumns>(scaled_, scaled_, weight_.scale(), tile);
        }
    }

    LD_FN void take_rstd(const RowTile& tile) {
        LocalTensor<float> in = rstd_in_.template AllocTensor<float>();
        load_rows(in, rstd_gm_[tile.first], 1, tile.rows, tile.rows, kMostRows);
        rstd_in_.EnQue(in);
        in = rstd_in_.template DeQue<float>();
        v_barrier();
        copy_floats(rstd_, in, tile.rows);
        rstd_in_.FreeTensor(in);
        v_barrier();
        row_blocks(rstd_blocks_, rstd_);
    }

    // ((c * rstd) * rstd) / n as one block for each row.
    LD_FN void factor(uint32_t rows) {
        sums_.finish(factor_, rows);
        v_barrier();
        Mul(factor_, factor_, rstd_, int32_t(kMostRows));
        v_barrier();
        Mul(factor_, factor_, rstd_, int32_t(kMostRows));
        v_barrier();
        divide(factor_, factor_, length_, kMostRows);
        v_barrier();
        row_blocks(factor_blocks_, factor_);
    }

    LD_FN void apply(const RowTile& tile) {
        const int32_t count = int32_t(tile.flat());
        v_barrier();
        each_row<MulRows, Beside::kScalars>(work_, x_values_, factor_blocks_, tile);
        v_barrier();
        Sub(work_, scaled_, work_, count);
        v_barrier();
        each_row<MulRows, Beside::kScalars>(work_, work_, rstd_blocks_, tile);
        if (plan_.extra) {
            LocalTensor<T> in = extra_in_.template AllocTensor<T>();
            load_rows(in, extra_[place(tile)], tile.rows, tile.length, plan_.rows.length, tile.pitch);
            extra_in_.EnQue(in);
            in = extra_in_.template DeQue<T>();
            fill_tail(in, tile, T(0.0f));
            v_barrier();
            widen(scaled_, in, tile.flat());
            extra_in_.FreeTensor(in);
            v_barrier();
            Add(work_, work_, scaled_, count);
        }
        v_barrier();
        LocalTensor<T> out = out_.template AllocTensor<T>();
        narrow(out, work_, tile.flat());
        out_.EnQue(out);
        out = out_.template DeQue<T>();
        store_rows(dx_[place(tile)], out, tile.rows, tile.length, plan_.rows.length, tile.pitch);
        out_.FreeTensor(out);
    }

    const LdNormPlan& plan_;
    RowTiles tiles_;
    TPipe& pipe_;
    TQue<TPosition::VECIN, 1> in_, extra_in_, rstd_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    RowSums sums_;
    WeightRow weight_;
    LocalTensor<float> scaled_, x_values_, work_, rstd_blocks_, factor_blocks_, rstd_, factor_, length_;
    GlobalTensor<T> dy_, x_, extra_, dx_;
    GlobalTensor<float> rstd_gm_;
};

}  // namespace ld
