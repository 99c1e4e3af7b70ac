// A vector core of a block of attention: half of the rows of each item, softmax of a step, then the rescale of the step
// before it.
//
// UB: a queue of score slices, one of weight slices, one of slices of PV (and of the total over chunks), one slice of
// the output; O of the core's rows where it fits, else two slices of it that travel to the workspace and back. Queues
// have two buffers: the next slice arrives while this one is worked on and the one before is stored.
//
// Events beside the queues' own: V_MTE3 and MTE3_V around what is stored from outside of a queue (chunk states, lse),
// MTE3_MTE2 where it is read again from GM; for O in slices one of MTE3_MTE2, MTE2_V and V_MTE3 for each of the two.
#pragma once

#include "attention_cube.h"
#include "attention_mask.h"

namespace ld {

// Stores of vectors that no queue holds: V before, V after.
class StoreFence {
public:
    LD_FN explicit StoreFence(TPipe& pipe)
        : computed_(pipe.AllocEventID<HardEvent::V_MTE3>()), stored_(pipe.AllocEventID<HardEvent::MTE3_V>()),
          readable_(pipe.AllocEventID<HardEvent::MTE3_MTE2>()) {}
    LD_FN void release(TPipe& pipe) {
        pipe.ReleaseEventID<HardEvent::V_MTE3>(computed_);
        pipe.ReleaseEventID<HardEvent::MTE3_V>(stored_);
        pipe.ReleaseEventID<HardEvent::MTE3_MTE2>(readable_);
    }
    LD_FN void before() {
        SetFlag<HardEvent::V_MTE3>(computed_);
        WaitFlag<HardEvent::V_MTE3>(computed_);
    }
    LD_FN void after() {
        SetFlag<HardEvent::MTE3_V>(stored_);
        WaitFlag<HardEvent::MTE3_V>(stored_);
    }
    // What was stored is read from GM by later copies.
    LD_FN void readable() {
        SetFlag<HardEvent::MTE3_MTE2>(readable_);
        WaitFlag<HardEvent::MTE3_MTE2>(readable_);
    }

private:
    TEventID computed_, stored_, readable_;
};

// The end of a row tile's rows: division, cast, lse. Shared with the kernel that combines chunk states.
template <class T> class AttentionOutput {
public:
    LD_FN AttentionOutput(const LdAttentionPlan& p, TPipe& pipe) : plan_(p) {
        pipe.InitBuffer(out_, 1, uint32_t(p.vector_rows * p.dim_v * sizeof(T)));
    }
    LD_FN void set(GM_ADDR out, GM_ADDR lse, GM_ADDR sinks) {
        out_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(out));
        if (lse != nullptr) lse_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(lse));
        if (sinks != nullptr) sinks_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(sinks));
    }

    // The sinks of rows [first, ...) of the tile into the lanes of m.
    LD_FN void load_sinks(const LocalTensor<float>& m, const AttentionTile& tile, uint32_t first) {
        const uint32_t heads = uint32_t(plan::least(plan_.group, kSoftmaxRows));
        for (uint32_t i = 0; i < heads; ++i) {
            v_barrier();  // heads share data blocks
            uint64_t mask[2] = {0, 0};
            for (uint32_t row = i; row < kSoftmaxRows; row += plan_.group) mask[0] |= uint64_t(1) << row;
            const uint32_t head = (tile.first_row + first + i) % plan_.group;
            Duplicate(m, sinks_gm_.GetValue(uint64_t(tile.kv_head) * plan_.group + head), mask, 1, 1, 8);
        }
    }

    // Rows [row, row + rows) of the tile: O / ls + 0, one cast, to where they belong. Rows that don't exist are left out.
    LD_FN void store(const LocalTensor<float>& o, const LocalTensor<float>& denominators, const AttentionTile& tile,
                     uint32_t row, uint32_t rows) {
        const uint32_t count = rows * plan_.dim_v;
        v_barrier();
        by_rows<DivBlocks>(o, o, denominators, rows, plan_.dim_v);
        v_barrier();
        Adds(o, o, 0.0f, int32_t(count));
        v_barrier();
        LocalTensor<T> out = out_.template AllocTensor<T>();
        narrow(out, o, count);
        out_.EnQue(out);
        out = out_.template DeQue<T>();
        const int64_t stride = tile.stride(plan_, plan_.out_row, plan_.out_head);
        const uint32_t end = uint32_t(plan::least(row + rows, tile.rows));
        for (uint32_t r = row; r < end;) {
            const uint32_t now = tile.run(plan_, r, end - r, plan_.out_row, plan_.out_head);
            store_rows(out_gm_[tile.offset(plan_, r, plan_.out_row, plan_.out_head)], out[(r - row) * plan_.dim_v], now,
                       plan_.dim_v, stride, plan_.dim_v);
            r += now;
        }
        out_.FreeTensor(out);
    }

    // lse of rows [row, end) of the tile. blocks: 8 floats per row.
    LD_FN void store_lse(const LocalTensor<float>& lse, const LocalTensor<float>& blocks, const AttentionTile& tile,
                         uint32_t row, uint32_t end, StoreFence& fence) {
        end = uint32_t(plan::least(end, tile.rows));
        if (row >= end) return;
        v_barrier();
        fill_lanes(lse, 1, kSoftmaxRows, 0, blind_rows(tile, row, end), -kInfinity);
        v_barrier();
        Brcb(blocks, lse, uint8_t(kSoftmaxRows / 8), BrcbRepeatParams(1, 8));
        fence.before();
        const int64_t stride = tile.stride(plan_, plan_.heads, 1);
        for (uint32_t r = row; r < end;) {
            const uint32_t now = tile.run(plan_, r, end - r, plan_.heads, 1);
            store_rows(lse_gm_[tile.offset(plan_, r, plan_.heads, 1)], blocks[(r - row) * 8], now, 1, stride, 8);
            r += now;
        }
        fence.after();
    }

