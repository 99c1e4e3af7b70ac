// dw of rms_norm: for each column the sum over rows of dy * (x * rstd), in blocks of 512 rows in batch order, each from
// +0 and ascending, blocks added ascending; fp32.
//
// A vector core has a run of strips of columns, each for all rows. Rows come a few at a time through a double-buffered
// queue. One Add per 64 columns adds a tile's rows: its repeats add row after row into the same lanes.
#pragma once

#include "common/row_tiles.h"

namespace ld {

template <class T> class RmsNormWeightGrad {
public:
    LD_FN RmsNormWeightGrad(const LdColumnSumPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        const uint32_t strip = plan.rows.tile, count = tiles_.elements();
        pipe.InitBuffer(in_, 2, uint32_t(2 * count * sizeof(T)));
        pipe.InitBuffer(rstd_in_, 2, uint32_t(kMostRows * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(strip * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t((2 * count + strip * 2 + kMostRows * 9) * sizeof(float)));
        dy_values_ = work_buffer_.Get<float>();
        x_values_ = dy_values_[count];
        sum_ = x_values_[count];
        total_ = sum_[strip];
        rstd_blocks_ = total_[strip];
        rstd_ = rstd_blocks_[kMostRows * 8];
    }

    LD_FN void run(GM_ADDR dy, GM_ADDR x, GM_ADDR rstd, GM_ADDR dw) {
        dy_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dy));
        x_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(x));
        rstd_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(rstd));
        dw_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dw));
        Duplicate(rstd_, 0.0f, int32_t(kMostRows));
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i) {
            const uint32_t column = (walk.first + i * walk.stride) * plan_.rows.tile;
            strip(column, uint32_t(plan::least(plan_.rows.tile, plan_.columns - column)));
        }
    }

private:
    LD_FN void strip(uint32_t column, uint32_t columns) {
        const uint32_t rows = plan_.rows.tile_rows, width = uint32_t(plan::round_up(columns, kLanes));
        v_barrier();
        Duplicate(total_, 0.0f, int32_t(width));
        for (uint32_t block = 0; block < plan_.tokens; block += plan::kStep) {
            const uint32_t end = uint32_t(plan::least(plan_.tokens, block + plan::kStep));
            v_barrier();
            Duplicate(sum_, 0.0f, int32_t(width));
            for (uint32_t row = block; row < end; row += rows)
                add({row, uint32_t(plan::least(rows, end - row)), column, columns, width});
            v_barrier();
            Add(total_, total_, sum_, int32_t(width));
        }
        v_barrier();
        LocalTensor<float> out = out_.template AllocTensor<float>();
        copy_floats(out, total_, width);
        out_.EnQue(out);
        out = out_.template DeQue<float>();
        store_rows(dw_[column], out, 1, columns, columns, plan_.rows.tile);
        out_.FreeTensor(out);
    }

    LD_FN void add(const RowTile& tile) {
        const uint32_t second = tiles_.elements(), count = tile.flat();
        LocalTensor<T> in = in_.template AllocTensor<T>();
        load_rows(in, dy_[uint64_t(tile.first) * plan_.columns + tile.column], tile.rows, tile.length, plan_.columns,
                  tile.pitch);
        load_rows(in[second], x_[uint64_t(tile.first) * plan_.columns + tile.column], tile.rows, tile.length,
                  plan_.columns, tile.pitch);
        in_.EnQue(in);
        LocalTensor<float> scale = rstd_in_.template AllocTensor<float>();
        load_rows(scale, rstd_gm_[tile.first], 1, tile.rows, tile.rows, kMostRows);
        rstd_in_.EnQue(scale);
        scale = rstd_in_.template DeQue<float>();
        v_barrier();
        copy_floats(rstd_, scale, tile.rows);
        rstd_in_.FreeTensor(scale);
        in = in_.template DeQue<T>();
        fill_tail(in, tile, T(0.0f));
        fill_tail(in[second], tile, T(0.0f));
        v_barrier();
        row_blocks(rstd_blocks_, rstd_);
        widen(dy_values_, in, count);
        widen(x_values_, in[second], count);
        in_.FreeTensor(in);
        v_barrier();
        each_row<MulRows, Beside::kScalars>(x_values_, x_values_, rstd_blocks_, tile);
        v_barrier();
        Mul(dy_values_, dy_values_, x_values_, int32_t(count));
        v_barrier();
        const BinaryRepeatParams params(1, 1, 1, 0, uint8_t(tile.pitch / 8), 0);
        for (uint32_t c = 0; c < tile.chunks(); ++c)
            Add(sum_[c * kLanes], dy_values_[c * kLanes], sum_[c * kLanes], uint64_t(kLanes), uint8_t(tile.rows), params);
    }

    const LdColumnSumPlan& plan_;
    RowTiles tiles_;
    TQue<TPosition::VECIN, 1> in_, rstd_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> dy_values_, x_values_, sum_, total_, rstd_blocks_, rstd_;
    GlobalTensor<T> dy_, x_;
    GlobalTensor<float> rstd_gm_, dw_;
};

}  // namespace ld
