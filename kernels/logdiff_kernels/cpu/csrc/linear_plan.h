// Where the sum over k is cut, and how the pieces are put together (numeric contract, `linear`, `linear_row`,
// weight gradients). Within a piece k ascends in one fused multiply-add accumulator that starts at +0.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ld::linear {

enum PlanKind : int32_t {
    kSingle = 0,  // one piece
    kTree = 1,    // `count` equal leaves, combined by the balanced tree T(count)
    kBlocks = 2,  // blocks of `count` indices, the last one shorter; ((p0 + p1) + p2) + ...
};

struct Plan {
    int32_t kind;
    int64_t count;

    int64_t pieces(int64_t k) const {
        if (kind == kTree) return count;
        if (kind == kBlocks) return std::max<int64_t>(1, (k + count - 1) / count);
        return 1;
    }
    int64_t begin(int64_t k, int64_t piece) const {
        if (kind == kTree) return k / count * piece;
        if (kind == kBlocks) return std::min(k, count * piece);
        return 0;
    }
    int64_t end(int64_t k, int64_t piece) const {
        return piece + 1 == pieces(k) ? k : begin(k, piece + 1);
    }
    // Partial results alive at once, besides the piece being summed.
    int levels(int64_t k) const {
        if (kind == kSingle) return 0;
        if (kind == kBlocks) return 1;
        int levels = 0;
        for (int64_t n = pieces(k); n > 1; n /= 2) ++levels;
        return levels;
    }
};

}  // namespace ld::linear
