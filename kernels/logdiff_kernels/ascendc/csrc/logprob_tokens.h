// The parts of logprob that have a few values per token: up to 64 tokens side by side in the lanes of one repeat.
//
// LogprobMerge: T(count) over the statistics of contiguous shards. LogprobTarget: z of each token's id.
// LogprobFinish: logp = ((z - u) - ln(s)) + 0 and entropy = ln(s) - h / s.
#pragma once

#include "common/exp1.h"
#include "common/reduce.h"

namespace ld {

// Rows of `width` floats per token, parted into one vector per column, and written back.
class TokenColumns {
public:
    LD_FN void init(TPipe& pipe, uint32_t width) {
        width_ = width;
        pipe.InitBuffer(in_, 2, uint32_t(kMostRows * width * sizeof(float)));
        pipe.InitBuffer(offsets_buffer_, uint32_t(kMostRows * sizeof(float)));
        offsets_ = offsets_buffer_.Get<int32_t>();
        CreateVecIndex(offsets_, int32_t(0), kMostRows);
        v_barrier();
        Muls(offsets_, offsets_, int32_t(width * sizeof(float)), int32_t(kMostRows));
    }

    // columns: [width][kMostRows]; lanes behind `tokens` get no value.
    LD_FN void load(const LocalTensor<float>& columns, const GlobalTensor<float>& from, uint32_t tokens) {
        LocalTensor<float> in = in_.AllocTensor<float>();
        load_rows(in, from, 1, tokens * width_, tokens * width_, kMostRows * width_);
        in_.EnQue(in);
        in = in_.DeQue<float>();
        v_barrier();
        const LocalTensor<uint32_t> offsets = offsets_.ReinterpretCast<uint32_t>();
        for (uint32_t i = 0; i < width_; ++i)
            Gather(columns[i * kMostRows], in, offsets, uint32_t(i * sizeof(float)), tokens);
        in_.FreeTensor(in);
        v_barrier();
    }

private:
    uint32_t width_ = 0;
    TQue<TPosition::VECIN, 1> in_;
    TBuf<TPosition::VECCALC> offsets_buffer_;
    LocalTensor<int32_t> offsets_;
};

// u = m, or 0 where m is -inf.
LD_FN void base_of(const LocalTensor<float>& u, const LocalTensor<float>& m, const LocalTensor<uint8_t>& mask) {
    CompareScalar(mask, m, -kInfinity, CMPMODE::NE, kMostRows);
    v_barrier();
    Select(u, mask, m, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, kMostRows);
}

class LogprobMerge {
public:
    LD_FN LogprobMerge(const LdLogprobPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        const uint32_t width = 3 * plan.leaves;
        columns_.init(pipe, width);
        pipe.InitBuffer(out_, 2, uint32_t(3 * kMostRows * 8 * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t(((width + 8) * kMostRows + kExpWork) * sizeof(float)));
        parts_ = work_buffer_.Get<float>();
        u_ = parts_[width * kMostRows];
        m_ = u_[kMostRows];
        da_ = m_[kMostRows];
        db_ = da_[kMostRows];
        ea_ = db_[kMostRows];
        eb_ = ea_[kMostRows];
        work_ = eb_[kMostRows];
        mask_ = work_[kMostRows].ReinterpretCast<uint8_t>();
        exp_work_ = work_[2 * kMostRows];
        Duplicate(parts_, 0.0f, int32_t(width * kMostRows));
    }

    LD_FN void run(GM_ADDR partial, GM_ADDR stats) {
        partial_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(partial));
        stats_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(stats));
        for (uint32_t i = 0; i < tiles_.count(); ++i) {
            const RowTile tile = tiles_.at(i);
            columns_.load(parts_, partial_[uint64_t(tile.first) * 3 * plan_.leaves], tile.rows);
            for (uint32_t step = 1; step < plan_.leaves; step *= 2)
                for (uint32_t a = 0; a < plan_.leaves; a += 2 * step) merge(part(a), part(a + step));
            store(tile);
        }
    }

private:
    LD_FN LocalTensor<float> part(uint32_t index) const { return parts_[3 * index * kMostRows]; }

