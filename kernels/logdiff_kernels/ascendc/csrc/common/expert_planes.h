// The experts of some tokens in planes of 64: [planes][rows][64]. A plane has one repeat per token, so one instruction
// per plane combines it with a value per token, and the bits of a comparison lie side by side.
//
// Choice needs comparisons only, no sort: see ExpertChoice.
#pragma once

#include "common/exp1.h"
#include "common/reduce.h"

namespace ld {

constexpr uint32_t kMostExperts = 512, kMostSlots = 16;

struct ExpertPlanes {
    uint32_t experts, planes, rows;  // rows: a multiple of 4, so that the bits of each plane start on a block
    LocalTensor<float> blocks, lanes;  // work: kMostRows * 8, rows * 64

    LD_FN uint32_t plane() const { return rows * kLanes; }
    LD_FN uint32_t all() const { return planes * plane(); }

    // One value per row (kMostRows lanes) for the instructions that follow.
    LD_FN void spread(const LocalTensor<float>& values) const {
        v_barrier();
        row_blocks(blocks, values);
        v_barrier();
    }
    template <class Instruction>
    LD_FN void with_spread(const LocalTensor<float>& dst, const LocalTensor<float>& x) const {
        const BinaryRepeatParams params(1, 1, 0, 8, 8, 1);
        for (uint32_t p = 0; p < planes; ++p)
            Instruction::run(dst[p * plane()], x[p * plane()], blocks, rows, params);
    }
    LD_FN void compare_spread(const LocalTensor<uint8_t>& bits, const LocalTensor<float>& x, CMPMODE mode) const {
        const BinaryRepeatParams params(1, 1, 0, 8, 8, 1);
        for (uint32_t p = 0; p < planes; ++p)
            Compare(bits[p * plane() / 8], x[p * plane()], blocks, mode, uint64_t(kLanes), uint8_t(rows), params);
    }
    // dst = the spread values, in all planes.
    LD_FN void copy_spread(const LocalTensor<float>& dst) const {
        const UnaryRepeatParams params(1, 0, 8, 1);
        for (uint32_t p = 0; p < planes; ++p)
            Muls(dst[p * plane()], blocks, 1.0f, uint64_t(kLanes), uint8_t(rows), params);
    }
    // dst = a row of planes * 64 values, for every token.
    LD_FN void copy_row(const LocalTensor<float>& dst, const LocalTensor<float>& row) const {
        const UnaryRepeatParams params(1, 1, 8, 0);
        for (uint32_t p = 0; p < planes; ++p)
            Muls(dst[p * plane()], row[p * kLanes], 1.0f, uint64_t(kLanes), uint8_t(rows), params);
    }

    // The largest value of each row: one lane per row of out.
    LD_FN void largest(const LocalTensor<float>& out, const LocalTensor<float>& x) const {
        LocalTensor<float> from = x;
        v_barrier();
        for (uint32_t p = 1; p < planes; ++p) {
            Max(lanes, from, x[p * plane()], int32_t(plane()));
            v_barrier();
            from = lanes;
        }
        WholeReduceMax(out, from, int32_t(kLanes), uint8_t(rows), 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
        v_barrier();
    }

    // Logits of a tile from GM, -inf behind the experts, 0 in rows behind the tile's.
    LD_FN void load(const LocalTensor<float>& to, const GlobalTensor<float>& from, uint32_t count) const {
        for (uint32_t p = 0; p < planes; ++p)
            load_rows(to[p * plane()], from[p * kLanes], count, width(p), experts, kLanes, -kInfinity);
    }
    LD_FN void fill(const LocalTensor<float>& x, uint32_t count) const {
        fill_tail(x[(planes - 1) * plane()], {0, count, 0, width(planes - 1), kLanes}, -kInfinity);
        if (count == rows) return;
        for (uint32_t p = 0; p < planes; ++p)
            Duplicate(x[p * plane() + count * kLanes], 0.0f, int32_t((rows - count) * kLanes));
    }
    LD_FN void store(const GlobalTensor<float>& to, const LocalTensor<float>& from, uint32_t count) const {
        for (uint32_t p = 0; p < planes; ++p)
            store_rows(to[p * kLanes], from[p * plane()], count, width(p), experts, kLanes);
    }
    LD_FN uint32_t width(uint32_t p) const { return uint32_t(plan::least(kLanes, experts - p * kLanes)); }
};

// Values of experts in the order NaN first, then descending (-0 = +0), then by index; one at a time.
//
// NaN counts as +inf with a preference above all others; of the experts that have the largest value the one with the
// highest preference is next: 513 - index, + 1024 for NaN, -1 once it is chosen.
struct ExpertChoice {
    const ExpertPlanes& planes;
    LocalTensor<float> value, preference, work;  // planes.all() each
    LocalTensor<float> found, decoded;           // kMostRows each
    LocalTensor<uint8_t> bits;

    static constexpr float kFirst = 513.0f, kNaNBonus = 1024.0f, kChosen = -1.0f, kNobody = -2.0f;

    // value: in place; -inf behind the experts. order: the preference of numbers, kChosen behind the experts.
    LD_FN void start(const LocalTensor<float>& order) const {
        const uint32_t n = planes.all();
        v_barrier();
        Compare(bits, value, value, CMPMODE::EQ, n);
        Adds(preference, order, kNaNBonus, int32_t(n));
        v_barrier();
        Select(value, bits, value, kInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
        Select(preference, bits, order, preference, SELMODE::VSEL_TENSOR_TENSOR_MODE, n);
        v_barrier();
    }
    // found: the preference of the next one; maximum: its value. `maximum` and `found` are different.
    LD_FN void find(const LocalTensor<float>& maximum) const {
        const uint32_t n = planes.all();
        planes.largest(maximum, value);
        planes.spread(maximum);
        planes.compare_spread(bits, value, CMPMODE::EQ);
        v_barrier();
        Select(work, bits, preference, kNobody, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
        planes.largest(found, work);
    }
    // Takes the found one out.
    LD_FN void take() const {
        const uint32_t n = planes.all();
        planes.spread(found);
        planes.compare_spread(bits, preference, CMPMODE::NE);
        v_barrier();
        Select(preference, bits, preference, kChosen, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
        Select(value, bits, value, -kInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
        v_barrier();
    }
    // bits: of the rows whose found one is no NaN.
    LD_FN void number_rows() const {
        CompareScalar(bits, found, kFirst, CMPMODE::LE, kMostRows);
        v_barrier();
    }
    // index: of the found one.
    LD_FN void index(const LocalTensor<float>& index) const {
        number_rows();
        Adds(decoded, found, -kNaNBonus, int32_t(kMostRows));
        v_barrier();
        Select(index, bits, found, decoded, SELMODE::VSEL_TENSOR_TENSOR_MODE, kMostRows);
        v_barrier();
        Muls(index, index, -1.0f, int32_t(kMostRows));
        v_barrier();
        Adds(index, index, kFirst, int32_t(kMostRows));
        v_barrier();
    }
};

}  // namespace ld
