// Plan of attention: training over packed sequences, prefill and paged decode are one struct and one body.
//
// Rows. Query heads of one KV head are packed: packed row r of (sequence, KV head) is token r / group, head r % group.
// A row tile is kTileM packed rows; the last one of a sequence is padded. Work is an item: (sequence, KV head, row
// tile, chunks). Steps, sub-tiles and chunks lie at absolute key positions, so a row's bits don't depend on the item
// that it is in.
//
// An item runs its chunks ascending. If it has all chunks that the row tile sees (`slot` is kNoSlot), it combines them
// on the core and writes the result; else each item has one chunk and leaves (m, l, O) in its slot of the workspace,
// and after all items the `LdAttentionCombine` entries put the slots together, ascending.
#pragma once

#include "arch.h"

namespace ld::plan {

constexpr uint32_t kSubTile = 128;  // keys of one QK product (n of its Mmad); the unit of cost
constexpr uint32_t kStepTiles = kStep / kSubTile;
constexpr uint32_t kChunkTiles = kChunk / kSubTile;
constexpr uint32_t kNoSlot = 0xffffffffu;
constexpr uint32_t kVectorTileRows = kTileM / kVectors;  // rows of a tile that each vector core has

}  // namespace ld::plan

struct LdAttentionItem {  // one data block of GM
    uint32_t sequence, kv_head, row_tile;
    uint32_t first_chunk, chunks;  // chunks may be 0: nothing is visible, the rows are +0 and -inf
    uint32_t slot;                 // where the chunk's state goes, or kNoSlot
    uint32_t rows;                 // packed rows of the tile that exist, at most kTileM
    uint32_t cost;                 // sub-tiles of keys that some row sees
};

struct LdAttentionCombine {
    uint32_t sequence, kv_head, row_tile;
    uint32_t slot, slots;  // slots [slot, slot + slots), ascending chunks
    uint32_t rows;
    uint32_t reserved0, reserved1;
};

// The caller fills the first part; plan_attention fills the second, the item table the third.
struct LdAttentionPlan {
    int64_t q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head;  // strides in elements; the last one is 1
    int64_t k_block, v_block, table_row;  // paged: strides of a block, and of a sequence's row of the block table
    uint32_t dtype, arch;
    uint32_t batch, heads, kv_heads, dim, dim_v;
    uint32_t block_size;  // keys of a page; 0: packed keys
    uint32_t causal, window;  // window 0: none
    float scale, softcap;     // softcap 0: none
    uint32_t has_sinks, want_lse;
    uint32_t cores;         // cube cores of the device
    uint32_t allow_direct;  // 1: use L0C -> UB and UB -> L1 where the architecture has them

    uint32_t group;                   // query heads of a KV head
    uint32_t qk_k, pv_n, pv_k;        // Mmads: QK is (128, kSubTile, qk_k), the last k what is left; PV (128, pv_n, pv_k)
    uint32_t q_buffers, kv_buffers, p_buffers;  // L1: Q tile; K sub-tile or V block (one ring); P of kTileM x kSubTile
    uint32_t l0_buffers, l0c_buffers;
    uint32_t direct;                  // 1: S and PV go to UB, P to L1; 0: all three through the workspace
    uint32_t resident;                // 1: O of a vector core's 64 rows stays in UB; 0: it is kept in the workspace
    uint32_t vector_rows;             // rows of a slice of vector work
    uint32_t vector_buffers;          // buffers of each queued slice
    uint32_t ring;                    // steps of S, P and PV in the workspace of a block: QK runs two ahead

    uint32_t items, combines;
    uint32_t blocks;       // AIC groups launched; block b takes items snake_item(round, b, blocks) of the sorted table
    uint32_t slots, slot_rows;  // chunk states: slots x slot_rows rows
    uint32_t reserved;
    uint64_t workspace;    // bytes
};

// New keys and values into a paged cache: rows (token, head) of two tensors, `side` 0 keys and 1 values.
struct LdStoreKvPlan {
    int64_t token[2], head[2];                            // strides of the rows in elements; the last one is 1
    int64_t cache_block[2], cache_row[2], cache_head[2];  // strides of the caches
    uint32_t dtype;                                       // of a size; values aren't touched
    uint32_t tokens, heads, dim[2], block_size;
    uint32_t blocks;                                      // vector cores
    uint32_t reserved;
};

