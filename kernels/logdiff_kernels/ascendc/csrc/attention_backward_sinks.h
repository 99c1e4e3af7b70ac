// Gradient of the sinks: per head R64 over the tokens, in batch order, of -(exp1(sink - lse) * D), 0 where lse is -inf.
//
// A vector core takes every n-th head. lse and D of 512 tokens at a time are two tensors of a double-buffered queue, one
// data block per token with the value in its first lane (of D's equal lanes all): the running lanes of R64 are 64 data
// blocks, and MTE2 of 512 tokens overlaps V on those before.
#pragma once

#include "common/exp1.h"
#include "common/reduce.h"
#include "plan/csrc/attention_backward.h"

namespace ld {

class AttentionSinkGrad {
public:
    LD_FN AttentionSinkGrad(const LdAttentionBackwardPlan& plan, TPipe& pipe) : plan_(plan) {
        pipe.InitBuffer(in_, 2, uint32_t(2 * kFloats * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(kBlockFloats * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t((kExpWork + kLanes * kBlockFloats + kFloats / 32) * sizeof(float)));
        work_ = work_buffer_.Get<float>();
        lanes_ = work_[kExpWork];
        seen_ = lanes_[kLanes * kBlockFloats].ReinterpretCast<uint8_t>();
    }

    LD_FN void run(GM_ADDR sinks, GM_ADDR lse, GM_ADDR dots, GM_ADDR dsinks) {
        sinks_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(sinks));
        lse_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(lse));
        dots_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dots) + uint64_t(plan_.dots.rows) * kBlockFloats);
        dsinks_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dsinks));
        for (uint32_t head = uint32_t(GetBlockIdx()); head < plan_.forward.heads; head += uint32_t(GetBlockNum()))
            sum(head);
    }

private:
    static constexpr uint32_t kBlockFloats = plan::kBlockBytes / sizeof(float);
    static constexpr uint32_t kTokens = 512, kFloats = kTokens * kBlockFloats;

    LD_FN void load(uint32_t head, uint32_t token) {
        const uint32_t now = uint32_t(plan::least(kTokens, plan_.tokens - token)), heads = plan_.forward.heads;
        const uint64_t row = uint64_t(token) * heads + head;
        const LocalTensor<float> in = in_.AllocTensor<float>();
        load_rows(in, lse_gm_[row], now, 1, heads, kBlockFloats);
        load_rows(in[kFloats], dots_gm_[row * kBlockFloats], now, kBlockFloats, int64_t(heads) * kBlockFloats,
                  kBlockFloats);
        in_.EnQue(in);
    }

    LD_FN void sum(uint32_t head) {
        const float sink = sinks_gm_.GetValue(head);
        const uint32_t wide = kLanes * kBlockFloats;
        if (plan_.tokens != 0) load(head, 0);
        v_barrier();
        Duplicate(lanes_, 0.0f, int32_t(wide));
        for (uint32_t token = 0; token < plan_.tokens; token += kTokens) {
            const uint32_t now = uint32_t(plan::least(kTokens, plan_.tokens - token));
            if (token + kTokens < plan_.tokens) load(head, token + kTokens);
            const LocalTensor<float> in = in_.DeQue<float>();
            const uint32_t count = uint32_t(plan::round_up(now, kLanes)) * kBlockFloats, used = now * kBlockFloats;
            if (used < count) {  // what R64 lacks: +0, by lse = -inf
                Duplicate(in[used], -kInfinity, int32_t(count - used));
                Duplicate(in[kFloats + used], 0.0f, int32_t(count - used));
            }
            terms(in, in[kFloats], sink, count);
            for (uint32_t at = 0; at < count; at += wide) {
                v_barrier();
                if (token == 0 && at == 0) {
                    copy_floats(lanes_, in, wide);
                } else {
                    Add(lanes_, lanes_, in[at], int32_t(wide));
                }
            }
            in_.FreeTensor(in);
        }
        for (uint32_t half = kLanes / 2; half >= 8; half /= 2) {
            v_barrier();
            Add(lanes_, lanes_, lanes_[half * kBlockFloats], int32_t(half * kBlockFloats));
        }
        // Neighbours: every other block is added to the one before it.
        for (uint32_t pairs = 4, apart = 1; pairs >= 1; pairs /= 2, apart *= 2) {
            const uint8_t pitch = uint8_t(2 * apart);
            v_barrier();
            Add(lanes_, lanes_, lanes_[apart * kBlockFloats], uint64_t(kBlockFloats), uint8_t(pairs),
                BinaryRepeatParams(1, 1, 1, pitch, pitch, pitch));
        }
        const LocalTensor<float> out = out_.AllocTensor<float>();
        v_barrier();
        Muls(out, lanes_, 1.0f, int32_t(kBlockFloats));
        out_.EnQue(out);
        const LocalTensor<float> done = out_.DeQue<float>();
        store_rows(dsinks_gm_[head], done, 1, 1, 1, kBlockFloats);
        out_.FreeTensor(done);
    }

    // lse = -(exp1(sink - lse) * D), or 0 where lse is -inf.
    LD_FN void terms(const LocalTensor<float>& lse, const LocalTensor<float>& dots, float sink, uint32_t count) {
        const int32_t n = int32_t(count);
        v_barrier();
        CompareScalar(seen_, lse, -kInfinity, CMPMODE::NE, count);
        v_barrier();
        Muls(lse, lse, -1.0f, n);
        v_barrier();
        Adds(lse, lse, sink, n);
        v_barrier();
        exp1(lse, lse, work_, count);
        v_barrier();
        Mul(lse, lse, dots, n);
        v_barrier();
        Muls(lse, lse, -1.0f, n);
        v_barrier();
        Select(lse, seen_, lse, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    }

    const LdAttentionBackwardPlan& plan_;
    TQue<TPosition::VECIN, 2> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> work_, lanes_;
    LocalTensor<uint8_t> seen_;
    GlobalTensor<float> sinks_gm_, lse_gm_, dots_gm_, dsinks_gm_;
};

}  // namespace ld
