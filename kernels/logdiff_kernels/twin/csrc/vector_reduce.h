// PairReduceSum, BlockReduce*, WholeReduce*, ReduceSum, ReduceMax, ReduceMin.
//
// Orders: ReducePairElem, ReduceDataBlock, ReduceRepeat and ReduceSum pages of the API (their newer names). Within a
// repeat sums are binary trees of neighbours. ReduceSum, count form: on 2201 the trees' results are added in order; on
// 3510 up to 1024 bytes are added lane by lane into one repeat, then its tree; else, and in the mask forms of both, a
// tree of the trees' results.
#pragma once

#include "vector_apply.h"

namespace twin {

enum class Reduction : uint8_t { sum, max, min };

// Groups of `group` neighbouring lanes each give one result, `stride` repeats of results apart. A group without an
// active lane keeps dst on 2201 and gives 0 or an infinity on 3510.
void reduce_groups(const char* name, const Operand& dst, const Lanes& src, bool is_half, const Pattern& pattern,
                   uint32_t group, uint64_t boundary, int32_t stride, Reduction reduction);

// A (value, index) of each repeat, in the order asked for; an index is stored as bits, 16 of them for half.
void reduce_repeats(const char* name, const Operand& dst, const Lanes& src, bool is_half, const Pattern& pattern,
                    int32_t stride, bool largest, AscendC::ReduceOrder order);

// All of it to one value. 2201 uses `tmp` for the results of the repeats in the mask forms.
void reduce_sum(const Operand& dst, const Lanes& src, const Operand& tmp, bool is_half, const Pattern& pattern,
                bool counted);

// The value, then, if asked for, the index of its first occurrence as bits. 2201 uses `tmp` for a pair of each repeat.
void reduce_best(const char* name, const Operand& dst, const Lanes& src, const Operand& tmp, bool is_half,
                 const Pattern& pattern, bool with_index, bool largest);

template <typename T>
Lanes reduce_source(const LocalTensor<T>& src, int32_t block, int32_t repeat) {
  static_assert(one_of<T, half, float>, "reductions take half and float");
  if (block < 0 || block > 0xffff || repeat < 0 || repeat > 0xffff) {
    fail(Check::stride, "source strides %d and %d: 0 to 65535", block, repeat);
  }
  return lanes_in(src, "src", uint32_t(block), uint32_t(repeat));
}

template <typename T>
constexpr bool is_half = std::is_same_v<T, half>;

}  // namespace twin

namespace AscendC {

#define TWIN_GROUPS(Name, group, boundary, reduction)                                                            \
  template <typename T, bool isSetMask = true>                                                                   \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const twin::RepeatTime& repeatTime,            \
            const int32_t mask, const int32_t dstRepStride, const int32_t srcBlkStride,                          \
            const int32_t srcRepStride) {                                                                        \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), uint64_t(mask), repeatTime, isSetMask);      \
    twin::reduce_groups(#Name, dst.operand().named("dst"),                                                       \
                        twin::reduce_source(src, srcBlkStride, srcRepStride), twin::is_half<T>, pattern, group,  \
                        boundary, dstRepStride, reduction);                                                      \
  }                                                                                                              \
  template <typename T, bool isSetMask = true>                                                                   \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const twin::RepeatTime& repeatTime,            \
            const uint64_t mask[], const int32_t dstRepStride, const int32_t srcBlkStride,                       \
            const int32_t srcRepStride) {                                                                        \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);                \
    twin::reduce_groups(#Name, dst.operand().named("dst"),                                                       \
                        twin::reduce_source(src, srcBlkStride, srcRepStride), twin::is_half<T>, pattern, group,  \
                        boundary, dstRepStride, reduction);                                                      \
  }
TWIN_GROUPS(PairReduceSum, 2, 32, twin::Reduction::sum)
TWIN_GROUPS(BlockReduceSum, 32 / sizeof(T), 8 * sizeof(T), twin::Reduction::sum)
TWIN_GROUPS(BlockReduceMax, 32 / sizeof(T), 8 * sizeof(T), twin::Reduction::max)
TWIN_GROUPS(BlockReduceMin, 32 / sizeof(T), 8 * sizeof(T), twin::Reduction::min)
#undef TWIN_GROUPS

// The mask comes before the repeats here.
template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,
                    const twin::RepeatTime& repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                    const int32_t srcRepStride) {
  constexpr uint32_t lanes = twin::lanes_of(sizeof(T));
  twin::reduce_groups("WholeReduceSum", dst.operand().named("dst"),
                      twin::reduce_source(src, srcBlkStride, srcRepStride), twin::is_half<T>,
                      twin::mask_form(lanes, uint64_t(mask), repeatTime, isSetMask), lanes, sizeof(T), dstRepStride,
                      twin::Reduction::sum);
}
template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[],
                    const twin::RepeatTime& repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                    const int32_t srcRepStride) {
  constexpr uint32_t lanes = twin::lanes_of(sizeof(T));
  twin::reduce_groups("WholeReduceSum", dst.operand().named("dst"),
                      twin::reduce_source(src, srcBlkStride, srcRepStride), twin::is_half<T>,
                      twin::mask_form(lanes, mask, repeatTime, isSetMask), lanes, sizeof(T), dstRepStride,
                      twin::Reduction::sum);
}

#define TWIN_WHOLE_BEST(Name, largest)                                                                           \
  template <typename T, bool isSetMask = true>                                                                   \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,                            \
            const twin::RepeatTime& repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,          \
            const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {                    \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), uint64_t(mask), repeatTime, isSetMask);      \
    twin::reduce_repeats(#Name, dst.operand().named("dst"),                                                      \
                         twin::reduce_source(src, srcBlkStride, srcRepStride), twin::is_half<T>, pattern,        \
                         dstRepStride, largest, order);                                                          \
  }
TWIN_WHOLE_BEST(WholeReduceMax, true)
TWIN_WHOLE_BEST(WholeReduceMin, false)
#undef TWIN_WHOLE_BEST

template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t count) {
  twin::reduce_sum(dst.operand().named("dst"), twin::reduce_source(src, 1, 8), sharedTmpBuffer.operand(),
                   twin::is_half<T>, twin::count_form(twin::lanes_of(sizeof(T)), count), true);
}
template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), uint64_t(mask), uint32_t(repeatTime), true);
  twin::reduce_sum(dst.operand().named("dst"), twin::reduce_source(src, 1, srcRepStride), sharedTmpBuffer.operand(),
                   twin::is_half<T>, pattern, false);
}

#define TWIN_BEST(Name, largest)                                                                                 \
  template <typename T>                                                                                          \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,         \
            const int32_t count, bool calIndex = false) {                                                        \
    twin::reduce_best(#Name, dst.operand().named("dst"), twin::reduce_source(src, 1, 8),                         \
                      sharedTmpBuffer.operand(), twin::is_half<T>,                                               \
                      twin::count_form(twin::lanes_of(sizeof(T)), count), calIndex, largest);                    \
  }                                                                                                              \
  template <typename T>                                                                                          \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,         \
            const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride, bool calIndex = false) {   \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), uint64_t(mask), uint32_t(repeatTime), true); \
    twin::reduce_best(#Name, dst.operand().named("dst"), twin::reduce_source(src, 1, srcRepStride),              \
                      sharedTmpBuffer.operand(), twin::is_half<T>, pattern, calIndex, largest);                  \
  }
TWIN_BEST(ReduceMax, true)
TWIN_BEST(ReduceMin, false)
#undef TWIN_BEST

}  // namespace AscendC
