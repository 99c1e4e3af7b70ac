// Plan of the attention backward: three kernels on one stream, every output element with one owner, so no atomics.
//
// 1. attention_backward_dots: D = R64(dO * O) per (token, head), on the vector cores; D and lse as data blocks.
// 2. attention_backward: items of two kinds.
//    dQ: an item is (sequence, KV head, row tile of kTileM packed rows); it runs the key steps ascending. Per step S =
//    Q K^T and dP = dO V^T, then dS on the vector cores, then dS K from +0, which is added to dQ.
//    dK and dV: an item is (sequence, KV head, key tile of kTileM keys); it runs the heads of the group ascending and,
//    within a head, the query blocks of kStep absolute positions ascending. Per block S and dP as before, P and dS,
//    then P^T dO and dS^T Q over the block's queries from +0, which are added to dV and dK.
//    P and dS are computed once for each kind: two more products, no exchange between owners.
// 3. attention_backward_sinks: R64 over tokens per head.
#pragma once

#include "attention.h"
#include "rows.h"

struct LdAttentionGradItem {  // one data block of GM
    uint32_t sequence, kv_head;
    uint32_t tile;               // dQ: row tile; dK, dV: key tile
    uint32_t rows;               // packed rows or keys that exist
    uint32_t first_step, steps;  // dQ: key steps; dK, dV: query blocks in which some query sees the tile
    uint32_t cost;               // dQ: sub-tiles of keys; dK, dV: sub-tiles of queries times heads of the group
    uint32_t reserved;
};

// The caller fills `forward` (problem and strides), dout_row and dout_head; plan_attention_backward fills the second
// part, the item tables the third.
struct LdAttentionBackwardPlan {
    LdAttentionPlan forward;  // its tiles and tables aren't used
    int64_t dout_row, dout_head;

    uint32_t vector_rows;      // a slice of vector work: this many rows of kStep elements, or 4 times as many of kTileM
    uint32_t resident;         // 1: the sums of a vector core's 64 rows stay in UB; 0: they are kept in the workspace
    uint32_t own_buffers;      // L1: the item's own operands (Q and dO, or K and V), kTileM rows each
    uint32_t operand_width;    // elements a row of the L1 ring of all others
    uint32_t operand_buffers;  // its slots of kTileM rows
    uint32_t dim_n, dim_v_n;   // n of the Mmads whose output is dim, dim_v wide
    uint32_t ring;             // entries {S, dP, P, dS, products} of a block in the workspace