    // a = a + b; a part is m, s, h.
    LD_FN void merge(const LocalTensor<float>& a, const LocalTensor<float>& b) {
        constexpr int32_t n = int32_t(kMostRows);
        Max(m_, a, b, n);
        v_barrier();
        base_of(u_, m_, mask_);
        v_barrier();
        Sub(da_, a, u_, n);
        Sub(db_, b, u_, n);
        v_barrier();
        exp1<false>(ea_, da_, exp_work_, kMostRows);
        v_barrier();
        exp1<false>(eb_, db_, exp_work_, kMostRows);
        weigh(a, da_, ea_);
        weigh(b, db_, eb_);
        Mul(a[kMostRows], a[kMostRows], ea_, n);
        Mul(b[kMostRows], b[kMostRows], eb_, n);
        Add(a[2 * kMostRows], a[2 * kMostRows], b[2 * kMostRows], n);
        copy_floats(a, m_, kMostRows);
        v_barrier();
        Add(a[kMostRows], a[kMostRows], b[kMostRows], n);
        v_barrier();
    }

    // h = (h + s * (m - u)) * e, 0 where m is -inf.
    LD_FN void weigh(const LocalTensor<float>& part, const LocalTensor<float>& difference, const LocalTensor<float>& e) {
        constexpr int32_t n = int32_t(kMostRows);
        const LocalTensor<float> h = part[2 * kMostRows];
        v_barrier();
        Mul(work_, part[kMostRows], difference, n);
        CompareScalar(mask_, part, -kInfinity, CMPMODE::NE, kMostRows);
        v_barrier();
        Add(work_, h, work_, n);
        v_barrier();
        Mul(work_, work_, e, n);
        v_barrier();
        Select(h, mask_, work_, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, kMostRows);
        v_barrier();
    }

    LD_FN void store(const RowTile& tile) {
        LocalTensor<float> out = out_.AllocTensor<float>();
        for (uint32_t i = 0; i < 3; ++i) row_blocks(out[i * kMostRows * 8], parts_[i * kMostRows]);
        out_.EnQue(out);
        out = out_.DeQue<float>();
        for (uint32_t i = 0; i < 3; ++i) {  // every block's first value, 3 apart
            const DataCopyExtParams params{uint16_t(tile.rows), uint32_t(sizeof(float)), 0, uint32_t(2 * sizeof(float)), 0};
            DataCopyPad(stats_[uint64_t(tile.first) * 3 + i], out[i * kMostRows * 8], params);
        }
        out_.FreeTensor(out);
    }

    const LdLogprobPlan& plan_;
    RowTiles tiles_;
    TokenColumns columns_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> parts_, u_, m_, da_, db_, ea_, eb_, work_, exp_work_;
    LocalTensor<uint8_t> mask_;
    GlobalTensor<float> partial_, stats_;
};

class LogprobFinish {
public:
    LD_FN LogprobFinish(const LdLogprobPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        columns_.init(pipe, 3);
        pipe.InitBuffer(target_in_, 2, uint32_t(kMostRows * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(2 * kMostRows * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t((7 * kMostRows + kExpWork) * sizeof(float)));
        stats_ = work_buffer_.Get<float>();
        u_ = stats_[3 * kMostRows];
        log_ = u_[kMostRows];
        mask_ = log_[kMostRows].ReinterpretCast<uint8_t>();
        exp_work_ = log_[2 * kMostRows];
        Duplicate(stats_, 1.0f, int32_t(3 * kMostRows));
    }

    LD_FN void run(GM_ADDR stats, GM_ADDR target, GM_ADDR logp, GM_ADDR entropy) {
        stats_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(stats));
        target_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(target));
        logp_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(logp));
        entropy_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(entropy));
        for (uint32_t i = 0; i < tiles_.count(); ++i) one(tiles_.at(i));
    }

