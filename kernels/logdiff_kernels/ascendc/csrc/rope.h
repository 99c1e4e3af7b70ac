// rope: pairs (x1, x2) become x1*c - x2*s and x2*c + x1*s; the backward is the same with -s.
//
// A tile is some tokens with all their heads, or a part of the heads of one token. cos and sin of the tile's tokens come
// through a queue of their own and are shared by the heads. neox: the two halves of a head are loaded as rows of their
// own, so each starts on a block for any rotary size. Interleaved: y = x*C + swapped(x)*S with C = (c0, c0, c1, c1, ...)
// and S = (-s0, s0, -s1, s1, ...), which has the same bits; 16-bit pairs are swapped inside 32-bit words by shifts.
// Elements behind the rotary ones are copied by MTE2 and MTE3 alone. In, work and out overlap by double-buffered queues.
#pragma once

#include "common/row_copy.h"

namespace ld {

template <class T> class Rope {
public:
    LD_FN Rope(const LdRopePlan& plan, TPipe& pipe) : plan_(plan) {
        half_pitch_ = uint32_t(plan::round_up(plan.rotary / 2, kLanes));
        pitch_ = plan.interleaved ? uint32_t(plan::round_up(plan.rotary, kLanes)) : half_pitch_;
        parts_ = plan.interleaved ? 1 : 2;
        part_heads_ = plan.rows.pieces == 1 ? plan.heads : uint32_t(plan::most(1, plan.rows.tile / (parts_ * pitch_)));
        const uint32_t tokens = plan.rows.tile_rows, rows = tokens * part_heads_;
        part_ = rows * pitch_;
        angles_ = tokens * half_pitch_;
        pipe.InitBuffer(in_, 2, uint32_t(parts_ * part_ * sizeof(T)));
        pipe.InitBuffer(angles_in_, 2, uint32_t(2 * angles_ * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(parts_ * part_ * sizeof(T)));
        const uint32_t factors = tokens * pitch_, tables = plan.interleaved ? 4 * pitch_ + part_ : 0;
        pipe.InitBuffer(work_buffer_, uint32_t((4 * part_ + 2 * factors + tables) * sizeof(float)));
        a_ = work_buffer_.Get<float>();
        b_ = a_[part_];
        first_ = b_[part_];
        second_ = first_[part_];
        cos_ = second_[part_];
        sin_ = cos_[factors];
        table_ = sin_[factors];
        if (plan.rotary < plan.dim) copy_.init(pipe, copy_rows() * uint32_t(plan::round_up(plan.dim - plan.rotary, 16)));
    }

    LD_FN void run(GM_ADDR x, GM_ADDR cos, GM_ADDR sin, GM_ADDR y) {
        x_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(x));
        y_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(y));
        cos_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(cos));
        sin_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(sin));
        if (plan_.interleaved) make_tables();
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; i += plan_.rows.tile_rows) {
            const uint32_t token = walk.first + i, tokens = uint32_t(plan::least(plan_.rows.tile_rows, walk.count - i));
            if (plan_.rotary != 0) {
                take_angles(token, tokens);
                for (uint32_t head = 0; head < plan_.heads; head += part_heads_)
                    turn(token, tokens, head, uint32_t(plan::least(part_heads_, plan_.heads - head)));
            }
            if (plan_.rotary < plan_.dim && x != y) copy_rest(token, tokens);
        }
        if (plan_.rotary < plan_.dim) copy_.finish();
    }

