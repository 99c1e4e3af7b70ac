// What the router and its backward share: scores of all experts or of the chosen ones, and slots by token.
#pragma once

#include "common/expert_planes.h"

namespace ld {

enum RouterFlags : uint32_t { kSigmoid = 1, kOnLogits = 2, kRenormalize = 4, kTop2 = 8 };

// Slots lie slot after slot, 64 tokens each: [top_k][kMostRows].
class RouterRows {
public:
    LD_FN void init(TPipe& pipe, const LdRouterPlan& plan, uint32_t rows) {
        plan_ = &plan;
        planes_.experts = plan.experts;
        planes_.planes = uint32_t(plan::ceil_div(plan.experts, kLanes));
        planes_.rows = rows;
        const uint32_t table = uint32_t(plan::round_up(plan.top_k * kMostRows, kLanes));
        pipe.InitBuffer(buffer_, uint32_t((kMostRows * 8 + rows * kLanes + 5 * kMostRows + kLanes + kExpWork +
                                           plan.top_k * kMostRows + 2 * table) * sizeof(float)));
        planes_.blocks = buffer_.Get<float>();
        planes_.lanes = planes_.blocks[kMostRows * 8];
        sum_ = planes_.lanes[rows * kLanes];
        row_offset_ = sum_[kMostRows];
        place_ = row_offset_[kMostRows];
        chunk_ = place_[kMostRows];
        ones_ = chunk_[kMostRows];
        exp_work_ = ones_[kLanes + kMostRows];
        spare_ = exp_work_[kExpWork];
        to_rows_ = spare_[plan.top_k * kMostRows].ReinterpretCast<uint32_t>();
        to_slots_ = spare_[plan.top_k * kMostRows + table].ReinterpretCast<uint32_t>();
        sums_.init(pipe, rows);
        Duplicate(sum_, 1.0f, int32_t(kMostRows));
        Duplicate(ones_, 1.0f, int32_t(kLanes));
        CreateVecIndex(row_offset_, 0.0f, kMostRows);
        v_barrier();
        Muls(row_offset_, row_offset_, float(kLanes), int32_t(kMostRows));
        make_tables(table);
    }

    LD_FN const ExpertPlanes& planes() const { return planes_; }

    // Scores of all experts, in place. Behind the experts: 0, or NaN in a row of NaN.
    LD_FN void score(const LocalTensor<float>& x) {
        const uint32_t n = planes_.all();
        if (plan_->flags & kSigmoid) {
            sigmoid(x, n);
            return;
        }
        planes_.largest(sum_, x);
        planes_.spread(sum_);
        planes_.with_spread<SubRows>(x, x);
        v_barrier();
        exp1<false>(x, x, exp_work_, n);
        v_barrier();
        sums_.first_planes(x, planes_.planes, planes_.rows);
        sums_.finish(sum_, planes_.rows);
        planes_.spread(sum_);
        planes_.with_spread<DivRows>(x, x);
        v_barrier();
    }

    // Scores of the chosen experts, in place, where the choice was on logits.
    LD_FN void score_slots(const LocalTensor<float>& w) {
        const uint32_t n = plan_->top_k * kMostRows;
        if (plan_->flags & kSigmoid) {
            sigmoid(w, n);
            return;
        }
        v_barrier();
        copy_floats(sum_, w, kMostRows);
        v_barrier();
        for (uint32_t j = 1; j < plan_->top_k; ++j) {
            Max(sum_, sum_, w[j * kMostRows], int32_t(kMostRows));
            v_barrier();
        }
        for (uint32_t j = 0; j < plan_->top_k; ++j) Sub(slot(w, j), slot(w, j), sum_, int32_t(kMostRows));
        v_barrier();
        exp1<false>(w, w, exp_work_, n);
        v_barrier();
        copy_floats(spare_, w, n);
        sum_spare();
        for (uint32_t j = 0; j < plan_->top_k; ++j) divide(slot(w, j), slot(w, j), spare_, kMostRows);
        v_barrier();
    }

    // sum = ((w0 + w1) + w2) + ... + epsilon.
    LD_FN void slot_sum(const LocalTensor<float>& sum, const LocalTensor<float>& w) const {
        v_barrier();
        copy_floats(sum, w, kMostRows);
        for (uint32_t j = 1; j < plan_->top_k; ++j) {
            v_barrier();
            Add(sum, sum, slot(w, j), int32_t(kMostRows));
        }
        v_barrier();
        if (plan_->renorm_eps != 0.0f) {
            Adds(sum, sum, plan_->renorm_eps, int32_t(kMostRows));
            v_barrier();
        }
    }

