// Mmad alone, with any m and n: what the self-test's probes of the matrix unit are made of. Operands take the kernels'
// own way to L0 (common/matrix_tile.h); stages are kept apart by barriers, nothing overlaps.
#pragma once

#include "common/matrix_tile.h"
#include "probe_plan.h"

namespace ld {

template <class T> class MmadProbe {
public:
    LD_FN MmadProbe(const LdMmadProbePlan& plan, TPipe& pipe) : plan_(plan) {
        constexpr uint32_t operand = kTile * kMmadK<T>;
        height_ = uint32_t(plan::round_up(plan.m, kFractalRows));
        depth_ = plan.steps * plan.k;
        pipe.InitBuffer(l1a_, uint32_t(height_ * depth_ * sizeof(T)));
        pipe.InitBuffer(l1b_, uint32_t(plan.n * depth_ * sizeof(T)));
        pipe.InitBuffer(l0a_, uint32_t(2 * operand * sizeof(T)));
        pipe.InitBuffer(l0b_, uint32_t(2 * operand * sizeof(T)));
        pipe.InitBuffer(l0c_, 2 * kAccumulatorBytes);
        left_ = l0a_.template GetWithOffset<T>(operand, uint32_t(plan.buffer * operand * sizeof(T)));
        right_ = l0b_.template GetWithOffset<T>(operand, uint32_t(plan.buffer * operand * sizeof(T)));
        accumulator_ = l0c_.template GetWithOffset<float>(kTile * kTile, plan.buffer * kAccumulatorBytes);
    }

    template <class Out> LD_FN void run(GM_ADDR a, GM_ADDR b, GM_ADDR c) {
        GlobalTensor<T> left, right;
        GlobalTensor<Out> result;
        left.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(a));
        right.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(b));
        result.SetGlobalBuffer(reinterpret_cast<__gm__ Out*>(c));
        MatrixSlab<T> slab_a{l1a_.template Get<T>(), height_, depth_, false, height_};
        MatrixSlab<T> slab_b{l1b_.template Get<T>(), plan_.n, depth_, false, plan_.n};
        for (uint32_t tile = uint32_t(GetBlockIdx()); tile < plan_.tiles; tile += uint32_t(GetBlockNum())) {
            const MatrixOperand<T> from_a{left[uint64_t(tile) * plan_.m * depth_], depth_, plan_.m, height_, false};
            const MatrixOperand<T> from_b{right[uint64_t(tile) * plan_.n * depth_], depth_, plan_.n, plan_.n, false};
            load_l1(slab_a, from_a, 0, depth_);
            load_l1(slab_b, from_b, 0, depth_);
            for (uint32_t step = 0; step < plan_.steps; ++step) {
                PipeBarrier<PIPE_ALL>();
                load_l0<T, true>(left_, slab_a, step * plan_.k, plan_.k);
                load_l0<T, false>(right_, slab_b, step * plan_.k, plan_.k);
                PipeBarrier<PIPE_ALL>();
                multiply_l0(accumulator_, left_, right_, plan_.n, plan_.k, step == 0, plan_.m);
            }
            PipeBarrier<PIPE_ALL>();
            store_l0c(result[uint64_t(tile) * plan_.m * plan_.n], accumulator_, plan_.n, plan_.m, plan_.n, height_);
            PipeBarrier<PIPE_ALL>();
        }
    }

private:
    const LdMmadProbePlan& plan_;
    uint32_t height_, depth_;
    TBuf<TPosition::A1> l1a_;
    TBuf<TPosition::B1> l1b_;
    TBuf<TPosition::A2> l0a_;
    TBuf<TPosition::B2> l0b_;
    TBuf<TPosition::CO1> l0c_;
    LocalTensor<T> left_, right_;
    LocalTensor<float> accumulator_;
};

template <class T> LD_FN void probe_mmad(GM_ADDR a, GM_ADDR b, GM_ADDR c, const LdMmadProbePlan& plan) {
    reset_core();
    TPipe pipe;
    MmadProbe<T> probe(plan, pipe);
    if (plan.out_dtype == plan::kFloat32) {
        probe.template run<float>(a, b, c);
    } else if (plan.out_dtype == plan::kBFloat16) {
        probe.template run<bfloat16_t>(a, b, c);
    } else {
        probe.template run<half>(a, b, c);
    }
}

}  // namespace ld
