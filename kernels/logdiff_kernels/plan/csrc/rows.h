// Plans of the kernels that work row by row on the vector cores.
//
// A row never depends on which core has it, so rows are shared out freely. What sits in UB at once depends on the
// kernel, the dtype and the length of a row alone.
#pragma once

#include "arch.h"

namespace ld::plan {

enum RowKernel : uint32_t {
    kRmsNorm = 0,      // also add_rms_norm
    kRmsNormBackward,  // dx
    kRope,
    kGlu,
    kGluBackward,
    kLogprob,          // a row is one leaf of one token
    kLogprobBackward,
    kRouter,
    kRouterBackward,
    kGather,           // rows of MoE's permute, and embedding
    kCombine,          // rows of MoE's combine
    kCombineBackward,
    kTreeCombine,      // partial results of linear_row across ranks
    kColumnSum,        // weight gradient of rms_norm and bias gradient: 512-row blocks, a row is a strip of columns
    kScaleCap,         // scale and soft cap of logits; a row is a run of them
    kRowKernels,
};

enum RowSplit : uint32_t { kContiguous = 0, kStrided = 1 };

// What one row element and one row need in UB. Queued tensors are double-buffered in the kernel's dtype; `floats` are
// fp32 work arrays of the tile's size; `row_bytes` is what every row of the tile needs beside (lanes of R64,
// statistics).
struct RowBuffers {
    uint32_t queued_in, queued_out, floats, row_bytes;
};

LD_PLAN_FN constexpr RowBuffers row_buffers(uint32_t kernel) {
    switch (kernel) {
        case kRmsNorm: return {3, 2, 3, 512};           // x, residual, weight -> y, new residual
        case kRmsNormBackward: return {4, 1, 4, 512};   // dy, x, weight, extra -> dx
        case kRope: return {1, 1, 10, 64};              // x -> y; cos, sin, factors and tables among the floats
        case kGlu: return {2, 1, 5, 64};                // gate, up -> y
        case kGluBackward: return {3, 2, 6, 64};        // dy, gate, up -> dgate, dup
        case kLogprob: return {1, 0, 0, 0};             // logits -> statistics, in slices of fixed size
        case kLogprobBackward: return {2, 1, 3, 256};   // logits, dout -> dlogits; also log_softmax
        case kRouter: return {1, 0, 9, 2560};           // logits -> weights and ids
        case kRouterBackward: return {1, 1, 4, 1024};
        case kGather: return {1, 1, 1, 64};             // rows in and out; fp32 only where they are scaled
        case kCombine: return {1, 1, 6, 512};           // also the embedding's gradient
        case kCombineBackward: return {2, 1, 4, 512};
        case kTreeCombine: return {0, 1, 18, 64};       // up to 8 partials in fp32, twice, and bias -> y
        case kColumnSum: return {2, 0, 4, 64};
        case kScaleCap: return {1, 1, 6, 64};           // fp32 logits -> logits
        default: return {0, 0, 0, 0};
    }
}

// Masks, constants and statistics of any row kernel, and the work memory of exp1 where it is needed.
LD_PLAN_FN constexpr uint32_t row_fixed_bytes(uint32_t kernel) {
    switch (kernel) {
        case kGlu: case kGluBackward: case kLogprobBackward: case kScaleCap: return 24 * kKiB;
        case kRouter: case kRouterBackward: return 76 * kKiB;  // slots of each token
        case kLogprob: return 30 * kKiB;
        default: return 8 * kKiB;
    }
}

// Elements; longer tiles gain nothing but where a row is then read once instead of twice.
LD_PLAN_FN constexpr uint32_t most_tile(uint32_t kernel) { return kernel == kLogprob ? 32 * 1024 : 8 * 1024; }

constexpr uint32_t kMostTileRows = 64;

// UB bytes of a tile of `rows` rows with `tile` elements each.
LD_PLAN_FN constexpr uint64_t row_ub_bytes(uint32_t kernel, uint32_t dtype, uint64_t tile, uint64_t rows) {
    const RowBuffers b = row_buffers(kernel);
    const uint64_t element = 2 * (b.queued_in + b.queued_out) * element_bytes(dtype) + 4 * b.floats;
    return rows * (tile * element + b.row_bytes) + row_fixed_bytes(kernel);
}

// Largest tile (elements, a multiple of 64) that fits with one row, at most most_tile. Both architectures use the
// smaller UB, so that a plan is the same on both.
LD_PLAN_FN constexpr uint32_t row_tile_limit(uint32_t kernel, uint32_t dtype) {
    uint32_t tile = most_tile(kernel);
    while (tile > kLanes && row_ub_bytes(kernel, dtype, tile, 1) > capacity(kArch2201).ub) tile -= kLanes;
    return tile;
}

}  // namespace ld::plan

// How the rows of one launch are cut. Filled by ld::plan::cut_rows.
struct LdRows {
    uint32_t rows;       // rows of the call
    uint32_t length;     // elements of a row
    uint32_t tile;       // elements of a row in UB at once, a multiple of 64; a row's last tile may be part padding
    uint32_t pieces;     // tiles of one row
    uint32_t tile_rows;  // most rows in UB at once; 1 if a row takes several tiles
    uint32_t blocks;     // vector cores that are launched; 0 if there is nothing to do
    uint32_t split;      // RowSplit
    uint32_t kernel;     // RowKernel
};

