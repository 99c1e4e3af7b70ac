// The cube core of a block of the attention backward: per unit S and dP, then the products that are added to dQ, or to
// dK and dV.
//
// L1: the item's own operands (Q and dO of its rows, or K and V of its keys) of one or two items, and a ring for all
// others, 128 rows each, in the order of their use: for S and dP the other side's rows, as many columns at a time as a
// slot has; for the products a sub-tile of P or dS and the rows that it weights. L0 and L0C are CubeCore's.
//
// Rows that don't exist are +0 in L1. Among the queries of a block they lie along k of the products, where P and dS are
// +0 as well, and add nothing.
//
// Events beside CubeCore's: MTE1_MTE2 (free) and MTE2_MTE1 (filled), ids 0 to 5 for the ring, 6 and 7 for own operands.
#pragma once

#include "attention_backward_walk.h"
#include "attention_cube.h"

namespace ld {

// A tensor [rows, heads, columns] of GM.
template <class T> struct GradOperand {
    GlobalTensor<T> gm;
    int64_t row, head;  // strides
    uint32_t columns;

    LD_FN void set(GM_ADDR address, int64_t row_stride, int64_t head_stride, uint32_t columns_now) {
        gm.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address));
        row = row_stride;
        head = head_stride;
        columns = columns_now;
    }
};