    uint32_t tokens;
    uint32_t dq_items, dkv_items, dq_blocks, dkv_blocks;  // items and AIC groups of both kinds
    uint32_t reserved;
    LdRows dots;               // rows (token, head) of the first kernel
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

constexpr uint32_t kSumSlice = 2048;    // fp32 of a slice of products and sums
constexpr uint32_t kCapSlice = 512;     // elements that the soft cap takes at a time

LD_PLAN_FN constexpr uint32_t slice_elements(const LdAttentionBackwardPlan& p) { return p.vector_rows * kStep; }
// Most rows of a slice, each with its lse and its D as a data block.
LD_PLAN_FN constexpr uint32_t slice_rows(const LdAttentionBackwardPlan& p) { return slice_elements(p) / kTileM; }
// Floats of a slice's S, dP, lse and D.
LD_PLAN_FN constexpr uint32_t slice_floats(const LdAttentionBackwardPlan& p) {
    return 2 * slice_elements(p) + 2 * slice_rows(p) * kBlockBytes / 4;
}
// Floats of the sums of a vector core's rows.
LD_PLAN_FN constexpr uint32_t resident_floats(const LdAttentionBackwardPlan& p) {
    return kVectorTileRows * (p.forward.dim + p.forward.dim_v);
}

LD_PLAN_FN constexpr uint64_t backward_ub_bytes(const LdAttentionBackwardPlan& p) {
    const uint64_t slices = 2 * uint64_t(slice_floats(p)) * 4 + 2 * slice_elements(p) * element_bytes(p.forward.dtype);
    const uint64_t products = 2 * (p.resident ? 1 : 2) * uint64_t(kSumSlice) * 4;  // beside the product, the sum
    const uint64_t sums = p.resident ? uint64_t(resident_floats(p)) * 4 : 0;
    return slices + products + sums + kExpScratchBytes;
}

LD_PLAN_FN constexpr uint64_t backward_l1_bytes(const LdAttentionBackwardPlan& p) {
    const uint64_t own = uint64_t(p.own_buffers) * (p.forward.dim + p.forward.dim_v);
    return kTileM * (own + uint64_t(p.operand_buffers) * p.operand_width) * element_bytes(p.forward.dtype);
}

LD_PLAN_FN constexpr Usage backward_usage(const LdAttentionBackwardPlan& p) {
    Usage used{};
    // All products are (128, at most 128, mmad_k) Mmads.
    const uint32_t operand = kTileM * mmad_k(p.forward.dtype) * element_bytes(p.forward.dtype);
    used.l0a = used.l0b = 2 * uint64_t(operand);
    used.l0c = 2 * uint64_t(kTileM) * kTileN * 4;
    used.ub = backward_ub_bytes(p);
    used.l1 = backward_l1_bytes(p);
    return used;
}

// fp32 isn't covered: P^T and dS^T are transposed on their way to L0A, which 16-bit types alone allow.
LD_PLAN_FN constexpr int32_t plan_attention_backward(LdAttentionBackwardPlan& p) {
    LdAttentionPlan& f = p.forward;
    if (element_bytes(f.dtype) != 2) return kPlanDType;
    f.allow_direct = 0;
    if (const int32_t status = plan_attention(f); status != kPlanOk) return status;
    const uint32_t wide = uint32_t(least(most(most(f.dim, f.dim_v), kTileN), 2 * kTileN));
    p.dim_n = even_tile(f.dim, kTileN);
    p.dim_v_n = even_tile(f.dim_v, kTileN);
    p.ring = 2;
    struct Choice {
        uint32_t own, width, buffers;
    };
    // At most six slots: two of the eight event ids of a pair of pipes are for the own operands.
    const Choice choices[] = {{2, wide, 6}, {1, wide, 6}, {1, wide, 4}, {1, kTileN, 6}, {1, kTileN, 4}};
    bool found = false;
    for (const Choice& c : choices) {
        p.own_buffers = c.own;
        p.operand_width = c.width;
        p.operand_buffers = c.buffers;
        found = backward_l1_bytes(p) <= capacity(kArch2201).l1;
        if (found) break;
    }
    if (!found) return kPlanCapacity;
    for (p.resident = 1;; p.resident = 0) {
        // Sums that don't stay in UB leave it through a buffer of weights, which at 8 rows has kSumSlice floats.
        for (p.vector_rows = 8; p.vector_rows >= (p.resident ? 4u : 8u); p.vector_rows /= 2)
            if (backward_ub_bytes(p) <= capacity(kArch2201).ub) return kPlanOk;
        if (!p.resident) return kPlanCapacity;
    }
}

// Rows (token, head) of attention_backward_dots: dO and O through a queue of two buffers, both in fp32, the lanes of
// R64; D and lse as data blocks through a second queue.
LD_PLAN_FN constexpr uint64_t dots_ub_bytes(const LdAttentionBackwardPlan& p, uint32_t rows) {
    const uint64_t elements = round_up(p.forward.dim_v, kLanes), size = element_bytes(p.forward.dtype);
    return rows * (elements * (4 * size + 8) + kLanes * 4 + 4 * kBlockBytes) + kStateBytes;
}

// Fills `dots` once the tokens are known.
LD_PLAN_FN constexpr void cut_dots(LdAttentionBackwardPlan& p) {
    LdRows& cut = p.dots;
    cut.rows = p.tokens * p.forward.heads;
    cut.length = p.forward.dim_v;
    cut.tile = uint32_t(round_up(cut.length, kLanes));
    cut.pieces = 1;
    for (cut.tile_rows = kMostTileRows; dots_ub_bytes(p, cut.tile_rows) > capacity(kArch2201).ub;) cut.tile_rows /= 2;
    cut.blocks = uint32_t(least(cut.rows, p.forward.cores * kVectors));
    cut.split = kContiguous;
    cut.kernel = kRowKernels;
}

// --- workspace: [block]{[ring]{S, dP, P, dS, products}, sums}

// fp32 of dQ, or of dK and then dV, of one tile.
LD_PLAN_FN constexpr uint64_t sum_bytes(const LdAttentionBackwardPlan& p) {
    return uint64_t(kTileM) * (p.forward.dim + p.forward.dim_v) * 4;
}
LD_PLAN_FN constexpr uint64_t backward_entry_bytes(const LdAttentionBackwardPlan& p) {
    return 2 * score_bytes() + 2 * weight_bytes(p.forward) + sum_bytes(p);
}
LD_PLAN_FN constexpr uint64_t backward_block_bytes(const LdAttentionBackwardPlan& p) {
    return p.ring * backward_entry_bytes(p) + (p.resident ? 0 : sum_bytes(p));
}
LD_PLAN_FN constexpr uint64_t entry_offset(const LdAttentionBackwardPlan& p, uint32_t block, uint32_t entry) {
    return block * backward_block_bytes(p) + entry * backward_entry_bytes(p);
}
// Of S (side 0) and dP (side 1); of P (side 0) and dS (side 1); of dQ or dK (side 0) and dV (side 1).
LD_PLAN_FN constexpr uint64_t grad_score_offset(const LdAttentionBackwardPlan& p, uint32_t block, uint32_t entry,
                                                uint32_t side) {
    return entry_offset(p, block, entry) + side * score_bytes();
}
LD_PLAN_FN constexpr uint64_t grad_weight_offset(const LdAttentionBackwardPlan& p, uint32_t block, uint32_t entry,
                                                 uint32_t side) {
    return entry_offset(p, block, entry) + 2 * score_bytes() + side * weight_bytes(p.forward);
}
LD_PLAN_FN constexpr uint64_t side_offset(const LdAttentionBackwardPlan& p, uint32_t side) {
    return side * uint64_t(kTileM) * p.forward.dim * 4;
}
LD_PLAN_FN constexpr uint64_t product_offset(const LdAttentionBackwardPlan& p, uint32_t block, uint32_t entry,
                                             uint32_t side) {
    return grad_weight_offset(p, block, entry, 2) + side_offset(p, side);
}
LD_PLAN_FN constexpr uint64_t sum_offset(const LdAttentionBackwardPlan& p, uint32_t block, uint32_t side) {
    return entry_offset(p, block, p.ring) + side_offset(p, side);
}
LD_PLAN_FN constexpr uint64_t backward_workspace(const LdAttentionBackwardPlan& p) {
    return most(p.dq_blocks, p.dkv_blocks) * backward_block_bytes(p);
}

}  // namespace ld::plan
