// Plan of the attention backward: three phases, every output element with one owner, so no atomics.
//
// 1. D = R64(dO * O) per (token, head), on the vector cores, into the workspace.
// 2. dQ: an item is (sequence, KV head, row tile of kTileM packed rows); it runs the key steps ascending. Per step S =
//    Q K^T and dP = dO V^T, then dS on the vector cores, then dS K from +0, which is added to dQ.
// 3. dK and dV: an item is (sequence, KV head, key tile of kTileM keys); it runs the heads of the group ascending and,
//    within a head, the query blocks of kStep absolute positions ascending. Per block S and dP as before, P and dS,
//    then P^T dO and dS^T Q over the block's queries from +0, which are added to dV and dK.
// P and dS are computed in phase 2 and again in phase 3: two more products, no exchange between owners.
#pragma once

#include "attention.h"

struct LdAttentionGradItem {  // one data block of GM
    uint32_t sequence, kv_head;
    uint32_t tile;               // phase 2: row tile; phase 3: key tile
    uint32_t rows;               // packed rows or keys that exist
    uint32_t first_step, steps;  // phase 2: key steps; phase 3: query blocks in which some query sees the tile
    uint32_t cost;               // phase 2: sub-tiles of keys; phase 3: sub-tiles of queries times heads of the group
    uint32_t reserved;
};

// The caller fills `forward` (problem and strides), dout_row and dout_head; plan_attention_backward fills the second
// part, the item tables the third.
struct LdAttentionBackwardPlan {
    LdAttentionPlan forward;  // its tiles and tables aren't used
    int64_t dout_row, dout_head;

    uint32_t vector_rows, vector_buffers;  // slices of vector work, of kStep elements a row
    uint32_t resident;         // 1: the item's own operands stay in L1 (phase 2: Q, dO; phase 3: K, V)
    uint32_t operand_width;    // elements a row of the L1 ring: a whole row of the larger head size, or 128
    uint32_t operand_buffers;  // L1 ring of the other operands, kTileM x operand_width each
    uint32_t weight_buffers;   // L1 ring of P and dS, kTileM x 128 each
    uint32_t ring;             // entries {S, dP, P, dS, products} of a block in the workspace

    uint32_t tokens;
    uint32_t dq_items, dkv_items, dq_blocks, dkv_blocks;  // items and AIC groups of phases 2 and 3
    uint64_t workspace;        // bytes
};