private:
    LD_FN void one(const RowTile& tile) {
        constexpr int32_t n = int32_t(kMostRows);
        LocalTensor<float> target = target_in_.AllocTensor<float>();
        load_rows(target, target_[tile.first], 1, tile.rows, tile.rows, kMostRows);
        target_in_.EnQue(target);
        columns_.load(stats_, stats_gm_[uint64_t(tile.first) * 3], tile.rows);
        base_of(u_, stats_, mask_);
        ln1(log_, stats_[kMostRows], exp_work_, kMostRows);
        v_barrier();
        LocalTensor<float> out = out_.AllocTensor<float>();
        target = target_in_.DeQue<float>();
        Sub(out, target, u_, int32_t(tile.rows));
        target_in_.FreeTensor(target);
        divide(out[kMostRows], stats_[2 * kMostRows], stats_[kMostRows], kMostRows);
        v_barrier();
        Sub(out, out, log_, int32_t(tile.rows));
        Sub(out[kMostRows], log_, out[kMostRows], n);
        v_barrier();
        Adds(out, out, 0.0f, int32_t(tile.rows));
        out_.EnQue(out);
        out = out_.DeQue<float>();
        store_rows(logp_[tile.first], out, 1, tile.rows, tile.rows, kMostRows);
        if (plan_.entropy) store_rows(entropy_[tile.first], out[kMostRows], 1, tile.rows, tile.rows, kMostRows);
        out_.FreeTensor(out);
    }

    const LdLogprobPlan& plan_;
    RowTiles tiles_;
    TokenColumns columns_;
    TQue<TPosition::VECIN, 1> target_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> stats_, u_, log_, exp_work_;
    LocalTensor<uint8_t> mask_;
    GlobalTensor<float> stats_gm_, target_, logp_, entropy_;
};

class LogprobTarget {
public:
    LD_FN LogprobTarget(const LdLogprobPlan& plan, TPipe& pipe) : plan_(plan), tiles_(plan.rows) {
        pipe.InitBuffer(in_, 2, uint32_t(kMostRows * 8 * sizeof(float)));
        pipe.InitBuffer(temperature_in_, 2, uint32_t(kMostRows * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(kMostRows * sizeof(float)));
        pipe.InitBuffer(owned_buffer_, kMostRows);
        pipe.InitBuffer(kept_buffer_, uint32_t(kMostRows * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t(6 * kMostRows * sizeof(float)));
        offsets_ = work_buffer_.Get<int32_t>();
        z_ = work_buffer_.Get<float>()[kMostRows];
        divided_ = z_[kMostRows];
        divisor_ = divided_[kMostRows];
        mask_ = divisor_[kMostRows].ReinterpretCast<uint8_t>();
        CreateVecIndex(offsets_, int32_t(0), kMostRows);
        Duplicate(z_, 0.0f, int32_t(kMostRows));
        Duplicate(divisor_, 1.0f, int32_t(kMostRows));
        kept_ = kept_buffer_.Get<float>();
        Duplicate(kept_, 1.0f, int32_t(kMostRows));
        v_barrier();
        ShiftLeft(offsets_, offsets_, 5, int32_t(kMostRows));
    }

    // ids: int64; first_leaf of the plan is the first column here.
    LD_FN void run(GM_ADDR logits, GM_ADDR temperature, GM_ADDR ids, GM_ADDR target, GM_ADDR owned) {
        logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(logits));
        temperature_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(temperature));
        ids_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(ids));
        target_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(target));
        owned_.SetGlobalBuffer(reinterpret_cast<__gm__ uint8_t*>(owned));
        scalar_to_vector_ = pipe_event<HardEvent::S_V>();
        stored_ = pipe_event<HardEvent::MTE3_S>();
        scalar_to_store_ = pipe_event<HardEvent::S_MTE3>();
        freed_ = pipe_event<HardEvent::V_S>();
        for (uint32_t i = 0; i < tiles_.count(); ++i) one(tiles_.at(i));
    }

