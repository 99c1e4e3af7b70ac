// Statistics of the leaves of logprob: for each leaf of a token's vocabulary its maximum m, s = R64(exp(z - u)) and,
// if the entropy is wanted, h = R64(exp(z - u) * (z - u)), with u = m, or 0 where m is -inf.
//
// An item is one leaf of one token. It comes through a double-buffered queue, whole where it fits (up to 19,000 columns,
// so vocabularies up to 150,000), else in pieces that are read twice, for the maximum and for the sums. MTE2 loads the
// next item while V works on slices of this one. Scalars are read only to see whether a temperature is 1.
#pragma once

#include "common/exp1.h"
#include "common/reduce.h"
#include "common/temperature.h"

namespace ld {

constexpr uint32_t kLogprobSlice = 1024;

class LogprobStats {
public:
    LD_FN LogprobStats(const LdLogprobPlan& plan, TPipe& pipe) : plan_(plan) {
        pipe.InitBuffer(in_, 2, uint32_t(plan.rows.tile * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(3 * 32));
        pipe.InitBuffer(work_buffer_, uint32_t((2 * kLogprobSlice + kLogprobSlice / 32 + 7 * kLanes + kExpWork) * sizeof(float)));
        e_ = work_buffer_.Get<float>();
        h_ = e_[kLogprobSlice];
        largest_ = h_[kLogprobSlice];
        maximum_ = largest_[kLanes];
        base_ = maximum_[kLanes];
        s_ = base_[kLanes];
        h_sum_ = s_[kLanes];
        temperature_ = h_sum_[kLanes];
        base_block_ = temperature_[kLanes];
        exp_work_ = base_block_[kLanes];
        mask_ = exp_work_[kExpWork].ReinterpretCast<uint8_t>();
        sums_.init(pipe, 1);
        weighted_.init(pipe, 1);
    }

    LD_FN void run(GM_ADDR logits, GM_ADDR temperature, GM_ADDR parts) {
        logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(logits));
        temperature_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(temperature));
        parts_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(parts));
        Duplicate(maximum_, -kInfinity, int32_t(kLanes));
        Duplicate(s_, 0.0f, int32_t(kLanes));
        Duplicate(h_sum_, 0.0f, int32_t(kLanes));
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i) {
            const uint32_t item = walk.first + i * walk.stride;
            leaf(item, item / plan_.leaves, item % plan_.leaves);
        }
    }