namespace ld::plan {

// Queries of a sequence, as absolute positions, that see a key of the key tile. Queries before position 0 (more tokens
// than keys) have no block of positions: the tables refuse them unless causal, where they see nothing.
LD_PLAN_FN constexpr KeyRange seeing_queries(const LdAttentionPlan& p, uint32_t tokens, uint32_t keys, uint32_t tile) {
    const int64_t first = int64_t(tile) * kTileM;
    const int64_t last = int64_t(least(keys, uint64_t(tile + 1) * kTileM)) - 1;
    int64_t begin = keys > tokens ? int64_t(keys) - tokens : 0, end = keys;
    if (p.causal && first > begin) begin = first;
    if (p.window > 0 && last + p.window < end) end = last + p.window;
    if (begin >= end) return {0, 0};
    return {uint32_t(begin), uint32_t(end)};
}

// --- budgets

LD_PLAN_FN constexpr uint64_t backward_ub_bytes(const LdAttentionBackwardPlan& p) {
    const uint64_t size = element_bytes(p.forward.dtype), rows = p.vector_rows, buffers = p.vector_buffers;
    const uint64_t d = most(p.forward.dim, p.forward.dim_v);
    const uint64_t scores = 2 * buffers * rows * kStep * 4;      // S and dP
    const uint64_t weights = 2 * buffers * rows * kStep * size;  // P and dS
    const uint64_t sums = 2 * buffers * rows * d * 4;            // a product and the sum that it is added to
    return scores + weights + sums + rows * d * size + kExpScratchBytes + kStateBytes;
}

LD_PLAN_FN constexpr uint64_t backward_l1_bytes(const LdAttentionBackwardPlan& p) {
    const uint64_t own = p.resident ? uint64_t(kTileM) * (p.forward.dim + p.forward.dim_v) : 0;
    const uint64_t others = uint64_t(p.operand_buffers) * kTileM * p.operand_width;
    return (own + others + uint64_t(p.weight_buffers) * kTileM * kSubTile) * element_bytes(p.forward.dtype);
}

LD_PLAN_FN constexpr Usage backward_usage(const LdAttentionBackwardPlan& p) {
    Usage used = attention_usage(p.forward);
    // All six products are (128, at most 128, mmad_k) Mmads.
    const uint32_t operand = kTileM * mmad_k(p.forward.dtype) * element_bytes(p.forward.dtype);
    used.l0a = used.l0b = uint64_t(p.forward.l0_buffers) * operand;
    used.ub = backward_ub_bytes(p);
    used.l1 = backward_l1_bytes(p);
    return used;
}

LD_PLAN_FN constexpr int32_t plan_attention_backward(LdAttentionBackwardPlan& p) {
    LdAttentionPlan& f = p.forward;
    f.allow_direct = 0;
    if (const int32_t status = plan_attention(f); status != kPlanOk) return status;
    const uint32_t width = uint32_t(most(f.dim, f.dim_v)), narrow = uint32_t(least(width, kTileN));
    const uint64_t l1 = capacity(kArch2201).l1, ub = capacity(kArch2201).ub;
    struct Choice {
        uint32_t resident, width, buffers, weights;
    };
    const Choice choices[] = {
        {1, width, 4, 4}, {1, width, 2, 4}, {1, width, 2, 2}, {0, narrow, 8, 4}, {0, narrow, 4, 2}};
    bool found = false;
    for (const Choice& c : choices) {
        p.resident = c.resident;
        p.operand_width = c.width;
        p.operand_buffers = c.buffers;
        p.weight_buffers = c.weights;
        found = backward_l1_bytes(p) <= l1;
        if (found) break;
    }
    if (!found) return kPlanCapacity;
    p.ring = 2;
    for (p.vector_rows = 16; p.vector_rows >= 4; p.vector_rows /= 2)
        for (p.vector_buffers = 2; p.vector_buffers >= 1; --p.vector_buffers)
            if (backward_ub_bytes(p) <= ub) return kPlanOk;
    return kPlanCapacity;
}

// --- workspace: [block][ring]{S, dP, P, dS, products}, [block] sums, then D [tokens][heads]

// fp32 of dQ (phase 2), or of dK and then dV (phase 3), of one tile.
LD_PLAN_FN constexpr uint64_t sum_bytes(const LdAttentionBackwardPlan& p) {
    return uint64_t(kTileM) * (p.forward.dim + p.forward.dim_v) * 4;
}
LD_PLAN_FN constexpr uint64_t backward_entry_bytes(const LdAttentionBackwardPlan& p) {
    return 2 * score_bytes() + 2 * weight_bytes(p.forward) + sum_bytes(p);
}
LD_PLAN_FN constexpr uint64_t backward_block_bytes(const LdAttentionBackwardPlan& p) {
    return p.ring * backward_entry_bytes(p) + sum_bytes(p);
}
LD_PLAN_FN constexpr uint64_t entry_offset(const LdAttentionBackwardPlan& p, uint32_t block, uint32_t entry) {
    return block * backward_block_bytes(p) + entry * backward_entry_bytes(p);
}
LD_PLAN_FN constexpr uint64_t sum_offset(const LdAttentionBackwardPlan& p, uint32_t block) {
    return entry_offset(p, block, p.ring);
}
LD_PLAN_FN constexpr uint64_t dots_offset(const LdAttentionBackwardPlan& p) {
    return most(p.dq_blocks, p.dkv_blocks) * backward_block_bytes(p);
}
LD_PLAN_FN constexpr uint64_t backward_workspace(const LdAttentionBackwardPlan& p) {
    return dots_offset(p) + uint64_t(p.tokens) * p.forward.heads * 4;
}

}  // namespace ld::plan
