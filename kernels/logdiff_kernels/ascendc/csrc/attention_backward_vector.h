// A vector core of a block of the attention backward: half of a unit's rows of S and dP to P and dS, then the products
// of the unit before are added to half of the item's rows of dQ, or of dK and dV.
//
// UB: a queue of slices {S, dP, lse, D}, where lse and D are a data block per row; a queue of what leaves (P, dS, results,
// sums); a queue of slices of products; the sums of the core's rows where they fit, else they travel to the workspace
// and back beside the products. All queues have two buffers: the next slice arrives while this one is worked on and the
// one before is stored.
//
// Events beside the queues' own: MTE2_MTE3 before weights are announced, MTE3_MTE2 before sums are read again.
#pragma once

#include "attention_backward_walk.h"
#include "attention_cube.h"
#include "attention_mask.h"

namespace ld {

template <class T> class GradVector {
public:
    LD_FN GradVector(const LdAttentionBackwardPlan& p, TPipe& pipe, const GradTables& tables)
        : plan_(p), tables_(tables), pipe_(pipe), block_(uint32_t(GetBlockIdx()) / 2), sub_(uint32_t(GetSubBlockIdx())),
          slice_(plan::slice_elements(p)), blocks_(plan::slice_rows(p) * kBlockFloats) {
        pipe.InitBuffer(scores_, 2, uint32_t(plan::slice_floats(p) * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(slice_ * sizeof(T)));
        pipe.InitBuffer(products_, 2, uint32_t((p.resident ? 1 : 2) * plan::kSumSlice * sizeof(float)));
        pipe.InitBuffer(work_buffer_, plan::kExpScratchBytes);
        work_ = work_buffer_.Get<float>();
        if (p.resident) {
            pipe.InitBuffer(sums_buffer_, uint32_t(plan::resident_floats(p) * sizeof(float)));
            sums_ = sums_buffer_.Get<float>();
        }
        columns_[0] = p.forward.dim;
        columns_[1] = p.forward.dim_v;
        read_ = pipe.AllocEventID<HardEvent::MTE2_MTE3>();
        stored_ = pipe.AllocEventID<HardEvent::MTE3_MTE2>();
    }

    LD_FN void run(GM_ADDR dots, GM_ADDR dq, GM_ADDR dk, GM_ADDR dv, GM_ADDR workspace) {
        dots_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dots));
        dq_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dq));
        dkv_gm_[0].SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dk));
        dkv_gm_[1].SetGlobalBuffer(reinterpret_cast<__gm__ T*>(dv));
        workspace_ = workspace;
        GradWalk ahead(plan_, tables_, block_), behind(plan_, tables_, block_);
        bool more = ahead.next();
        if (more) weights(ahead.unit());
        while (behind.next()) {
            if (more && (more = ahead.next())) weights(ahead.unit());
            sums(behind.unit());
        }
        pipe_.ReleaseEventID<HardEvent::MTE2_MTE3>(read_);
        pipe_.ReleaseEventID<HardEvent::MTE3_MTE2>(stored_);
    }

