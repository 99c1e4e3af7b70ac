// Bias gradients: for each group of rows, the sum of every column in blocks of 512 rows, each ascending from +0, blocks
// added ascending.
//
// An item is a strip of 128 columns of one group; a vector core has a run of items. Rows come in chunks of 64 through a
// double-buffered queue, so MTE2 of a chunk overlaps V on the one before. A chunk takes a Cast and two Adds whose
// repeats add row after row into the same 64 lanes.
#pragma once

#include "common/row_tiles.h"

namespace ld {

template <class T, class Out> class RowSum {
public:
    static constexpr uint32_t kStrip = 128, kChunk = 64;

    LD_FN RowSum(const LdColumnSumPlan& plan, TPipe& pipe) : plan_(plan) {
        pipe.InitBuffer(in_, 2, uint32_t(kChunk * kStrip * sizeof(T)));
        pipe.InitBuffer(out_, 2, uint32_t(kStrip * sizeof(Out)));
        pipe.InitBuffer(work_buffer_, uint32_t((kChunk + 2) * kStrip * sizeof(float)));
        values_ = work_buffer_.Get<float>();
        sum_ = values_[kChunk * kStrip];
        total_ = sum_[kStrip];
    }

    // offsets: int64 [groups + 1], or null for one group of all tokens.
    LD_FN void run(GM_ADDR a, GM_ADDR offsets, GM_ADDR out) {
        a_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(a));
        out_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ Out*>(out));
        if (offsets != nullptr) offsets_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(offsets));
        const uint32_t strips = uint32_t(plan::ceil_div(plan_.columns, kStrip));
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i) {
            const uint32_t item = walk.first + i * walk.stride, group = item / strips;
            const uint32_t begin = offsets == nullptr ? 0 : uint32_t(offsets_.GetValue(group));
            const uint32_t end = offsets == nullptr ? plan_.tokens : uint32_t(offsets_.GetValue(group + 1));
            strip(group, item % strips * kStrip, begin, end);
        }
    }

private:
    LD_FN void strip(uint32_t group, uint32_t column, uint32_t begin, uint32_t end) {
        const uint32_t columns = uint32_t(plan::least(kStrip, plan_.columns - column));
        v_barrier();
        Duplicate(total_, 0.0f, int32_t(kStrip));
        for (uint32_t block = begin; block < end; block += plan::kStep) {
            const uint32_t last = uint32_t(plan::least(end, block + plan::kStep));
            v_barrier();
            Duplicate(sum_, 0.0f, int32_t(kStrip));
            for (uint32_t row = block; row < last; row += kChunk)
                add(row, uint32_t(plan::least(kChunk, last - row)), column, columns);
            v_barrier();
            if (block == begin) {
                copy_floats(total_, sum_, kStrip);
            } else {
                Add(total_, total_, sum_, int32_t(kStrip));
            }
        }
        LocalTensor<Out> out = out_.template AllocTensor<Out>();
        v_barrier();
        narrow(out, total_, kStrip);
        out_.EnQue(out);
        out = out_.template DeQue<Out>();
        store_rows(out_gm_[uint64_t(group) * plan_.columns + column], out, 1, columns, columns, kStrip);
        out_.FreeTensor(out);
    }

    LD_FN void add(uint32_t row, uint32_t rows, uint32_t column, uint32_t columns) {
        const uint32_t width = uint32_t(plan::round_up(columns, kLanes));
        LocalTensor<T> in = in_.template AllocTensor<T>();
        load_rows(in, a_[row * plan_.a_stride + column], rows, columns, plan_.a_stride, width);
        in_.EnQue(in);
        in = in_.template DeQue<T>();
        fill_tail(in, RowTile{row, rows, column, columns, width}, T(0.0f));
        v_barrier();
        widen(values_, in, rows * width);
        in_.FreeTensor(in);
        v_barrier();
        // The destination is the second source with stride 0: repeats add into the same lanes, one after the other.
        const BinaryRepeatParams params(1, 1, 1, 0, uint8_t(width / 8), 0);
        for (uint32_t lane = 0; lane < width; lane += kLanes)
            Add(sum_[lane], values_[lane], sum_[lane], uint64_t(kLanes), uint8_t(rows), params);
    }

    const LdColumnSumPlan& plan_;
    GlobalTensor<T> a_;
    GlobalTensor<Out> out_gm_;
    GlobalTensor<int64_t> offsets_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> values_, sum_, total_;
};

template <class T> LD_FN void row_sum(GM_ADDR a, GM_ADDR offsets, GM_ADDR out, const LdColumnSumPlan& plan) {
    reset_core();
    TPipe pipe;
    if (plan.out_dtype == plan::kFloat32) {
        RowSum<T, float>(plan, pipe).run(a, offsets, out);
    } else if (plan.out_dtype == plan::kBFloat16) {
        RowSum<T, bfloat16_t>(plan, pipe).run(a, offsets, out);
    } else {
        RowSum<T, half>(plan, pipe).run(a, offsets, out);
    }
}

}  // namespace ld
