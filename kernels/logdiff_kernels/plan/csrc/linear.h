// Plans of the matrix products: linear, linear_row, grouped linear, and the gradients of linear.
//
// C[m, n] = sum over k of A(m, k) B(n, k), per piece of k ascending in one fp32 accumulator from +0. Every Mmad is
// (kTileM, kTileN, mmad_k(dtype)), except that the tail of a piece of k may be shorter: it depends on the length of k
// alone. Output tiles are whole: no core ever shares a tile's k with another one.
#pragma once

#include "arch.h"

namespace ld::plan {

enum LinearPieces : uint32_t {
    kOnePiece = 0,  // linear, dx
    kLeaves = 1,    // linear_row: `pieces` equal leaves, combined by the balanced tree T(pieces)
    kBlocks = 2,    // dw: blocks of 512 of k (tokens), the last one shorter; ((p0 + p1) + p2) + ...
};

enum LinearGroups : uint32_t {
    kNoGroups = 0,
    kGroupedRows = 1,  // offsets [groups + 1] cut m; B and bias have a leading dimension of groups
    kGroupedK = 2,     // offsets cut k (dw of grouped linear); C has a leading dimension of groups
};

constexpr uint32_t kMostLeaves = 8;
constexpr uint32_t kStripe = 8;  // m tiles of a stripe: neighbouring cores share rows of A and of B in L2

}  // namespace ld::plan

// The caller fills the first part; ld::plan::plan_linear fills the second.
struct LdLinearPlan {
    int64_t a_m, a_k;      // strides of A in elements; one of them is 1
    int64_t b_n, b_k;      // strides of B; one of them is 1
    int64_t c_m;           // stride of C; its n is dense
    int64_t b_group, c_group;
    uint32_t dtype;        // of A and B
    uint32_t out_dtype, bias_dtype;  // bias_dtype kNoDType: no bias
    uint32_t m, n, k;      // of the whole call; with kGroupedRows m, with kGroupedK k is the sum over groups
    uint32_t kind;         // LinearPieces
    uint32_t leaves;       // kLeaves: leaves to combine here (8, 4, 2, 1; a rank's share under tensor parallelism)
    uint32_t grouping, groups;  // LinearGroups
    uint32_t cores;        // cube cores of the device

    uint32_t blocks;       // AIC groups that are launched
    uint32_t tiles_m, tiles_n;  // output tiles, kTileM x tile_n; tiles_m is 0 with kGroupedRows (offsets say)
    uint32_t tile_k;       // k of one Mmad
    uint32_t l1_k;         // k of one L1 buffer, a multiple of tile_k
    uint32_t l1_buffers;   // L1 buffers of A, and as many of B
    uint32_t l0_buffers;   // of L0A and of L0B
    uint32_t l0c_buffers;
    uint32_t mix;          // 1: vector cores finish the tile (bias, tree or blocks); 0: Fixpipe casts and writes C
    uint32_t ring;         // mix: fp32 tiles in the workspace of one block
    uint32_t tile_n;       // kTileN, or twice that: two accumulators side by side that share A's slabs
    uint64_t workspace;    // bytes: blocks * ring tiles of kTileM * kTileN fp32
};

