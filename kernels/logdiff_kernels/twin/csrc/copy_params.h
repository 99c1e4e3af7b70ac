// Parameter records of copies.
#pragma once

#include "vector_params.h"

namespace AscendC {

// Blocks of `blockLen` data blocks of 32 bytes; the strides are gaps, from the end of a block to the start of the next.
struct DataCopyParams {
  DataCopyParams() = default;
  DataCopyParams(twin::Field<uint16_t, twin::Check::repeat> count, twin::Field<uint16_t> length,
                 twin::Field<uint16_t> src_gap, twin::Field<uint16_t> dst_gap)
      : blockCount(count), blockLen(length), srcStride(src_gap), dstStride(dst_gap) {}

  twin::Field<uint16_t, twin::Check::repeat> blockCount = 1;
  twin::Field<uint16_t> blockLen = 0, srcStride = 0, dstStride = 0;
};

// Blocks of `blockLen` bytes. Gaps are bytes on the GM side, data blocks on chip.
struct DataCopyExtParams {
#if __NPU_ARCH__ == 3510
  using Gap = twin::Field<int64_t>;
#else
  using Gap = twin::Field<uint32_t>;
#endif
  DataCopyExtParams() = default;
  DataCopyExtParams(twin::Field<uint16_t, twin::Check::repeat> count, twin::Field<uint32_t> length, Gap src_gap,
                    Gap dst_gap, uint32_t reserved)
      : blockCount(count), blockLen(length), srcStride(src_gap), dstStride(dst_gap), rsv(reserved) {}

  twin::Field<uint16_t, twin::Check::repeat> blockCount = 1;
  twin::Field<uint32_t> blockLen = 0;
  Gap srcStride = 0, dstStride = 0;
  uint32_t rsv = 0;
};

// What surrounds each block in UB: elements to its left and right, with `paddingValue` if isPad.
template <typename T> struct DataCopyPadExtParams {
  DataCopyPadExtParams() = default;
  DataCopyPadExtParams(bool pad, twin::Field<uint8_t> left, twin::Field<uint8_t> right, T value)
      : isPad(pad), leftPadding(left), rightPadding(right), paddingValue(value) {}

  bool isPad = false;
  twin::Field<uint8_t> leftPadding = 0, rightPadding = 0;
  T paddingValue{};
};

// ndNum row-major matrices of nValue x dValue to NZ. srcDValue: elements from row to row; strides between matrices in
// elements; dstNzC0Stride (from column block to column block) and dstNzNStride (from row to row) in data blocks.
struct Nd2NzParams {
#if __NPU_ARCH__ == 3510
  using Wide = twin::Field<uint32_t>;
  using Wider = twin::Field<uint64_t>;
#else
  using Wide = twin::Field<uint16_t>;
  using Wider = twin::Field<uint16_t>;
#endif
  Nd2NzParams() = default;
  Nd2NzParams(twin::Field<uint16_t> nd_num, twin::Field<uint16_t> n, Wide d, Wider src_matrix, Wider src_d,
              twin::Field<uint16_t> dst_c0, twin::Field<uint16_t> dst_n, Wide dst_matrix)
      : ndNum(nd_num), nValue(n), dValue(d), srcNdMatrixStride(src_matrix), srcDValue(src_d), dstNzC0Stride(dst_c0),
        dstNzNStride(dst_n), dstNzMatrixStride(dst_matrix) {}

  twin::Field<uint16_t> ndNum = 0, nValue = 0;
  Wide dValue = 0;
  Wider srcNdMatrixStride = 0, srcDValue = 0;
  twin::Field<uint16_t> dstNzC0Stride = 0, dstNzNStride = 0;
  Wide dstNzMatrixStride = 0;
};

}  // namespace AscendC
