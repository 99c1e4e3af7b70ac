// Sums of rows by each reduction that there is: what the self-test's order probes are made of. Kernels themselves use
// PairReduceSum, WholeReduceMax, R64 and T alone; the others are recorded because their order is the chip's.
#pragma once

#include "common/reduce.h"
#include "probe_plan.h"

namespace ld {

class ReduceProbe {
public:
    LD_FN ReduceProbe(const LdReduceProbePlan& plan, TPipe& pipe) : plan_(plan) {
        pipe.InitBuffer(in_, 1, uint32_t(plan.length * sizeof(float)));
        pipe.InitBuffer(out_, 1, uint32_t(probe::kReducePitch * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t(plan.length * sizeof(float)));
        work_ = work_buffer_.Get<float>();
        if (plan.op == probe::kR64) sums_.init(pipe, 1);
    }

    LD_FN void run(GM_ADDR x, GM_ADDR out) {
        x_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(x));
        result_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(out));
        for (uint32_t row = uint32_t(GetBlockIdx()); row < plan_.rows; row += uint32_t(GetBlockNum())) {
            LocalTensor<float> in = in_.AllocTensor<float>();
            DataCopy(in, x_[uint64_t(row) * plan_.length], plan_.length);
            in_.EnQue(in);
            in = in_.DeQue<float>();
            LocalTensor<float> result = out_.AllocTensor<float>();
            Duplicate(result, 0.0f, int32_t(probe::kReducePitch));
            v_barrier();
            reduce(result, in);
            in_.FreeTensor(in);
            out_.EnQue(result);
            result = out_.DeQue<float>();
            DataCopy(result_[uint64_t(row) * probe::kReducePitch], result, probe::kReducePitch);
            out_.FreeTensor(result);
        }
    }

private:
    LD_FN void reduce(const LocalTensor<float>& result, const LocalTensor<float>& x) {
        const int32_t lanes = int32_t(kLanes), repeats = int32_t(plan_.length / kLanes);
        switch (plan_.op) {
            case probe::kPairReduceSum: PairReduceSum(result, x, uint8_t(repeats), lanes, 1, 1, 8); break;
            case probe::kBlockReduceSum: BlockReduceSum(result, x, uint8_t(repeats), lanes, 1, 1, 8); break;
            case probe::kWholeReduceSum: WholeReduceSum(result, x, lanes, uint8_t(repeats), 1, 1, 8); break;
            case probe::kReduceSumCounted: ReduceSum(result, x, work_, int32_t(plan_.length)); break;
            case probe::kReduceSumRepeated: ReduceSum(result, x, work_, lanes, repeats, 8); break;
            case probe::kR64:
                sums_.first(x, RowTile{0, 1, 0, plan_.length, plan_.length});
                sums_.finish(result, 1);
                break;
            case probe::kTree8:
                copy_floats(work_, x, kLanes);
                tree_add(work_, 8, 8);
                v_barrier();
                copy_floats(result, work_, 8);
                break;
            default:
                WholeReduceMax(result, x, lanes, uint8_t(repeats), 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
                break;
        }
    }

    const LdReduceProbePlan& plan_;
    GlobalTensor<float> x_, result_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> work_;
    RowSums sums_;
};

}  // namespace ld