struct LdNormPlan {  // rms_norm, add_rms_norm and their backward
    int64_t x_stride, residual_stride, y_stride;  // elements between rows
    uint32_t dtype, weight_dtype;                 // weight_dtype kNoDType: no weight
    LdRows rows;
    float eps, offset;                            // the weight is offset + w
    uint32_t add;                                 // 1: residual is added first and returned
    uint32_t keep;                                // 1: rstd is written, fp32 [rows]
    uint32_t extra;                               // backward: 1 if `extra` is added to dx in fp32 before the cast
    uint32_t reserved;
};

struct LdRopePlan {  // x [tokens, heads, dim]; a row is one head of one token
    int64_t x_token, x_head, y_token, y_head;  // strides in elements
    uint32_t dtype, tokens, heads, dim, rotary;
    uint32_t interleaved, backward, reserved;
    LdRows rows;
};

struct LdGluPlan {  // act(gate) * up, and its backward
    int64_t gate_stride, up_stride, y_stride;
    uint32_t dtype, kind;       // kind as in the CPU backend: which activation
    float alpha, limit;
    uint32_t step, reserved;    // elements between neighbours of gate and of up: 1, or 2 when interleaved
    LdRows rows;
};

struct LdLogprobPlan {  // a row of `rows` is leaf (row % leaves) of token (row / leaves)
    int64_t stride;                              // elements between tokens of the logits
    uint32_t dtype, tokens, columns, vocabulary; // columns past `vocabulary` are -inf
    uint32_t leaves, leaf;                       // leaves here (8 without tensor parallelism) and columns of each
    uint32_t first_leaf, has_temperature, entropy;
    uint32_t mode;                               // kernel-defined: logprob, statistics, log_softmax, backward
    LdRows rows;
};

struct LdRouterPlan {
    uint32_t dtype, tokens, experts, top_k;
    uint32_t groups, top_groups, flags, has_bias;  // flags as in the CPU backend
    float renorm_eps, scaling;
    LdRows rows;
};

struct LdMoePlan {  // permute (gather), combine and its backward; also embedding
    int64_t x_stride, y_stride;
    uint32_t dtype, tokens, top_k, hidden;
    uint32_t source_rows, has_weights, other_dtype, has_logical;  // of the shared expert's rows or of the embedding's
    float scale;                                                  // gradient; embedding scale
    uint32_t has_scale;
    LdRows rows;
};

// Sums over rows in blocks of 512, a block from +0, blocks ascending; each strip of columns has one owner.
struct LdColumnSumPlan {
    int64_t a_stride, b_stride;
    uint32_t dtype, out_dtype, tokens, columns;
    uint32_t groups, mode;  // groups: ranges of tokens given by an offsets tensor (1: all tokens)
    LdRows rows;            // a row is a strip of columns: `rows.length` columns of one group
};

struct LdTreePlan {  // T(count) over partials [count, rows, n] fp32, + bias, one cast
    int64_t partial_stride, row_stride;
    uint32_t dtype, bias_dtype, count, reserved;
    LdRows rows;
};

struct LdScalePlan {  // z * scale, then cap * tanh1(z / cap), in place on `count` logits
    uint64_t count;
    uint32_t dtype;
    float scale, cap;  // skipped: a scale of 1, a cap of 0
    uint32_t reserved;
    LdRows rows;       // runs of `rows.length` logits, the last one shorter
};

namespace ld::plan {

// Fills `cut` for `rows` rows of `length` elements on at most `cores` vector cores.
LD_PLAN_FN constexpr void cut_rows(LdRows& cut, uint32_t kernel, uint32_t dtype, uint32_t rows, uint32_t length,
                                   uint32_t cores, uint32_t split) {
    const uint32_t limit = row_tile_limit(kernel, dtype);
    const uint32_t padded = uint32_t(round_up(most(length, 1), kLanes));
    cut.rows = rows;
    cut.length = length;
    cut.tile = uint32_t(least(padded, limit));
    cut.pieces = uint32_t(ceil_div(length, cut.tile));
    cut.tile_rows = 1;
    if (padded <= limit)
        while (cut.tile_rows < kMostTileRows &&
               row_ub_bytes(kernel, dtype, cut.tile, 2 * cut.tile_rows) <= capacity(kArch2201).ub)
            cut.tile_rows *= 2;
    cut.blocks = uint32_t(least(rows, cores));
    cut.split = split;
    cut.kernel = kernel;
}

// Rows that a block takes: first + i * stride for i in [0, count), tile_rows of them at a time.
struct RowWalk {
    uint32_t first, stride, count;
};

LD_PLAN_FN constexpr RowWalk row_walk(const LdRows& cut, uint32_t block) {
    if (block >= cut.blocks) return {0, 1, 0};
    if (cut.split == kStrided) return {block, cut.blocks, uint32_t(ceil_div(cut.rows - block, cut.blocks))};
    const Range part = contiguous_part(cut.rows, block, cut.blocks);
    return {part.begin, 1, part.end - part.begin};
}

}  // namespace ld::plan
