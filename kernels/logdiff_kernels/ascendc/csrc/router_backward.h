// Gradient of the router's logits: scores are computed again, the gradient reaches the chosen experts and, through a
// softmax over all experts, the others.
//
// Tiles and planes as in the router. Slots are kept slot by slot, so their sums in choice order are plain Adds.
#pragma once

#include "common/router_rows.h"

namespace ld {

class RouterBackward {
public:
    LD_FN RouterBackward(const LdRouterPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        const uint32_t rows = plan.rows.tile_rows, slots = plan.top_k * kMostRows;
        rows_.init(pipe, plan, rows);
        const uint32_t all = rows_.planes().all();
        pipe.InitBuffer(in_, 2, uint32_t(all * sizeof(float)));
        pipe.InitBuffer(slots_in_, 2, uint32_t(slots * sizeof(int64_t) + slots * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(all * sizeof(float)));
        pipe.InitBuffer(buffer_, uint32_t((3 * all + 5 * slots + 3 * kMostRows + plan::round_up(all / 32, 8)) * sizeof(float)));
        scores_ = buffer_.Get<float>();
        lane_ = scores_[all];
        values_ = lane_[all];
        ids_ = values_[all];
        chosen_ = ids_[slots];
        d_ = chosen_[slots];
        by_row_ = d_[slots];
        weights_by_row_ = by_row_[slots];
        sum_ = weights_by_row_[slots];
        mean_ = sum_[kMostRows];
        term_ = mean_[kMostRows];
        bits_ = term_[kMostRows].ReinterpretCast<uint8_t>();
        Duplicate(ids_, 0.0f, int32_t(5 * slots + 3 * kMostRows));
        v_barrier();
        const ExpertPlanes& planes = rows_.planes();
        CreateVecIndex(values_, 0.0f, planes.planes * kLanes);
        v_barrier();
        planes.copy_row(lane_, values_);
    }

    LD_FN void run(GM_ADDR dweights, GM_ADDR logits, GM_ADDR ids, GM_ADDR dlogits) {
        dweights_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dweights));
        logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(logits));
        ids_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(ids));
        dlogits_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dlogits));
        for (uint32_t i = 0; i < tiles_.count(); ++i) one(tiles_.at(i));
    }

