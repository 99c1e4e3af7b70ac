// router: scores of experts, choice of top_k (within the chosen groups), weights.
//
// A tile is up to 64 tokens with all their experts. Everything is done for all tokens of the tile at once: a slot costs
// two maxima over the experts, three comparisons and three Selects; no sort, whose order of equal values is not
// documented. Logits come through a double-buffered queue, weights and ids leave through two more.
#pragma once

#include "common/router_rows.h"

namespace ld {

class Router {
public:
    LD_FN Router(const LdRouterPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        const uint32_t rows = plan.rows.tile_rows, slots = plan.top_k * kMostRows;
        rows_.init(pipe, plan, rows);
        const ExpertPlanes& planes = rows_.planes();
        const uint32_t all = planes.all(), grouped = plan.groups > 1 ? all : 0;
        const uint32_t group_plane = plan.groups > 1 ? planes.plane() : 0;
        pipe.InitBuffer(in_, 2, uint32_t(all * sizeof(float)));
        pipe.InitBuffer(bias_in_, 1, uint32_t(planes.planes * kLanes * sizeof(float)));
        pipe.InitBuffer(weights_out_, 2, uint32_t(slots * sizeof(float)));
        pipe.InitBuffer(ids_out_, 2, uint32_t(slots * sizeof(int64_t)));
        pipe.InitBuffer(buffer_, uint32_t((5 * all + 3 * grouped + 5 * group_plane + 2 * planes.planes * kLanes + 2 * slots +
                                           4 * kMostRows + 2 * plan::round_up(all / 32, 8)) * sizeof(float)));
        scores_ = buffer_.Get<float>();
        order_ = scores_[all];
        value_ = order_[all];
        preference_ = value_[all];
        work_ = preference_[all];
        group_of_ = work_[all];
        in_group_ = group_of_[grouped];
        group_order_ = in_group_[2 * grouped];
        group_value_ = group_order_[group_plane];
        group_preference_ = group_value_[group_plane];
        group_work_ = group_preference_[group_plane];
        group_lane_ = group_work_[group_plane];
        bias_ = group_lane_[group_plane];
        row_ = bias_[planes.planes * kLanes];
        weights_ = row_[planes.planes * kLanes];
        ids_ = weights_[slots];
        maximum_ = ids_[slots];
        second_ = maximum_[kMostRows];
        found_ = second_[kMostRows];
        decoded_ = found_[kMostRows];
        bits_ = decoded_[kMostRows].ReinterpretCast<uint8_t>();
        valid_ = decoded_[kMostRows + plan::round_up(all / 32, 8)].ReinterpretCast<uint8_t>();
        Duplicate(weights_, 1.0f, int32_t(2 * slots));
        Duplicate(maximum_, 0.0f, int32_t(4 * kMostRows));
        make_constants();
    }

    LD_FN void run(GM_ADDR logits, GM_ADDR bias, GM_ADDR weights, GM_ADDR ids) {
        logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(logits));
        bias_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(bias));
        weights_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(weights));
        ids_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(ids));
        if (plan_.has_bias) take_bias();
        for (uint32_t i = 0; i < tiles_.count(); ++i) one(tiles_.at(i));
    }

