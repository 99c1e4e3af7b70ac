// Parameter records of vector instructions, with fields that refuse values wider than the hardware's.
//
// On the device a stride of 256 given to an 8-bit field silently becomes 0; here it ends the launch.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "core.h"

namespace twin {

// An unsigned (or 64-bit) field of an instruction.
template <typename U, Check kCheck = Check::stride>
class Field {
 public:
  Field() = default;
  template <typename I, typename = std::enable_if_t<std::is_integral_v<I> || std::is_enum_v<I>>>
  Field(I value) : value_(static_cast<U>(value)) {  // implicit, as the plain field's is
    if (static_cast<I>(value_) != value || (value < I{}) != (value_ < U{})) {
      fail(kCheck, "%lld does not fit a field of %d bits", static_cast<long long>(value), int(sizeof(U) * 8));
    }
  }
  operator U() const { return value_; }

 private:
  U value_ = 0;
};

using RepeatTime = Field<uint8_t, Check::repeat>;

}  // namespace twin

namespace AscendC {

// Strides in data blocks of 32 bytes: `Blk` between the blocks of a repeat, `Rep` between repeats.
struct UnaryRepeatParams {
  UnaryRepeatParams() = default;
  UnaryRepeatParams(twin::Field<uint16_t> dst_block, twin::Field<uint16_t> src_block, twin::Field<uint8_t> dst_repeat,
                    twin::Field<uint8_t> src_repeat)
      : dstBlkStride(dst_block), srcBlkStride(src_block), dstRepStride(dst_repeat), srcRepStride(src_repeat) {}

  twin::Field<uint16_t> dstBlkStride = 1, srcBlkStride = 1;
  twin::Field<uint8_t> dstRepStride = 8, srcRepStride = 8;
};

struct BinaryRepeatParams {
  BinaryRepeatParams() = default;
  BinaryRepeatParams(twin::Field<uint8_t> dst_block, twin::Field<uint8_t> src0_block, twin::Field<uint8_t> src1_block,
                     twin::Field<uint8_t> dst_repeat, twin::Field<uint8_t> src0_repeat,
                     twin::Field<uint8_t> src1_repeat)
      : dstBlkStride(dst_block), src0BlkStride(src0_block), src1BlkStride(src1_block), dstRepStride(dst_repeat),
        src0RepStride(src0_repeat), src1RepStride(src1_repeat) {}

  twin::Field<uint8_t> dstBlkStride = 1, src0BlkStride = 1, src1BlkStride = 1;
  twin::Field<uint8_t> dstRepStride = 8, src0RepStride = 8, src1RepStride = 8;
};

struct BrcbRepeatParams {
  BrcbRepeatParams() = default;
  BrcbRepeatParams(twin::Field<uint16_t> dst_block, twin::Field<uint16_t> dst_repeat)
      : dstBlkStride(dst_block), dstRepStride(dst_repeat) {}

  twin::Field<uint16_t> dstBlkStride = 1, dstRepStride = 8;
};

struct CopyRepeatParams {
  CopyRepeatParams() = default;
  CopyRepeatParams(twin::Field<uint16_t> dst_block, twin::Field<uint16_t> src_block, twin::Field<uint16_t> dst_repeat,
                   twin::Field<uint16_t> src_repeat)
      : dstStride(dst_block), srcStride(src_block), dstRepeatSize(dst_repeat), srcRepeatSize(src_repeat) {}

  twin::Field<uint16_t> dstStride = 1, srcStride = 1, dstRepeatSize = 8, srcRepeatSize = 8;
};

struct GatherMaskParams {
  GatherMaskParams() = default;
  GatherMaskParams(twin::Field<uint8_t> block, twin::Field<uint16_t, twin::Check::repeat> repeats,
                   twin::Field<uint16_t> repeat, twin::Field<uint8_t> pattern_repeat)
      : src0BlockStride(block), repeatTimes(repeats), src0RepeatStride(repeat), src1RepeatStride(pattern_repeat) {}

  twin::Field<uint8_t> src0BlockStride = 1;
  twin::Field<uint16_t, twin::Check::repeat> repeatTimes = 0;
  twin::Field<uint16_t> src0RepeatStride = 8;
  twin::Field<uint8_t> src1RepeatStride = 8;
};

struct TransDataTo5HDParams {
  bool dstHighHalf = false, srcHighHalf = false;
  twin::RepeatTime repeatTimes = 1;
  twin::Field<uint16_t> dstRepStride = 0, srcRepStride = 0;
};

// What a mask argument holds when the template parameter isSetMask is false.
constexpr uint64_t MASK_PLACEHOLDER = 0;

}  // namespace AscendC
