// Duplicate, Brcb, CreateVecIndex.
#pragma once

#include "vector_apply.h"

namespace twin {

using FillTypes = TypeList<int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>;
using IndexTypes = TypeList<int16_t, half, int32_t, float>;

// Each of 8 source elements fills a data block; `repeats` times.
template <typename T>
void broadcast_blocks(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint32_t repeats,
                      const AscendC::BrcbRepeatParams& params) {
  static_assert(FillTypes::has<T>, "Brcb: no overload for this element type on this architecture");
  if (repeats == 0) {
    if (k3510) fail(Check::repeat, "repeatTime is 0: on dav-3510 that isn't guaranteed to do nothing");
    return;
  }
  constexpr uint32_t lanes = lanes_of(sizeof(T)), per_block = lanes / kBlocksPerRepeat;
  const Pattern pattern = Pattern::leading(lanes, lanes, repeats);
  Op op("Brcb", Pipe::V, pattern.elements());
  const Lanes d{dst.operand().named("dst"), sizeof(T), params.dstBlkStride, params.dstRepStride};
  const Lanes s{src.operand().named("src"), sizeof(T), 1, 8};
  check_destination(op, d);
  check_source(op, s);
  const uint64_t bytes = uint64_t{repeats} * kBlocksPerRepeat * sizeof(T);
  const uint64_t d_begin = d.operand.base, s_begin = s.operand.base;
  const uint64_t d_end = d_begin + (repeats - 1) * d.step() + 7u * d.block * kBlockBytes + kBlockBytes;
  if (d_begin < s_begin + bytes && s_begin < d_end) {
    fail_operand(Check::overlap, "src", "lies within what dst spans: the API page forbids that");
  }
  const T* in = reinterpret_cast<const T*>(op.read(s.operand, 0, bytes));
  uint8_t* out = d.write(op, pattern);
  const Lanes x[1] = {d};
  walk(pattern, x, false, [&](const uint64_t (&at)[1], uint64_t n) {
    T* to = reinterpret_cast<T*>(out + at[0]);
    for (uint64_t i = 0; i < n; i += per_block, ++in) std::fill(to + i, to + i + per_block, *in);
  });
}

}  // namespace twin

namespace AscendC {

template <typename T> void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count) {
  static_assert(twin::FillTypes::has<T>, "Duplicate: no overload for this element type on this architecture");
  const auto pattern = twin::count_form(twin::lanes_of(sizeof(T)), count);
  twin::generate("Duplicate", dst, pattern, 1, 8, [&](uint64_t) { return scalarValue; });
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask, const twin::RepeatTime& repeatTime,
               const twin::Field<uint16_t>& dstBlockStride, const twin::Field<uint8_t>& dstRepeatStride) {
  static_assert(twin::FillTypes::has<T>, "Duplicate: no overload for this element type on this architecture");
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::generate("Duplicate", dst, pattern, dstBlockStride, dstRepeatStride, [&](uint64_t) { return scalarValue; });
}
template <typename T, bool isSetMask = true>
void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const uint64_t mask[],
               const twin::RepeatTime& repeatTime, const twin::Field<uint16_t>& dstBlockStride,
               const twin::Field<uint8_t>& dstRepeatStride) {
  static_assert(twin::FillTypes::has<T>, "Duplicate: no overload for this element type on this architecture");
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::generate("Duplicate", dst, pattern, dstBlockStride, dstRepeatStride, [&](uint64_t) { return scalarValue; });
}

template <typename T>
void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const twin::RepeatTime& repeatTime,
          const BrcbRepeatParams& params) {
  twin::broadcast_blocks(dst, src, repeatTime, params);
}

// dst[i] = firstValue + i.
template <typename T> void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count) {
  static_assert(twin::IndexTypes::has<T>, "CreateVecIndex: no overload for this element type on this architecture");
  const auto pattern = twin::count_form(twin::lanes_of(sizeof(T)), count);
  const auto first = twin::widen(firstValue);
  twin::generate("CreateVecIndex", dst, pattern, 1, 8, [&](uint64_t i) {
    return twin::narrow<T>(static_cast<twin::Wide<T>>(first + static_cast<twin::Wide<T>>(i)), false);
  });
}

}  // namespace AscendC
