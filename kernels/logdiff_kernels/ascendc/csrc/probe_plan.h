// Plans of the self-test's probes. The mirrors are in ascendc/probes.py; tests/kernels/build/test_npu_selftest_probes.py
// compares them.
#pragma once

#include "plan/csrc/arch.h"

namespace ld::probe {

// What probe_vector does with a and b, element by element. The numbers are those of probes.VectorOp.
enum VectorOp : uint32_t {
    kAdd = 0,
    kSub,
    kMul,
    kDiv,         // divide() of common/divide.h
    kMax,
    kMin,
    kAdds,
    kMuls,
    kMaxs,
    kMins,
    kAbs,
    kSqrt,        // square_root() of common/divide.h
    kExp,         // the instruction
    kLn,          // the instruction
    kExp1,        // exp1() of common/exp1.h, as this build has it
    kLn1,         // ln1() of the same
    kToBFloat16,  // narrow()
    kToFloat16,
    kFromBFloat16,  // widen()
    kFromFloat16,
    kRoundToInt,  // fp32 -> int32, nearest even
    kFromInt,     // int32 -> fp32, nearest even
    kFloor,       // fp32 -> fp32
    kEqual,       // 1 where a == b, else 0: Compare and Select
    kLess,
    kLessEqual,
    kGreater,
    kGreaterEqual,
    kNotEqual,
};

enum VectorForm : uint32_t { kCounted = 0, kRepeated = 1 };  // how an instruction is told its lanes

// What probe_reduce does with a row. The numbers are those of probes.ReduceOp.
enum ReduceOp : uint32_t {
    kPairReduceSum = 0,
    kBlockReduceSum,
    kWholeReduceSum,
    kReduceSumCounted,
    kReduceSumRepeated,
    kR64,    // RowSums of common/reduce.h
    kTree8,  // tree_add of common/reduce.h over 8 parts of 8 elements
    kWholeReduceMax,
};

constexpr uint32_t kTileElements = 2048;  // of a tile of probe_vector
constexpr uint32_t kReducePitch = 64;     // floats between the results of probe_reduce's rows

}  // namespace ld::probe

// a and b -> out, tiles of kTileElements.
struct LdVectorProbePlan {
    uint32_t dtype;  // kFloat32: the kernel's own; what it reads and writes follows from op
    uint32_t op, form, tiles;
    float scalar;    // of Adds, Muls, Maxs, Mins
    uint32_t reserved;
};

// x [rows, length] -> out [rows, kReducePitch], results first, +0 behind them.
struct LdReduceProbePlan {
    uint32_t dtype;
    uint32_t op, rows, length;
};

// c [tiles, m, n] = a [tiles, m, steps * k] times b [tiles, n, steps * k] transposed: `steps` Mmads of k into one
// accumulator.
struct LdMmadProbePlan {
    uint32_t dtype, out_dtype;
    uint32_t m;       // of Mmad, 2 to 128
    uint32_t n, k;    // multiples of 16; k up to mmad_k(dtype)
    uint32_t steps;
    uint32_t tiles;
    uint32_t buffer;  // which half of L0A, L0B and L0C
};
