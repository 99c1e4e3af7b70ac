// Gather, GatherMask, Sort32, Transpose, TransDataTo5HD.
#pragma once

#include "vector_apply.h"

namespace twin {

using GatherTypes = TypeList<int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>;

// dst[i] = the element at src + base + offsets[i] bytes.
void gather(const Lanes& dst, const Lanes& src, const Lanes& offsets, uint32_t base, uint32_t count);

// The elements whose mask bit is 1, packed; the mask is a tensor or, if `bits` is null, one of 7 fixed patterns. Normal
// mode: repeats of 256 bytes. Counter mode: `mask` elements a repeat. Returns how many there are.
uint64_t gather_mask(const Lanes& dst, const Lanes& src, const Lanes* bits, uint32_t fixed, bool counter,
                     uint32_t mask, const AscendC::GatherMaskParams& params);

// Descending (score, index) pairs of 8 bytes, 32 at a time; of equal scores the earlier one first, as the API page
// says. NaN is refused: where it goes is not documented.
void sort32(const Operand& dst, const Operand& scores, const Operand& indices, bool is_half, int32_t repeats);

// 16 blocks of a source list, element by element, into 16 blocks of a destination list, `repeatTimes` times. 16 bits:
// element j of block i becomes element i of block j. 32 bits: element i % 8 of block 2 j + i / 8.
void transpose_blocks(const Lanes* dst, const Lanes* src, const AscendC::TransDataTo5HDParams& params);

template <typename T>
void transpose_lists(const LocalTensor<T> (&dst)[16], const LocalTensor<T> (&src)[16],
                     const AscendC::TransDataTo5HDParams& params) {
  Lanes to[16], from[16];
  for (int i = 0; i < 16; ++i) {
    to[i] = lanes_in(dst[i], "dst");
    from[i] = lanes_in(src[i], "src");
  }
  transpose_blocks(to, from, params);
}

}  // namespace twin

namespace AscendC {

template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
            const uint32_t srcBaseOffset, const uint32_t count) {
  static_assert(twin::GatherTypes::has<T>, "Gather: no overload for this element type on this architecture");
  twin::gather(twin::lanes_in(dst, "dst"), twin::lanes_in(src, "src"), twin::lanes_in(srcOffset, "srcOffset"),
               srcBaseOffset, count);
}

template <typename T, typename U>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<U>& src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& gatherMaskParams,
                uint64_t& rsvdCnt) {
  static_assert(twin::GatherTypes::has<T>, "GatherMask: no overload for this element type on this architecture");
  static_assert(sizeof(U) == sizeof(T) && std::is_unsigned_v<U>,
                "GatherMask: the pattern is an unsigned type as wide as the elements");
  const twin::Lanes bits = twin::lanes_in(src1Pattern, "src1Pattern", 1, gatherMaskParams.src1RepeatStride);
  rsvdCnt = twin::gather_mask(twin::lanes_in(dst, "dst"), twin::lanes_in(src0, "src0"), &bits, 0, reduceMode, mask,
                              gatherMaskParams);
}
template <typename T>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const uint8_t src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& gatherMaskParams,
                uint64_t& rsvdCnt) {
  static_assert(twin::GatherTypes::has<T>, "GatherMask: no overload for this element type on this architecture");
  rsvdCnt = twin::gather_mask(twin::lanes_in(dst, "dst"), twin::lanes_in(src0, "src0"), nullptr, src1Pattern,
                              reduceMode, mask, gatherMaskParams);
}

template <typename T>
void Sort32(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<uint32_t>& src1,
            const int32_t repeatTime) {
  static_assert(twin::one_of<T, half, float>, "Sort32 takes half and float");
  twin::sort32(dst.operand().named("dst"), src0.operand().named("src0"), src1.operand().named("src1"),
               std::is_same_v<T, half>, repeatTime);
}

// A 16 x 16 matrix of 16-bit elements.
template <typename T>
void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src) {
  static_assert(twin::one_of<T, int16_t, uint16_t, half>, "Transpose takes 16-bit elements");
  LocalTensor<T> to[16], from[16];
  for (uint32_t i = 0; i < 16; ++i) {
    to[i] = dst[i * 16];
    from[i] = src[i * 16];
  }
  twin::transpose_lists(to, from, {});
}

template <typename T>
void TransDataTo5HD(const LocalTensor<T> (&dstList)[16], const LocalTensor<T> (&srcList)[16],
                    const TransDataTo5HDParams& nchwconvParams) {
  static_assert(twin::GatherTypes::has<T> && !(std::is_same_v<T, bfloat16_t> && !twin::k3510),
                "TransDataTo5HD: no overload for this element type on this architecture");
  twin::transpose_lists(dstList, srcList, nchwconvParams);
}

}  // namespace AscendC