template <class T> class GradCube {
public:
    LD_FN GradCube(const LdAttentionBackwardPlan& p, TPipe& pipe, const GradTables& tables)
        : plan_(p), tables_(tables), block_(uint32_t(GetBlockIdx())) {
        cube_.init(pipe);
        slot_elements_ = plan::kTileM * p.operand_width;
        own_elements_ = plan::kTileM * (p.forward.dim + p.forward.dim_v);
        pipe.InitBuffer(l1_, uint32_t((p.operand_buffers * slot_elements_ + p.own_buffers * own_elements_) * sizeof(T)));
        ring_ = l1_.Get<T>();
        own_ = ring_[p.operand_buffers * slot_elements_];
    }

    LD_FN void run(GM_ADDR q, GM_ADDR k, GM_ADDR v, GM_ADDR dout, GM_ADDR workspace) {
        const LdAttentionPlan& p = plan_.forward;
        queries_[0].set(q, p.q_row, p.q_head, p.dim);
        queries_[1].set(dout, plan_.dout_row, plan_.dout_head, p.dim_v);
        keys_[0].set(k, p.k_row, p.k_head, p.dim);
        keys_[1].set(v, p.v_row, p.v_head, p.dim_v);
        workspace_ = workspace;
        cube_.start();
        for (uint32_t i = 0; i < plan_.operand_buffers; ++i) SetFlag<HardEvent::MTE1_MTE2>(int32_t(i));
        for (uint32_t i = 0; i < plan_.own_buffers; ++i) SetFlag<HardEvent::MTE1_MTE2>(kOwnEvents + int32_t(i));

        GradWalk ahead(plan_, tables_, block_), behind(plan_, tables_, block_);
        for (uint32_t i = 0; i + 1 < plan_.ring && ahead.next_seeing(); ++i) scores(ahead.unit());
        while (behind.next_seeing()) {
            if (ahead.next_seeing()) scores(ahead.unit());
            products(behind.unit());
        }

        if (own_item_ != kNoItem) SetFlag<HardEvent::MTE1_MTE2>(own_event());
        for (uint32_t i = 0; i < plan_.operand_buffers; ++i) WaitFlag<HardEvent::MTE1_MTE2>(int32_t(i));
        for (uint32_t i = 0; i < plan_.own_buffers; ++i) WaitFlag<HardEvent::MTE1_MTE2>(kOwnEvents + int32_t(i));
        cube_.finish();
    }

private:
    static constexpr int32_t kOwnEvents = 6;
    static constexpr uint32_t kNoItem = 0xffffffffu;

    template <class E> LD_FN GlobalTensor<E> at(uint64_t offset) const {
        GlobalTensor<E> gm;
        gm.SetGlobalBuffer(reinterpret_cast<__gm__ E*>(workspace_ + offset));
        return gm;
    }

    // --- the ring

    LD_FN LocalTensor<T> slot(uint32_t turn) const { return ring_[turn % plan_.operand_buffers * slot_elements_]; }
    LD_FN int32_t slot_event(uint32_t turn) const { return int32_t(turn % plan_.operand_buffers); }

    // Rows [begin, end) of a slot of 128 from GM, all others +0. MTE2.
    LD_FN void fill_slot(const GlobalTensor<T>& from, int64_t stride, uint32_t begin, uint32_t end, uint32_t columns) {
        WaitFlag<HardEvent::MTE1_MTE2>(slot_event(loaded_));
        const LocalTensor<T> to = slot(loaded_);
        copy_nz(to[begin * kBlock<T>], from, stride, end - begin, columns, plan::kTileM);
        zero_l1(to, 0, begin, columns / kBlock<T>, plan::kTileM);
        zero_l1(to, end, plan::kTileM, columns / kBlock<T>, plan::kTileM);
        SetFlag<HardEvent::MTE2_MTE1>(slot_event(loaded_));
        ++loaded_;
    }
    LD_FN void use_slot(uint32_t turn) const { WaitFlag<HardEvent::MTE2_MTE1>(slot_event(turn)); }
    LD_FN void free_slot(uint32_t turn) const { SetFlag<HardEvent::MTE1_MTE2>(slot_event(turn)); }

    // Sub-tile `i` of the side that isn't the item's own: K or V of a step, Q or dO of a query block.
    LD_FN void load_other(const GradUnit& unit, uint32_t side, uint32_t i, uint32_t column, uint32_t columns) {
        const uint32_t first = unit.origin + i * plan::kSubTile;
        plan::Range rows{0, uint32_t(plan::least(plan::kSubTile, unit.keys ? 0 : unit.tile.keys - first))};
        uint64_t row = uint64_t(unit.tile.k_first) + first;
        uint32_t head = unit.tile.kv_head;
        if (unit.keys) {
            rows = unit.rows(i);
            row = unit.token(first + rows.begin);
            head = unit.query_head(plan_.forward);
        }
        const GradOperand<T>& from = unit.keys ? queries_[side] : keys_[side];
        const uint64_t offset = uint64_t(int64_t(row) * from.row + int64_t(head) * from.head + column);
        fill_slot(from.gm[offset], from.row, rows.begin, rows.end, columns);
    }

    // Sub-tile `i` of P (side 0) or dS (side 1).
    LD_FN void load_weights(const GradUnit& unit, uint32_t side, uint32_t i) {
        const GlobalTensor<T> from =
            at<T>(plan::grad_weight_offset(plan_, block_, unit.number % plan_.ring, side));
        const plan::Range rows = unit.keys ? unit.rows(i) : plan::Range{0, unit.tile.rows};
        const uint32_t offset = i * plan::kSubTile * (unit.keys ? plan::kTileM : 1) + rows.begin * unit.pitch();
        fill_slot(from[offset], unit.pitch(), rows.begin, rows.end, plan::kTileM);
    }

    // --- the item's own operands

    LD_FN int32_t own_event() const { return kOwnEvents + int32_t(own_item_ % plan_.own_buffers); }
    LD_FN LocalTensor<T> own(uint32_t side) const {
        return own_[own_item_ % plan_.own_buffers * own_elements_ + side * plan::kTileM * plan_.forward.dim];
    }

    LD_FN void load_own(const GradUnit& unit) {
        if (own_item_ != kNoItem) SetFlag<HardEvent::MTE1_MTE2>(own_event());
        own_item_ = unit.item;
        WaitFlag<HardEvent::MTE1_MTE2>(own_event());
        const AttentionTile& tile = unit.tile;
        for (uint32_t side = 0; side < 2; ++side) {
            const GradOperand<T>& from = unit.keys ? keys_[side] : queries_[side];
            if (unit.keys) {
                const int64_t row = int64_t(tile.k_first) + tile.first_row;
                const uint64_t offset = uint64_t(row * from.row + int64_t(tile.kv_head) * from.head);
                copy_nz(own(side), from.gm[offset], from.row, tile.rows, from.columns, plan::kTileM);
            } else {
                load_packed(own(side), from.gm, plan_.forward, tile, from.row, from.head, from.columns);
            }
            zero_l1(own(side), tile.rows, plan::kTileM, from.columns / kBlock<T>, plan::kTileM);
        }
        SetFlag<HardEvent::MTE2_MTE1>(own_event());
        WaitFlag<HardEvent::MTE2_MTE1>(own_event());
    }

    // --- S and dP

    // A part of a product: columns [column, column + columns) of both operands. S and dP alternate for each sub-tile.
    struct Piece {
        uint32_t i, side, column, columns;
    };
    LD_FN uint32_t pieces_of(uint32_t side) const {
        return uint32_t(plan::ceil_div(keys_[side].columns, plan_.operand_width));
    }
    LD_FN Piece piece(const GradUnit& unit, uint32_t index) const {
        const uint32_t first = pieces_of(0), both = first + pieces_of(1), within = index % both;
        const uint32_t side = within < first ? 0 : 1, column = (within - side * first) * plan_.operand_width;
        return {unit.sub_tile + index / both, side, column,
                uint32_t(plan::least(plan_.operand_width, keys_[side].columns - column))};
    }

    LD_FN void scores(const GradUnit& unit) {
        if (unit.item != own_item_) load_own(unit);
        const uint32_t count = (pieces_of(0) + pieces_of(1)) * unit.sub_tiles, entry = unit.number % plan_.ring;
        uint32_t fetched = 0;
        for (uint32_t index = 0; index < count; ++index) {
            for (; fetched < count && fetched < index + plan_.operand_buffers; ++fetched) {
                const Piece next = piece(unit, fetched);
                load_other(unit, next.side, next.i, next.column, next.columns);
            }
            const Piece now = piece(unit, index);
            if (now.column == 0) cube_.open();
            const MatrixSlab<T> mine{own(now.side)[now.column * plan::kTileM], plan::kTileM, now.columns, false, 0};
            const MatrixSlab<T> other{slot(used_), plan::kTileM, now.columns, false, 0};
            use_slot(used_);
            cube_.multiply(unit.keys ? other : mine, unit.keys ? mine : other, 0, now.columns);
            free_slot(used_++);
            if (now.column + now.columns < keys_[now.side].columns) continue;
            const GlobalTensor<float> out = at<float>(plan::grad_score_offset(plan_, block_, entry, now.side));
            cube_.close();
            if (unit.keys) {
                cube_.store(out[now.i * plan::kSubTile * plan::kTileM], plan::kTileM, unit.rows(now.i).end, plan::kTileM);
            } else {
                cube_.store(out[now.i * plan::kSubTile], plan::kStep, unit.tile.rows, plan::kSubTile);
            }
            cube_.release();
        }
        CrossCoreSetFlag<2, PIPE_FIX>(kScoresReady);
    }

    // --- dS K; or dS^T Q and P^T dO

    // One sub-tile of the product on one side, `columns` columns from `column` on.
    struct Term {
        uint32_t side, i, column, columns;
        bool first, last;
    };
    LD_FN uint32_t terms_of(uint32_t side, uint32_t sub_tiles) const {
        return keys_[side].columns / (side == 0 ? plan_.dim_n : plan_.dim_v_n) * sub_tiles;
    }
    LD_FN Term term(const GradUnit& unit, uint32_t index) const {
        const uint32_t before = terms_of(0, unit.sub_tiles), side = index < before ? 0 : 1;
        const uint32_t columns = side == 0 ? plan_.dim_n : plan_.dim_v_n;
        index -= side * before;
        const uint32_t i = index % unit.sub_tiles;
        return {side, unit.sub_tile + i, index / unit.sub_tiles * columns, columns, i == 0, i + 1 == unit.sub_tiles};
    }

    LD_FN void products(const GradUnit& unit) {
        const uint32_t count = terms_of(0, unit.sub_tiles) + (unit.keys ? terms_of(1, unit.sub_tiles) : 0);
        uint32_t fetched = 0;
        for (uint32_t index = 0; index < count; ++index) {
            for (; fetched < count && fetched < index + plan_.operand_buffers / 2; ++fetched) {
                const Term next = term(unit, fetched);
                load_other(unit, next.side, next.i, next.column, next.columns);
                if (fetched == 0) CrossCoreWaitFlag<2, PIPE_MTE2>(kWeightsReady);
                load_weights(unit, 1 - next.side, next.i);
            }
            const Term now = term(unit, index);
            if (now.first) cube_.open();
            const MatrixSlab<T> weights{slot(used_ + 1), plan::kTileM, plan::kSubTile, unit.keys, 0};
            const MatrixSlab<T> other{slot(used_), now.columns, plan::kSubTile, true, 0};
            use_slot(used_);
            use_slot(used_ + 1);
            cube_.multiply(weights, other, 0, plan::kSubTile);
            free_slot(used_++);
            free_slot(used_++);
            if (!now.last) continue;
            const GlobalTensor<float> out =
                at<float>(plan::product_offset(plan_, block_, unit.number % plan_.ring, now.side));
            cube_.close();
            cube_.store(out[now.column], keys_[now.side].columns, unit.tile.rows, now.columns);
            cube_.release();
        }
        CrossCoreSetFlag<2, PIPE_FIX>(kSumsReady);
    }

    const LdAttentionBackwardPlan& plan_;
    const GradTables& tables_;
    const uint32_t block_;
    CubeCore<T> cube_;
    TBuf<TPosition::A1> l1_;
    LocalTensor<T> ring_, own_;
    GradOperand<T> queries_[2], keys_[2];  // Q and dO; K and V
    GM_ADDR workspace_ = nullptr;
    uint32_t slot_elements_ = 0, own_elements_ = 0;
    uint32_t loaded_ = 0, used_ = 0;  // turns of the ring
    uint32_t own_item_ = kNoItem;
};

}  // namespace ld
