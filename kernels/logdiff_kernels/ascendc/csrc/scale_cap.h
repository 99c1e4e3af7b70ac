// Logits in place: z * scale, then cap * tanh1(z / cap); a scale of 1 and a cap of 0 are skipped.
//
// Runs of `rows.length` elements through double-buffered queues: MTE2, V and MTE3 of neighbouring runs overlap.
#pragma once

#include "common/exp1.h"
#include "common/row_tiles.h"

namespace ld {

class ScaleCap {
public:
    LD_FN ScaleCap(const LdScalePlan& plan, TPipe& pipe) : plan_(plan) {
        const uint32_t run = plan.rows.length;
        pipe.InitBuffer(in_, 2, uint32_t(run * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(run * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t((2 * run + kExpWork) * sizeof(float)));
        cap_ = work_buffer_.Get<float>();
        scratch_ = cap_[run];
        work_ = scratch_[run];
    }

    LD_FN void run(GM_ADDR logits) {
        const uint32_t length = plan_.rows.length;
        logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(logits));
        Duplicate(cap_, plan_.cap, int32_t(length));
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i) {
            const uint64_t first = uint64_t(walk.first + i * walk.stride) * length;
            step(first, uint32_t(plan::least(length, plan_.count - first)));
        }
    }

private:
    LD_FN void step(uint64_t first, uint32_t count) {
        const uint32_t padded = uint32_t(plan::round_up(count, kLanes)), length = plan_.rows.length;
        LocalTensor<float> in = in_.AllocTensor<float>();
        load_rows(in, logits_[first], 1, count, count, length);
        in_.EnQue(in);
        in = in_.DeQue<float>();
        fill_tail(in, RowTile{0, 1, 0, count, length}, 0.0f);
        if (plan_.scale != 1.0f) {
            v_barrier();
            Muls(in, in, plan_.scale, int32_t(padded));
        }
        LocalTensor<float> out = out_.AllocTensor<float>();
        v_barrier();
        if (plan_.cap != 0.0f) {
            divide(in, in, cap_, padded);
            v_barrier();
            tanh1(out, in, scratch_, work_, padded);
            v_barrier();
            Muls(out, out, plan_.cap, int32_t(padded));
        } else {
            copy_floats(out, in, padded);
        }
        in_.FreeTensor(in);
        out_.EnQue(out);
        out = out_.DeQue<float>();
        store_rows(logits_[first], out, 1, count, count, length);
        out_.FreeTensor(out);
    }

    const LdScalePlan& plan_;
    GlobalTensor<float> logits_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> cap_, scratch_, work_;
};

}  // namespace ld