namespace ld::plan {

constexpr uint32_t kStoreKvBytes = 80 * kKiB;  // UB of each of two buffers

// Half-open range; empty is {0, 0}.
struct KeyRange {
    uint32_t begin, end;
};

// Keys that some row of the tile sees. `tokens` query tokens are the last ones of a sequence of `keys` keys.
LD_PLAN_FN constexpr KeyRange visible_keys(const LdAttentionPlan& p, uint32_t tokens, uint32_t keys,
                                           uint32_t row_tile) {
    const uint64_t first = uint64_t(row_tile) * kTileM / p.group;
    const uint64_t last = least(uint64_t(tokens) * p.group, uint64_t(row_tile + 1) * kTileM) - 1;
    const int64_t shift = int64_t(keys) - tokens;
    const int64_t from = int64_t(first) + shift, to = int64_t(last / p.group) + shift;  // absolute positions
    int64_t end = keys;
    if (p.causal && to + 1 < end) end = to + 1 < 0 ? 0 : to + 1;
    int64_t begin = p.window > 0 && from + 1 > int64_t(p.window) ? from + 1 - p.window : 0;
    if (begin >= end) return {0, 0};
    return {uint32_t(begin), uint32_t(end)};
}

// Sub-tiles of `keys` that lie in chunks [first, first + count).
LD_PLAN_FN constexpr uint32_t sub_tiles(KeyRange keys, uint32_t first, uint32_t count) {
    const uint64_t begin = most(keys.begin, uint64_t(first) * kChunk);
    const uint64_t end = least(keys.end, uint64_t(first + count) * kChunk);
    return begin < end ? uint32_t(ceil_div(end, kSubTile) - begin / kSubTile) : 0;
}

LD_PLAN_FN constexpr uint32_t row_tiles(const LdAttentionPlan& p, uint32_t tokens) {
    return uint32_t(ceil_div(uint64_t(tokens) * p.group, kTileM));
}

// --- budgets

constexpr uint32_t kExpScratchBytes = 16 * kKiB;  // temporaries of exp1, which works in parts of 1024 elements
constexpr uint32_t kStateBytes = 8 * kKiB;        // m, l, factors of 64 rows, as scalars and as data blocks; masks

// Of the forward pass: exp1's temporaries, then m, l, factors and sums of 64 rows as vectors and as data blocks, and the
// running lanes of R64 of a slice's rows.
LD_PLAN_FN constexpr uint64_t softmax_bytes(uint64_t rows) { return (13 + 16) * kKiB + rows * kLanes * 4; }

LD_PLAN_FN constexpr uint64_t attention_ub_bytes(const LdAttentionPlan& p) {
    const uint64_t size = element_bytes(p.dtype), rows = p.vector_rows, buffers = p.vector_buffers;
    const uint64_t scores = p.direct ? kVectorTileRows * kStep * 4 : buffers * rows * kStep * 4;
    const uint64_t weights = buffers * rows * kStep * size;
    const uint64_t pv = p.direct ? uint64_t(kVectorTileRows) * p.pv_n * 4 : buffers * rows * p.dim_v * 4;
    const uint64_t o = p.resident ? uint64_t(kVectorTileRows) * p.dim_v * 4 : buffers * rows * p.dim_v * 4;
    return scores + weights + pv + o + rows * p.dim_v * size + softmax_bytes(rows);
}

LD_PLAN_FN constexpr uint64_t attention_l1_bytes(const LdAttentionPlan& p) {
    const uint64_t kv = uint64_t(kSubTile) * most(p.dim, p.pv_n), q = uint64_t(kTileM) * p.dim;
    return (p.q_buffers * q + p.kv_buffers * kv + uint64_t(p.p_buffers) * kTileM * kSubTile) * element_bytes(p.dtype);
}

LD_PLAN_FN constexpr Usage attention_usage(const LdAttentionPlan& p) {
    const uint64_t qk = uint64_t(kSubTile) * p.qk_k, pv = uint64_t(p.pv_n) * p.pv_k;
    Usage used{};
    used.ub = attention_ub_bytes(p);
    used.l1 = attention_l1_bytes(p);
    used.l0a = uint64_t(p.l0_buffers) * kTileM * most(p.qk_k, p.pv_k) * element_bytes(p.dtype);
    used.l0b = p.l0_buffers * most(qk, pv) * element_bytes(p.dtype);
    used.l0c = uint64_t(p.l0c_buffers) * kTileM * kTileN * 4;
    return used;
}

// Slices of rows: the largest that fit, with O resident if that leaves slices of at least 8 rows.
LD_PLAN_FN constexpr bool fit_vector(LdAttentionPlan& p, uint32_t arch) {
    const uint64_t limit = capacity(arch).ub;
    for (uint32_t resident = 2; resident-- > 0;)
        for (uint32_t rows = 32; rows >= 8; rows /= 2)
            for (uint32_t buffers = 2; buffers > (p.direct ? 0u : 1u); --buffers) {
                p.resident = resident;
                p.vector_rows = rows;
                p.vector_buffers = buffers;
                if (attention_ub_bytes(p) <= limit) return true;
            }
    return false;
}

// L1 buffers: at least one Q, two K/V and one P; then more while they fit: P 2, K/V 4, P 4, Q 2. More than
// these would need more than the eight event ids of a pair of pipes.
LD_PLAN_FN constexpr bool fit_l1(LdAttentionPlan& p) {
    const uint32_t choices[5][3] = {{1, 2, 1}, {1, 2, 2}, {1, 4, 2}, {1, 4, 4}, {2, 4, 4}};
    for (uint32_t i = 5; i-- > 0;) {
        p.q_buffers = choices[i][0];
        p.kv_buffers = choices[i][1];
        p.p_buffers = choices[i][2];
        if (attention_l1_bytes(p) <= capacity(kArch2201).l1) return true;
    }
    return false;
}

LD_PLAN_FN constexpr int32_t plan_attention(LdAttentionPlan& p) {
    const uint32_t size = element_bytes(p.dtype);
    if (size == 0) return kPlanDType;
    if (!known_arch(p.arch) || p.cores == 0) return kPlanArgument;
    if (p.heads == 0 || p.kv_heads == 0 || p.heads % p.kv_heads != 0) return kPlanShape;
    if (p.dim == 0 || p.dim_v == 0 || p.dim % kFractal != 0 || p.dim_v % kFractal != 0) return kPlanShape;
    p.group = p.heads / p.kv_heads;
    p.qk_k = uint32_t(least(p.dim, mmad_k(p.dtype)));
    p.pv_n = even_tile(p.dim_v, kTileN);
    p.pv_k = mmad_k(p.dtype);
    p.l0_buffers = 2;
    p.l0c_buffers = 2;
    p.ring = 3;
    if (!fit_l1(p)) return kPlanCapacity;
    p.direct = p.allow_direct && has_direct_path(p.arch);
    if (p.direct && !(fit_vector(p, p.arch) && p.resident)) p.direct = 0;
    // Through the workspace both architectures use the smaller UB's slices.
    if (!p.direct && !fit_vector(p, kArch2201)) return kPlanCapacity;
    return kPlanOk;
}

// --- workspace: per block [ring]{S, P, PV}, the O of an item's chunks so far, and the O of the chunk under way if it
// isn't resident; then the chunk states of all blocks

LD_PLAN_FN constexpr uint64_t score_bytes() { return uint64_t(kTileM) * kStep * 4; }
LD_PLAN_FN constexpr uint64_t weight_bytes(const LdAttentionPlan& p) {
    return uint64_t(kTileM) * kStep * element_bytes(p.dtype);
}
LD_PLAN_FN constexpr uint64_t pv_bytes(const LdAttentionPlan& p) { return uint64_t(kTileM) * p.dim_v * 4; }
LD_PLAN_FN constexpr uint64_t ring_bytes(const LdAttentionPlan& p) {
    return p.direct ? 0 : score_bytes() + weight_bytes(p) + pv_bytes(p);
}
LD_PLAN_FN constexpr uint64_t block_bytes(const LdAttentionPlan& p) {
    return p.ring * ring_bytes(p) + (p.resident ? 1 : 2) * pv_bytes(p);
}
LD_PLAN_FN constexpr uint64_t score_offset(const LdAttentionPlan& p, uint32_t block, uint32_t entry) {
    return block * block_bytes(p) + entry * ring_bytes(p);
}
LD_PLAN_FN constexpr uint64_t weight_offset(const LdAttentionPlan& p, uint32_t block, uint32_t entry) {
    return score_offset(p, block, entry) + score_bytes();
}
LD_PLAN_FN constexpr uint64_t pv_offset(const LdAttentionPlan& p, uint32_t block, uint32_t entry) {
    return weight_offset(p, block, entry) + weight_bytes(p);
}
LD_PLAN_FN constexpr uint64_t total_offset(const LdAttentionPlan& p, uint32_t block) {
    return block * block_bytes(p) + p.ring * ring_bytes(p);
}
LD_PLAN_FN constexpr uint64_t o_offset(const LdAttentionPlan& p, uint32_t block) {
    return total_offset(p, block) + pv_bytes(p);
}
// Chunk states: O [slots][slot_rows][dim_v], then m [slots][slot_rows], then l [slots][slot_rows], all fp32.
LD_PLAN_FN constexpr uint64_t state_o_offset(const LdAttentionPlan& p, uint32_t slot) {
    return p.blocks * block_bytes(p) + uint64_t(slot) * p.slot_rows * p.dim_v * 4;
}
LD_PLAN_FN constexpr uint64_t state_m_offset(const LdAttentionPlan& p, uint32_t slot) {
    return state_o_offset(p, p.slots) + uint64_t(slot) * p.slot_rows * 4;
}
LD_PLAN_FN constexpr uint64_t state_l_offset(const LdAttentionPlan& p, uint32_t slot) {
    return state_m_offset(p, p.slots) + uint64_t(slot) * p.slot_rows * 4;
}
LD_PLAN_FN constexpr uint64_t attention_workspace(const LdAttentionPlan& p) { return state_l_offset(p, p.slots); }

}  // namespace ld::plan