private:
    template <HardEvent event> static LD_FN TEventID pipe_event() { return GetTPipePtr()->AllocEventID<event>(); }

    // The first value of each token's block is its logit, one small copy per token; then all tokens at once.
    LD_FN void one(const RowTile& tile) {
        LocalTensor<float> in = in_.AllocTensor<float>();
        SetFlag<HardEvent::V_S>(freed_);
        WaitFlag<HardEvent::V_S>(freed_);
        LocalTensor<uint8_t> owned = owned_buffer_.Get<uint8_t>();
        for (uint32_t t = 0; t < tile.rows; ++t) {
            const int64_t id = ids_.GetValue(tile.first + t), column = id - int64_t(plan_.first_leaf);
            const bool here = column >= 0 && column < int64_t(plan_.columns);
            const bool known = here && id < int64_t(plan_.vocabulary);
            owned.SetValue(t, here ? 1 : 0);
            kept_.SetValue(t, known ? 0.0f : 1.0f);
            if (known) {
                const uint64_t from = uint64_t(int64_t(tile.first + t) * plan_.stride + column);
                load_rows(in[t * 8], logits_[from], 1, 1, 1, 8);
            } else {
                in.SetValue(t * 8, here ? -kInfinity : 0.0f);
            }
        }
        in_.EnQue(in);
        SetFlag<HardEvent::S_V>(scalar_to_vector_);
        WaitFlag<HardEvent::S_V>(scalar_to_vector_);
        in = in_.DeQue<float>();
        v_barrier();
        Gather(z_, in, offsets_.ReinterpretCast<uint32_t>(), 0, tile.rows);
        in_.FreeTensor(in);
        v_barrier();
        if (plan_.has_temperature) temper(tile);
        LocalTensor<float> out = out_.AllocTensor<float>();
        copy_floats(out, z_, tile.rows);
        out_.EnQue(out);
        out = out_.DeQue<float>();
        store_rows(target_[tile.first], out, 1, tile.rows, tile.rows, kMostRows);
        out_.FreeTensor(out);
        SetFlag<HardEvent::S_MTE3>(scalar_to_store_);
        WaitFlag<HardEvent::S_MTE3>(scalar_to_store_);
        const DataCopyExtParams bytes{1, tile.rows, 0, 0, 0};
        DataCopyPad(owned_[tile.first], owned, bytes);
        SetFlag<HardEvent::MTE3_S>(stored_);
        WaitFlag<HardEvent::MTE3_S>(stored_);
    }

    // z / T where T is neither 1 nor 0, and the column is here.
    LD_FN void temper(const RowTile& tile) {
        LocalTensor<float> in = temperature_in_.AllocTensor<float>();
        load_rows(in, temperature_[tile.first], 1, tile.rows, tile.rows, kMostRows);
        temperature_in_.EnQue(in);
        in = temperature_in_.DeQue<float>();
        copy_floats(divisor_, in, tile.rows);
        temperature_in_.FreeTensor(in);
        v_barrier();
        divide(divided_, z_, divisor_, kMostRows);
        keep_where(divisor_, 0.0f);
        keep_where(divisor_, 1.0f);
        keep_where(kept_, 1.0f);
        copy_floats(z_, divided_, kMostRows);
        v_barrier();
    }
    LD_FN void keep_where(const LocalTensor<float>& x, float value) {
        v_barrier();
        CompareScalar(mask_, x, value, CMPMODE::EQ, kMostRows);
        v_barrier();
        Select(divided_, mask_, z_, divided_, SELMODE::VSEL_TENSOR_TENSOR_MODE, kMostRows);
        v_barrier();
    }

    const LdLogprobPlan& plan_;
    RowTiles tiles_;
    TQue<TPosition::VECIN, 1> in_, temperature_in_;
    TQue<TPosition::VECOUT, 1> out_;
    TBuf<TPosition::VECCALC> work_buffer_, owned_buffer_, kept_buffer_;
    TEventID scalar_to_vector_, stored_, scalar_to_store_, freed_;
    LocalTensor<int32_t> offsets_;
    LocalTensor<float> z_, divided_, divisor_;
    LocalTensor<float> kept_;  // 1: a token's z is no logit
    LocalTensor<uint8_t> mask_;
    GlobalTensor<float> logits_, temperature_, target_;
    GlobalTensor<int64_t> ids_;
    GlobalTensor<uint8_t> owned_;
};

}  // namespace ld
