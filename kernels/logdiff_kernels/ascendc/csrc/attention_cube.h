// The cube core of a block of attention: S = Q K^T per sub-tile of 128 keys, PV = P V per 128 value dimensions.
//
// L1: Q of one or two items; a ring of K sub-tiles (128 keys x dim) and V blocks (128 keys x pv_n), in the order of their
// use; two buffers for P, of 256 keys each where that fits, else of 128 (one of 128 beside the widest heads). V blocks
// are fetched before the wait for P, so that they arrive meanwhile. L0 and L0C are CubeCore's.
//
// Events beside CubeCore's: MTE1_MTE2 (free) and MTE2_MTE1 (filled), ids 0 to 3 for the ring, 4 and 5 for P, 6 and 7
// for Q.
#pragma once

#include "attention_walk.h"
#include "common/matrix_tile.h"

namespace ld {

// Cross-core flags of a block: each is set once per step that sees something, and waited for as often.
constexpr uint16_t kScoresReady = 0, kWeightsReady = 1, kSumsReady = 2;

// Whether Nd2Nz can step over `stride` elements.
LD_FN bool in_reach(int64_t stride) { return stride > 0 && stride <= int64_t(kMostGmStride); }

// The packed rows of a tile, `columns` elements of each, into column blocks of kTileM rows. Whole tokens with all heads
// of the group take one instruction. MTE2.
template <class T>
LD_FN void load_packed(const LocalTensor<T>& to, const GlobalTensor<T>& gm, const LdAttentionPlan& p,
                       const AttentionTile& tile, int64_t row_stride, int64_t head_stride, uint32_t columns) {
    const int64_t stride = tile.stride(p, row_stride, head_stride);
    for (uint32_t row = 0; row < tile.rows;) {
        const uint32_t rows = tile.run(p, row, tile.rows - row, row_stride, head_stride);
        const uint32_t tokens = (tile.rows - row) / p.group;
        const GlobalTensor<T> from = gm[tile.offset(p, row, row_stride, head_stride)];
        if (rows != p.group || tokens < 2 || !in_reach(row_stride) || !in_reach(head_stride)) {
            copy_nz(to[row * kBlock<T>], from, stride, rows, columns, plan::kTileM);
            row += rows;
            continue;
        }
        Nd2NzParams params;
        params.ndNum = uint16_t(tokens);
        params.nValue = uint16_t(p.group);
        params.dValue = uint16_t(columns);
        params.srcNdMatrixStride = uint16_t(row_stride);
        params.srcDValue = uint16_t(head_stride);
        params.dstNzC0Stride = uint16_t(plan::kTileM);
        params.dstNzNStride = 1;
        params.dstNzMatrixStride = uint16_t(p.group * kBlock<T>);
        DataCopy(to[row * kBlock<T>], from, params);
        row += tokens * p.group;
    }
}

template <class T> class AttentionCube {
public:
    LD_FN AttentionCube(const LdAttentionPlan& p, TPipe& pipe, const AttentionTables& tables)
        : plan_(p), tables_(tables), whole_(p.p_buffers >= plan::kStepTiles),
          weights_(uint32_t(plan::least(p.p_buffers, 2))) {
        cube_.init(pipe);
        const uint32_t slot = plan::kSubTile * uint32_t(plan::most(p.dim, p.pv_n));
        const uint32_t weight = plan::kTileM * plan::kSubTile * (whole_ ? 2 : 1), q = plan::kTileM * p.dim;
        pipe.InitBuffer(l1_, uint32_t((p.kv_buffers * slot + weights_ * weight + p.q_buffers * q) * sizeof(T)));
        ring_ = l1_.Get<T>();
        p_ = ring_[p.kv_buffers * slot];
        q_ = p_[weights_ * weight];
        slot_elements_ = slot;
        weight_elements_ = weight;
    }

    LD_FN void run(GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR workspace) {
        q_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(q));
        k_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(k));
        v_gm_.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(v));
        workspace_ = workspace;
        cube_.start();
        for (uint32_t i = 0; i < plan_.kv_buffers; ++i) SetFlag<HardEvent::MTE1_MTE2>(int32_t(i));
        for (int32_t i = 0; i < 2; ++i) SetFlag<HardEvent::MTE1_MTE2>(kWeightEvents + i);
        for (uint32_t i = 0; i < plan_.q_buffers; ++i) SetFlag<HardEvent::MTE1_MTE2>(kQueryEvents + int32_t(i));

        const uint32_t block = uint32_t(GetBlockIdx());
        AttentionWalk ahead(plan_, tables_, block), behind(plan_, tables_, block);
        for (uint32_t i = 0; i + 1 < plan_.ring && ahead.next_seeing(); ++i) scores(ahead.step());
        while (behind.next_seeing()) {
            if (ahead.next_seeing()) scores(ahead.step());
            sums(behind.step());
        }

        if (query_item_ != kNoItem) SetFlag<HardEvent::MTE1_MTE2>(query_event());
        for (uint32_t i = 0; i < plan_.kv_buffers; ++i) WaitFlag<HardEvent::MTE1_MTE2>(int32_t(i));
        for (int32_t i = 0; i < 2; ++i) WaitFlag<HardEvent::MTE1_MTE2>(kWeightEvents + i);
        for (uint32_t i = 0; i < plan_.q_buffers; ++i) WaitFlag<HardEvent::MTE1_MTE2>(kQueryEvents + int32_t(i));
        cube_.finish();
    }

