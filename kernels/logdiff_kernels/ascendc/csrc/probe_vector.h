// One vector instruction, or one function of common/, on tile after tile: what the self-test's bit tables are made of.
//
// A tile is loaded, worked on and stored before the next one: nothing overlaps.
#pragma once

#include "common/exp1.h"
#include "common/row_tiles.h"
#include "probe_plan.h"

namespace ld {

class VectorProbe {
public:
    LD_FN VectorProbe(const LdVectorProbePlan& plan, TPipe& pipe) : plan_(plan) {
        constexpr uint32_t bytes = probe::kTileElements * sizeof(float);
        pipe.InitBuffer(a_in_, 1, bytes);
        pipe.InitBuffer(b_in_, 1, bytes);
        pipe.InitBuffer(out_, 1, bytes);
        pipe.InitBuffer(work_buffer_, uint32_t(bytes + (kExpWork + kRootWork) * sizeof(float)));
        ones_ = work_buffer_.Get<float>();
        work_ = ones_[probe::kTileElements];
        Duplicate(ones_, 1.0f, int32_t(probe::kTileElements));
    }

    // b: as many as a, or a itself where the operation has one operand.
    LD_FN void run(GM_ADDR a, GM_ADDR b, GM_ADDR out) {
        const uint32_t op = plan_.op;
        const bool narrow_in = op == probe::kFromBFloat16 || op == probe::kFromFloat16;
        const bool narrow_out = op == probe::kToBFloat16 || op == probe::kToFloat16;
        const uint32_t in_words = probe::kTileElements / (narrow_in ? 2 : 1);
        const uint32_t out_words = probe::kTileElements / (narrow_out ? 2 : 1);
        a_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(a));
        b_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(b));
        result_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(out));
        for (uint32_t tile = uint32_t(GetBlockIdx()); tile < plan_.tiles; tile += uint32_t(GetBlockNum())) {
            const LocalTensor<float> x = load(a_in_, a_, tile, in_words), y = load(b_in_, b_, tile, in_words);
            LocalTensor<float> z = out_.AllocTensor<float>();
            v_barrier();
            work(z, x, y);
            a_in_.FreeTensor(x);
            b_in_.FreeTensor(y);
            out_.EnQue(z);
            z = out_.DeQue<float>();
            DataCopy(result_[uint64_t(tile) * out_words], z, out_words);
            out_.FreeTensor(z);
        }
    }

private:
    using In = TQue<TPosition::VECIN, 1>;

    LD_FN LocalTensor<float> load(In& queue, const GlobalTensor<float>& from, uint32_t tile, uint32_t words) {
        LocalTensor<float> in = queue.AllocTensor<float>();
        DataCopy(in, from[uint64_t(tile) * words], words);
        queue.EnQue(in);
        return queue.DeQue<float>();
    }

    LD_FN void work(const LocalTensor<float>& z, const LocalTensor<float>& x, const LocalTensor<float>& y) {
        constexpr uint32_t count = probe::kTileElements, repeats = count / kLanes;
        constexpr int32_t n = int32_t(count);
        const BinaryRepeatParams dense(1, 1, 1, 8, 8, 8);
        const bool repeated = plan_.form == probe::kRepeated;
        switch (plan_.op) {
            case probe::kAdd:
                if (repeated) Add(z, x, y, uint64_t(kLanes), uint8_t(repeats), dense);
                else Add(z, x, y, n);
                break;
            case probe::kSub:
                if (repeated) Sub(z, x, y, uint64_t(kLanes), uint8_t(repeats), dense);
                else Sub(z, x, y, n);
                break;
            case probe::kMul:
                if (repeated) Mul(z, x, y, uint64_t(kLanes), uint8_t(repeats), dense);
                else Mul(z, x, y, n);
                break;
            case probe::kDiv:
                if (repeated) divide_rows(z, x, y, repeats, dense);
                else divide(z, x, y, count);
                break;
            case probe::kMax: Max(z, x, y, n); break;
            case probe::kMin: Min(z, x, y, n); break;
            case probe::kAdds: Adds(z, x, plan_.scalar, n); break;
            case probe::kMuls: Muls(z, x, plan_.scalar, n); break;
            case probe::kMaxs: Maxs(z, x, plan_.scalar, n); break;
            case probe::kMins: Mins(z, x, plan_.scalar, n); break;
            case probe::kAbs: Abs(z, x, n); break;
            case probe::kSqrt:
                for (uint32_t i = 0; i < count; i += kLanes) {
                    if (i != 0) v_barrier();
                    square_root(z[i], x[i], work_, kLanes);
                }
                break;
            case probe::kExp: Exp(z, x, n); break;
            case probe::kLn: Ln(z, x, n); break;
            case probe::kExp1: exp1(z, x, work_, count); break;
            case probe::kLn1: ln1(z, x, work_, count); break;
            case probe::kToBFloat16: narrow(z.ReinterpretCast<bfloat16_t>(), x, count); break;
            case probe::kToFloat16: narrow(z.ReinterpretCast<half>(), x, count); break;
            case probe::kFromBFloat16: widen(z, x.ReinterpretCast<bfloat16_t>(), count); break;
            case probe::kFromFloat16: widen(z, x.ReinterpretCast<half>(), count); break;
            case probe::kRoundToInt: Cast(z.ReinterpretCast<int32_t>(), x, RoundMode::CAST_RINT, count); break;
            case probe::kFromInt: Cast(z, x.ReinterpretCast<int32_t>(), RoundMode::CAST_RINT, count); break;
            case probe::kFloor: Cast(z, x, RoundMode::CAST_FLOOR, count); break;
            case probe::kEqual: compare(z, x, y, CMPMODE::EQ); break;
            case probe::kLess: compare(z, x, y, CMPMODE::LT); break;
            case probe::kLessEqual: compare(z, x, y, CMPMODE::LE); break;
            case probe::kGreater: compare(z, x, y, CMPMODE::GT); break;
            case probe::kGreaterEqual: compare(z, x, y, CMPMODE::GE); break;
            default: compare(z, x, y, CMPMODE::NE); break;
        }
    }

    LD_FN void compare(const LocalTensor<float>& z, const LocalTensor<float>& x, const LocalTensor<float>& y,
                       CMPMODE mode) {
        const LocalTensor<uint8_t> chosen = work_.ReinterpretCast<uint8_t>();
        Compare(chosen, x, y, mode, probe::kTileElements);
        v_barrier();
        Select(z, chosen, ones_, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, probe::kTileElements);
    }

    const LdVectorProbePlan& plan_;
    GlobalTensor<float> a_, b_, result_;
    In a_in_, b_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> ones_, work_;
};

}  // namespace ld
