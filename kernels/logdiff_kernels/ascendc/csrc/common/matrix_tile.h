// Products of one output tile on a cube core.
//
//     C[m, n] = sum over k of A(m, k) B(n, k)        k ascending from +0 in one fp32 accumulator
//
// Two layers, and a third one in matrix_product.h; a kernel takes the one that it needs.
//
//   functions      load_l1      GM, row-major -> L1, NZ; what the tile lacks is +0          MTE2
//                  load_l0      L1 -> L0A or L0B, transposed where k is the row index       MTE1
//                  multiply_l0  one Mmad, m = 128                                           M
//                  store_l0c    L0C -> GM, row-major, fp32 or one cast (nearest even)       FIX
//   CubeCore<T>    L0A, L0B and L0C, two buffers each, and their events: operands that already lie in L1
//   MatrixTile<T>  CubeCore and slabs of A and of B in L1: operands in GM, k of any length
//
// An operand is a matrix in GM in one of two forms. k minor: element (i, k) lies at gm[i * stride + k] (x and W of
// x W^T; Q and K of Q K^T). k major: at gm[k * stride + i] (W of dy W; both of dy^T x; V of P V). Transposition happens
// on the way from L1 to L0, which 16-bit types allow for both operands on both architectures; fp32 operands have to be
// k minor.
//
// Every Mmad has m = 128 and k = mmad_k(dtype), except the last one of a length of k; n is 128 or, where the output is
// narrower (PV of small heads), that width rounded up to 16. Rows that don't exist are +0 in L1, so no Mmad reads what
// an earlier tile or kernel left there, and k that doesn't exist is left out by Mmad's own k.
//
// Events, all with ids 0 and 1 for the two buffers: M_MTE1 (L0 free), MTE1_M (L0 filled), FIX_M (accumulator free),
// M_FIX (accumulator finished). What overlaps: MTE1 of the next k with the Mmad of this one; Fixpipe of a tile with the
// Mmads of the next.
#pragma once

#include <type_traits>

#include "common/reset.h"
#include "plan/csrc/arch.h"

namespace ld {

constexpr uint32_t kTile = plan::kTileM;         // m of every Mmad, most n
constexpr uint32_t kFractalRows = plan::kFractal;
constexpr uint32_t kMostGmStride = 65535;        // elements between rows that Nd2Nz can step over
constexpr uint32_t kAccumulatorBytes = kTile * kTile * sizeof(float);

template <typename T>
constexpr uint32_t kBlock = plan::kBlockBytes / sizeof(T);  // elements of a data block: columns of a fractal in L1
template <typename T>
constexpr uint32_t kFractalElements = kFractalRows * kBlock<T>;
template <typename T>
constexpr uint32_t kMmadK = sizeof(T) == 4 ? plan::mmad_k(plan::kFloat32) : plan::mmad_k(plan::kBFloat16);

// One operand of one tile in GM, beginning at its first row and first k.
template <typename T>
struct MatrixOperand {
    GlobalTensor<T> gm;
    int64_t stride;   // elements between rows of memory: between i if k is minor, between k if it is major
    uint32_t extent;  // i that exist, 1 to rows
    uint32_t rows;    // i of the tile, a multiple of 16 up to 128
    bool k_major;
};

// An operand in L1. NZ: column blocks of `height` rows with kBlock<T> elements each, one behind the other; height is
// `rows` (then column blocks run over k) or, with k major, `depth` (then they run over i).
template <typename T>
struct MatrixSlab {
    LocalTensor<T> data;  // rows * depth elements
    uint32_t rows;
    uint32_t depth;  // k of the slab, a multiple of 16
    bool k_major;
    // From this i on (rounded up to kBlock if k is major) the slab is known to be +0; `rows` when nothing is known.
    uint32_t zero_from;