private:
    static constexpr uint32_t kBlockFloats = plan::kBlockBytes / sizeof(float);
    // The soft cap's tanh and slope lie in exp1's memory, beside the 512 elements that exp1 uses of each 1024.
    static constexpr uint32_t kTanh = plan::kCapSlice, kSlope = 3 * plan::kCapSlice;

    template <class E> LD_FN GlobalTensor<E> at(uint64_t offset) const {
        GlobalTensor<E> gm;
        gm.SetGlobalBuffer(reinterpret_cast<__gm__ E*>(workspace_ + offset));
        return gm;
    }

    // --- S and dP to P and dS

    LD_FN void weights(const GradUnit& unit) {
        if (unit.empty()) return;
        CrossCoreWaitFlag<2, PIPE_MTE2>(kScoresReady);
        const plan::Range part = unit.score_part(sub_);
        const uint32_t most = slice_ / unit.columns();
        if (part.begin < part.end) load_scores(unit, part.begin, uint32_t(plan::least(most, part.end - part.begin)));
        for (uint32_t row = part.begin; row < part.end; row += most) {
            const uint32_t rows = uint32_t(plan::least(most, part.end - row)), next = row + rows;
            if (next < part.end) load_scores(unit, next, uint32_t(plan::least(most, part.end - next)));
            const LocalTensor<float> in = scores_.template DeQue<float>();
            differentiate(in, rows, unit.columns());
            if (unit.keys) leave_weights(in, unit, 0, row, rows);
            leave_weights(in[slice_], unit, 1, row, rows);
            scores_.FreeTensor(in);
        }
        // The cube core then overwrites the products of the unit before last, which this core has to have read.
        SetFlag<HardEvent::MTE2_MTE3>(read_);
        WaitFlag<HardEvent::MTE2_MTE3>(read_);
        CrossCoreSetFlag<2, PIPE_MTE3>(kWeightsReady);
    }

    LD_FN void load_scores(const GradUnit& unit, uint32_t row, uint32_t rows) {
        const LocalTensor<float> in = scores_.template AllocTensor<float>();
        const uint32_t columns = unit.columns(), pitch = unit.pitch(), offset = row * pitch + unit.first_column();
        for (uint32_t side = 0; side < 2; ++side) {
            const GlobalTensor<float> from =
                at<float>(plan::grad_score_offset(plan_, block_, unit.number % plan_.ring, side));
            load_rows(in[side * slice_], from[offset], rows, columns, pitch, columns);
        }
        const LdAttentionPlan& p = plan_.forward;
        for (uint32_t r = 0; r < rows;) {
            uint64_t first;
            uint32_t now = rows;
            int64_t stride = p.heads;
            if (unit.keys) {
                first = unit.token(unit.origin + row) * p.heads + unit.query_head(p);
            } else {
                first = unit.tile.offset(p, row + r, p.heads, 1);
                now = unit.tile.run(p, row + r, rows - r, p.heads, 1);
                stride = unit.tile.stride(p, p.heads, 1);
            }
            for (uint32_t side = 0; side < 2; ++side)
                load_rows(in[2 * slice_ + side * blocks_ + r * kBlockFloats],
                          dots_gm_[(uint64_t(side) * plan_.dots.rows + first) * kBlockFloats], now, kBlockFloats,
                          stride * kBlockFloats, kBlockFloats);
            r += now;
        }
        scores_.EnQue(in);
    }

    // S to p = exp1(s - lse), dP to p (dP - D), times the soft cap's slope if there is one.
    LD_FN void differentiate(const LocalTensor<float>& in, uint32_t rows, uint32_t columns) {
        const float cap = plan_.forward.softcap;
        const uint32_t most = cap > 0.0f ? plan::kCapSlice / columns : rows;
        for (uint32_t r = 0; r < rows; r += most) {
            const uint32_t now = uint32_t(plan::least(most, rows - r)), count = now * columns;
            const int32_t n = int32_t(count);
            const LocalTensor<float> s = in[r * columns], ds = in[slice_ + r * columns];
            const LocalTensor<float> lse = in[2 * slice_ + r * kBlockFloats], dots = lse[blocks_], slope = work_[kSlope];
            v_barrier();
            Muls(s, s, plan_.forward.scale, n);
            by_rows<SubBlocks>(ds, ds, dots, now, columns);
            v_barrier();
            if (cap > 0.0f) soft_cap_slope(s, slope, cap, count);
            by_rows<SubBlocks>(s, s, lse, now, columns);
            v_barrier();
            exp1(s, s, work_, count);  // bounded above too: a key that isn't seen may score far above lse
            v_barrier();
            Mul(ds, s, ds, n);
            if (cap > 0.0f) {
                v_barrier();
                Mul(ds, ds, slope, n);
            }
        }
    }

    // s = cap t and slope = 1 - t^2 with t = tanh1(s / cap).
    LD_FN void soft_cap_slope(const LocalTensor<float>& s, const LocalTensor<float>& slope, float cap, uint32_t count) {
        const int32_t n = int32_t(count);
        const LocalTensor<float> tanh = work_[kTanh];
        Duplicate(slope, cap, n);
        v_barrier();
        divide(s, s, slope, count);
        v_barrier();
        tanh1(tanh, s, slope, work_, count);
        v_barrier();
        Muls(s, tanh, cap, n);
        Mul(slope, tanh, tanh, n);
        v_barrier();
        Muls(slope, slope, -1.0f, n);
        v_barrier();
        Adds(slope, slope, 1.0f, n);
        v_barrier();
    }

    // +0 where a row doesn't see the key, by selection and last; one cast; to the workspace. Side 0: P, side 1: dS.
    LD_FN void leave_weights(const LocalTensor<float>& x, const GradUnit& unit, uint32_t side, uint32_t row, uint32_t rows) {
        const uint32_t columns = unit.columns();
        hide_unseen(x, plan_.forward, unit, row, row + rows, unit.first_key(), columns, 0.0f);
        const LocalTensor<T> out = out_.template AllocTensor<T>();
        v_barrier();
        narrow(out, x, rows * columns);
        out_.EnQue(out);
        const LocalTensor<T> done = out_.template DeQue<T>();
        const GlobalTensor<T> to = at<T>(plan::grad_weight_offset(plan_, block_, unit.number % plan_.ring, side));
        store_rows(to[row * unit.pitch() + unit.first_column()], done, rows, columns, unit.pitch(), columns);
        out_.FreeTensor(done);
    }

    // --- the sums

    LD_FN void sums(const GradUnit& unit) {
        if (!unit.empty()) CrossCoreWaitFlag<2, PIPE_MTE2>(kSumsReady);
        const plan::Range part = unit.sum_part(sub_);
        if (part.begin >= part.end) return;
        if (!plan_.resident && !unit.opens) {
            SetFlag<HardEvent::MTE3_MTE2>(stored_);
            WaitFlag<HardEvent::MTE3_MTE2>(stored_);
        }
        for (uint32_t side = 0; side < (unit.keys ? 2u : 1u); ++side) {
            const uint32_t most = plan::kSumSlice / columns_[side];
            if (!unit.empty()) load_products(unit, side, part, part.begin, most);
            for (uint32_t row = part.begin; row < part.end; row += most) {
                const uint32_t rows = uint32_t(plan::least(most, part.end - row));
                if (unit.empty()) {
                    leave_zeros(unit, side, row, rows);
                    continue;
                }
                if (row + rows < part.end) load_products(unit, side, part, row + rows, most);
                add(unit, side, row, rows, row - part.begin);
            }
        }
    }

    // Rows from `row` on of a product and, where they aren't in UB, the sums that they are added to.
    LD_FN void load_products(const GradUnit& unit, uint32_t side, const plan::Range& part, uint32_t row, uint32_t most) {
        const uint32_t count = uint32_t(plan::least(most, part.end - row)) * columns_[side];
        const LocalTensor<float> in = products_.template AllocTensor<float>();
        const GlobalTensor<float> from =
            at<float>(plan::product_offset(plan_, block_, unit.number % plan_.ring, side));
        load_rows(in, from[uint64_t(row) * columns_[side]], 1, count, count, count);
        if (!plan_.resident && !unit.opens)
            load_rows(in[plan::kSumSlice], sums_in_gm(side, row - part.begin), 1, count, count, count);
        products_.EnQue(in);
    }

    // The core's own half: which rows of an item it has differs from item to item.
    LD_FN GlobalTensor<float> sums_in_gm(uint32_t side, uint32_t own) const {
        const uint64_t row = sub_ * plan::kVectorTileRows + own;
        return at<float>(plan::sum_offset(plan_, block_, side))[row * columns_[side]];
    }

    // `own`: the row among the core's rows.
    LD_FN void add(const GradUnit& unit, uint32_t side, uint32_t row, uint32_t rows, uint32_t own) {
        const uint32_t columns = columns_[side], count = rows * columns;
        const int32_t n = int32_t(count);
        const LocalTensor<float> product = products_.template DeQue<float>();
        const LocalTensor<float> sum =
            plan_.resident ? sums_[side * plan::kVectorTileRows * columns_[0] + own * columns] : product[plan::kSumSlice];
        v_barrier();
        if (unit.opens) {
            Adds(sum, product, 0.0f, n);  // sums begin at +0
        } else {
            Add(sum, sum, product, n);
        }
        if (unit.closes) {
            if (side == 0) {
                v_barrier();
                Muls(sum, sum, plan_.forward.scale, n);
            }
            const LocalTensor<T> out = out_.template AllocTensor<T>();
            v_barrier();
            narrow(out, sum, count);
            out_.EnQue(out);
            write(unit, side, row, rows);
        } else if (!plan_.resident) {
            const LocalTensor<float> out = out_.template AllocTensor<float>();
            v_barrier();
            copy_floats(out, sum, count);
            out_.EnQue(out);
            const LocalTensor<float> done = out_.template DeQue<float>();
            store_rows(sums_in_gm(side, own), done, 1, count, count, count);
            out_.FreeTensor(done);
        }
        products_.FreeTensor(product);
    }

    LD_FN void leave_zeros(const GradUnit& unit, uint32_t side, uint32_t row, uint32_t rows) {
        const LocalTensor<T> out = out_.template AllocTensor<T>();
        v_barrier();
        Duplicate(out, T(0.0f), int32_t(rows * columns_[side]));
        out_.EnQue(out);
        write(unit, side, row, rows);
    }

    // Rows [row, row + rows) of the item, from the queue to where they belong.
    LD_FN void write(const GradUnit& unit, uint32_t side, uint32_t row, uint32_t rows) {
        const LdAttentionPlan& p = plan_.forward;
        const AttentionTile& tile = unit.tile;
        const int64_t head = columns_[side];
        const uint32_t columns = columns_[side];
        const LocalTensor<T> done = out_.template DeQue<T>();
        if (unit.keys) {
            const int64_t token = int64_t(p.kv_heads) * head;
            const int64_t first = (int64_t(tile.k_first) + tile.first_row + row) * token + int64_t(tile.kv_head) * head;
            store_rows(dkv_gm_[side][uint64_t(first)], done, rows, columns, token, columns);
        } else {
            const int64_t token = int64_t(p.heads) * head;
            for (uint32_t r = 0; r < rows;) {
                const uint32_t now = tile.run(p, row + r, rows - r, token, head);
                store_rows(dq_gm_[tile.offset(p, row + r, token, head)], done[r * columns], now, columns,
                           tile.stride(p, token, head), columns);
                r += now;
            }
        }
        out_.FreeTensor(done);
    }

    const LdAttentionBackwardPlan& plan_;
    const GradTables& tables_;
    TPipe& pipe_;
    const uint32_t block_, sub_;
    const uint32_t slice_, blocks_;  // floats of S in a slice, and of its lse
    uint32_t columns_[2];            // of dQ and dK; of dV
    TQue<TPosition::VECIN, 2> scores_, products_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_, sums_buffer_;
    LocalTensor<float> work_, sums_;
    TEventID read_, stored_;
    GlobalTensor<float> dots_gm_;
    GlobalTensor<T> dq_gm_, dkv_gm_[2];
    GM_ADDR workspace_ = nullptr;
};

}  // namespace ld
