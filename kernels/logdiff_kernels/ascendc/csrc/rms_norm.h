// rms_norm and add_rms_norm: y = (x * rstd) * (offset + w), rstd = 1 / sqrt(R64(x * x) / n + eps), one cast.
//
// A tile of whole rows sits in UB; rows of more than a tile are read twice, piece by piece. x (and residual) come
// through one double-buffered queue, y (and the new residual) leave through another, so MTE2 loads tile i + 1 and MTE3
// stores tile i - 1 while V works on tile i. The weight is widened once per core, or once per piece of a long row.
// Statistics of up to 64 rows share one repeat: no scalar arithmetic.
#pragma once

#include "common/reduce.h"
#include "common/weight_row.h"

namespace ld {

template <class T> class RmsNorm {
public:
    LD_FN RmsNorm(const LdNormPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows), pipe_(pipe) {
        const uint32_t count = tiles_.elements(), inputs = plan.add ? 2 : 1;
        pipe.InitBuffer(in_, 2, uint32_t(inputs * count * sizeof(T)));
        pipe.InitBuffer(out_, 2, uint32_t(inputs * count * sizeof(T)));
        pipe.InitBuffer(statistic_out_, 2, uint32_t(kMostRows * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t((2 * count + kMostRows * 11 + kRootWork) * sizeof(float)));
        values_ = work_buffer_.Get<float>();
        work_ = values_[count];
        blocks_ = work_[count];
        rstd_ = blocks_[kMostRows * 8];
        length_ = rstd_[kMostRows];
        one_ = length_[kMostRows];
        roots_ = one_[kMostRows];
        sums_.init(pipe, plan.rows.tile_rows);
    }

    LD_FN void run(GM_ADDR x, GM_ADDR residual, GM_ADDR weight, GM_ADDR y, GM_ADDR total, GM_ADDR rstd) {
        x_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(x));
        residual_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(residual));
        weight_.init(pipe_, plan_, weight);
        y_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(y));
        total_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(total));
        rstd_out_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(rstd));
        Duplicate(length_, float(plan_.rows.length), int32_t(kMostRows));
        Duplicate(one_, 1.0f, int32_t(kMostRows));
        Duplicate(rstd_, 0.0f, int32_t(kMostRows));
        const bool whole = tiles_.pieces() == 1;
        if (whole && tiles_.count() != 0) weight_.take(tiles_.at(0));
        for (uint32_t i = 0; i < tiles_.count(); ++i) {
            for (uint32_t p = 0; p < tiles_.pieces(); ++p) {
                const RowTile tile = tiles_.at(i, p);
                load(tile);
                take(tile, true);
                v_barrier();
                Mul(work_, values_, values_, int32_t(tile.flat()));
                v_barrier();
                if (p == 0)
                    sums_.first(work_, tile);
                else
                    sums_.more(work_, tile);
            }
            root(tiles_.at(i));
            for (uint32_t p = 0; p < tiles_.pieces(); ++p) {
                const RowTile tile = tiles_.at(i, p);
                if (!whole) {
                    v_barrier();
                    weight_.take(tile);
                    load(tile);
                    take(tile, false);
                }
                apply(tile);
            }
        }
    }

private:
    LD_FN void load(const RowTile& tile) {
        LocalTensor<T> in = in_.template AllocTensor<T>();
        load_rows(in, x_[tile.first * plan_.x_stride + tile.column], tile.rows, tile.length, plan_.x_stride, tile.pitch);
        if (plan_.add)
            load_rows(in[tiles_.elements()], residual_[tile.first * plan_.residual_stride + tile.column], tile.rows,
                      tile.length, plan_.residual_stride, tile.pitch);
        in_.EnQue(in);
    }

    // The values that are normalised, in fp32. The first pass over an added residual also stores them.
    LD_FN void take(const RowTile& tile, bool store) {
        LocalTensor<T> in = in_.template DeQue<T>();
        const uint32_t count = tile.flat();
        fill_tail(in, tile, T(0.0f));
        if (plan_.add) fill_tail(in[tiles_.elements()], tile, T(0.0f));
        v_barrier();
        widen(values_, in, count);
        if (plan_.add) {
            widen(work_, in[tiles_.elements()], count);
            in_.FreeTensor(in);
            v_barrier();
            Add(values_, values_, work_, int32_t(count));
            v_barrier();
            LocalTensor<T> rounded = out_.template AllocTensor<T>();
            narrow(rounded, values_, count);
            v_barrier();
            widen(values_, rounded, count);
            out_.EnQue(rounded);
            rounded = out_.template DeQue<T>();
            if (store)
                store_rows(total_[uint64_t(tile.first) * plan_.rows.length + tile.column], rounded, tile.rows,
                           tile.length, plan_.rows.length, tile.pitch);
            out_.FreeTensor(rounded);
        } else {
            in_.FreeTensor(in);
        }
    }

    // The sums of squares as one block of 1 / sqrt(mean + eps) for each row.
    LD_FN void root(const RowTile& tile) {
        sums_.finish(rstd_, tile.rows);
        v_barrier();
        divide(rstd_, rstd_, length_, kMostRows);
        v_barrier();
        Adds(rstd_, rstd_, plan_.eps, int32_t(kMostRows));
        v_barrier();
        square_root(rstd_, rstd_, roots_, kMostRows);
        v_barrier();
        divide(rstd_, one_, rstd_, kMostRows);
        v_barrier();
        row_blocks(blocks_, rstd_);
        if (plan_.keep) {
            LocalTensor<float> out = statistic_out_.template AllocTensor<float>();
            copy_floats(out, rstd_, kMostRows);
            statistic_out_.EnQue(out);
            out = statistic_out_.template DeQue<float>();
            store_rows(rstd_out_[tile.first], out, 1, tile.rows, tile.rows, kMostRows);
            statistic_out_.FreeTensor(out);
        }
    }

    LD_FN void apply(const RowTile& tile) {
        v_barrier();
        each_row<MulRows, Beside::kScalars>(work_, values_, blocks_, tile);
        if (weight_.given()) {
            v_barrier();
            each_row<MulRows, Beside::kColumns>(work_, work_, weight_.scale(), tile);
        }
        v_barrier();
        LocalTensor<T> out = out_.template AllocTensor<T>();
        narrow(out, work_, tile.flat());
        out_.EnQue(out);
        out = out_.template DeQue<T>();
        store_rows(y_[uint64_t(tile.first) * plan_.rows.length + tile.column], out, tile.rows, tile.length,
                   plan_.rows.length, tile.pitch);
        out_.FreeTensor(out);
    }

    const LdNormPlan& plan_;
    RowTiles tiles_;
    TPipe& pipe_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_, statistic_out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    RowSums sums_;
    WeightRow weight_;
    LocalTensor<float> values_, work_, blocks_, rstd_, length_, one_, roots_;
    GlobalTensor<T> x_, residual_, y_, total_;
    GlobalTensor<float> rstd_out_;
};

}  // namespace ld