    // out = the value of x that each of `count` rows has for its expert `index` (whole numbers in fp32).
    LD_FN void pick(const LocalTensor<float>& out, const LocalTensor<float>& x, const LocalTensor<float>& index,
                    uint32_t count) const {
        constexpr int32_t n = int32_t(kMostRows);
        const LocalTensor<int32_t> whole = place_.ReinterpretCast<int32_t>();
        v_barrier();
        Muls(chunk_, index, 1.0f / float(kLanes), n);
        v_barrier();
        Cast(whole, chunk_, RoundMode::CAST_FLOOR, kMostRows);
        v_barrier();
        Cast(chunk_, whole, RoundMode::CAST_RINT, kMostRows);
        v_barrier();
        Muls(chunk_, chunk_, float(planes_.plane() - kLanes), n);  // index + chunk * (plane - 64) + row * 64
        v_barrier();
        Add(chunk_, chunk_, index, n);
        v_barrier();
        Add(chunk_, chunk_, row_offset_, n);
        v_barrier();
        Muls(chunk_, chunk_, float(sizeof(float)), n);
        v_barrier();
        Cast(whole, chunk_, RoundMode::CAST_RINT, kMostRows);
        v_barrier();
        Gather(out, x, place_.ReinterpretCast<uint32_t>(), 0, count);
        v_barrier();
    }

    LD_FN LocalTensor<float> slot(const LocalTensor<float>& x, uint32_t index) const { return x[index * kMostRows]; }
    // Byte offsets that bring slots by slot to slots by token, and back.
    LD_FN const LocalTensor<uint32_t>& to_rows() const { return to_rows_; }
    LD_FN const LocalTensor<uint32_t>& to_slots() const { return to_slots_; }

private:
    LD_FN void sigmoid(const LocalTensor<float>& x, uint32_t count) const {
        v_barrier();
        Muls(x, x, -1.0f, int32_t(count));
        v_barrier();
        exp1(x, x, exp_work_, count);
        v_barrier();
        Adds(x, x, 1.0f, int32_t(count));
        v_barrier();
        const BinaryRepeatParams params(1, 1, 1, 8, 0, 8);
        for (uint32_t i = 0; i < count; i += kMostRepeats * kLanes) {
            const uint32_t repeats = uint32_t(plan::least(kMostRepeats, (count - i) / kLanes));
            divide_rows(x[i], ones_, x[i], repeats, params);
        }
        v_barrier();
    }

    // R64 over the slots in spare_, into its first: slots that don't exist are +0, and exponentials are not -0.
    LD_FN void sum_spare() const {
        uint32_t count = plan_->top_k;
        for (uint32_t half = 32; half >= 8; half /= 2) {
            v_barrier();
            for (uint32_t j = half; j < count; ++j)
                Add(slot(spare_, j - half), slot(spare_, j - half), slot(spare_, j), int32_t(kMostRows));
            count = uint32_t(plan::least(count, half));
        }
        for (; count > 1; count = (count + 1) / 2) {
            for (uint32_t j = 0; j < count; j += 2) {
                v_barrier();
                if (j + 1 < count)
                    Add(slot(spare_, j / 2), slot(spare_, j), slot(spare_, j + 1), int32_t(kMostRows));
                else if (j != 0)
                    copy_floats(slot(spare_, j / 2), slot(spare_, j), kMostRows);
            }
        }
        v_barrier();
    }

    // i = row * k + slot against slot * 64 + row, in bytes.
    LD_FN void make_tables(uint32_t count) {
        const LocalTensor<float> index = to_rows_.ReinterpretCast<float>(), other = to_slots_.ReinterpretCast<float>();
        quotients(index, other, count, plan_->top_k);        // other = row, index = slot
        Muls(index, index, float(kMostRows), int32_t(count));
        v_barrier();
        Add(index, index, other, int32_t(count));
        bytes(index, count);
        quotients(other, spare_, count, kMostRows);  // spare = slot, other = row
        Muls(other, other, float(plan_->top_k), int32_t(count));
        v_barrier();
        Add(other, other, spare_, int32_t(count));
        bytes(other, count);
    }
    // rest = i % divisor, quotient = i / divisor for i < count.
    LD_FN void quotients(const LocalTensor<float>& rest, const LocalTensor<float>& quotient, uint32_t count,
                         uint32_t divisor) const {
        const int32_t n = int32_t(count);
        const LocalTensor<int32_t> whole = quotient.ReinterpretCast<int32_t>();
        CreateVecIndex(rest, 0.5f, count);
        v_barrier();
        Muls(quotient, rest, 1.0f / float(divisor), n);
        v_barrier();
        Cast(whole, quotient, RoundMode::CAST_FLOOR, count);
        v_barrier();
        Cast(quotient, whole, RoundMode::CAST_RINT, count);
        CreateVecIndex(rest, 0.0f, count);
        v_barrier();
        for (uint32_t i = 0; i < count; i += kLanes) {  // rest - quotient * divisor
            Muls(chunk_, quotient[i], -float(divisor), int32_t(kLanes));
            v_barrier();
            Add(rest[i], rest[i], chunk_, int32_t(kLanes));
            v_barrier();
        }
    }
    LD_FN void bytes(const LocalTensor<float>& x, uint32_t count) const {
        v_barrier();
        Muls(x, x, float(sizeof(float)), int32_t(count));
        v_barrier();
        Cast(x.ReinterpretCast<int32_t>(), x, RoundMode::CAST_RINT, count);
        v_barrier();
    }

    const LdRouterPlan* plan_ = nullptr;
    ExpertPlanes planes_;
    TBuf<TPosition::VECCALC> buffer_;
    RowSums sums_;
    LocalTensor<float> sum_, row_offset_, place_, chunk_, ones_, exp_work_, spare_;
    LocalTensor<uint32_t> to_rows_, to_slots_;
};

}  // namespace ld
