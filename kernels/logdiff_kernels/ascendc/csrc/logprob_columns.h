// The parts of logprob that have a value for every column: log_softmax and the gradients of the logits.
//
//   l = (z - u) - ln(s), p = exp(l)
//   LogSoftmax          l + 0, -inf behind the vocabulary
//   LogprobBackward     (dlogp * ([id] - p) - dentropy * (p * (l + H))) / T, 0 behind the vocabulary
//   LogSoftmaxBackward  (dout - p * R64(dout)) / T, 0 behind the vocabulary
//
// The first two work on pieces of tokens, so that few tokens still keep all cores busy; the third has one core per
// token, which reads dout twice. Logits come through double-buffered queues, results leave through another.
#pragma once

#include "common/exp1.h"
#include "common/reduce.h"
#include "common/temperature.h"

namespace ld {

// u and ln(s) of one token, each as a block of 8.
class TokenBase {
public:
    LD_FN void init(TPipe& pipe) {
        pipe.InitBuffer(in_, 2, uint32_t(8 * sizeof(float)));
        pipe.InitBuffer(buffer_, uint32_t((6 * kLanes + kExpWork) * sizeof(float)));
        stats_ = buffer_.Get<float>();
        work_ = stats_[kLanes];
        base_ = work_[kLanes];
        log_ = base_[kLanes];
        temperature_ = log_[kLanes];
        mask_ = temperature_[kLanes].ReinterpretCast<uint8_t>();
        exp_work_ = temperature_[2 * kLanes];
        Duplicate(stats_, 1.0f, int32_t(kLanes));
    }
    LD_FN void take(const GlobalTensor<float>& stats, uint32_t token) {
        if (token == token_) return;
        token_ = token;
        LocalTensor<float> in = in_.AllocTensor<float>();
        load_rows(in, stats[uint64_t(token) * 3], 1, 3, 3, 8);
        in_.EnQue(in);
        in = in_.DeQue<float>();
        v_barrier();
        copy_floats(stats_, in, 8);
        in_.FreeTensor(in);
        v_barrier();
        CompareScalar(mask_, stats_, -kInfinity, CMPMODE::NE, kLanes);
        v_barrier();
        Select(work_, mask_, stats_, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, kLanes);
        v_barrier();
        Brcb(base_, work_, 1, BrcbRepeatParams(1, 8));  // m is the first of the eight
        v_barrier();
        ln1(work_, stats_, exp_work_, kLanes);
        v_barrier();
        Brcb(log_, work_, 1, BrcbRepeatParams(1, 8));  // s is the second
        v_barrier();
    }
    // l = (z - u) - ln(s) of `chunks` chunks; dst may be z. Ends with a barrier.
    LD_FN void subtract(const LocalTensor<float>& dst, const LocalTensor<float>& z, uint32_t chunks) const {
        const RowTile row{0, 1, 0, chunks * kLanes, chunks * kLanes};
        each_row<SubRows, Beside::kScalars>(dst, z, base_, row);
        v_barrier();
        each_row<SubRows, Beside::kScalars>(dst, dst, log_[8], row);
        v_barrier();
    }
    LD_FN const LocalTensor<float>& exp_work() const { return exp_work_; }
    LD_FN const LocalTensor<float>& temperature() const { return temperature_; }

private:
    uint32_t token_ = UINT32_MAX;
    TQue<TPosition::VECIN, 1> in_;
    TBuf<TPosition::VECCALC> buffer_;
    LocalTensor<float> stats_, work_, base_, log_, temperature_, exp_work_;
    LocalTensor<uint8_t> mask_;
};

// What the three kernels share.
class LogprobColumns {
public:
    LD_FN LogprobColumns(const LdLogprobPlan& plan, TPipe& pipe) : plan_(plan) {
        const uint32_t tile = plan.rows.tile;
        pipe.InitBuffer(in_, 2, uint32_t(tile * sizeof(float)));
        pipe.InitBuffer(out_, 2, uint32_t(tile * sizeof(float)));
        base_.init(pipe);
    }

protected:
    LD_FN float temperature(uint32_t token) const {
        return plan_.has_temperature ? temperature_gm_.GetValue(token) : 1.0f;
    }
    LD_FN RowTile piece(uint32_t index) const {
        const uint32_t tile = plan_.rows.tile, column = index * tile;
        return {0, 1, column, uint32_t(plan::least(tile, plan_.columns - column)), tile};
    }
    // Columns of a piece within the vocabulary.
    LD_FN uint32_t known(const RowTile& tile) const {
        return plan_.vocabulary <= tile.column ? 0 : uint32_t(plan::least(tile.length, plan_.vocabulary - tile.column));
    }
    // z of a piece, `fill` behind the vocabulary, ready for V.
    LD_FN LocalTensor<float> take(const GlobalTensor<float>& from, TQue<TPosition::VECIN, 1>& queue, const RowTile& tile,
                                  float temperature, float fill) const {
        const uint32_t count = known(tile);
        LocalTensor<float> z = queue.AllocTensor<float>();
        if (count != 0) load_rows(z, from[tile.column], 1, count, count, tile.pitch);
        queue.EnQue(z);
        z = queue.DeQue<float>();
        v_barrier();
        fill_from(z, count, tile.width(), fill);
        v_barrier();
        if (temperature != 1.0f && temperature != 0.0f) {
            temper(z, tile.width(), temperature, base_.temperature());
            fill_from(z, count, tile.width(), fill);
            v_barrier();
        }
        return z;
    }
    LD_FN void send(LocalTensor<float> out, const GlobalTensor<float>& to, const RowTile& tile) {
        out_.EnQue(out);
        out = out_.DeQue<float>();
        store_rows(to[tile.column], out, 1, tile.length, tile.length, tile.pitch);
        out_.FreeTensor(out);
    }
    // Divides a gradient by T, and sets it to 0 behind the vocabulary.
    LD_FN void end_gradient(const LocalTensor<float>& d, const RowTile& tile, float temperature) const {
        v_barrier();
        temper(d, tile.width(), temperature, base_.temperature());
        fill_from(d, known(tile), tile.width(), 0.0f);
        v_barrier();
    }