private:
    // Rows of the elements behind the rotary ones that are copied at a time.
    LD_FN uint32_t copy_rows() const {
        return uint32_t(plan::most(1, plan::least(plan_.heads, 1024 / plan::round_up(plan_.dim - plan_.rotary, 16))));
    }

    // Rows of `length` elements from `column` on, token after token, head after head, between GM and a tensor.
    LD_FN void load(const LocalTensor<T>& to, uint32_t token, uint32_t tokens, uint32_t head, uint32_t heads,
                    uint32_t column, uint32_t length) {
        const GlobalTensor<T> from = x_[uint64_t(token * plan_.x_token + head * plan_.x_head + column)];
        if (heads == 1) {
            load_rows(to, from, tokens, length, plan_.x_token, pitch_);
        } else if (plan_.x_token == int64_t(heads) * plan_.x_head) {
            load_rows(to, from, tokens * heads, length, plan_.x_head, pitch_);
        } else {
            for (uint32_t t = 0; t < tokens; ++t)
                load_rows(to[t * heads * pitch_], from[uint64_t(t * plan_.x_token)], heads, length, plan_.x_head, pitch_);
        }
    }
    LD_FN void store(const LocalTensor<T>& from, uint32_t token, uint32_t tokens, uint32_t head, uint32_t heads,
                     uint32_t column, uint32_t length) {
        const GlobalTensor<T> to = y_[uint64_t(token * plan_.y_token + head * plan_.y_head + column)];
        if (heads == 1) {
            store_rows(to, from, tokens, length, plan_.y_token, pitch_);
        } else if (plan_.y_token == int64_t(heads) * plan_.y_head) {
            store_rows(to, from, tokens * heads, length, plan_.y_head, pitch_);
        } else {
            for (uint32_t t = 0; t < tokens; ++t)
                store_rows(to[uint64_t(t * plan_.y_token)], from[t * heads * pitch_], heads, length, plan_.y_head, pitch_);
        }
    }

    // Byte offsets of (0, 0, 1, 1, ...) and, for fp32, of the neighbour within each pair; the signs -1, 1, -1, 1, ...
    LD_FN void make_tables() {
        const int32_t n = int32_t(pitch_);
        doubled_ = table_.ReinterpretCast<int32_t>();
        const LocalTensor<int32_t> index = table_[pitch_].ReinterpretCast<int32_t>();
        const LocalTensor<int32_t> odd = table_[2 * pitch_].ReinterpretCast<int32_t>();
        signs_ = table_[3 * pitch_];
        swapped_ = table_[4 * pitch_].ReinterpretCast<int32_t>();
        CreateVecIndex(index, int32_t(0), pitch_);
        v_barrier();
        ShiftRight(doubled_, index, 1, n);
        v_barrier();
        ShiftLeft(odd, doubled_, 1, n);
        v_barrier();
        Sub(odd, index, odd, n);
        ShiftLeft(doubled_, doubled_, 2, n);
        v_barrier();
        Cast(signs_, odd, RoundMode::CAST_RINT, pitch_);
        v_barrier();
        Muls(signs_, signs_, plan_.backward ? -2.0f : 2.0f, n);
        v_barrier();
        Adds(signs_, signs_, plan_.backward ? 1.0f : -1.0f, n);
        if constexpr (std::is_same_v<T, float>) {  // i + 1 - 2 (i % 2)
            const int32_t all = int32_t(part_);
            const LocalTensor<int32_t> twice = first_.ReinterpretCast<int32_t>();
            CreateVecIndex(swapped_, int32_t(0), part_);
            v_barrier();
            ShiftRight(twice, swapped_, 1, all);
            v_barrier();
            ShiftLeft(twice, twice, 2, all);
            v_barrier();
            Sub(swapped_, twice, swapped_, all);  // 4 (i / 2) - i: 2 (i / 2) - i % 2
            v_barrier();
            Adds(swapped_, swapped_, 1, all);
            v_barrier();
            ShiftLeft(swapped_, swapped_, 2, all);
        }
    }

    LD_FN void take_angles(uint32_t token, uint32_t tokens) {
        const uint32_t half = plan_.rotary / 2;
        const RowTile tile{token, tokens, 0, half, half_pitch_};
        LocalTensor<float> in = angles_in_.AllocTensor<float>();
        load_rows(in, cos_gm_[uint64_t(token) * half], tokens, half, half, half_pitch_);
        load_rows(in[angles_], sin_gm_[uint64_t(token) * half], tokens, half, half, half_pitch_);
        angles_in_.EnQue(in);
        in = angles_in_.DeQue<float>();
        fill_tail(in, tile, 0.0f);
        fill_tail(in[angles_], tile, 0.0f);
        v_barrier();
        if (!plan_.interleaved) {
            copy_floats(cos_, in, tile.flat());
            Muls(sin_, in[angles_], plan_.backward ? -1.0f : 1.0f, int32_t(tile.flat()));
        } else {
            const LocalTensor<uint32_t> offsets = doubled_.ReinterpretCast<uint32_t>();
            for (uint32_t t = 0; t < tokens; ++t) {
                const uint32_t base = t * half_pitch_ * uint32_t(sizeof(float));
                Gather(cos_[t * pitch_], in, offsets, base, pitch_);
                Gather(sin_[t * pitch_], in[angles_], offsets, base, pitch_);
            }
            v_barrier();
            each_row<MulRows, Beside::kColumns>(sin_, sin_, signs_, {token, tokens, 0, plan_.rotary, pitch_});
        }
        angles_in_.FreeTensor(in);
        v_barrier();
    }

    LD_FN void turn(uint32_t token, uint32_t tokens, uint32_t head, uint32_t heads) {
        const uint32_t length = plan_.rotary / parts_, rows = tokens * heads, count = rows * pitch_;
        const RowTile tile{0, rows, 0, length, pitch_};
        LocalTensor<T> in = in_.template AllocTensor<T>();
        load(in, token, tokens, head, heads, 0, length);
        if (parts_ == 2) load(in[part_], token, tokens, head, heads, length, length);
        in_.EnQue(in);
        in = in_.template DeQue<T>();
        fill_tail(in, tile, T(0.0f));
        if (parts_ == 2) fill_tail(in[part_], tile, T(0.0f));
        v_barrier();
        widen(a_, in, count);
        if (parts_ == 2)
            widen(b_, in[part_], count);
        else
            swap_pairs(in, count);
        in_.FreeTensor(in);
        v_barrier();
        LocalTensor<T> out = out_.template AllocTensor<T>();
        for (uint32_t t = 0; t < tokens; ++t) {  // a*c and b*s
            const uint32_t at = t * heads * pitch_;
            const RowTile one{0, heads, 0, length, pitch_};
            each_row<MulRows, Beside::kColumns>(first_[at], a_[at], cos_[t * pitch_], one);
            each_row<MulRows, Beside::kColumns>(second_[at], b_[at], sin_[t * pitch_], one);
        }
        v_barrier();
        if (parts_ == 1) {
            Add(first_, first_, second_, int32_t(count));
            v_barrier();
            narrow(out, first_, count);
        } else {
            Sub(first_, first_, second_, int32_t(count));
            v_barrier();
            narrow(out, first_, count);
            v_barrier();
            for (uint32_t t = 0; t < tokens; ++t) {  // b*c and a*s
                const uint32_t at = t * heads * pitch_;
                const RowTile one{0, heads, 0, length, pitch_};
                each_row<MulRows, Beside::kColumns>(first_[at], b_[at], cos_[t * pitch_], one);
                each_row<MulRows, Beside::kColumns>(second_[at], a_[at], sin_[t * pitch_], one);
            }
            v_barrier();
            Add(first_, first_, second_, int32_t(count));
            v_barrier();
            narrow(out[part_], first_, count);
        }
        v_barrier();
        out_.EnQue(out);
        out = out_.template DeQue<T>();
        store(out, token, tokens, head, heads, 0, length);
        if (parts_ == 2) store(out[part_], token, tokens, head, heads, length, length);
        out_.FreeTensor(out);
    }

    // b = x with the elements of each pair exchanged.
    LD_FN void swap_pairs(const LocalTensor<T>& x, uint32_t count) {
        if constexpr (std::is_same_v<T, float>) {
            Gather(b_, x, swapped_.ReinterpretCast<uint32_t>(), 0, count);
        } else {
            const LocalTensor<uint32_t> words = x.template ReinterpretCast<uint32_t>();
            const LocalTensor<uint32_t> low = first_.ReinterpretCast<uint32_t>();
            const LocalTensor<uint32_t> high = second_.ReinterpretCast<uint32_t>();
            const int32_t n = int32_t(count / 2);
            ShiftRight(low, words, uint32_t(16), n);
            ShiftLeft(high, words, uint32_t(16), n);
            v_barrier();
            Add(low.ReinterpretCast<int32_t>(), low.ReinterpretCast<int32_t>(), high.ReinterpretCast<int32_t>(), n);
            v_barrier();
            widen(b_, low.ReinterpretCast<T>(), count);
        }
    }

    LD_FN void copy_rest(uint32_t token, uint32_t tokens) {
        const uint32_t length = plan_.dim - plan_.rotary;
        for (uint32_t t = token; t < token + tokens; ++t) {
            for (uint32_t head = 0; head < plan_.heads; head += copy_rows()) {
                const uint32_t heads = uint32_t(plan::least(copy_rows(), plan_.heads - head));
                copy_.copy(y_[uint64_t(t * plan_.y_token + head * plan_.y_head + plan_.rotary)], plan_.y_head,
                           x_[uint64_t(t * plan_.x_token + head * plan_.x_head + plan_.rotary)], plan_.x_head, heads,
                           length);
            }
        }
    }

    const LdRopePlan& plan_;
    uint32_t half_pitch_, pitch_, parts_, part_heads_, part_, angles_;
    TQue<TPosition::VECIN, 1> in_, angles_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    RowCopy<T> copy_;
    LocalTensor<float> a_, b_, first_, second_, cos_, sin_, table_, signs_;
    LocalTensor<int32_t> doubled_, swapped_;
    GlobalTensor<T> x_, y_;
    GlobalTensor<float> cos_gm_, sin_gm_;
};

}  // namespace ld
