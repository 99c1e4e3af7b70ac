// The online softmax of the contract's `attention` on a vector core: up to 64 rows, steps of up to 512 keys, chunks.
//
//   SoftmaxSteps   per step: scores -> weights, and the rows' m, l and factor c. Slices of rows, whatever fits in UB.
//   SoftmaxTotals  per chunk: the rows' m and l over chunks, the factors that their sums take, and what the end needs.
//
// Values per row are vectors of 64 lanes; what multiplies a row is broadcast to one data block per row (Brcb), which an
// instruction then reads with block stride 0. No arithmetic on the scalar unit.
//
// u, which the contract defines as m, or 0 where m is -inf, is max(m, lowest float) here: where m is -inf every x - u
// that follows is -inf either way, so all exponentials are +0 as with u = 0.
#pragma once

#include "common/exp1.h"
#include "common/reduce.h"

namespace ld {

constexpr uint32_t kSoftmaxRows = kMostRows;
constexpr float kLowestFloat = -0x1.fffffep127f;

// dst = a op b on rows of `width` elements (a multiple of 8); b has one block of equal values per row.
template <class Instruction>
LD_FN void by_rows(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& blocks,
                   uint32_t rows, uint32_t width) {
    const uint8_t pitch = uint8_t(width / 8);
    const BinaryRepeatParams params(1, 1, 0, pitch, pitch, 1);
    for (uint32_t c = 0; c < width; c += kLanes)
        Instruction::run(dst[c], a[c], blocks, uint64_t(plan::least(kLanes, width - c)), uint8_t(rows), params);
}

struct SubBlocks {
    static LD_FN void run(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                          uint64_t lanes, uint8_t rows, const BinaryRepeatParams& params) {
        Sub(dst, a, b, lanes, rows, params);
    }
};
struct MulBlocks {
    static LD_FN void run(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                          uint64_t lanes, uint8_t rows, const BinaryRepeatParams& params) {
        Mul(dst, a, b, lanes, rows, params);
    }
};
struct DivBlocks {
    static LD_FN void run(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                          uint64_t lanes, uint8_t rows, const BinaryRepeatParams& params) {
#if __NPU_ARCH__ == 3510
        Div<float, true, kExactDiv>(dst, a, b, lanes, rows, params);
#else
        Div(dst, a, b, lanes, rows, params);
#endif
    }
};

// Lanes [from, to) of `rows` rows, `width` elements apart, become `value`: a selection by the vector mask.
LD_FN void fill_lanes(const LocalTensor<float>& x, uint32_t rows, uint32_t width, uint32_t from, uint32_t to,
                      float value) {
    if (from >= to) return;
    for (uint32_t c = from / kLanes * kLanes; c < to; c += kLanes) {
        const uint32_t low = from > c ? from - c : 0, high = uint32_t(plan::least(to - c, kLanes));
        const uint64_t upto = high == kLanes ? ~uint64_t(0) : (uint64_t(1) << high) - 1;
        const uint64_t mask[2] = {upto & ~((uint64_t(1) << low) - 1), 0};
        Duplicate(x[c], value, mask, uint8_t(rows), 1, uint8_t(width / 8));
    }
}

// Largest of each row; `width` a multiple of 128. work: 64 floats per row. Which lane of equal ones, and whether NaN
// wins, doesn't matter to the contract.
LD_FN void row_max(const LocalTensor<float>& out, const LocalTensor<float>& x, const LocalTensor<float>& work,
                   uint32_t rows, uint32_t width) {
    const uint8_t pitch = uint8_t(width / 8), count = uint8_t(rows);
    Max(work, x, x[kLanes], uint64_t(kLanes), count, BinaryRepeatParams(1, 1, 1, 8, pitch, pitch));
    for (uint32_t c = 2 * kLanes; c < width; c += kLanes) {
        v_barrier();
        Max(work, work, x[c], uint64_t(kLanes), count, BinaryRepeatParams(1, 1, 1, 8, 8, pitch));
    }
    v_barrier();
    WholeReduceMax(out, work, int32_t(kLanes), count, 1, 1, 8, ReduceOrder::ORDER_ONLY_VALUE);
}

// x = cap * tanh1(x / cap). spare: 2048 floats.
LD_FN void soft_cap(const LocalTensor<float>& x, float cap, const LocalTensor<float>& spare,
                    const LocalTensor<float>& work, uint32_t count) {
    constexpr uint32_t kSlice = 1024;
    const LocalTensor<float> tanh = spare, other = spare[kSlice];
    for (uint32_t i = 0; i < count; i += kSlice) {
        const uint32_t now = uint32_t(plan::least(kSlice, count - i));
        const LocalTensor<float> part = x[i];
        v_barrier();
        Duplicate(other, cap, int32_t(now));
        v_barrier();
        divide(part, part, other, now);
        v_barrier();
        tanh1(tanh, part, other, work, now);
        v_barrier();
        Muls(part, tanh, cap, int32_t(now));
    }
}

// Two chunks and two steps may be under way: m and l are kept by the chunk's number, c by the step's.
class SoftmaxSteps {
public:
    static constexpr uint32_t kVectors = 2 + 2 + 2 + 3;  // m, l, c; the new m, u, the step's sums
    static constexpr uint32_t kFloats = kVectors * kSoftmaxRows + 8 * kSoftmaxRows;