private:
    // Of rows [row, end), how many see nothing: those of positions below 0, which come first, or all without a key.
    LD_FN uint32_t blind_rows(const AttentionTile& tile, uint32_t row, uint32_t end) const {
        if (tile.keys == 0) return end - row;
        if (!plan_.causal || tile.tokens <= tile.keys) return 0;
        const uint64_t blind = uint64_t(tile.tokens - tile.keys) * plan_.group, from = tile.first_row + row;
        return blind <= from ? 0 : uint32_t(plan::least(blind - from, end - row));
    }

    const LdAttentionPlan& plan_;
    TQue<TPosition::VECOUT, 1> out_;
    GlobalTensor<T> out_gm_;
    GlobalTensor<float> lse_gm_, sinks_gm_;
};

template <class T> class AttentionVector {
public:
    LD_FN AttentionVector(const LdAttentionPlan& p, TPipe& pipe, const AttentionTables& tables)
        : plan_(p), tables_(tables), pipe_(pipe), output_(p, pipe), fence_(pipe), block_(uint32_t(GetBlockIdx()) / 2),
          sub_(uint32_t(GetSubBlockIdx())) {
        const uint32_t rows = p.vector_rows, buffers = p.vector_buffers;
        pipe.InitBuffer(scores_, uint8_t(buffers), uint32_t(rows * plan::kStep * sizeof(float)));
        pipe.InitBuffer(weights_, uint8_t(buffers), uint32_t(rows * plan::kStep * sizeof(T)));
        pipe.InitBuffer(sums_, uint8_t(buffers), uint32_t(rows * p.dim_v * sizeof(float)));
        pipe.InitBuffer(o_buffer_, uint32_t((p.resident ? plan::kVectorTileRows : 2 * rows) * p.dim_v * sizeof(float)));
        const uint32_t work = uint32_t(plan::most(kExpWork, rows * kLanes));
        pipe.InitBuffer(work_buffer_, uint32_t(work * sizeof(float)));
        o_ = o_buffer_.Get<float>();
        steps_.init(pipe, rows, work_buffer_.Get<float>());
        totals_.init(pipe, work_buffer_.Get<float>());
        if (p.resident) return;
        for (uint32_t i = 0; i < 2; ++i) {
            stored_[i] = pipe.AllocEventID<HardEvent::MTE3_MTE2>();
            fetched_[i] = pipe.AllocEventID<HardEvent::MTE2_V>();
            computed_[i] = pipe.AllocEventID<HardEvent::V_MTE3>();
            SetFlag<HardEvent::MTE3_MTE2>(stored_[i]);
        }
    }

    LD_FN void run(GM_ADDR out, GM_ADDR lse, GM_ADDR sinks, GM_ADDR workspace) {
        output_.set(out, lse, sinks);
        workspace_ = workspace;
        AttentionWalk ahead(plan_, tables_, block_), behind(plan_, tables_, block_);
        bool more = ahead.next();
        if (more) softmax(ahead.step());
        while (behind.next()) {
            if (more && (more = ahead.next())) softmax(ahead.step());
            rescale(behind.step());
        }
        fence_.release(pipe_);
        if (plan_.resident) return;
        for (uint32_t i = 0; i < 2; ++i) {
            WaitFlag<HardEvent::MTE3_MTE2>(stored_[i]);
            pipe_.ReleaseEventID<HardEvent::MTE3_MTE2>(stored_[i]);
            pipe_.ReleaseEventID<HardEvent::MTE2_V>(fetched_[i]);
            pipe_.ReleaseEventID<HardEvent::V_MTE3>(computed_[i]);
        }
    }

private:
    template <class E> LD_FN GlobalTensor<E> at(uint64_t offset) const {
        GlobalTensor<E> gm;
        gm.SetGlobalBuffer(reinterpret_cast<__gm__ E*>(workspace_ + offset));
        return gm;
    }

    // --- scores to weights

    LD_FN void softmax(const AttentionStep& step) {
        if (step.opens) steps_.open(step.chunk);
        if (step.empty()) return;
        CrossCoreWaitFlag<2, PIPE_MTE2>(kScoresReady);
        const plan::Range part = step.tile.part(sub_);
        const uint32_t entry = step.number % plan_.ring, columns = step.columns();
        const GlobalTensor<float> from = at<float>(plan::score_offset(plan_, block_, entry))[step.first_column()];
        const GlobalTensor<T> to = at<T>(plan::weight_offset(plan_, block_, entry))[step.first_column()];
        if (part.begin < part.end) load_scores(from, part, part.begin, columns);
        for (uint32_t row = part.begin; row < part.end; row += plan_.vector_rows) {
            const uint32_t rows = uint32_t(plan::least(plan_.vector_rows, part.end - row));
            if (row + rows < part.end) load_scores(from, part, row + rows, columns);
            const LocalTensor<float> scores = scores_.template DeQue<float>();
            const LocalTensor<T> weights = weights_.template AllocTensor<T>();
            v_barrier();
            Muls(scores, scores, plan_.scale, int32_t(rows * columns));
            if (plan_.softcap > 0.0f)
                soft_cap(scores, plan_.softcap, weights.template ReinterpretCast<float>(), work_buffer_.Get<float>(),
                         rows * columns);
            hide(scores, step, row, rows);
            steps_.slice(weights, scores, step.chunk, row - part.begin, rows, columns);
            scores_.FreeTensor(scores);
            weights_.EnQue(weights);
            const LocalTensor<T> done = weights_.template DeQue<T>();
            store_rows(to[uint64_t(row) * plan::kStep], done, rows, columns, plan::kStep, columns);
            weights_.FreeTensor(done);
        }
        if (part.begin < part.end) steps_.close(step.chunk, step.number);
        CrossCoreSetFlag<2, PIPE_MTE3>(kWeightsReady);
    }

    LD_FN void load_scores(const GlobalTensor<float>& from, const plan::Range& part, uint32_t row, uint32_t columns) {
        const uint32_t rows = uint32_t(plan::least(plan_.vector_rows, part.end - row));
        const LocalTensor<float> scores = scores_.template AllocTensor<float>();
        load_rows(scores, from[uint64_t(row) * plan::kStep], rows, columns, plan::kStep, columns);
        scores_.EnQue(scores);
    }

    // Keys that a row doesn't see become -inf, by selection and last.
    LD_FN void hide(const LocalTensor<float>& scores, const AttentionStep& step, uint32_t row, uint32_t rows) {
        const uint32_t end = uint32_t(plan::least(row + rows, step.tile.rows));
        hide_unseen(scores, plan_, step.tile, row, end, step.key + step.first_column(), step.columns(), -kInfinity);
    }

    // --- O = O c + PV; at a chunk's end its state joins the total, at an item's end the rows are written

    LD_FN void rescale(const AttentionStep& step) {
        if (!step.empty()) CrossCoreWaitFlag<2, PIPE_MTE2>(kSumsReady);
        const plan::Range part = step.tile.part(sub_);
        if (part.begin >= part.end) return;
        const bool apart = step.slot != plan::kNoSlot, joins = step.closes && !apart;
        const bool writes = joins && step.last_chunk, adds = joins && !step.first_chunk;
        if (step.closes && apart) store_state(step, part);
        if (joins) join(step, part);
        LocalTensor<float> factors;
        if (!step.opens) factors = steps_.factors(step.number);
        const GlobalTensor<float> pv = at<float>(plan::pv_offset(plan_, block_, step.number % plan_.ring));
        if (!step.empty()) load_sums(pv[uint64_t(part.begin) * plan_.dim_v], part, part.begin);
        for (uint32_t row = part.begin; row < part.end; row += plan_.vector_rows) {
            const uint32_t rows = uint32_t(plan::least(plan_.vector_rows, part.end - row)), count = rows * plan_.dim_v;
            const bool more = !step.empty() && row + rows < part.end;
            if (more && !adds) load_sums(pv[uint64_t(row + rows) * plan_.dim_v], part, row + rows);
            const LocalTensor<float> o = fetch_o(step, part, row, count);
            add_step(o, step, factors[step.opens ? 0 : (row - part.begin) * 8], rows);
            const uint32_t blocks = (row - part.begin) * 8;
            if (adds) {
                load_sums(own(plan::total_offset(plan_, block_), row - part.begin), part, row);
                const LocalTensor<float> sum = sums_.template DeQue<float>();
                v_barrier();
                by_rows<MulBlocks>(sum, sum, totals_.before()[blocks], rows, plan_.dim_v);
                by_rows<MulBlocks>(o, o, totals_.added()[blocks], rows, plan_.dim_v);
                v_barrier();
                Add(o, sum, o, int32_t(count));
                sums_.FreeTensor(sum);
                if (more) load_sums(pv[uint64_t(row + rows) * plan_.dim_v], part, row + rows);
            } else if (joins && plan_.has_sinks) {
                v_barrier();
                by_rows<MulBlocks>(o, o, totals_.added()[blocks], rows, plan_.dim_v);  // + (+0) e_a
            }
            if (writes) output_.store(o, totals_.denominators()[blocks], step.tile, row, rows);
            leave_o(step, part, row, count);
        }
        if (plan_.resident && step.closes && !writes) {
            fence_.before();
            const uint32_t count = (part.end - part.begin) * plan_.dim_v;
            store_rows(sum_of(step, part, part.begin), o_, 1, count, count, count);
            fence_.after();
            fence_.readable();
        }
        if (writes && plan_.want_lse)
            output_.store_lse(totals_.lse(), totals_.before(), step.tile, part.begin, part.end, fence_);
    }

    // What belongs to the slice of rows that begins at `row`.
    LD_FN void load_sums(const GlobalTensor<float>& from, const plan::Range& part, uint32_t row) {
        const uint32_t count = uint32_t(plan::least(plan_.vector_rows, part.end - row)) * plan_.dim_v;
        const LocalTensor<float> sums = sums_.template AllocTensor<float>();
        load_rows(sums, from, 1, count, count, count);
        sums_.EnQue(sums);
    }

    LD_FN void add_step(const LocalTensor<float>& o, const AttentionStep& step, const LocalTensor<float>& factors,
                        uint32_t rows) {
        const int32_t count = int32_t(rows * plan_.dim_v);
        v_barrier();
        if (step.empty()) {
            Duplicate(o, 0.0f, count);
            return;
        }
        const LocalTensor<float> pv = sums_.template DeQue<float>();
        if (step.opens) {
            Adds(o, pv, 0.0f, count);  // O and c of a chunk's begin are +0
        } else {
            by_rows<MulBlocks>(o, o, factors, rows, plan_.dim_v);
            v_barrier();
            Add(o, o, pv, count);
        }
        sums_.FreeTensor(pv);
    }

    // The totals' m and l take the chunk, which gives the factors for O.
    LD_FN void join(const AttentionStep& step, const plan::Range& part) {
        const LocalTensor<float> m = steps_.m(step.chunk), l = steps_.l(step.chunk);
        if (step.first_chunk && !plan_.has_sinks) {
            totals_.take(m, l);
        } else {
            if (step.first_chunk) {
                output_.load_sinks(totals_.m(), step.tile, part.begin);
                totals_.start_from_sinks();
            }
            totals_.combine(m, l);
        }
        if (step.last_chunk) totals_.finish(plan_.want_lse != 0);
    }

    LD_FN void store_state(const AttentionStep& step, const plan::Range& part) {
        const uint32_t rows = part.end - part.begin;
        fence_.before();
        store_rows(at<float>(plan::state_m_offset(plan_, step.slot))[part.begin], steps_.m(step.chunk), 1, rows, rows, rows);
        store_rows(at<float>(plan::state_l_offset(plan_, step.slot))[part.begin], steps_.l(step.chunk), 1, rows, rows, rows);
        fence_.after();
    }

    // Where O of the rows from `row` on goes that isn't finished: the chunk's slot, the total over chunks, or the chunk
    // under way.
    LD_FN GlobalTensor<float> sum_of(const AttentionStep& step, const plan::Range& part, uint32_t row) const {
        if (step.closes && step.slot != plan::kNoSlot)
            return at<float>(plan::state_o_offset(plan_, step.slot))[uint64_t(row) * plan_.dim_v];
        return own(step.closes ? plan::total_offset(plan_, block_) : plan::o_offset(plan_, block_), row - part.begin);
    }
    // A row of the core's own half: which rows of an item it has differs from item to item.
    LD_FN GlobalTensor<float> own(uint64_t offset, uint32_t row) const {
        return at<float>(offset)[(uint64_t(sub_) * plan::kVectorTileRows + row) * plan_.dim_v];
    }

    LD_FN uint32_t o_turn(const plan::Range& part, uint32_t row) const {
        return (row - part.begin) / plan_.vector_rows % 2;
    }

    LD_FN LocalTensor<float> fetch_o(const AttentionStep& step, const plan::Range& part, uint32_t row, uint32_t count) {
        if (plan_.resident) return o_[(row - part.begin) * plan_.dim_v];
        const uint32_t turn = o_turn(part, row);
        const LocalTensor<float> o = o_[turn * plan_.vector_rows * plan_.dim_v];
        WaitFlag<HardEvent::MTE3_MTE2>(stored_[turn]);
        if (!step.opens)
            load_rows(o, own(plan::o_offset(plan_, block_), row - part.begin), 1, count, count, count);
        SetFlag<HardEvent::MTE2_V>(fetched_[turn]);
        WaitFlag<HardEvent::MTE2_V>(fetched_[turn]);
        return o;
    }

    LD_FN void leave_o(const AttentionStep& step, const plan::Range& part, uint32_t row, uint32_t count) {
        if (plan_.resident) return;
        const uint32_t turn = o_turn(part, row);
        SetFlag<HardEvent::V_MTE3>(computed_[turn]);
        WaitFlag<HardEvent::V_MTE3>(computed_[turn]);
        if (!(step.closes && step.slot == plan::kNoSlot && step.last_chunk))
            store_rows(sum_of(step, part, row), o_[turn * plan_.vector_rows * plan_.dim_v], 1, count, count, count);
        SetFlag<HardEvent::MTE3_MTE2>(stored_[turn]);
    }

    const LdAttentionPlan& plan_;
    const AttentionTables& tables_;
    TPipe& pipe_;
    AttentionOutput<T> output_;
    StoreFence fence_;
    const uint32_t block_, sub_;
    TQue<TPosition::VECIN, 2> scores_, sums_;
    TQue<TPosition::VECOUT, 1> weights_;
    TBuf<TPosition::VECCALC> o_buffer_, work_buffer_;
    SoftmaxSteps steps_;
    SoftmaxTotals totals_;
    LocalTensor<float> o_;
    TEventID stored_[2], fetched_[2], computed_[2];
    GM_ADDR workspace_ = nullptr;
};

}  // namespace ld
