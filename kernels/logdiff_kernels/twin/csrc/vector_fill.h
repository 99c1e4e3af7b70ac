// Duplicate, Brcb, CreateVecIndex.
#pragma once

#include "vector_apply.h"

namespace twin {

using FillTypes = TypeList<int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>;
using IndexTypes = TypeList<int16_t, half, int32_t, float>;

// Every lane of dst becomes the element at `value`.
void duplicate(const Lanes& dst, const Pattern& pattern, const void* value);
// Each of 8 source elements fills a data block of dst, `repeats` times.
void broadcast_blocks(const Lanes& dst, const Lanes& src, uint32_t repeats);

template <typename T>
void duplicate(const LocalTensor<T>& dst, const T& value, const Pattern& pattern, uint32_t block, uint32_t repeat) {
  static_assert(FillTypes::has<T>, "Duplicate: no overload for this element type on this architecture");
  duplicate(lanes_in(dst, "dst", block, repeat), pattern, &value);
}

}  // namespace twin

namespace AscendC {

template <typename T>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count) {
  twin::duplicate(dst, scalarValue, twin::count_form(twin::lanes_of(sizeof(T)), count), 1, 8);
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask, const twin::RepeatTime& repeatTime,
               const twin::Field<uint16_t>& dstBlockStride, const twin::Field<uint8_t>& dstRepeatStride) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::duplicate(dst, scalarValue, pattern, dstBlockStride, dstRepeatStride);
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const uint64_t mask[],
               const twin::RepeatTime& repeatTime, const twin::Field<uint16_t>& dstBlockStride,
               const twin::Field<uint8_t>& dstRepeatStride) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::duplicate(dst, scalarValue, pattern, dstBlockStride, dstRepeatStride);
}

template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const twin::RepeatTime& repeatTime,
          const BrcbRepeatParams& params) {
  static_assert(twin::FillTypes::has<T>, "Brcb: no overload for this element type on this architecture");
  twin::broadcast_blocks(twin::lanes_in(dst, "dst", params.dstBlkStride, params.dstRepStride),
                         twin::lanes_in(src, "src"), repeatTime);
}

// dst[i] = firstValue + i.
template <typename T>
void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count) {
  static_assert(twin::IndexTypes::has<T>, "CreateVecIndex: no overload for this element type on this architecture");
  const auto pattern = twin::count_form(twin::lanes_of(sizeof(T)), count);
  if (pattern.parts == 0) return;
  twin::Op op("CreateVecIndex", twin::Pipe::V, count);
  const twin::Lanes x = twin::lanes_in(dst, "dst");
  twin::check_destination(op, x);
  T* out = reinterpret_cast<T*>(x.write(op, pattern));
  const twin::Wide<T> first = twin::widen(firstValue);
  for (uint32_t i = 0; i < count; ++i) out[i] = twin::narrow<T>(static_cast<twin::Wide<T>>(first + i), false);
}

}  // namespace AscendC
