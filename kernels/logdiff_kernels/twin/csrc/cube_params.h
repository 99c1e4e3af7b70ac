// Parameter records of the cube's instructions.
#pragma once

#include "vector_params.h"

namespace AscendC {

// Fractals of 512 bytes: `repeatTimes` of them from number startIndex on, srcStride apart, dstGap between them in L0.
struct LoadData2DParams {
  LoadData2DParams() = default;
  LoadData2DParams(twin::Field<uint16_t> start, twin::RepeatTime repeats, twin::Field<uint16_t> stride, uint8_t id,
                   twin::Field<uint16_t> gap, bool transpose, uint8_t mode)
      : startIndex(start), dstGap(gap), srcStride(stride), ifTranspose(transpose), repeatTimes(repeats), sid(id),
        addrMode(mode) {}

  twin::Field<uint16_t> startIndex = 0, dstGap = 0, srcStride = 0;
  bool ifTranspose = false;
  twin::RepeatTime repeatTimes = 0;
  uint8_t sid = 0, addrMode = 0;
};

#if __NPU_ARCH__ == 3510
// A block of mStep x kStep fractals of an NZ matrix; the strides are fractals from column to column.
struct LoadData2DParamsV2 {
  LoadData2DParamsV2() = default;
  LoadData2DParamsV2(twin::Field<uint32_t> m_start, twin::Field<uint32_t> k_start,
                     twin::Field<uint16_t, twin::Check::repeat> m_step,
                     twin::Field<uint16_t, twin::Check::repeat> k_step, int32_t src_stride,
                     twin::Field<uint16_t> dst_stride, bool transpose, uint8_t id)
      : mStartPosition(m_start), kStartPosition(k_start), mStep(m_step), kStep(k_step), srcStride(src_stride),
        dstStride(dst_stride), ifTranspose(transpose), sid(id) {}

  twin::Field<uint32_t> mStartPosition = 0, kStartPosition = 0;
  twin::Field<uint16_t, twin::Check::repeat> mStep = 0, kStep = 0;
  int32_t srcStride = 0;
  twin::Field<uint16_t> dstStride = 0;
  bool ifTranspose = false;
  uint8_t sid = 0;
};
#else
// Squares of 16 x 16 elements: of two neighbouring fractals if elements have 32 bits.
struct LoadData2dTransposeParams {
  LoadData2dTransposeParams() = default;
  LoadData2dTransposeParams(twin::Field<uint16_t> start, twin::RepeatTime repeats, twin::Field<uint16_t> stride,
                            twin::Field<uint16_t> gap, twin::Field<uint16_t> fractal_gap, uint8_t mode)
      : startIndex(start), repeatTimes(repeats), srcStride(stride), dstGap(gap), dstFracGap(fractal_gap),
        addrMode(mode) {}

  twin::Field<uint16_t> startIndex = 0;
  twin::RepeatTime repeatTimes = 0;
  twin::Field<uint16_t> srcStride = 0, dstGap = 0, dstFracGap = 0;
  uint8_t addrMode = 0;
};
#endif

// Runs of `blockNum` blocks (32 bytes in L1, 512 in L0), `dstGap` blocks between them.
template <typename T> struct InitConstValueParams {
  InitConstValueParams() = default;
  InitConstValueParams(twin::Field<uint16_t, twin::Check::repeat> repeats, twin::Field<uint16_t> blocks,
                       twin::Field<uint16_t> gap, T value)
      : repeatTimes(repeats), blockNum(blocks), dstGap(gap), initValue(value) {}

  twin::Field<uint16_t, twin::Check::repeat> repeatTimes = 0;
  twin::Field<uint16_t> blockNum = 0, dstGap = 0;
  T initValue{};
};

struct MmadParams {
  MmadParams() = default;
  MmadParams(twin::Field<uint16_t, twin::Check::range> rows, twin::Field<uint16_t, twin::Check::range> columns,
             twin::Field<uint16_t, twin::Check::range> depth, uint8_t unit_flag, bool source, bool init)
      : m(rows), n(columns), k(depth), unitFlag(unit_flag), cmatrixSource(source), cmatrixInitVal(init) {}

  twin::Field<uint16_t, twin::Check::range> m = 0, n = 0, k = 0;
  uint8_t unitFlag = 0;
  bool kDirectionAlign = false;
  bool cmatrixSource = false;   // C from the bias buffer
  bool cmatrixInitVal = true;   // C begins at 0
#if __NPU_ARCH__ == 3510
  bool disableGemv = false;
#endif
};

enum class CO2Layout : uint8_t { NZ = 0, ROW_MAJOR, COLUMN_MAJOR };

struct FixpipeConfig {
  CO2Layout format;
  bool isToUB = false;
  constexpr FixpipeConfig(CO2Layout layout) : format(layout) {}
  constexpr FixpipeConfig(CO2Layout layout, bool to_ub) : format(layout), isToUB(to_ub) {}
};
constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};

// nSize x mSize of an L0C tile; srcStride: rows from column block to column block; dstStride: elements from row to row.
#if __NPU_ARCH__ == 2201
struct FixpipeParamsV220 {
  FixpipeParamsV220() = default;
  FixpipeParamsV220(twin::Field<uint16_t, twin::Check::range> n, twin::Field<uint16_t, twin::Check::range> m,
                    twin::Field<uint16_t> src_stride, twin::Field<uint32_t> dst_stride, bool relu)
      : nSize(n), mSize(m), srcStride(src_stride), dstStride(dst_stride), reluEn(relu) {}

  twin::Field<uint16_t, twin::Check::range> nSize = 0, mSize = 0;
  twin::Field<uint16_t> srcStride = 0;
  twin::Field<uint32_t> dstStride = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  twin::Field<uint16_t, twin::Check::repeat> ndNum = 1;
  twin::Field<uint16_t> srcNdStride = 0, dstNdStride = 0;  // fractals of 1024 bytes; elements
  bool reluEn = false;
  uint8_t unitFlag = 0;
  bool isChannelSplit = false;
};
#else
struct Nz2NdParams {
  twin::Field<uint16_t, twin::Check::repeat> ndNum = 1;
  twin::Field<uint16_t> srcNdStride = 0;  // rows of 16 elements
  twin::Field<uint32_t> dstNdStride = 0;  // elements
};
template <CO2Layout format> struct TransformParams { using PARAMS = uint8_t; };
template <> struct TransformParams<CO2Layout::ROW_MAJOR> { using PARAMS = Nz2NdParams; };

template <CO2Layout format = CO2Layout::ROW_MAJOR> struct FixpipeParamsArch3510 {
  FixpipeParamsArch3510() = default;
  FixpipeParamsArch3510(twin::Field<uint16_t, twin::Check::range> n, twin::Field<uint16_t, twin::Check::range> m,
                        twin::Field<uint16_t> src_stride, twin::Field<uint32_t> dst_stride)
      : nSize(n), mSize(m), srcStride(src_stride), dstStride(dst_stride) {}

  twin::Field<uint16_t, twin::Check::range> nSize = 0, mSize = 0;
  twin::Field<uint16_t> srcStride = 0;
  twin::Field<uint32_t> dstStride = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  bool reluEn = false;
  uint8_t unitFlag = 0;
  uint8_t dualDstCtl = 0;
  bool subBlockId = false;
  typename TransformParams<format>::PARAMS params{};
  bool isChannelSplit = false;
};
#endif

}  // namespace AscendC