    LD_FN void shape(uint32_t rows_now, bool k_major_now) {
        if (rows == rows_now && k_major == k_major_now) return;
        rows = rows_now;
        k_major = k_major_now;
        zero_from = rows_now;
    }
};

// Rows [first, last) of `blocks` column blocks become +0. MTE2.
template <typename T>
LD_FN void zero_l1(const LocalTensor<T>& l1, uint32_t first, uint32_t last, uint32_t blocks,
                               uint32_t height) {
    using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
    if (first >= last || blocks == 0) return;
    InitConstValueParams<Bits> params;
    params.repeatTimes = blocks;
    params.blockNum = last - first;
    params.dstGap = height - (last - first);
    params.initValue = 0;
    InitConstValue(l1[first * kBlock<T>].template ReinterpretCast<Bits>(), params);
}

// `rows` x `columns` of row-major GM into column blocks of `height` rows, from row 0 of `l1` on. Columns that the last
// block lacks become +0. MTE2.
template <typename T>
LD_FN void copy_nz(const LocalTensor<T>& l1, const GlobalTensor<T>& gm, int64_t stride,
                               uint32_t rows, uint32_t columns, uint32_t height) {
    const bool steps = stride >= 1 && stride <= int64_t(kMostGmStride);
    Nd2NzParams params;
    params.ndNum = 1;
    params.nValue = steps ? rows : 1;
    params.dValue = columns;
    params.srcNdMatrixStride = 0;
    params.srcDValue = steps ? stride : columns;
    params.dstNzC0Stride = height;
    params.dstNzNStride = 1;
    params.dstNzMatrixStride = 0;
    const uint32_t calls = steps ? 1 : rows;
    for (uint32_t row = 0; row < calls; ++row) DataCopy(l1[row * kBlock<T>], gm[row * stride], params);
}

// k of [first, first + count) of an operand into a slab that has its shape. MTE2.
template <typename T>
LD_FN void load_l1(MatrixSlab<T>& slab, const MatrixOperand<T>& operand, uint32_t first, uint32_t count) {
    slab.shape(operand.rows, operand.k_major);
    if (!operand.k_major) {
        copy_nz(slab.data, operand.gm[first], operand.stride, operand.extent, count, slab.rows);
        zero_l1(slab.data, operand.extent, slab.zero_from, slab.depth / kBlock<T>, slab.rows);
        slab.zero_from = operand.extent;
        return;
    }
    copy_nz(slab.data, operand.gm[first * operand.stride], operand.stride, count, operand.extent, slab.depth);
    const uint32_t blocks = uint32_t(plan::ceil_div(operand.extent, kBlock<T>));
    zero_l1(slab.data, count, uint32_t(plan::round_up(count, kFractalRows)), blocks, slab.depth);
    if (blocks * kBlock<T> < slab.zero_from)
        zero_l1(slab.data[blocks * kBlock<T> * slab.depth], 0, slab.depth,
                uint32_t(plan::ceil_div(slab.zero_from, kBlock<T>)) - blocks, slab.depth);
    slab.zero_from = blocks * kBlock<T>;
}

// k of [first, first + count) of a slab into L0A (`left`) or L0B. `first` is a multiple of mmad_k. MTE1.
//
// L0B is Zn: fractals k by k, within k by n. L0A is Zz on 2201 (m by m, within m by k) and Nz on 3510 (as L0B).
template <typename T, bool left>
LD_FN void load_l0(const LocalTensor<T>& l0, const MatrixSlab<T>& slab, uint32_t first,
                               uint32_t count) {
    const uint32_t row_fractals = slab.rows / kFractalRows;
    const uint32_t k_fractals = uint32_t(plan::ceil_div(count, kBlock<T>));
#if __NPU_ARCH__ == 3510
    LoadData2DParamsV2 params;
    params.mStartPosition = slab.k_major ? first / kFractalRows : 0;
    params.kStartPosition = slab.k_major ? 0 : first / kBlock<T>;
    params.mStep = slab.k_major ? k_fractals : row_fractals;
    params.kStep = slab.k_major ? row_fractals : k_fractals;
    params.srcStride = slab.k_major ? slab.depth / kFractalRows : row_fractals;
    params.dstStride = row_fractals;
    params.ifTranspose = slab.k_major;
    LoadData(l0, slab.data, params);
#else
    constexpr uint32_t fractal = kFractalElements<T>;
    LoadData2DParams params;
    params.startIndex = 0;
    params.sid = 0;
    params.dstGap = 0;
    params.addrMode = 0;
    params.ifTranspose = slab.k_major;
    if (slab.k_major) {
        const uint32_t column = slab.depth / kFractalRows;  // fractals of one column block
        const uint32_t start = first / kFractalRows;
        params.repeatTimes = left ? k_fractals : row_fractals;
        params.srcStride = left ? 1 : column;
        const uint32_t calls = left ? row_fractals : k_fractals;
        for (uint32_t i = 0; i < calls; ++i)
            LoadData(l0[i * (left ? k_fractals : row_fractals) * fractal],
                              slab.data[(start + (left ? i * column : i)) * fractal], params);
        return;
    }
    const uint32_t start = first / kBlock<T> * row_fractals;
    if (!left) {
        params.repeatTimes = k_fractals * row_fractals;
        params.srcStride = 1;
        LoadData(l0, slab.data[start * fractal], params);
        return;
    }
    params.repeatTimes = k_fractals;
    params.srcStride = row_fractals;
    for (uint32_t i = 0; i < row_fractals; ++i)
        LoadData(l0[i * k_fractals * fractal], slab.data[(start + i) * fractal], params);
#endif
}

// accumulator = (first ? +0 : accumulator) + A B. M.
template <typename T>
LD_FN void multiply_l0(const LocalTensor<float>& accumulator, const LocalTensor<T>& l0a,
                                   const LocalTensor<T>& l0b, uint32_t n, uint32_t k, bool first,
                                   uint32_t m = kTile) {
    MmadParams params;
    params.m = m;
    params.n = n;
    params.k = k;
    params.unitFlag = 0;
    params.cmatrixSource = false;
    params.cmatrixInitVal = first;
    Mmad(accumulator, l0a, l0b, params);
    // Below ten fractals the hardware does not order two Mmads into one accumulator by itself.
    if (m / kFractalRows * (n / kFractalRows) < 10) PipeBarrier<PIPE_M>();
}

// rows x columns of an accumulator of `height` rows to row-major GM; `stride` elements between rows. FIX.
template <typename Out>
LD_FN void store_l0c(const GlobalTensor<Out>& gm, const LocalTensor<float>& accumulator,
                                 uint32_t stride, uint32_t rows, uint32_t columns, uint32_t height = kTile) {
#if __NPU_ARCH__ == 3510
    FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> params;
    params.params.ndNum = 1;
    params.params.srcNdStride = 0;
    params.params.dstNdStride = 0;
#else
    FixpipeParamsV220 params;
    params.ndNum = 1;
    params.srcNdStride = 0;
    params.dstNdStride = 0;
#endif
    params.nSize = columns;
    params.mSize = rows;
    params.srcStride = height;
    params.dstStride = stride;
    params.unitFlag = 0;
    params.reluEn = false;
    params.quantPre = std::is_same_v<Out, bfloat16_t> ? QuantMode_t::F322BF16
                      : std::is_same_v<Out, half>     ? QuantMode_t::F322F16
                                                      : QuantMode_t::NoQuant;
    Fixpipe<Out, float, CFG_ROW_MAJOR>(gm, accumulator, params);
}

// L0A, L0B and L0C of a core, two buffers each.
//
//     cube.init(pipe);  cube.start();
//     per tile:  cube.open();  cube.multiply(a, b, 0, k) for slabs that MTE1 may read, k ascending;  cube.close();
//                cube.store(gm, stride, rows, columns) once or more;  cube.release();
//     cube.finish();
template <typename T>
class CubeCore {
public:
    LD_FN void init(TPipe& pipe) {
        constexpr uint32_t operand = kTile * kMmadK<T> * sizeof(T);
        pipe.InitBuffer(l0a_, 2 * operand);
        pipe.InitBuffer(l0b_, 2 * operand);
        pipe.InitBuffer(l0c_, 2 * kAccumulatorBytes);
        for (uint32_t i = 0; i < 2; ++i) {
            left_[i] = l0a_.template GetWithOffset<T>(kTile * kMmadK<T>, i * operand);
            right_[i] = l0b_.template GetWithOffset<T>(kTile * kMmadK<T>, i * operand);
            accumulator_[i] = l0c_.template GetWithOffset<float>(kTile * kTile, i * kAccumulatorBytes);
        }
    }

