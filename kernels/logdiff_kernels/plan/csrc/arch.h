// Capacities of the cores of each architecture, and the words that every plan shares.
//
// Kernels include "kernel_operator.h" before any plan header, so that the functions here become device functions there.
// Rule for every struct that is passed to a kernel: plain data, 8-byte fields before 4-byte fields, no padding (end
// with `reserved` where needed), first field `dtype` among the 4-byte ones. A field that is added here is added to the
// ctypes mirror of the same name too; tests/kernels/plan compares names, offsets and sizes.
#pragma once

#include <cstdint>

#ifdef __aicore__
#define LD_PLAN_FN __aicore__ inline
#else
#define LD_PLAN_FN inline
#endif

namespace ld::plan {

enum Arch : uint32_t { kArch2201 = 2201, kArch3510 = 3510 };

enum DType : uint32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2, kNoDType = 255 };

enum PlanStatus : int32_t {
    kPlanOk = 0,
    kPlanDType = -1,     // a dtype that the kernel doesn't know
    kPlanShape = -2,     // a shape that the kernel doesn't take
    kPlanArgument = -3,  // an argument that the kernel doesn't take
    kPlanCapacity = -6,  // the tiles of this dtype and head size don't fit on the core
};

constexpr uint32_t kKiB = 1024;
constexpr uint32_t kLanes = 64;        // fp32 lanes of one vector repeat, and running lanes of R64
constexpr uint32_t kBlockBytes = 32;   // a data block: granule and alignment of UB and L1
constexpr uint32_t kFractal = 16;      // rows and columns of a cube fractal
constexpr uint32_t kTileM = 128;       // m of every Mmad (contract, G6)
constexpr uint32_t kTileN = 128;       // n of every Mmad whose output is that wide
constexpr uint32_t kStep = 512;        // keys of an attention step, tokens of a weight gradient's block
constexpr uint32_t kChunk = 4096;      // keys of an attention chunk
constexpr uint32_t kChunkSteps = kChunk / kStep;
constexpr uint32_t kVectors = 2;       // vector cores beside each cube core in the kernels of this project

// Bytes in each memory of a core: what a kernel takes, or may take after what the compiler and the runtime keep.
struct Usage {
    uint64_t ub, l1, l0a, l0b, l0c, bias, fixpipe;
};

LD_PLAN_FN constexpr bool known_arch(uint32_t arch) { return arch == kArch2201 || arch == kArch3510; }

LD_PLAN_FN constexpr Usage capacity(uint32_t arch) {
    return arch == kArch3510
               ? Usage{248 * kKiB, 512 * kKiB, 64 * kKiB, 64 * kKiB, 256 * kKiB, 4 * kKiB, 4 * kKiB}
               : Usage{184 * kKiB - 256, 512 * kKiB - 256, 64 * kKiB, 64 * kKiB, 128 * kKiB, 1 * kKiB, 2 * kKiB};
}

// Whether L0C can be written straight to UB and UB to L1; otherwise cube and vector cores meet in GM.
LD_PLAN_FN constexpr bool has_direct_path(uint32_t arch) { return arch == kArch3510; }

// Cube cores of a chip where the runtime can't be asked: 910B1/B2 have 24 (B3/B4 20). For 3510 it is an assumption.
LD_PLAN_FN constexpr uint32_t default_cores(uint32_t arch) { return known_arch(arch) ? 24 : 0; }

LD_PLAN_FN constexpr uint32_t element_bytes(uint32_t dtype) {
    return dtype == kFloat32 ? 4 : dtype == kBFloat16 || dtype == kFloat16 ? 2 : 0;
}

LD_PLAN_FN constexpr bool fits(const Usage& used, uint32_t arch) {
    const Usage limit = capacity(arch);
    return used.ub <= limit.ub && used.l1 <= limit.l1 && used.l0a <= limit.l0a && used.l0b <= limit.l0b &&
           used.l0c <= limit.l0c && used.bias <= limit.bias && used.fixpipe <= limit.fixpipe;
}

LD_PLAN_FN constexpr uint64_t ceil_div(uint64_t a, uint64_t b) { return (a + b - 1) / b; }
LD_PLAN_FN constexpr uint64_t round_up(uint64_t a, uint64_t b) { return ceil_div(a, b) * b; }
LD_PLAN_FN constexpr uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
LD_PLAN_FN constexpr uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

// k of one Mmad: 128 elements of 2 bytes or 64 of 4, so that two operand tiles of 128 rows fit in L0A and in L0B.
LD_PLAN_FN constexpr uint32_t mmad_k(uint32_t dtype) { return dtype == kFloat32 ? 64 : 128; }

// The largest multiple of 16 up to `most_elements` that divides `length` rounded up to 16: one tile size, no tail.
LD_PLAN_FN constexpr uint32_t even_tile(uint32_t length, uint32_t most_elements) {
    const uint32_t whole = uint32_t(round_up(length, kFractal));
    uint32_t tile = uint32_t(least(whole, most_elements / kFractal * kFractal));
    while (tile > kFractal && whole % tile != 0) tile -= kFractal;
    return tile;
}

// Items [begin, end) of `count` that block `index` of `blocks` takes when each block takes a contiguous part.
struct Range {
    uint32_t begin, end;
};

LD_PLAN_FN constexpr Range contiguous_part(uint32_t count, uint32_t index, uint32_t blocks) {
    return {uint32_t(uint64_t(count) * index / blocks), uint32_t(uint64_t(count) * (index + 1) / blocks)};
}

// Boustrophedon over blocks: in even rounds block b takes item round*blocks + b, in odd rounds the blocks go backwards.
// Items sorted by falling cost are then shared evenly. The item may lie past the end of the list.
LD_PLAN_FN constexpr uint32_t snake_item(uint32_t round, uint32_t block, uint32_t blocks) {
    return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

}  // namespace ld::plan