    const LdLogprobPlan& plan_;
    TQue<TPosition::VECIN, 1> in_;
    TQue<TPosition::VECOUT, 1> out_;
    TokenBase base_;
    GlobalTensor<float> logits_, temperature_gm_, stats_, result_;
};

class LogSoftmax : LogprobColumns {
public:
    using LogprobColumns::LogprobColumns;

    LD_FN void run(GM_ADDR logits, GM_ADDR temperatures, GM_ADDR stats, GM_ADDR out) {
        logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(logits));
        temperature_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(temperatures));
        stats_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(stats));
        result_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(out));
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i) {
            const uint32_t item = walk.first + i * walk.stride, token = item / plan_.leaves;
            const RowTile tile = piece(item % plan_.leaves);
            base_.take(stats_, token);
            LocalTensor<float> z =
                take(logits_[uint64_t(int64_t(token) * plan_.stride)], in_, tile, temperature(token), -kInfinity);
            LocalTensor<float> out_tile = out_.AllocTensor<float>();
            base_.subtract(out_tile, z, tile.chunks());
            in_.FreeTensor(z);
            Adds(out_tile, out_tile, 0.0f, int32_t(tile.width()));
            send(out_tile, result_[uint64_t(token) * plan_.columns], tile);
        }
    }
};

class LogprobBackward : LogprobColumns {
public:
    LD_FN LogprobBackward(const LdLogprobPlan& plan, TPipe& pipe) : LogprobColumns(plan, pipe) {
        const uint32_t tile = plan.rows.tile;
        pipe.InitBuffer(work_buffer_, uint32_t((2 * tile + plan::round_up(tile / 32, 8)) * sizeof(float)));
        p_ = work_buffer_.Get<float>();
        term_ = p_[tile];
        mask_ = term_[tile].ReinterpretCast<uint8_t>();
    }

    LD_FN void run(GM_ADDR logits, GM_ADDR temperatures, GM_ADDR stats, GM_ADDR ids, GM_ADDR dlogp, GM_ADDR entropy,
                   GM_ADDR dentropy, GM_ADDR dlogits) {
        logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(logits));
        temperature_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(temperatures));
        stats_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(stats));
        ids_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(ids));
        dlogp_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dlogp));
        entropy_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(entropy));
        dentropy_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dentropy));
        result_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dlogits));
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i) {
            const uint32_t item = walk.first + i * walk.stride, token = item / plan_.leaves;
            one(token, piece(item % plan_.leaves), dlogp != nullptr, dentropy != nullptr);
        }
    }