    // All buffers are free: before the first tile.
    LD_FN void start() {
        for (int32_t i = 0; i < 2; ++i) {
            SetFlag<HardEvent::M_MTE1>(i);
            SetFlag<HardEvent::FIX_M>(i);
        }
    }

    // Waits for all of it: after the last tile.
    LD_FN void finish() {
        for (int32_t i = 0; i < 2; ++i) {
            WaitFlag<HardEvent::M_MTE1>(i);
            WaitFlag<HardEvent::FIX_M>(i);
        }
    }

    // Begin a tile in the next accumulator.
    LD_FN void open() {
        WaitFlag<HardEvent::FIX_M>(tile_);
        first_ = true;
    }

    // Add k of [first, first + count) of both slabs; `first` is a multiple of mmad_k, count at least 1.
    LD_FN void multiply(const MatrixSlab<T>& a, const MatrixSlab<T>& b, uint32_t first, uint32_t count) {
        for (uint32_t k = 0; k < count; k += kMmadK<T>) {
            const uint32_t part = uint32_t(plan::least(kMmadK<T>, count - k));
            WaitFlag<HardEvent::M_MTE1>(turn_);
            load_l0<T, true>(left_[turn_], a, first + k, part);
            load_l0<T, false>(right_[turn_], b, first + k, part);
            SetFlag<HardEvent::MTE1_M>(turn_);
            WaitFlag<HardEvent::MTE1_M>(turn_);
            multiply_l0(accumulator_[tile_], left_[turn_], right_[turn_], b.rows, part, first_);
            SetFlag<HardEvent::M_MTE1>(turn_);
            turn_ = 1 - turn_;
            first_ = false;
        }
    }