private:
    // Preferences of numbers, group of each expert, and which lanes are experts.
    LD_FN void make_constants() {
        const ExpertPlanes& planes = rows_.planes();
        const uint32_t width = planes.planes * kLanes;
        descending(row_, width, plan_.experts);
        planes.copy_row(order_, row_);
        v_barrier();
        CompareScalar(valid_, order_, 0.0f, CMPMODE::GE, planes.all());
        if (plan_.groups <= 1) return;
        const LocalTensor<int32_t> whole = row_.ReinterpretCast<int32_t>();
        CreateVecIndex(row_, 0.5f, width);
        v_barrier();
        Muls(row_, row_, float(plan_.groups) / float(plan_.experts), int32_t(width));
        v_barrier();
        Cast(whole, row_, RoundMode::CAST_FLOOR, width);
        v_barrier();
        Cast(row_, whole, RoundMode::CAST_RINT, width);
        v_barrier();
        planes.copy_row(group_of_, row_);
        v_barrier();
        const ExpertPlanes groups = group_planes();
        descending(row_, kLanes, plan_.groups);
        groups.copy_row(group_order_, row_);
        v_barrier();
        CreateVecIndex(row_, 0.0f, kLanes);
        v_barrier();
        groups.copy_row(group_lane_, row_);
    }
    // 513 - index, and kChosen from `count` on; width is a multiple of 64.
    static LD_FN void descending(const LocalTensor<float>& row, uint32_t width, uint32_t count) {
        v_barrier();
        CreateVecIndex(row, 0.0f, width);
        v_barrier();
        Muls(row, row, -1.0f, int32_t(width));
        v_barrier();
        Adds(row, row, ExpertChoice::kFirst, int32_t(width));
        v_barrier();
        if (count % kLanes != 0) {
            const uint64_t mask[2] = {~((uint64_t(1) << (count % kLanes)) - 1), 0};
            Duplicate(row[width - kLanes], ExpertChoice::kChosen, mask, 1, 1, 8);
            v_barrier();
        }
    }
    LD_FN ExpertPlanes group_planes() const {
        ExpertPlanes groups = rows_.planes();
        groups.experts = plan_.groups;
        groups.planes = 1;
        return groups;
    }

    LD_FN void take_bias() {
        const uint32_t width = rows_.planes().planes * kLanes;
        const RowTile row{0, 1, 0, plan_.experts, width};
        LocalTensor<float> in = bias_in_.AllocTensor<float>();
        load_rows(in, bias_gm_, 1, plan_.experts, plan_.experts, width);
        bias_in_.EnQue(in);
        in = bias_in_.DeQue<float>();
        fill_tail(in, row, 0.0f);
        v_barrier();
        copy_floats(bias_, in, width);
        bias_in_.FreeTensor(in);
    }

    LD_FN void one(const RowTile& tile) {
        const ExpertPlanes& planes = rows_.planes();
        const uint32_t n = planes.all();
        LocalTensor<float> in = in_.AllocTensor<float>();
        planes.load(in, logits_[uint64_t(tile.first) * plan_.experts], tile.rows);
        in_.EnQue(in);
        in = in_.DeQue<float>();
        planes.fill(in, tile.rows);
        v_barrier();
        copy_floats(scores_, in, n);
        in_.FreeTensor(in);
        v_barrier();
        if (!(plan_.flags & kOnLogits)) rows_.score(scores_);
        if (plan_.has_bias) {
            const BinaryRepeatParams params(1, 1, 1, 8, 8, 0);
            for (uint32_t p = 0; p < planes.planes; ++p)
                Add(value_[p * planes.plane()], scores_[p * planes.plane()], bias_[p * kLanes], uint64_t(kLanes),
                    uint8_t(planes.rows), params);
        } else {
            copy_floats(value_, scores_, n);
        }
        v_barrier();
        Select(value_, valid_, value_, -kInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
        const ExpertChoice choice{planes, value_, preference_, work_, found_, decoded_, bits_};
        choice.start(order_);
        if (plan_.groups > 1) keep_groups(choice);
        for (uint32_t j = 0; j < plan_.top_k; ++j) {
            choice.find(maximum_);
            choice.index(rows_.slot(ids_, j));
            rows_.pick(rows_.slot(weights_, j), scores_, rows_.slot(ids_, j), tile.rows);
            choice.take();
        }
        weigh();
        store(tile);
    }

    // Experts outside of the best groups become -inf.
    LD_FN void keep_groups(const ExpertChoice& choice) {
        const ExpertPlanes& planes = rows_.planes();
        const ExpertPlanes groups = group_planes();
        const uint32_t n = planes.all(), plane = planes.plane();
        Duplicate(group_value_, -kInfinity, int32_t(plane));
        for (uint32_t g = 0; g < plan_.groups; ++g) {
            score_group(choice, float(g));
            groups.spread(second_);
            groups.copy_spread(group_work_);
            CompareScalar(bits_, group_lane_, float(g), CMPMODE::EQ, plane);
            v_barrier();
            Select(group_value_, bits_, group_work_, group_value_, SELMODE::VSEL_TENSOR_TENSOR_MODE, plane);
            v_barrier();
        }
        const ExpertChoice best{groups, group_value_, group_preference_, group_work_, found_, decoded_, bits_};
        best.start(group_order_);
        Duplicate(work_, 0.0f, int32_t(n));
        for (uint32_t j = 0; j < plan_.top_groups; ++j) {
            best.find(maximum_);
            best.index(second_);
            planes.spread(second_);
            planes.compare_spread(bits_, group_of_, CMPMODE::NE);
            v_barrier();
            Select(work_, bits_, work_, 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
            v_barrier();
            best.take();
        }
        CompareScalar(bits_, work_, 1.0f, CMPMODE::EQ, n);
        v_barrier();
        Select(value_, bits_, value_, -kInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
        Select(preference_, bits_, preference_, order_, SELMODE::VSEL_TENSOR_TENSOR_MODE, n);
        v_barrier();
    }

    // second_ = the score of one group: its best value, or the sum of its two best; NaN if the best is.
    LD_FN void score_group(const ExpertChoice& choice, float group) {
        const ExpertPlanes& planes = rows_.planes();
        const uint32_t n = planes.all();
        CompareScalar(bits_, group_of_, group, CMPMODE::EQ, n);
        v_barrier();
        Select(in_group_, bits_, choice.value, -kInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
        Select(in_group_[n], bits_, choice.preference, ExpertChoice::kChosen, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
        const ExpertChoice inside{planes, in_group_, in_group_[n], work_, found_, decoded_, bits_};
        inside.find(second_);
        copy_floats(decoded_, found_, kMostRows);
        if (plan_.flags & kTop2) {
            inside.take();
            inside.find(maximum_);
            Add(second_, second_, maximum_, int32_t(kMostRows));
        }
        v_barrier();
        CompareScalar(bits_, decoded_, ExpertChoice::kFirst, CMPMODE::LE, kMostRows);
        v_barrier();
        Select(second_, bits_, second_, kNaN, SELMODE::VSEL_TENSOR_SCALAR_MODE, kMostRows);
    }

    LD_FN void weigh() {
        if (plan_.flags & kOnLogits) rows_.score_slots(weights_);
        if (plan_.flags & kRenormalize) {
            rows_.slot_sum(maximum_, weights_);
            for (uint32_t j = 0; j < plan_.top_k; ++j)
                divide(rows_.slot(weights_, j), rows_.slot(weights_, j), maximum_, kMostRows);
            v_barrier();
        }
        if (plan_.scaling != 1.0f) {
            Muls(weights_, weights_, plan_.scaling, int32_t(plan_.top_k * kMostRows));
            v_barrier();
        }
    }

    LD_FN void store(const RowTile& tile) {
        const uint32_t count = tile.rows * plan_.top_k, whole = uint32_t(plan::round_up(count, kLanes));
        const uint64_t place = uint64_t(tile.first) * plan_.top_k;
        LocalTensor<float> weights = weights_out_.AllocTensor<float>();
        Gather(weights, weights_, rows_.to_rows(), 0, count);
        weights_out_.EnQue(weights);
        weights = weights_out_.DeQue<float>();
        store_rows(weights_gm_[place], weights, 1, count, count, whole);
        weights_out_.FreeTensor(weights);
        const LocalTensor<int32_t> numbers = work_.ReinterpretCast<int32_t>();
        LocalTensor<int64_t> ids = ids_out_.AllocTensor<int64_t>();
        Gather(work_, ids_, rows_.to_rows(), 0, count);
        v_barrier();
        Cast(numbers, work_, RoundMode::CAST_RINT, count);
        v_barrier();
        Cast(ids, numbers, RoundMode::CAST_NONE, count);
        ids_out_.EnQue(ids);
        ids = ids_out_.DeQue<int64_t>();
        const DataCopyExtParams bytes{1, uint32_t(count * sizeof(int64_t)), 0, 0, 0};
        DataCopyPad(ids_gm_[place], ids, bytes);
        ids_out_.FreeTensor(ids);
    }

    const LdRouterPlan& plan_;
    RowTiles tiles_;
    RouterRows rows_;
    TQue<TPosition::VECIN, 1> in_, bias_in_;
    TQue<TPosition::VECOUT, 1> weights_out_, ids_out_;
    TBuf<TPosition::VECCALC> buffer_;
    LocalTensor<float> scores_, order_, value_, preference_, work_, group_of_, in_group_, group_order_, group_value_;
    LocalTensor<float> group_preference_, group_work_, group_lane_, bias_, row_, weights_, ids_, maximum_, second_;
    LocalTensor<float> found_, decoded_;
    LocalTensor<uint8_t> bits_, valid_;
    GlobalTensor<float> logits_, bias_gm_, weights_gm_;
    GlobalTensor<int64_t> ids_gm_;
};

}  // namespace ld