    // work: at least kExpWork floats and 64 per row of a slice.
    LD_FN void init(TPipe& pipe, uint32_t slice_rows, const LocalTensor<float>& work) {
        pipe.InitBuffer(buffer_, uint32_t(kFloats * sizeof(float)));
        state_ = buffer_.Get<float>();
        blocks_ = state_[kVectors * kSoftmaxRows];
        work_ = work;
        sums_.init(pipe, slice_rows, kSoftmaxRows);
        Duplicate(state_, 0.0f, int32_t(kFloats));
    }

    LD_FN LocalTensor<float> m(uint32_t chunk) const { return vector(chunk % 2); }
    LD_FN LocalTensor<float> l(uint32_t chunk) const { return vector(2 + chunk % 2); }
    LD_FN LocalTensor<float> c(uint32_t step) const { return vector(4 + step % 2); }

    // A chunk begins: m = -inf, l = 0.
    LD_FN void open(uint32_t chunk) {
        v_barrier();
        Duplicate(m(chunk), -kInfinity, int32_t(kSoftmaxRows));
        Duplicate(l(chunk), 0.0f, int32_t(kSoftmaxRows));
    }

    // Rows [first, first + rows) of the step, multiples of 8: `scores` [rows, width] of visible keys, -inf elsewhere,
    // become p, and `weights` RINT(p). Keys of the step that aren't among the `width` have p = +0.
    template <class T>
    LD_FN void slice(const LocalTensor<T>& weights, const LocalTensor<float>& scores, uint32_t chunk, uint32_t first,
                     uint32_t rows, uint32_t width) {
        const LocalTensor<float> high = new_m()[first], u = shift()[first];
        v_barrier();
        row_max(high, scores, work_, rows, width);
        v_barrier();
        Max(high, high, m(chunk)[first], int32_t(rows));
        v_barrier();
        Maxs(u, high, kLowestFloat, int32_t(rows));
        v_barrier();
        Brcb(blocks_, u, uint8_t(rows / 8), BrcbRepeatParams(1, 8));
        v_barrier();
        by_rows<SubBlocks>(scores, scores, blocks_, rows, width);
        v_barrier();
        exp1<false>(scores, scores, work_, rows * width);
        v_barrier();
        narrow(weights, scores, rows * width);
        const RowTile tile{first, rows, 0, width, width};
        sums_.first(scores, tile);
        sums_.halve(first, rows);
    }

    // One block of the step's c per row.
    LD_FN LocalTensor<float> factors(uint32_t step) const {
        v_barrier();
        Brcb(blocks_, c(step), uint8_t(kSoftmaxRows / 8), BrcbRepeatParams(1, 8));
        return blocks_;
    }

    // After the step's last slice: c = exp1(m - u), l = l c + r, and m.
    LD_FN void close(uint32_t chunk, uint32_t step) {
        const LocalTensor<float> factor = c(step), old = m(chunk), sum = l(chunk);
        const int32_t n = int32_t(kSoftmaxRows);
        sums_.pairs(step_sums());
        Sub(factor, old, shift(), n);
        v_barrier();
        exp1<false>(factor, factor, work_, kSoftmaxRows);
        copy_floats(old, new_m(), kSoftmaxRows);
        v_barrier();
        Mul(sum, sum, factor, n);
        v_barrier();
        Add(sum, sum, step_sums(), n);
    }

private:
    LD_FN LocalTensor<float> vector(uint32_t i) const { return state_[i * kSoftmaxRows]; }
    LD_FN LocalTensor<float> new_m() const { return vector(6); }
    LD_FN LocalTensor<float> shift() const { return vector(7); }
    LD_FN LocalTensor<float> step_sums() const { return vector(8); }

