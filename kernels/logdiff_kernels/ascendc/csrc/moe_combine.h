// Rows of a token's experts combined: acc = w*y of the lowest logical expert, then acc + w*y ascending, the shared
// expert's row last, one cast.
//
// A vector core takes one token after the other, a long row in pieces. The rows of its slots come one by one through a
// double-buffered queue, in the order of their experts, which the scalar unit finds from at most 64 indices.
#pragma once

#include "common/row_tiles.h"

namespace ld {

constexpr uint32_t kMostCombined = 64;  // slots of a token

template <class T> class MoeCombine {
public:
    LD_FN MoeCombine(const LdMoePlan& plan, TPipe& pipe) : plan_(plan) {
        const uint32_t tile = plan.rows.tile;
        pipe.InitBuffer(in_, 2, uint32_t(tile * sizeof(T)));
        pipe.InitBuffer(out_, 2, uint32_t(tile * sizeof(T)));
        if (plan.other_dtype != plan::kNoDType) pipe.InitBuffer(shared_in_, 2, uint32_t(tile * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t(2 * tile * sizeof(float)));
        sum_ = work_buffer_.Get<float>();
        term_ = sum_[tile];
    }

    LD_FN void run(GM_ADDR y, GM_ADDR weights, GM_ADDR ids, GM_ADDR position, GM_ADDR logical, GM_ADDR shared,
                   GM_ADDR out) {
        y_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(y));
        weights_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(weights));
        ids_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(ids));
        position_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(position));
        logical_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(logical));
        shared_ = shared;
        out_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(out));
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i) token(walk.first + i * walk.stride);
    }

private:
    LD_FN void token(uint32_t token) {
        uint32_t slots[kMostCombined];
        const uint32_t count = order(token, slots);
        for (uint32_t p = 0; p < plan_.rows.pieces; ++p) {
            const uint32_t tile = plan_.rows.tile, column = p * tile;
            combine(token, {token, 1, column, uint32_t(plan::least(tile, plan_.hidden - column)), tile}, slots, count);
        }
    }

    // Slots of a token that have a row, by their logical experts.
    LD_FN uint32_t order(uint32_t token, uint32_t* slots) const {
        int64_t keys[kMostCombined];
        uint32_t count = 0;
        for (uint32_t j = 0; j < plan_.top_k; ++j) {
            const uint64_t slot = uint64_t(token) * plan_.top_k + j;
            if (position_.GetValue(slot) < 0) continue;
            const int64_t id = ids_.GetValue(slot), key = plan_.has_logical ? logical_.GetValue(uint64_t(id)) : id;
            uint32_t at = count++;
            for (; at > 0 && keys[at - 1] > key; --at) {
                keys[at] = keys[at - 1];
                slots[at] = slots[at - 1];
            }
            keys[at] = key;
            slots[at] = j;
        }
        return count;
    }

    LD_FN void combine(uint32_t token, const RowTile& tile, const uint32_t* slots, uint32_t count) {
        const int32_t width = int32_t(tile.width());
        for (uint32_t i = 0; i < count; ++i) {
            const uint64_t slot = uint64_t(token) * plan_.top_k + slots[i];
            const uint64_t row = uint64_t(position_.GetValue(slot));
            LocalTensor<T> in = in_.template AllocTensor<T>();
            load_rows(in, y_[row * plan_.hidden + tile.column], 1, tile.length, tile.length, tile.pitch);
            in_.EnQue(in);
            in = in_.template DeQue<T>();
            fill_tail(in, tile, T(0.0f));
            const LocalTensor<float> to = i == 0 ? sum_ : term_;
            v_barrier();
            widen(to, in, tile.width());
            in_.FreeTensor(in);
            if (plan_.has_weights) {
                v_barrier();
                Muls(to, to, weights_.GetValue(slot), width);
            }
            if (i == 0) continue;
            v_barrier();
            Add(sum_, sum_, term_, width);
        }
        if (plan_.other_dtype != plan::kNoDType) {
            add_shared(token, tile, count == 0);
        } else if (count == 0) {
            v_barrier();
            Duplicate(sum_, 0.0f, width);
        }
        v_barrier();
        LocalTensor<T> out = out_.template AllocTensor<T>();
        narrow(out, sum_, tile.width());
        out_.EnQue(out);
        out = out_.template DeQue<T>();
        store_rows(out_gm_[uint64_t(token) * plan_.hidden + tile.column], out, 1, tile.length, tile.length, tile.pitch);
        out_.FreeTensor(out);
    }

    LD_FN void add_shared(uint32_t token, const RowTile& tile, bool alone) {
        LocalTensor<float> in = shared_in_.template AllocTensor<float>();
        if (plan_.other_dtype == plan::kFloat32) {
            load_shared<float>(in, token, tile);
        } else if (plan_.other_dtype == plan::kBFloat16) {
            load_shared<bfloat16_t>(in, token, tile);
        } else {
            load_shared<half>(in, token, tile);
        }
        shared_in_.EnQue(in);
        in = shared_in_.template DeQue<float>();
        if (plan_.other_dtype == plan::kFloat32)
            fill_tail(in, tile, 0.0f);
        else
            fill_tail(in.ReinterpretCast<half>(), tile, half(0.0f));
        v_barrier();
        widen_any(alone ? sum_ : term_, in, plan_.other_dtype, tile.width());
        shared_in_.FreeTensor(in);
        if (alone) return;
        v_barrier();
        Add(sum_, sum_, term_, int32_t(tile.width()));
    }
    template <class S> LD_FN void load_shared(const LocalTensor<float>& in, uint32_t token, const RowTile& tile) {
        GlobalTensor<S> shared;
        shared.SetGlobalBuffer(reinterpret_cast<__gm__ S*>(shared_));
        load_rows(in.ReinterpretCast<S>(), shared[uint64_t(token) * plan_.hidden + tile.column], 1, tile.length,
                  tile.length, tile.pitch);
    }

    const LdMoePlan& plan_;
    TQue<TPosition::VECIN, 1> in_, shared_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> sum_, term_;
    GM_ADDR shared_ = nullptr;
    GlobalTensor<T> y_, out_gm_;
    GlobalTensor<float> weights_;
    GlobalTensor<int64_t> ids_, position_, logical_;
};

}  // namespace ld
