// Plan of the attention backward: three phases, every output element with one owner, so no atomics.
//
// 1. D = R64(dO * O) per (token, head), on the vector cores.
// 2. dQ: an item is (sequence, KV head, row tile of kTileM packed rows); it runs the key steps ascending.
// 3. dK and dV: an item is (sequence, KV head, key tile of kTileM keys); it runs the heads of the group ascending and, within
//    a head, the query blocks of kStep absolute positions ascending.
// P and dS are computed in phase 2 and again in phase 3: two more products, no exchange between owners.
#pragma once

#include "attention.h"

struct LdAttentionGradItem {  // one data block of GM
    uint32_t sequence, kv_head;
    uint32_t tile;                // phase 2: row tile; phase 3: key tile
    uint32_t rows;                // packed rows or keys that exist
    uint32_t first_step, steps;   // phase 2: key steps; phase 3: query blocks that some query of which sees the tile
    uint32_t cost;                // phase 2: sub-tiles of keys; phase 3: sub-tiles of queries times heads of the group
    uint32_t reserved;
};

struct LdAttentionBackwardPlan {
    LdAttentionPlan forward;  // problem, strides and tiles; its item table isn't used
    int64_t dout_row, dout_head;
    uint32_t dq_items, dkv_items;
    uint32_t dq_blocks, dkv_blocks;        // AIC groups of each phase
    uint32_t vector_rows, vector_buffers;  // slices of S and dP in UB
    uint32_t operand_buffers;              // L1: ring of kTileM x 128 pieces of Q, dO, K, V, P and dS
    uint32_t ring;                         // {S, dP, P, dS} tiles of a block in the workspace
    uint32_t accumulator_bytes;            // fp32 dQ, or dK and dV, of one block in the workspace
    uint32_t reserved;
    uint64_t workspace;                    // bytes
};

namespace ld::plan {

// Queries [begin, end) of a sequence, as absolute positions, that see a key of the key tile.
LD_PLAN_FN constexpr KeyRange seeing_queries(const LdAttentionPlan& p, uint32_t tokens, uint32_t keys, uint32_t tile) {
    const int64_t first = int64_t(tile) * kTileM;
    const int64_t last = int64_t(least(keys, uint64_t(tile + 1) * kTileM)) - 1;
    const int64_t shift = int64_t(keys) - tokens;
    int64_t begin = shift < 0 ? 0 : shift, end = keys;
    if (p.causal && first > begin) begin = first;
    if (p.window > 0 && last + p.window < end) end = last + p.window;
    if (begin >= end) return {0, 0};
    return {uint32_t(begin), uint32_t(end)};
}

LD_PLAN_FN constexpr uint64_t backward_ub_bytes(const LdAttentionBackwardPlan& p) {
    const uint64_t size = element_bytes(p.forward.dtype), rows = p.vector_rows, width = kStep;
    const uint64_t d = most(p.forward.dim, p.forward.dim_v);
    const uint64_t scores = 2 * p.vector_buffers * rows * width * 4;      // S and dP
    const uint64_t weights = 2 * p.vector_buffers * rows * width * size;  // P and dS
    const uint64_t sums = 2 * 2 * rows * d * 4;                           // partial and running sum, double-buffered
    return scores + weights + sums + rows * d * size + kExpScratchBytes + kStateBytes;
}

LD_PLAN_FN constexpr uint64_t backward_l1_bytes(const LdAttentionBackwardPlan& p) {
    return uint64_t(p.operand_buffers) * kTileM * kTileN * element_bytes(p.forward.dtype);
}

LD_PLAN_FN constexpr int32_t plan_attention_backward(LdAttentionBackwardPlan& p) {
    p.forward.allow_direct = 0;
    if (const int32_t status = plan_attention(p.forward); status != kPlanOk) return status;
    p.operand_buffers = p.forward.dtype == kFloat32 ? 7 : 15;
    p.ring = 2;
    p.accumulator_bytes = uint32_t(uint64_t(kTileM) * (p.forward.dim + p.forward.dim_v) * 4);
    for (p.vector_rows = 16; p.vector_rows >= 4; p.vector_rows /= 2)
        for (p.vector_buffers = 2; p.vector_buffers >= 1; --p.vector_buffers)
            if (backward_ub_bytes(p) <= capacity(kArch2201).ub) return kPlanOk;
    return kPlanCapacity;
}

}  // namespace ld::plan