private:
    LD_FN void leaf(uint32_t item, uint32_t token, uint32_t index) {
        const int64_t begin = int64_t(index) * plan_.leaf;
        const int64_t start = int64_t(plan_.first_leaf) * plan_.leaf;
        int64_t known = int64_t(plan_.vocabulary) - start;
        if (known > int64_t(plan_.columns)) known = plan_.columns;
        const int64_t length = known <= begin ? 0 : int64_t(plan::least(plan_.leaf, uint64_t(known - begin)));
        const float value = plan_.has_temperature ? temperature_gm_.GetValue(token) : 1.0f;
        const uint32_t pieces = uint32_t(plan::ceil_div(uint64_t(length), plan_.rows.tile));
        const uint64_t from = uint64_t(int64_t(token) * plan_.stride + begin);
        v_barrier();
        LocalTensor<float> z;
        for (uint32_t p = 0; p < pieces; ++p) {
            const RowTile tile = piece(p, uint32_t(length));
            z = take(from, tile, value);
            largest(z, tile, p == 0);
            if (pieces > 1) in_.FreeTensor(z);
        }
        base(pieces != 0);
        for (uint32_t p = 0; p < pieces; ++p) {
            const RowTile tile = piece(p, uint32_t(length));
            if (pieces > 1) z = take(from, tile, value);
            add(z, tile, p == 0);
            in_.FreeTensor(z);
        }
        finish(item, pieces != 0);
    }

    LD_FN RowTile piece(uint32_t index, uint32_t length) const {
        const uint32_t tile = plan_.rows.tile;
        return {0, 1, index * tile, uint32_t(plan::least(tile, length - index * tile)), tile};
    }

    LD_FN LocalTensor<float> take(uint64_t from, const RowTile& tile, float temperature) {
        LocalTensor<float> z = in_.AllocTensor<float>();
        load_rows(z, logits_[from + tile.column], 1, tile.length, tile.length, tile.pitch, -kInfinity);
        in_.EnQue(z);
        z = in_.DeQue<float>();
        fill_tail(z, tile, -kInfinity);
        v_barrier();
        temper(z, tile.width(), temperature, temperature_);
        fill_from(z, tile.length, tile.width(), -kInfinity);  // a temperature may have changed the padding
        v_barrier();
        return z;
    }

    // 64 running maxima.
    LD_FN void largest(const LocalTensor<float>& z, const RowTile& tile, bool first) {
        if (first) {
            Duplicate(largest_, -kInfinity, int32_t(kLanes));
            v_barrier();
        }
        const BinaryRepeatParams params(1, 1, 1, 0, 8, 0);
        for (uint32_t c = 0; c < tile.chunks(); c += kMostRepeats) {
            const uint32_t repeats = uint32_t(plan::least(kMostRepeats, tile.chunks() - c));
            Max(largest_, z[c * kLanes], largest_, uint64_t(kLanes), uint8_t(repeats), params);
            v_barrier();
        }
    }

    // m in lane 0 and u as a block.
    LD_FN void base(bool any) {
        if (any)
            WholeReduceMax(maximum_, largest_, int32_t(kLanes), 1, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
        else
            Duplicate(maximum_, -kInfinity, int32_t(kLanes));
        v_barrier();
        CompareScalar(mask_, maximum_, -kInfinity, CMPMODE::NE, kLanes);
        v_barrier();
        Select(base_, mask_, maximum_, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, kLanes);
        v_barrier();
        Brcb(base_block_, base_, 1, BrcbRepeatParams(1, 8));
        v_barrier();
    }

    LD_FN void add(const LocalTensor<float>& z, const RowTile& tile, bool first) {
        const BinaryRepeatParams params(1, 1, 0, 8, 8, 0);
        for (uint32_t i = 0; i < tile.width(); i += kLogprobSlice) {
            const uint32_t count = uint32_t(plan::least(kLogprobSlice, tile.width() - i));
            const RowTile slice{0, 1, 0, count, kLogprobSlice};
            const bool start = first && i == 0;
            Sub(h_, z[i], base_block_, uint64_t(kLanes), uint8_t(count / kLanes), params);
            v_barrier();
            exp1<false>(e_, h_, exp_work_, count);
            v_barrier();
            if (plan_.entropy) {
                Mul(h_, e_, h_, int32_t(count));
                CompareScalar(mask_, z[i], -kInfinity, CMPMODE::NE, count);
                v_barrier();
                Select(h_, mask_, h_, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
                v_barrier();
                start ? weighted_.first(h_, slice) : weighted_.more(h_, slice);
            }
            start ? sums_.first(e_, slice) : sums_.more(e_, slice);
            v_barrier();
        }
    }

    LD_FN void finish(uint32_t item, bool any) {
        if (any) {
            sums_.finish(s_, 1);
            if (plan_.entropy) weighted_.finish(h_sum_, 1);
        }
        LocalTensor<float> out = out_.AllocTensor<float>();
        v_barrier();
        copy_floats(out, maximum_, 8);
        if (any) {
            copy_floats(out[8], s_, 8);
            copy_floats(out[16], h_sum_, 8);
        } else {
            Duplicate(out[8], 0.0f, 16);
        }
        out_.EnQue(out);
        out = out_.DeQue<float>();
        const DataCopyExtParams three{3, uint32_t(sizeof(float)), 0, 0, 0};
        DataCopyPad(parts_[uint64_t(item) * 3], out, three);
        out_.FreeTensor(out);
    }

    const LdLogprobPlan& plan_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    RowSums sums_, weighted_;
    LocalTensor<float> e_, h_, largest_, maximum_, base_, s_, h_sum_, temperature_, base_block_, exp_work_;
    LocalTensor<uint8_t> mask_;
    GlobalTensor<float> logits_, temperature_gm_, parts_;
};

}  // namespace ld