private:
    LD_FN void one(const RowTile& tile) {
        const ExpertPlanes& planes = rows_.planes();
        LocalTensor<float> in = in_.AllocTensor<float>();
        planes.load(in, logits_[uint64_t(tile.first) * plan_.experts], tile.rows);
        in_.EnQue(in);
        take_slots(tile);
        in = in_.DeQue<float>();
        planes.fill(in, tile.rows);
        v_barrier();
        copy_floats(scores_, in, planes.all());
        in_.FreeTensor(in);
        v_barrier();
        const bool on_logits = (plan_.flags & kOnLogits) != 0;
        if (!on_logits) rows_.score(scores_);
        for (uint32_t j = 0; j < plan_.top_k; ++j)
            rows_.pick(rows_.slot(chosen_, j), scores_, rows_.slot(ids_, j), tile.rows);
        if (on_logits) rows_.score_slots(chosen_);
        slot_gradients();
        LocalTensor<float> out = out_.AllocTensor<float>();
        spread(out, !on_logits && !(plan_.flags & kSigmoid));
        out_.EnQue(out);
        out = out_.DeQue<float>();
        planes.store(dlogits_[uint64_t(tile.first) * plan_.experts], out, tile.rows);
        out_.FreeTensor(out);
    }

    // ids and dweights of a tile, slot by slot.
    LD_FN void take_slots(const RowTile& tile) {
        const uint32_t slots = plan_.top_k * kMostRows, count = tile.rows * plan_.top_k;
        const uint64_t place = uint64_t(tile.first) * plan_.top_k;
        LocalTensor<float> in = slots_in_.AllocTensor<float>();
        const LocalTensor<int64_t> ids = in.ReinterpretCast<int64_t>();
        const DataCopyExtParams bytes{1, uint32_t(count * sizeof(int64_t)), 0, 0, 0};
        const DataCopyPadExtParams<uint32_t> no_pad{false, 0, 0, 0};
        GlobalTensor<uint32_t> words;
        words.SetGlobalBuffer(reinterpret_cast<__gm__ uint32_t*>(const_cast<__gm__ int64_t*>(ids_gm_.GetPhyAddr(place))));
        DataCopyPad(in.ReinterpretCast<uint32_t>(), words, bytes, no_pad);
        load_rows(in[2 * slots], dweights_[place], 1, count, count, slots);
        slots_in_.EnQue(in);
        in = slots_in_.DeQue<float>();
        const LocalTensor<int32_t> numbers = by_row_.ReinterpretCast<int32_t>();
        v_barrier();
        Cast(numbers, ids, RoundMode::CAST_NONE, count);
        copy_floats(weights_by_row_, in[2 * slots], count);
        slots_in_.FreeTensor(in);
        v_barrier();
        Cast(by_row_, numbers, RoundMode::CAST_RINT, count);
        v_barrier();
        Gather(ids_, by_row_, rows_.to_slots(), 0, slots);
        Gather(d_, weights_by_row_, rows_.to_slots(), 0, slots);
        v_barrier();
    }

    // d = the gradient of each chosen score, then of its logit.
    LD_FN void slot_gradients() {
        const uint32_t k = plan_.top_k;
        constexpr int32_t n = int32_t(kMostRows);
        if (plan_.scaling != 1.0f) Muls(d_, d_, plan_.scaling, int32_t(k * kMostRows));
        if (plan_.flags & kRenormalize) {
            rows_.slot_sum(sum_, chosen_);
            Duplicate(mean_, 0.0f, n);
            for (uint32_t j = 0; j < k; ++j) {
                divide(term_, rows_.slot(chosen_, j), sum_, kMostRows);
                v_barrier();
                Mul(term_, rows_.slot(d_, j), term_, n);
                v_barrier();
                Add(mean_, mean_, term_, n);
                v_barrier();
            }
            for (uint32_t j = 0; j < k; ++j) Sub(rows_.slot(d_, j), rows_.slot(d_, j), mean_, n);
            v_barrier();
            for (uint32_t j = 0; j < k; ++j) divide(rows_.slot(d_, j), rows_.slot(d_, j), sum_, kMostRows);
        }
        v_barrier();
        if (plan_.flags & kSigmoid) {
            for (uint32_t j = 0; j < k; ++j) {  // d * (c * (1 - c))
                Muls(term_, rows_.slot(chosen_, j), -1.0f, n);
                v_barrier();
                Adds(term_, term_, 1.0f, n);
                v_barrier();
                Mul(term_, rows_.slot(chosen_, j), term_, n);
                v_barrier();
                Mul(rows_.slot(d_, j), rows_.slot(d_, j), term_, n);
                v_barrier();
            }
            return;
        }
        Duplicate(mean_, 0.0f, n);
        for (uint32_t j = 0; j < k; ++j) {  // c * (d - sum of d * c)
            v_barrier();
            Mul(term_, rows_.slot(d_, j), rows_.slot(chosen_, j), n);
            v_barrier();
            Add(mean_, mean_, term_, n);
        }
        v_barrier();
        for (uint32_t j = 0; j < k; ++j) Sub(rows_.slot(d_, j), rows_.slot(d_, j), mean_, n);
        v_barrier();
        for (uint32_t j = 0; j < k; ++j) Mul(rows_.slot(d_, j), rows_.slot(chosen_, j), rows_.slot(d_, j), n);
        v_barrier();
    }

    // The slots' gradients at their experts; elsewhere scores * (0 - mean), or 0.
    LD_FN void spread(const LocalTensor<float>& out, bool others) {
        const ExpertPlanes& planes = rows_.planes();
        const uint32_t n = planes.all();
        if (others) {
            Muls(mean_, mean_, -1.0f, int32_t(kMostRows));
            v_barrier();
            Adds(mean_, mean_, 0.0f, int32_t(kMostRows));
            planes.spread(mean_);
            planes.with_spread<MulRows>(out, scores_);
        } else {
            Duplicate(out, 0.0f, int32_t(n));
        }
        for (uint32_t j = 0; j < plan_.top_k; ++j) {
            planes.spread(rows_.slot(d_, j));
            planes.copy_spread(values_);
            planes.spread(rows_.slot(ids_, j));
            planes.compare_spread(bits_, lane_, CMPMODE::NE);
            v_barrier();
            Select(out, bits_, out, values_, SELMODE::VSEL_TENSOR_TENSOR_MODE, n);
        }
    }

    const LdRouterPlan& plan_;
    RowTiles tiles_;
    RouterRows rows_;
    TQue<TPosition::VECIN, 1> in_, slots_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> buffer_;
    LocalTensor<float> scores_, lane_, values_, ids_, chosen_, d_, by_row_, weights_by_row_, sum_, mean_, term_;
    LocalTensor<uint8_t> bits_;
    GlobalTensor<float> dweights_, logits_, dlogits_;
    GlobalTensor<int64_t> ids_gm_;
};

}  // namespace ld
