// Gated activations act(gate) * up: swiglu, gelu-tanh and the clamped swiglu, and their gradients.
//
// Rows in tiles, or pieces of long rows; gate and up come through one double-buffered queue, results leave through
// another, V works on the tile between. Where gate and up are the even and odd elements of one tensor, whole rows are
// loaded and GatherMask parts them.
#pragma once

#include "common/exp1.h"
#include "common/row_tiles.h"

namespace ld {

enum GluKind : uint32_t { kSwiglu = 0, kGegluTanh = 1, kSwigluClamped = 2 };
constexpr float kGelu = 0.79788456f, kCubic = 0.044715f;

// Functions of a tile of `count` values; all tensors are different memory.
struct GluMath {
    uint32_t kind;
    float alpha, limit;
    LocalTensor<float> ones, exp_work;  // 64 ones
    LocalTensor<uint8_t> mask;

    // Bits of the lanes with !(x > value); NaN is one of them.
    LD_FN void not_above(const LocalTensor<float>& x, float value, uint32_t count) const {
        CompareScalar(mask, x, value, CMPMODE::GT, count);
        invert(count);
    }
    LD_FN void not_below(const LocalTensor<float>& x, float value, uint32_t count) const {
        CompareScalar(mask, x, value, CMPMODE::LT, count);
        invert(count);
    }
    LD_FN void invert(uint32_t count) const {
        const LocalTensor<uint16_t> words = mask.ReinterpretCast<uint16_t>();
        v_barrier();
        Not(words, words, int32_t(count / 16));
        v_barrier();
    }
    LD_FN void keep_or(const LocalTensor<float>& x, float other, uint32_t count) const {
        Select(x, mask, x, other, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
        v_barrier();
    }

    // The clamped kind's gate and up, in place; a NaN stays.
    LD_FN void clamp(const LocalTensor<float>& gate, const LocalTensor<float>& up, uint32_t count) const {
        if (kind != kSwigluClamped) return;
        not_above(gate, limit, count);
        keep_or(gate, limit, count);
        not_above(up, limit, count);
        keep_or(up, limit, count);
        not_below(up, -limit, count);
        keep_or(up, -limit, count);
        Adds(up, up, 1.0f, int32_t(count));
    }

    // out = 1 + exp(argument), the divisor of the activation; gate is clamped.
    LD_FN void divisor(const LocalTensor<float>& out, const LocalTensor<float>& gate, uint32_t count) const {
        const int32_t n = int32_t(count);
        if (kind == kGegluTanh) {
            Muls(out, gate, kCubic, n);
            v_barrier();
            Mul(out, out, gate, n);
            v_barrier();
            Mul(out, out, gate, n);
            v_barrier();
            Add(out, gate, out, n);
            v_barrier();
            Muls(out, out, -2.0f * kGelu, n);
        } else if (kind == kSwigluClamped) {
            Muls(out, gate, alpha, n);
            v_barrier();
            Muls(out, out, -1.0f, n);
        } else {
            Muls(out, gate, -1.0f, n);
        }
        v_barrier();
        exp1(out, out, exp_work, count);
        v_barrier();
        Adds(out, out, 1.0f, n);
        v_barrier();
    }

    // out = 1 / x.
    LD_FN void invert_values(const LocalTensor<float>& out, const LocalTensor<float>& x, uint32_t count) const {
        const BinaryRepeatParams params(1, 1, 1, 8, 0, 8);
        for (uint32_t i = 0; i < count; i += kMostRepeats * kLanes) {
            const uint32_t repeats = uint32_t(plan::least(kMostRepeats, (count - i) / kLanes));
            divide_rows(out[i], ones, x[i], repeats, params);
        }
    }
};

// gate and up of a tile as fp32.
template <class T> class GluInputs {
public:
    // others: rows of the same shape that share the queue's tensors behind gate and up.
    LD_FN void init(TPipe& pipe, const LdGluPlan& plan, uint32_t elements, uint32_t others) {
        step_ = plan.step;
        elements_ = elements;
        pipe.InitBuffer(in_, 2, uint32_t((2 + others) * elements * sizeof(T)));
        if (step_ == 2) {
            pipe.InitBuffer(parted_buffer_, uint32_t(2 * elements * sizeof(T)));
            parted_ = parted_buffer_.template Get<T>();
        }
    }

    LD_FN LocalTensor<T> load(const RowTile& tile, const GlobalTensor<T>& gate, int64_t gate_stride,
                              const GlobalTensor<T>& up, int64_t up_stride) {
        LocalTensor<T> in = in_.template AllocTensor<T>();
        const uint64_t row = tile.first;
        if (step_ == 2) {
            load_rows(in, gate[row * gate_stride + 2 * tile.column], tile.rows, 2 * tile.length, gate_stride,
                      2 * tile.pitch);
        } else {
            load_rows(in, gate[row * gate_stride + tile.column], tile.rows, tile.length, gate_stride, tile.pitch);
            load_rows(in[elements_], up[row * up_stride + tile.column], tile.rows, tile.length, up_stride, tile.pitch);
        }
        return in;
    }
    LD_FN LocalTensor<T> third(const LocalTensor<T>& in) const { return in[2 * elements_]; }

    LD_FN LocalTensor<T> exchange(LocalTensor<T> in) {
        in_.EnQue(in);
        return in_.template DeQue<T>();
    }

    // After exchange(): the values, ready behind the v_barrier() that the caller puts next.
    LD_FN void take(const LocalTensor<T>& in, const RowTile& tile, const LocalTensor<float>& gate,
                    const LocalTensor<float>& up) {
        const uint32_t count = tile.flat();
        if (step_ == 2) {
            const RowTile pairs{tile.first, tile.rows, 2 * tile.column, 2 * tile.length, 2 * tile.pitch};
            fill_pairs(in, pairs, 2 * tile.width());
            v_barrier();
            part(parted_, in, 1, count);
            part(parted_[elements_], in, 2, count);
            v_barrier();
            widen(gate, parted_, count);
            widen(up, parted_[elements_], count);
            return;
        }
        fill_tail(in, tile, T(0.0f));
        fill_tail(in[elements_], tile, T(0.0f));
        v_barrier();
        widen(gate, in, count);
        widen(up, in[elements_], count);
    }
    LD_FN void free(LocalTensor<T> in) { in_.FreeTensor(in); }

private:
    // 2 * length may end up to 127 values before the width: a whole chunk and a part.
    static LD_FN void fill_pairs(const LocalTensor<T>& x, const RowTile& pairs, uint32_t width) {
        fill_tail(x, pairs, T(0.0f));
        if (pairs.width() == width) return;
        for (uint32_t r = 0; r < pairs.rows; ++r)
            Duplicate(x[r * pairs.pitch + pairs.width()], T(0.0f), int32_t(kLanes));
    }
    // The even (1) or odd (2) ones of 2 * count values. Types without arithmetic on a chip are moved as integers.
    static LD_FN void part(const LocalTensor<T>& to, const LocalTensor<T>& from, uint8_t pattern, uint32_t count) {
        using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
        constexpr uint32_t lanes = 256 / sizeof(T);
        uint64_t kept = 0;
        const GatherMaskParams params(1, uint16_t(2 * count / lanes), 8, 0);
        GatherMask(to.template ReinterpretCast<Bits>(), from.template ReinterpretCast<Bits>(), pattern, false, 0,
                   params, kept);
    }

    TQue<TPosition::VECIN, 1> in_;
    TBuf<TPosition::VECCALC> parted_buffer_;
    LocalTensor<T> parted_;
    uint32_t step_ = 1, elements_ = 0;
};

template <class T> class Glu {
public:
    LD_FN Glu(const LdGluPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        const uint32_t count = tiles_.elements();
        inputs_.init(pipe, plan, count, 0);
        pipe.InitBuffer(out_, 2, uint32_t(count * sizeof(T)));
        pipe.InitBuffer(work_buffer_, uint32_t((3 * count + count / 32 + kLanes + kExpWork) * sizeof(float)));
        gate_ = work_buffer_.Get<float>();
        up_ = gate_[count];
        work_ = up_[count];
        math_ = {plan.kind, plan.alpha, plan.limit, work_[count], work_[count + kLanes],
                 work_[count + kLanes + kExpWork].ReinterpretCast<uint8_t>()};
    }

    LD_FN void run(GM_ADDR gate, GM_ADDR up, GM_ADDR y) {
        gate_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(gate));
        up_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(up));
        y_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(y));
        for (uint32_t i = 0; i < tiles_.count(); ++i)
            for (uint32_t p = 0; p < tiles_.pieces(); ++p) one(tiles_.at(i, p));
    }

private:
    LD_FN void one(const RowTile& tile) {
        const uint32_t count = tile.flat();
        LocalTensor<T> in = inputs_.load(tile, gate_gm_, plan_.gate_stride, up_gm_, plan_.up_stride);
        in = inputs_.exchange(in);
        inputs_.take(in, tile, gate_, up_);
        inputs_.free(in);
        v_barrier();
        math_.clamp(gate_, up_, count);
        math_.divisor(work_, gate_, count);
        divide(work_, gate_, work_, count);
        v_barrier();
        Mul(work_, work_, up_, int32_t(count));
        v_barrier();
        LocalTensor<T> out = out_.template AllocTensor<T>();
        narrow(out, work_, count);
        out_.EnQue(out);
        out = out_.template DeQue<T>();
        store_rows(y_[uint64_t(tile.first) * plan_.y_stride + tile.column], out, tile.rows, tile.length, plan_.y_stride,
                   tile.pitch);
        out_.FreeTensor(out);
    }

    const LdGluPlan& plan_;
    RowTiles tiles_;
    GluInputs<T> inputs_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    GluMath math_;
    LocalTensor<float> gate_, up_, work_;
    GlobalTensor<T> gate_gm_, up_gm_, y_;
};

}  // namespace ld