private:
    LD_FN void one(uint32_t token, const RowTile& tile, bool has_logp, bool has_entropy) {
        const int32_t n = int32_t(tile.width());
        base_.take(stats_, token);
        LocalTensor<float> l =
            take(logits_[uint64_t(int64_t(token) * plan_.stride)], in_, tile, temperature(token), 0.0f);
        base_.subtract(l, l, tile.chunks());
        exp1(p_, l, base_.exp_work(), tile.width());
        v_barrier();
        LocalTensor<float> d = out_.AllocTensor<float>();
        Muls(d, p_, -1.0f, n);
        v_barrier();
        Adds(d, d, 0.0f, n);
        v_barrier();
        if (has_logp) add_target(d, tile, ids_.GetValue(token));
        Muls(d, d, has_logp ? dlogp_.GetValue(token) : 0.0f, n);
        if (has_entropy) {
            Adds(l, l, entropy_.GetValue(token), n);
            CompareScalar(mask_, p_, 0.0f, CMPMODE::NE, tile.width());
            v_barrier();
            Mul(term_, p_, l, n);
            v_barrier();
            Select(term_, mask_, term_, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, tile.width());
            v_barrier();
            Muls(term_, term_, dentropy_.GetValue(token), n);
            v_barrier();
            Sub(d, d, term_, n);
        }
        in_.FreeTensor(l);
        end_gradient(d, tile, temperature(token));
        send(d, result_[uint64_t(token) * plan_.columns], tile);
    }

    // -p becomes 1 - p in the lane of the token's id.
    LD_FN void add_target(const LocalTensor<float>& d, const RowTile& tile, int64_t id) const {
        const int64_t lane = id - int64_t(tile.column);
        if (lane < 0 || lane >= int64_t(known(tile))) return;
        const uint64_t mask[2] = {uint64_t(1) << (lane % kLanes), 0};
        const LocalTensor<float> chunk = d[uint32_t(lane / kLanes * kLanes)];
        Adds(chunk, chunk, 1.0f, mask, 1, UnaryRepeatParams(1, 1, 8, 8));
        v_barrier();
    }

    TBuf<TPosition::VECCALC> work_buffer_;
    LocalTensor<float> p_, term_;
    LocalTensor<uint8_t> mask_;
    GlobalTensor<int64_t> ids_;
    GlobalTensor<float> dlogp_, entropy_, dentropy_;
};

class LogSoftmaxBackward : LogprobColumns {
public:
    LD_FN LogSoftmaxBackward(const LdLogprobPlan& plan, TPipe& pipe) : LogprobColumns(plan, pipe) {
        const uint32_t tile = plan.rows.tile;
        pipe.InitBuffer(dout_in_, 2, uint32_t(tile * sizeof(float)));
        pipe.InitBuffer(work_buffer_, uint32_t((tile + 2 * kLanes) * sizeof(float)));
        p_ = work_buffer_.Get<float>();
        sum_ = p_[tile];
        sum_block_ = sum_[kLanes];
        sums_.init(pipe, 1);
        Duplicate(sum_, 0.0f, int32_t(kLanes));
    }

    LD_FN void run(GM_ADDR logits, GM_ADDR temperatures, GM_ADDR stats, GM_ADDR dout, GM_ADDR dlogits) {
        logits_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(logits));
        temperature_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(temperatures));
        stats_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(stats));
        dout_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dout));
        result_.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(dlogits));
        const plan::RowWalk walk = plan::row_walk(plan_.rows, uint32_t(GetBlockIdx()));
        for (uint32_t i = 0; i < walk.count; ++i) token(walk.first + i * walk.stride);
    }

private:
    LD_FN void token(uint32_t token) {
        const GlobalTensor<float> dout = dout_[uint64_t(token) * plan_.columns];
        const GlobalTensor<float> to = result_[uint64_t(token) * plan_.columns];
        const GlobalTensor<float> logits = logits_[uint64_t(int64_t(token) * plan_.stride)];
        base_.take(stats_, token);
        for (uint32_t p = 0; p < plan_.leaves; ++p) {
            RowTile tile = piece(p);
            tile.length = known(tile);
            if (tile.length == 0) break;
            LocalTensor<float> g = take(dout, dout_in_, tile, 1.0f, 0.0f);
            p == 0 ? sums_.first(g, tile) : sums_.more(g, tile);
            dout_in_.FreeTensor(g);
        }
        if (plan_.vocabulary != 0) sums_.finish(sum_, 1);
        v_barrier();
        Brcb(sum_block_, sum_, 1, BrcbRepeatParams(1, 8));
        v_barrier();
        for (uint32_t p = 0; p < plan_.leaves; ++p) {
            const RowTile tile = piece(p);
            LocalTensor<float> g = take(dout, dout_in_, tile, 1.0f, 0.0f);
            LocalTensor<float> l = take(logits, in_, tile, temperature(token), 0.0f);
            base_.subtract(l, l, tile.chunks());
            exp1(p_, l, base_.exp_work(), tile.width());
            in_.FreeTensor(l);
            v_barrier();
            each_row<MulRows, Beside::kScalars>(p_, p_, sum_block_, tile);
            v_barrier();
            LocalTensor<float> d = out_.AllocTensor<float>();
            Sub(d, g, p_, int32_t(tile.width()));
            dout_in_.FreeTensor(g);
            end_gradient(d, tile, temperature(token));
            send(d, to, tile);
        }
    }

    TQue<TPosition::VECIN, 1> dout_in_;
    TBuf<TPosition::VECCALC> work_buffer_;
    RowSums sums_;
    LocalTensor<float> p_, sum_, sum_block_;
    GlobalTensor<float> dout_;
};

}  // namespace ld