    TBuf<TPosition::VECCALC> buffer_;
    RowSums sums_;
    LocalTensor<float> state_, blocks_, work_;
};

// The rows' totals over their chunks, and the blocks by which the rows of O are multiplied.
class SoftmaxTotals {
public:
    static constexpr uint32_t kVectors = 5;  // m, l, the two factors, what lse needs
    static constexpr uint32_t kFloats = kVectors * kSoftmaxRows + 3 * 8 * kSoftmaxRows + 8;

    LD_FN void init(TPipe& pipe, const LocalTensor<float>& work) {
        pipe.InitBuffer(buffer_, uint32_t(kFloats * sizeof(float)));
        state_ = buffer_.Get<float>();
        work_ = work;
        Duplicate(state_, 0.0f, int32_t(kFloats));
    }

    LD_FN LocalTensor<float> m() const { return state_; }
    LD_FN LocalTensor<float> l() const { return state_[kSoftmaxRows]; }
    LD_FN LocalTensor<float> lse() const { return state_[4 * kSoftmaxRows]; }

    // Blocks of the factor of what was summed before, of the factor of the chunk, and of ls.
    LD_FN LocalTensor<float> before() const { return state_[kVectors * kSoftmaxRows]; }
    LD_FN LocalTensor<float> added() const { return state_[(kVectors + 8) * kSoftmaxRows]; }
    LD_FN LocalTensor<float> denominators() const { return state_[(kVectors + 16) * kSoftmaxRows]; }

    // Without a sink the combination starts from (-inf, 0, +0), which leaves the first chunk as it is.
    LD_FN void take(const LocalTensor<float>& chunk_m, const LocalTensor<float>& chunk_l) {
        v_barrier();
        copy_floats(m(), chunk_m, kSoftmaxRows);
        copy_floats(l(), chunk_l, kSoftmaxRows);
    }

    // The start with sinks: m holds them already, l = 1.
    LD_FN void start_from_sinks() { Duplicate(l(), 1.0f, int32_t(kSoftmaxRows)); }

    // M = max(m_a, m_b), e = exp1(m - u), l = l_a e_a + l_b e_b, and the blocks of both e.
    LD_FN void combine(const LocalTensor<float>& chunk_m, const LocalTensor<float>& chunk_l) {
        const int32_t n = int32_t(kSoftmaxRows);
        const LocalTensor<float> ea = state_[2 * kSoftmaxRows], eb = state_[3 * kSoftmaxRows], u = lse();
        v_barrier();
        Max(u, m(), chunk_m, n);
        v_barrier();
        copy_floats(eb, u, kSoftmaxRows);
        v_barrier();
        Maxs(u, u, kLowestFloat, n);
        v_barrier();
        Sub(ea, m(), u, n);
        v_barrier();
        copy_floats(m(), eb, kSoftmaxRows);
        v_barrier();
        Sub(eb, chunk_m, u, n);
        v_barrier();
        exp1<false>(ea, ea, work_, 2 * kSoftmaxRows);  // ea and eb lie one behind the other
        v_barrier();
        Mul(l(), l(), ea, n);
        Mul(u, chunk_l, eb, n);
        Brcb(before(), ea, uint8_t(kSoftmaxRows / 8), BrcbRepeatParams(1, 8));
        Brcb(added(), eb, uint8_t(kSoftmaxRows / 8), BrcbRepeatParams(1, 8));
        v_barrier();
        Add(l(), l(), u, n);
    }

    // After the last chunk: blocks of ls = l, or 1 where l is 0; and lse = m + ln1(l).
    LD_FN void finish(bool want_lse) {
        const LocalTensor<float> ls = state_[2 * kSoftmaxRows];
        const LocalTensor<uint8_t> positive = state_[kFloats - 8].ReinterpretCast<uint8_t>();
        v_barrier();
        CompareScalar(positive, l(), 0.0f, CMPMODE::NE, kSoftmaxRows);  // NaN too stays
        v_barrier();
        Select(ls, positive, l(), 1.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, kSoftmaxRows);
        v_barrier();
        Brcb(denominators(), ls, uint8_t(kSoftmaxRows / 8), BrcbRepeatParams(1, 8));
        if (!want_lse) return;
        ln1(lse(), l(), work_, kSoftmaxRows);
        v_barrier();
        Add(lse(), m(), lse(), int32_t(kSoftmaxRows));
    }

private:
    TBuf<TPosition::VECCALC> buffer_;
    LocalTensor<float> state_, work_;
};

}  // namespace ld
