// Gradients of the gated activations: s = 1 / (1 + exp(argument)), then
//   swiglu    dgate = (dy*u) * (s * (1 + g*(1 - s)))                                        dup = dy * (g*s)
//   gelu-tanh dgate = (dy*u) * (s + ((g*(s*(1 - s))) * (2k*(1 + 3c*g*g))))                  dup = dy * (g*s)
//   clamped   dgate = (dy*(u + 1)) * (s + (alpha*g)*(s*(1 - s))), 0 where g was clamped     dup = dy * (g*s), likewise
// A bend is 0 where s*(1 - s) is: nothing may overflow there. Tiles and overlap as in the forward.
#pragma once

#include "glu.h"

namespace ld {

template <class T> class GluBackward {
public:
    LD_FN GluBackward(const LdGluPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        const uint32_t count = tiles_.elements(), bits = uint32_t(plan::round_up(count / 32, 8));
        inputs_.init(pipe, plan, count, 1);
        pipe.InitBuffer(out_, 2, uint32_t(2 * count * sizeof(T)));
        pipe.InitBuffer(work_buffer_, uint32_t((6 * count + 3 * bits + kLanes + kExpWork) * sizeof(float)));
        gate_ = work_buffer_.Get<float>();
        up_ = gate_[count];
        dy_ = up_[count];
        s_ = dy_[count];
        flank_ = s_[count];
        slope_ = flank_[count];
        const LocalTensor<float> rest = slope_[count];
        math_ = {plan.kind, plan.alpha, plan.limit, rest, rest[kLanes],
                 rest[kLanes + kExpWork].ReinterpretCast<uint8_t>()};
        gate_kept_ = rest[kLanes + kExpWork + bits].ReinterpretCast<uint8_t>();
        up_kept_ = rest[kLanes + kExpWork + 2 * bits].ReinterpretCast<uint8_t>();
    }

    LD_FN void run(GM_ADDR dy, GM_ADDR gate, GM_ADDR up, GM_ADDR dgate, GM_ADDR dup) {
        dy_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dy));
        gate_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(gate));
        up_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(up));
        dgate_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dgate));
        dup_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dup));
        Duplicate(math_.ones, 1.0f, int32_t(kLanes));
        for (uint32_t i = 0; i < tiles_.count(); ++i)
            for (uint32_t p = 0; p < tiles_.pieces(); ++p) one(tiles_.at(i, p));
    }

private:
    LD_FN void one(const RowTile& tile) {
        const uint32_t count = tile.flat(), n = plan_.rows.length;
        const uint64_t place = uint64_t(tile.first) * n + tile.column;
        LocalTensor<T> in = inputs_.load(tile, gate_gm_, n, up_gm_, n);
        load_rows(inputs_.third(in), dy_gm_[place], tile.rows, tile.length, n, tile.pitch);
        in = inputs_.exchange(in);
        inputs_.take(in, tile, gate_, up_);
        fill_tail(inputs_.third(in), tile, T(0.0f));
        v_barrier();
        widen(dy_, inputs_.third(in), count);
        inputs_.free(in);
        v_barrier();
        LocalTensor<T> out = out_.template AllocTensor<T>();
        gradients(out, count);
        out_.EnQue(out);
        out = out_.template DeQue<T>();
        store_rows(dgate_gm_[place], out, tile.rows, tile.length, n, tile.pitch);
        store_rows(dup_gm_[place], out[tiles_.elements()], tile.rows, tile.length, n, tile.pitch);
        out_.FreeTensor(out);
    }

    LD_FN void gradients(const LocalTensor<T>& out, uint32_t count) {
        const int32_t n = int32_t(count);
        const bool clamp = plan_.kind == kSwigluClamped;
        if (clamp) mark_clamped(count);
        math_.clamp(gate_, up_, count);
        math_.divisor(s_, gate_, count);
        math_.invert_values(s_, s_, count);
        v_barrier();
        Muls(flank_, s_, -1.0f, n);
        v_barrier();
        Adds(flank_, flank_, 1.0f, n);
        v_barrier();
        if (plan_.kind == kSwiglu) {
            Mul(slope_, gate_, flank_, n);
            v_barrier();
            Adds(slope_, slope_, 1.0f, n);
            v_barrier();
            Mul(slope_, s_, slope_, n);
        } else {
            Mul(flank_, s_, flank_, n);
            bend(count);
            Add(slope_, s_, slope_, n);
        }
        Mul(up_, dy_, up_, n);
        Mul(gate_, gate_, s_, n);
        v_barrier();
        Mul(up_, up_, slope_, n);
        Mul(gate_, dy_, gate_, n);
        v_barrier();
        if (clamp) {
            Select(up_, gate_kept_, up_, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
            Select(gate_, up_kept_, gate_, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
            v_barrier();
        }
        narrow(out, up_, count);
        narrow(out[tiles_.elements()], gate_, count);
    }

    // slope = the activation's derivative beyond s, 0 where flank is 0.
    LD_FN void bend(uint32_t count) {
        const int32_t n = int32_t(count);
        if (plan_.kind == kGegluTanh) {
            Muls(slope_, gate_, 3.0f * kCubic, n);
            v_barrier();
            Mul(slope_, slope_, gate_, n);
            v_barrier();
            Adds(slope_, slope_, 1.0f, n);
            v_barrier();
            Muls(slope_, slope_, 2.0f * kGelu, n);
            CompareScalar(math_.mask, flank_, 0.0f, CMPMODE::NE, count);
            v_barrier();
            Mul(flank_, gate_, flank_, n);
            v_barrier();
            Mul(slope_, flank_, slope_, n);
        } else {
            Muls(slope_, gate_, plan_.alpha, n);
            v_barrier();
            CompareScalar(math_.mask, flank_, 0.0f, CMPMODE::NE, count);
            Mul(slope_, slope_, flank_, n);
        }
        v_barrier();
        Select(slope_, math_.mask, slope_, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
        v_barrier();
    }

    // Bits of the values that the clamps leave alone: !(g > limit) and !(|u| > limit).
    LD_FN void mark_clamped(uint32_t count) {
        math_.not_above(gate_, plan_.limit, count);
        keep_mask(gate_kept_, count);
        Abs(slope_, up_, int32_t(count));
        v_barrier();
        math_.not_above(slope_, plan_.limit, count);
        keep_mask(up_kept_, count);
    }
    LD_FN void keep_mask(const LocalTensor<uint8_t>& to, uint32_t count) const {
        Or(to.ReinterpretCast<uint16_t>(), math_.mask.ReinterpretCast<uint16_t>(),
           math_.mask.ReinterpretCast<uint16_t>(), int32_t(count / 16));
        v_barrier();
    }

    const LdGluPlan& plan_;
    RowTiles tiles_;
    GluInputs<T> inputs_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    GluMath math_;
    LocalTensor<float> gate_, up_, dy_, s_, flank_, slope_;
    LocalTensor<uint8_t> gate_kept_, up_kept_;
    GlobalTensor<T> dy_gm_, gate_gm_, up_gm_, dgate_gm_, dup_gm_;
};

}  // namespace ld