    // Two tiles that grow side by side: which accumulator open() and all others mean until release().
    LD_FN void choose(uint32_t accumulator) { tile_ = int32_t(accumulator); }

    // Go on with a tile that was opened before.
    LD_FN void resume() { first_ = false; }

    // The tile's sum is complete: Fixpipe may read it.
    LD_FN void close() {
        SetFlag<HardEvent::M_FIX>(tile_);
        WaitFlag<HardEvent::M_FIX>(tile_);
    }

    template <typename Out>
    LD_FN void store(const GlobalTensor<Out>& gm, uint32_t stride, uint32_t rows,
                                 uint32_t columns) {
        store_l0c(gm, accumulator_[tile_], stride, rows, columns);
    }

    LD_FN const LocalTensor<float>& accumulator() const { return accumulator_[tile_]; }

    // Fixpipe has taken all that it needs of this tile.
    LD_FN void release() {
        SetFlag<HardEvent::FIX_M>(tile_);
        tile_ = 1 - tile_;
    }

private:
    TBuf<TPosition::A2> l0a_;
    TBuf<TPosition::B2> l0b_;
    TBuf<TPosition::CO1> l0c_;
    LocalTensor<T> left_[2], right_[2];
    LocalTensor<float> accumulator_[2];
    int32_t turn_ = 0;  // buffer of L0A and L0B
    int32_t tile_ = 0;  // accumulator
    bool first_ = true;
};

}  // namespace ld
