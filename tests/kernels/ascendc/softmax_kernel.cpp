// softmax_step.h alone: steps of given scores to weights, m, l and c; chunks of `per_chunk` steps to totals.
#include "common/softmax_step.h"
#include "launch.h"

struct SoftmaxPlan {
    uint32_t dtype, rows, width, steps, per_chunk, slice, sinks, reserved;
};

namespace {

using namespace ld;

class Softmax {
public:
    Softmax(const SoftmaxPlan& p, TPipe& pipe) : plan_(p) {
        pipe.InitBuffer(in_, 1, p.slice * p.width * sizeof(float));
        pipe.InitBuffer(out_, 1, p.slice * p.width * sizeof(bfloat16_t));
        pipe.InitBuffer(states_, 1, 6 * kSoftmaxRows * sizeof(float));
        pipe.InitBuffer(work_, std::max(kExpWork, p.slice * kLanes) * sizeof(float));
        pipe.InitBuffer(sinks_, 1, kSoftmaxRows * sizeof(float));
        steps_.init(pipe, p.slice, work_.Get<float>());
        totals_.init(pipe, work_.Get<float>());
    }

    void run(GM_ADDR scores, GM_ADDR sinks, GM_ADDR weights, GM_ADDR states) {
        GlobalTensor<float> from, to_state, sink;
        GlobalTensor<bfloat16_t> to;
        from.SetGlobalBuffer(reinterpret_cast<float*>(scores));
        to.SetGlobalBuffer(reinterpret_cast<bfloat16_t*>(weights));
        to_state.SetGlobalBuffer(reinterpret_cast<float*>(states));
        if (plan_.sinks) {
            sink.SetGlobalBuffer(reinterpret_cast<float*>(sinks));
            LocalTensor<float> x = sinks_.AllocTensor<float>();
            load_rows(x, sink, 1, kSoftmaxRows, kSoftmaxRows, kSoftmaxRows);
            sinks_.EnQue(x);
            x = sinks_.DeQue<float>();
            v_barrier();
            copy_floats(totals_.m(), x, kSoftmaxRows);
            totals_.start_from_sinks();
            sinks_.FreeTensor(x);
        }
        for (uint32_t i = 0; i < plan_.steps; ++i) {
            const uint32_t chunk = i / plan_.per_chunk;
            if (i % plan_.per_chunk == 0) steps_.open(chunk);
            for (uint32_t row = 0; row < plan_.rows; row += plan_.slice) slice(from, to, i, chunk, row);
            steps_.close(chunk, i);
            if ((i + 1) % plan_.per_chunk == 0) {
                if (chunk == 0 && !plan_.sinks) totals_.take(steps_.m(chunk), steps_.l(chunk));
                else totals_.combine(steps_.m(chunk), steps_.l(chunk));
            }
            if (i + 1 == plan_.steps) totals_.finish(true);
            store_states(to_state, i, chunk);
        }
    }

private:
    void slice(const GlobalTensor<float>& from, const GlobalTensor<bfloat16_t>& to, uint32_t step, uint32_t chunk,
               uint32_t row) {
        const uint32_t rows = std::min(plan_.slice, plan_.rows - row), count = rows * plan_.width;
        const uint64_t at = (uint64_t(step) * plan_.rows + row) * plan_.width;
        LocalTensor<float> x = in_.AllocTensor<float>();
        load_rows(x, from[at], 1, count, count, count);
        in_.EnQue(x);
        x = in_.DeQue<float>();
        LocalTensor<bfloat16_t> p = out_.AllocTensor<bfloat16_t>();
        steps_.slice(p, x, chunk, row, rows, plan_.width);
        in_.FreeTensor(x);
        out_.EnQue(p);
        p = out_.DeQue<bfloat16_t>();
        store_rows(to[at], p, 1, count, count, count);
        out_.FreeTensor(p);
    }

    void store_states(const GlobalTensor<float>& to, uint32_t step, uint32_t chunk) {
        LocalTensor<float> x = states_.AllocTensor<float>();
        v_barrier();
        const LocalTensor<float> from[6] = {steps_.m(chunk), steps_.l(chunk), steps_.c(step),
                                            totals_.m(),     totals_.l(),     totals_.lse()};
        for (uint32_t i = 0; i < 6; ++i) copy_floats(x[i * kSoftmaxRows], from[i], kSoftmaxRows);
        states_.EnQue(x);
        x = states_.DeQue<float>();
        constexpr uint32_t count = 6 * kSoftmaxRows;
        store_rows(to[step * count], x, 1, count, count, count);
        states_.FreeTensor(x);
    }

    const SoftmaxPlan plan_;
    TQue<TPosition::VECIN, 1> in_, sinks_;
    TQue<TPosition::VECOUT, 1> out_, states_;
    TBuf<TPosition::VECCALC> work_;
    SoftmaxSteps steps_;
    SoftmaxTotals totals_;
};

void softmax(GM_ADDR scores, GM_ADDR sinks, GM_ADDR weights, GM_ADDR states, SoftmaxPlan plan) {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    ld::reset_core();
    TPipe pipe;
    Softmax(plan, pipe).run(scores, sinks, weights, states);
}

}  // namespace

LD_LAUNCHER_BEGIN(softmax, SoftmaxPlan, 4)
LD_START(true, KERNEL_TYPE_AIV_ONLY, softmax, LD_POINTERS_4)
LD_LAUNCHER_END