private:
    static constexpr int32_t kWeightEvents = 4, kQueryEvents = 6;
    static constexpr uint32_t kNoItem = 0xffffffffu;

    // --- the ring of K sub-tiles and V blocks

    LD_FN LocalTensor<T> slot(uint32_t turn) const { return ring_[turn % plan_.kv_buffers * slot_elements_]; }
    LD_FN int32_t slot_event(uint32_t turn) const { return int32_t(turn % plan_.kv_buffers); }

    // Keys [first, first + 128) of the sequence, `columns` elements from `column` on; those past its end are +0.
    LD_FN void load_keys(const GlobalTensor<T>& gm, const AttentionTile& tile, uint32_t first, int64_t row_stride,
                         int64_t head_stride, int64_t block_stride, uint32_t column, uint32_t columns) {
        WaitFlag<HardEvent::MTE1_MTE2>(slot_event(loaded_));
        const LocalTensor<T> to = slot(loaded_);
        const uint32_t count = uint32_t(plan::least(plan::kSubTile, tile.keys - first));
        const int64_t base = int64_t(tile.kv_head) * head_stride + column;
        if (plan_.block_size == 0) {
            copy_nz(to, gm[uint64_t(base + (int64_t(tile.k_first) + first) * row_stride)], row_stride, count, columns,
                    plan::kSubTile);
        } else {
            for (uint32_t i = 0; i < count;) {
                const uint32_t key = first + i, row = key % plan_.block_size;
                const uint32_t rows = uint32_t(plan::least(plan_.block_size - row, count - i));
                const int64_t page = tables_.block_table.GetValue(
                    uint64_t(int64_t(tile.sequence) * plan_.table_row + key / plan_.block_size));
                copy_nz(to[i * kBlock<T>], gm[uint64_t(base + page * block_stride + int64_t(row) * row_stride)],
                        row_stride, rows, columns, plan::kSubTile);
                i += rows;
            }
        }
        zero_l1(to, count, plan::kSubTile, columns / kBlock<T>, plan::kSubTile);
        SetFlag<HardEvent::MTE2_MTE1>(slot_event(loaded_));
        ++loaded_;
    }

    LD_FN void use_slot() { WaitFlag<HardEvent::MTE2_MTE1>(slot_event(used_)); }
    LD_FN void free_slot() {
        SetFlag<HardEvent::MTE1_MTE2>(slot_event(used_));
        ++used_;
    }

    // --- Q

    LD_FN int32_t query_event() const { return kQueryEvents + int32_t(query_item_ % plan_.q_buffers); }
    LD_FN LocalTensor<T> query() const { return q_[query_item_ % plan_.q_buffers * plan::kTileM * plan_.dim]; }

    LD_FN void load_queries(const AttentionStep& step) {
        if (query_item_ != kNoItem) SetFlag<HardEvent::MTE1_MTE2>(query_event());
        query_item_ = step.item;
        WaitFlag<HardEvent::MTE1_MTE2>(query_event());
        const AttentionTile& tile = step.tile;
        const LocalTensor<T> to = query();
        if (step.item < plan_.q_buffers && tile.rows < plan::kTileM) clear(to, plan_.dim);
        load_packed(to, q_gm_, plan_, tile, plan_.q_row, plan_.q_head, plan_.dim);
        SetFlag<HardEvent::MTE2_MTE1>(query_event());
        WaitFlag<HardEvent::MTE2_MTE1>(query_event());
    }

    // Rows of Q and P behind the last one of an item are whatever was there: rows don't meet. At first they are +0.
    LD_FN static void clear(const LocalTensor<T>& rows, uint32_t columns) {
        zero_l1(rows, 0, plan::kTileM, columns / kBlock<T>, plan::kTileM);
        PipeBarrier<PIPE_MTE2>();
    }

    // --- the two products of a step

    LD_FN void scores(const AttentionStep& step) {
        if (step.item != query_item_) load_queries(step);
        const AttentionTile& tile = step.tile;
        GlobalTensor<float> out;
        out.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(
            workspace_ + plan::score_offset(plan_, uint32_t(GetBlockIdx()), step.number % plan_.ring)));
        const MatrixSlab<T> q{query(), plan::kTileM, plan_.dim, false, 0};
        for (uint32_t i = step.sub_tile; i < step.sub_tile + step.sub_tiles; ++i) {
            load_keys(k_gm_, tile, step.key + i * plan::kSubTile, plan_.k_row, plan_.k_head, plan_.k_block, 0, plan_.dim);
            use_slot();
            const MatrixSlab<T> k{slot(used_), plan::kSubTile, plan_.dim, false, 0};
            cube_.open();
            cube_.multiply(q, k, 0, plan_.dim);
            free_slot();
            cube_.close();
            cube_.store(out[i * plan::kSubTile], plan::kStep, tile.padded_rows(), plan::kSubTile);
            cube_.release();
        }
        CrossCoreSetFlag<2, PIPE_FIX>(kScoresReady);
    }

    LD_FN void load_values(const AttentionStep& step, uint32_t index) {
        const uint32_t i = step.sub_tile + index % step.sub_tiles, n = index / step.sub_tiles;
        load_keys(v_gm_, step.tile, step.key + i * plan::kSubTile, plan_.v_row, plan_.v_head, plan_.v_block,
                  n * plan_.pv_n, plan_.pv_n);
    }

    // Sub-tiles [first, first + count) of P into buffer `buffer`.
    LD_FN void load_weights(const AttentionStep& step, uint32_t buffer, uint32_t first, uint32_t count) {
        GlobalTensor<T> from;
        from.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(
            workspace_ + plan::weight_offset(plan_, uint32_t(GetBlockIdx()), step.number % plan_.ring)));
        WaitFlag<HardEvent::MTE1_MTE2>(kWeightEvents + int32_t(buffer));
        copy_nz(p_[buffer * weight_elements_], from[first * plan::kSubTile], plan::kStep, step.tile.padded_rows(),
                count * plan::kSubTile, plan::kTileM);
        SetFlag<HardEvent::MTE2_MTE1>(kWeightEvents + int32_t(buffer));
        WaitFlag<HardEvent::MTE2_MTE1>(kWeightEvents + int32_t(buffer));
    }

    // PV. With room for the P of a step its two halves stay in L1 for all value dimensions; else each block has its P
    // fetched again (576/512, where K is wide).
    LD_FN void sums(const AttentionStep& step) {
        const uint32_t dims = plan_.dim_v / plan_.pv_n, blocks = dims * step.sub_tiles, held = whole_ ? 2 : 1;
        uint32_t fetched = 0;
        for (; fetched < blocks && fetched < plan_.kv_buffers; ++fetched) load_values(step, fetched);
        if (step.number == 0) clear(p_, weights_ * weight_elements_ / plan::kTileM);
        CrossCoreWaitFlag<2, PIPE_MTE2>(kWeightsReady);
        GlobalTensor<float> out;
        out.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(
            workspace_ + plan::pv_offset(plan_, uint32_t(GetBlockIdx()), step.number % plan_.ring)));
        for (uint32_t index = 0; index < blocks; ++index) {
            const uint32_t i = index % step.sub_tiles, n = index / step.sub_tiles;
            const uint32_t buffer = whole_ ? i / held : index % weights_, within = i % held;
            const uint32_t count = uint32_t(plan::least(held, step.sub_tiles - (i - within)));
            if (within == 0 && (n == 0 || !whole_)) load_weights(step, buffer, step.sub_tile + i, count);
            use_slot();
            if (i == 0) cube_.open();
            const MatrixSlab<T> p{p_[buffer * weight_elements_ + within * plan::kTileM * plan::kSubTile], plan::kTileM,
                                  plan::kSubTile, false, 0};
            const MatrixSlab<T> v{slot(used_), plan_.pv_n, plan::kSubTile, true, 0};
            cube_.multiply(p, v, 0, plan::kSubTile);
            free_slot();
            if (fetched < blocks) load_values(step, fetched++);
            if (within + 1 == count && (n + 1 == dims || !whole_))
                SetFlag<HardEvent::MTE1_MTE2>(kWeightEvents + int32_t(buffer));
            if (i + 1 < step.sub_tiles) continue;
            cube_.close();
            cube_.store(out[n * plan_.pv_n], plan_.dim_v, step.tile.padded_rows(), plan_.pv_n);
            cube_.release();
        }
        CrossCoreSetFlag<2, PIPE_FIX>(kSumsReady);
    }

    const LdAttentionPlan& plan_;
    const AttentionTables& tables_;
    const bool whole_;        // all P of a step fits in L1
    const uint32_t weights_;  // buffers of P
    CubeCore<T> cube_;
    TBuf<TPosition::A1> l1_;
    LocalTensor<T> ring_, p_, q_;
    GlobalTensor<T> q_gm_, k_gm_, v_gm_;
    GM_ADDR workspace_ = nullptr;
    uint32_t slot_elements_ = 0, weight_elements_ = 0;
    uint32_t loaded_ = 0, used_ = 0;  // turns of the ring
    uint32_t query_item_ = kNoItem;
};

}  // namespace ld
