// The weight of a norm, one row of any dtype, as fp32 with its offset: shared by the norm and its backward.
#pragma once

#include "common/row_tiles.h"

namespace ld {

class WeightRow {
public:
    LD_FN void init(TPipe& pipe, const LdNormPlan& plan, GM_ADDR weight) {
        dtype_ = plan.weight_dtype;
        offset_ = plan.offset;
        address_ = weight;
        if (!given()) return;
        pipe.InitBuffer(in_, 1, uint32_t(plan.rows.tile * sizeof(float)));
        pipe.InitBuffer(buffer_, uint32_t(plan.rows.tile * sizeof(float)));
        scale_ = buffer_.Get<float>();
    }

    LD_FN bool given() const { return dtype_ != plan::kNoDType; }

    // offset + w of the columns of a tile; needs v_barrier() behind it.
    LD_FN const LocalTensor<float>& scale() const { return scale_; }

    LD_FN void take(RowTile tile) {
        if (!given()) return;
        tile.rows = 1;
        LocalTensor<float> in = in_.AllocTensor<float>();
        if (dtype_ == plan::kFloat32) {
            load<float>(in, tile);
        } else if (dtype_ == plan::kBFloat16) {
            load<bfloat16_t>(in, tile);
        } else {
            load<half>(in, tile);
        }
        in_.EnQue(in);
        in = in_.DeQue<float>();
        if (dtype_ == plan::kFloat32) {
            fill_tail(in, tile, 0.0f);
        } else {  // +0 has the same bits in both
            fill_tail(in.ReinterpretCast<half>(), tile, half(0.0f));
        }
        v_barrier();
        widen_any(scale_, in, dtype_, tile.width());
        in_.FreeTensor(in);
        if (offset_ != 0.0f) {
            v_barrier();
            Adds(scale_, scale_, offset_, int32_t(tile.width()));
        }
    }

private:
    template <class W> LD_FN void load(const LocalTensor<float>& in, const RowTile& tile) {
        GlobalTensor<W> weight;
        weight.SetGlobalBuffer(reinterpret_cast<__gm__ W*>(address_));
        load_rows(in.ReinterpretCast<W>(), weight[tile.column], 1, tile.length, tile.length, tile.pitch);
    }

    TQue<TPosition::VECIN, 1> in_;
    TBuf<TPosition::VECCALC> buffer_;
    LocalTensor<float> scale_;
    GM_ADDR address_ = nullptr;
    uint32_t dtype_ = plan::kNoDType;
    float offset_ = 0.0f;
};

}  // namespace ld
