// T(count) over fp32 partials [count, rows, n], plus bias, one cast: the last step of linear_row across ranks.
//
// A tile of rows of all partials comes in one queue entry; two entries, so MTE2 loads tile i + 1 and MTE3 stores tile
// i - 1 while V adds tile i in place.
#pragma once

#include "common/reduce.h"

namespace ld {

template <class Out> class TreeCombine {
public:
    LD_FN TreeCombine(const LdTreePlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        const uint32_t count = tiles_.elements();
        pipe.InitBuffer(in_, 2, uint32_t(plan.count * count * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(count * sizeof(Out)));
        pipe.InitBuffer(bias_in_, 1, uint32_t(plan.rows.tile * sizeof(float)));
        pipe.InitBuffer(bias_buffer_, uint32_t(plan.rows.tile * sizeof(float)));
        bias_values_ = bias_buffer_.Get<float>();
    }

    LD_FN void run(GM_ADDR partials, GM_ADDR bias, GM_ADDR out) {
        partials_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(partials));
        out_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ Out*>(out));
        bias_ = bias;
        Duplicate(bias_values_, 0.0f, int32_t(plan_.rows.tile));
        const bool whole = tiles_.pieces() == 1;
        for (uint32_t i = 0; i < tiles_.count(); ++i) {
            for (uint32_t p = 0; p < tiles_.pieces(); ++p) {
                const RowTile tile = tiles_.at(i, p);
                if (plan_.bias_dtype != plan::kNoDType && (!whole || i == 0)) take_bias(tile);
                combine(tile);
            }
        }
    }

private:
    LD_FN void combine(const RowTile& tile) {
        const uint32_t part = tiles_.elements();
        LocalTensor<float> in = in_.template AllocTensor<float>();
        for (uint32_t i = 0; i < plan_.count; ++i)
            load_rows(in[i * part], partials_[i * plan_.partial_stride + tile.first * plan_.row_stride + tile.column],
                      tile.rows, tile.length, plan_.row_stride, tile.pitch);
        in_.EnQue(in);
        in = in_.template DeQue<float>();
        for (uint32_t i = 0; i < plan_.count; ++i) fill_tail(in[i * part], tile, 0.0f);
        for (uint32_t step = 1; step < plan_.count; step *= 2) {
            v_barrier();
            for (uint32_t i = 0; i < plan_.count; i += 2 * step)
                Add(in[i * part], in[i * part], in[(i + step) * part], int32_t(tile.flat()));
        }
        if (plan_.bias_dtype != plan::kNoDType) {
            v_barrier();
            each_row<AddRows, Beside::kColumns>(in, in, bias_values_, tile);
        }
        LocalTensor<Out> out = out_.template AllocTensor<Out>();
        v_barrier();
        narrow(out, in, tile.flat());
        in_.FreeTensor(in);
        out_.EnQue(out);
        out = out_.template DeQue<Out>();
        store_rows(out_gm_[uint64_t(tile.first) * plan_.rows.length + tile.column], out, tile.rows, tile.length,
                   plan_.rows.length, tile.pitch);
        out_.FreeTensor(out);
    }

    LD_FN void take_bias(const RowTile& tile) {
        LocalTensor<float> in = bias_in_.template AllocTensor<float>();
        if (plan_.bias_dtype == plan::kFloat32) {
            copy_bias<float>(in, tile);
        } else if (plan_.bias_dtype == plan::kBFloat16) {
            copy_bias<bfloat16_t>(in, tile);
        } else {
            copy_bias<half>(in, tile);
        }
        bias_in_.EnQue(in);
        in = bias_in_.template DeQue<float>();
        v_barrier();
        widen_any(bias_values_, in, plan_.bias_dtype, tile.length);
        bias_in_.FreeTensor(in);
    }

    template <class B> LD_FN void copy_bias(const LocalTensor<float>& in, const RowTile& tile) {
        GlobalTensor<B> bias;
        bias.SetGlobalBuffer(reinterpret_cast<__gm__ B*>(bias_));
        load_rows(in.ReinterpretCast<B>(), bias[tile.column], 1, tile.length, tile.length, tile.pitch);
    }

    const LdTreePlan& plan_;
    RowTiles tiles_;
    GlobalTensor<float> partials_;
    GlobalTensor<Out> out_gm_;
    GM_ADDR bias_ = nullptr;
    TQue<TPosition::VECIN, 1> in_, bias_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> bias_buffer_;
    LocalTensor<float> bias_values_;
};

}  // namespace ld