namespace ld::plan {

// The number of leaves that linear_row cuts K into: the largest of 8, 4, 2, 1 whose 16-fold divides K, or 1.
LD_PLAN_FN constexpr uint32_t row_leaves(uint32_t k) {
    uint32_t leaves = kMostLeaves;
    while (leaves > 1 && k % (16 * leaves) != 0) leaves /= 2;
    return leaves;
}

LD_PLAN_FN constexpr uint32_t linear_pieces(const LdLinearPlan& p, uint32_t k) {
    return p.kind == kLeaves ? p.leaves : p.kind == kBlocks ? uint32_t(most(1, ceil_div(k, kStep))) : 1;
}

// [begin, end) of piece `i` of a k of that length.
LD_PLAN_FN constexpr Range linear_piece(const LdLinearPlan& p, uint32_t k, uint32_t i) {
    if (p.kind == kLeaves) return {k / p.leaves * i, k / p.leaves * (i + 1)};
    if (p.kind == kBlocks) return {i * kStep, uint32_t(least(k, (i + 1) * kStep))};
    return {0, k};
}

// Rows of a slice when the two vector cores finish a tile: in UB are `partials` of them in fp32 and the output, both
// double-buffered, the sums of kBlocks, and the bias as it comes and in fp32.
constexpr uint32_t kLinearVectorRows = 16;

// Bias is added by the vector cores, after the last add, and no Fixpipe parameter tensor is needed: those buffers stay
// free.
LD_PLAN_FN constexpr Usage linear_usage(const LdLinearPlan& p) {
    const uint64_t size = element_bytes(p.dtype), slice = kLinearVectorRows * kTileN * 4;
    const uint64_t partials = p.kind == kLeaves ? p.leaves : 1;
    const uint64_t sums = p.kind == kBlocks ? uint64_t(kTileM / kVectors) * p.tile_n * 4 : 0;
    const uint64_t l0 = uint64_t(p.l0_buffers) * kTileM * p.tile_k * size;
    Usage used{};
    used.ub = p.mix ? 2 * partials * slice + sums + 2 * slice + 2 * kTileN * 4 : 0;
    used.l1 = uint64_t(p.l1_buffers) * (kTileM + p.tile_n) * p.l1_k * size;
    used.l0a = l0;
    used.l0b = l0;
    used.l0c = uint64_t(p.l0c_buffers) * kTileM * kTileN * 4;
    return used;
}

LD_PLAN_FN constexpr int32_t plan_linear(LdLinearPlan& p) {
    const uint32_t size = element_bytes(p.dtype);
    if (size == 0 || element_bytes(p.out_dtype) == 0) return kPlanDType;
    if (p.cores == 0 || p.kind > kBlocks || p.grouping > kGroupedK) return kPlanArgument;
    if (p.grouping != kNoGroups && p.groups == 0 && (p.m != 0 && p.k != 0)) return kPlanShape;
    if (p.kind == kLeaves && (p.leaves == 0 || p.leaves > kMostLeaves || p.k % p.leaves != 0)) return kPlanShape;
    p.tile_k = mmad_k(p.dtype);
    p.l1_k = 2 * p.tile_k;
    p.l1_buffers = 2;
    p.l0_buffers = 2;
    p.l0c_buffers = 2;
    p.tiles_m = p.grouping == kGroupedRows ? 0 : uint32_t(ceil_div(p.m, kTileM));
    // Of grouped rows at most one tile of each group is not full.
    const uint64_t rows = p.grouping == kGroupedRows ? ceil_div(p.m, kTileM) + p.groups : p.tiles_m;
    const uint64_t bands = rows * (p.grouping == kGroupedK ? p.groups : 1);
    const uint64_t narrow = bands * ceil_div(p.n, kTileN), wide = bands * ceil_div(p.n, 2 * kTileN);
    // Operand rows that the busiest core fetches, in units of 128: two for a narrow tile, three for a wide one.
    p.tile_n = p.n > kTileN && 3 * ceil_div(wide, p.cores) <= 2 * ceil_div(narrow, p.cores) ? 2 * kTileN : kTileN;
    p.tiles_n = uint32_t(ceil_div(p.n, p.tile_n));
    p.mix = (p.kind == kLeaves && p.leaves > 1) || p.kind == kBlocks || p.bias_dtype != kNoDType;
    p.ring = !p.mix ? 0 : p.kind == kLeaves ? 2 * p.leaves * (p.tile_n / kTileN) : 4;
    p.blocks = uint32_t(least(bands * p.tiles_n, p.cores));
    p.workspace = uint64_t(p.blocks) * p.ring * kTileM * kTileN * 4;
    return kPlanOk;
}

// Tiles of one group (or of the call) with `rows` rows of C.
LD_PLAN_FN constexpr uint32_t linear_tiles(const LdLinearPlan& p, uint32_t rows) {
    return uint32_t(ceil_div(rows, kTileM)) * p.tiles_n;
}

// Place of tile `index` among tiles_m x tiles_n. Stripes of kStripe m tiles, within a stripe n by n and m inside, so
// that the tiles which neighbouring blocks take at one time share operands. Block b takes the tiles b, b + blocks, ...
struct TilePlace {
    uint32_t m, n;
};

LD_PLAN_FN constexpr TilePlace linear_place(uint32_t index, uint32_t tiles_m, uint32_t tiles_n) {
    const uint32_t stripe = index / (kStripe * tiles_n);
    const uint32_t height = uint32_t(least(kStripe, tiles_m - stripe * kStripe));
    const uint32_t rest = index - stripe * kStripe * tiles_n;
    return {stripe * kStripe + rest % height, rest / height};
}

}  // namespace ld::plan
