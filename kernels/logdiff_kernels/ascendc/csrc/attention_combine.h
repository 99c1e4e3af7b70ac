// Chunk states of row tiles that attention's table has cut at their chunks: combined ascending, divided, written.
//
// A unit is a slice of rows of one row tile, with all of its chunks; units go to the vector cores in turn. UB: m and l of
// a chunk through one queue, its O through another, two buffers each, so that the next chunk arrives while this one is
// added to the total, which has memory of its own.
#pragma once

#include "attention_vector.h"

namespace ld {

template <class T> class AttentionCombine {
public:
    LD_FN AttentionCombine(const LdAttentionPlan& p, TPipe& pipe, const AttentionTables& tables)
        : plan_(p), tables_(tables), pipe_(pipe), output_(p, pipe), fence_(pipe) {
        const uint32_t slice = p.vector_rows * p.dim_v;
        pipe.InitBuffer(sums_, 2, uint32_t(slice * sizeof(float)));
        pipe.InitBuffer(states_, 2, uint32_t(2 * kSoftmaxRows * sizeof(float)));
        const uint32_t work = uint32_t(plan::most(kExpWork, kLanes));
        pipe.InitBuffer(total_buffer_, uint32_t((slice + work + 2 * kSoftmaxRows) * sizeof(float)));
        total_ = total_buffer_.Get<float>();
        m_ = total_[slice];
        l_ = m_[kSoftmaxRows];
        Duplicate(m_, 0.0f, int32_t(2 * kSoftmaxRows));  // lanes behind a slice's rows have some value
        totals_.init(pipe, l_[kSoftmaxRows]);
    }

    LD_FN void run(GM_ADDR combines, GM_ADDR out, GM_ADDR lse, GM_ADDR sinks, GM_ADDR workspace) {
        output_.set(out, lse, sinks);
        combines_.SetGlobalBuffer(reinterpret_cast<__gm__ uint32_t*>(combines));
        workspace_ = workspace;
        const uint32_t slices = uint32_t(plan::ceil_div(plan::kTileM, plan_.vector_rows)), units = plan_.combines * slices;
        for (uint32_t unit = uint32_t(GetBlockIdx()); unit < units; unit += uint32_t(GetBlockNum()))
            combine(unit / slices, unit % slices * plan_.vector_rows);
        fence_.release(pipe_);
    }

private:
    LD_FN GlobalTensor<float> at(uint64_t offset) const {
        GlobalTensor<float> gm;
        gm.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(workspace_ + offset));
        return gm;
    }

    LD_FN void load(uint32_t slot, uint32_t row, uint32_t rows) {
        const LocalTensor<float> state = states_.template AllocTensor<float>();
        load_rows(state, at(plan::state_m_offset(plan_, slot))[row], 1, rows, rows, rows);
        load_rows(state[kSoftmaxRows], at(plan::state_l_offset(plan_, slot))[row], 1, rows, rows, rows);
        states_.EnQue(state);
        const uint32_t count = rows * plan_.dim_v;
        const LocalTensor<float> o = sums_.template AllocTensor<float>();
        load_rows(o, at(plan::state_o_offset(plan_, slot))[uint64_t(row) * plan_.dim_v], 1, count, count, count);
        sums_.EnQue(o);
    }

    LD_FN uint32_t word(uint32_t index, uint32_t i) const {
        constexpr uint32_t words = sizeof(LdAttentionCombine) / sizeof(uint32_t);
        return combines_.GetValue(uint64_t(index) * words + i);
    }

    LD_FN void combine(uint32_t index, uint32_t row) {
        const AttentionTile tile =
            attention_tile(plan_, tables_, word(index, 0), word(index, 1), word(index, 2), word(index, 5));
        if (row >= tile.rows) return;
        const uint32_t slot = word(index, 3), slots = word(index, 4);
        const uint32_t rows = uint32_t(plan::least(plan_.vector_rows, tile.padded_rows() - row));
        const uint32_t count = rows * plan_.dim_v;
        load(slot, row, rows);
        for (uint32_t i = 0; i < slots; ++i) {
            if (i + 1 < slots) load(slot + i + 1, row, rows);
            const LocalTensor<float> state = states_.template DeQue<float>(), o = sums_.template DeQue<float>();
            const bool first = i == 0;
            v_barrier();
            copy_floats(m_, state, rows);
            copy_floats(l_, state[kSoftmaxRows], rows);
            states_.FreeTensor(state);
            v_barrier();
            if (first && !plan_.has_sinks) {
                totals_.take(m_, l_);
                copy_floats(total_, o, count);
            } else {
                if (first) {
                    output_.load_sinks(totals_.m(), tile, row);
                    totals_.start_from_sinks();
                }
                totals_.combine(m_, l_);
                v_barrier();
                if (first) {
                    by_rows<MulBlocks>(total_, o, totals_.added(), rows, plan_.dim_v);  // + (+0) e_a
                } else {
                    by_rows<MulBlocks>(total_, total_, totals_.before(), rows, plan_.dim_v);
                    by_rows<MulBlocks>(o, o, totals_.added(), rows, plan_.dim_v);
                    v_barrier();
                    Add(total_, total_, o, int32_t(count));
                }
            }
            sums_.FreeTensor(o);
        }
        totals_.finish(plan_.want_lse != 0);
        output_.store(total_, totals_.denominators(), tile, row, rows);
        if (plan_.want_lse) output_.store_lse(totals_.lse(), totals_.before(), tile, row, row + rows, fence_);
    }

    const LdAttentionPlan& plan_;
    const AttentionTables& tables_;
    TPipe& pipe_;
    AttentionOutput<T> output_;
    StoreFence fence_;
    TQue<TPosition::VECIN, 2> sums_, states_;
    TBuf<TPosition::VECCALC> total_buffer_;
    SoftmaxTotals totals_;
    LocalTensor<float> total_, m_, l_;
    GlobalTensor<uint32_t> combines_;
    GM_ADDR workspace_ = nullptr;
};

}  // namespace ld

#define LD_ENTRY(type, name)                                                                                        \
    extern "C" __global__ __aicore__ void ld_attention_combine_##name(                                              \
        GM_ADDR sinks, GM_ADDR q_start, GM_ADDR k_start, GM_ADDR k_len, GM_ADDR combines, GM_ADDR workspace,        \
        GM_ADDR out, GM_ADDR lse, LdAttentionPlan plan) {                                                           \
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                                                             \
        ld::reset_core();                                                                                           \
        AscendC::TPipe pipe;                                                                                        \
        ld::AttentionTables tables;                                                                                 \
        tables.set(q_start, k_start, k_len, nullptr, combines);                                                     \
        ld::AttentionCombine<type>(plan, pipe, tables).run(combines, out, lse, sinks, workspace);                   \
    }
LD_ENTRY(bfloat16_t, bfloat16)
LD_ENTRY(half, float16)
#undef LD_ENTRY
