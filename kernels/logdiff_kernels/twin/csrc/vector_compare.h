// Compare, CompareScalar and Select with mask tensors: one bit per element, lowest bit first.
#pragma once

#include "vector_apply.h"

namespace twin {

#if __NPU_ARCH__ == 2201
using CompareTypes = TypeList<half, float, int32_t>;
using SelectTypes = TypeList<half, float>;
#else
using CompareTypes = TypeList<int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>;
using SelectTypes = CompareTypes;
#endif

// Elements as fp64, which holds every type that can be compared.
using Widen = void (*)(double* to, const uint8_t* from, uint64_t n);

template <typename T>
void widen_to_double(double* to, const uint8_t* from, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) to[i] = double(widen(reinterpret_cast<const T*>(from)[i]));
}

// dst: the bits. src1 null: compares with `scalar`. Results of repeat r are bits [r * lanes, (r + 1) * lanes) of dst. In
// the mask forms 2201 ignores the mask and compares every lane; 3510 leaves the bits of masked-off lanes 0.
void compare(const char* name, const Operand& dst, const Lanes& src0, const Lanes* src1, double scalar,
             AscendC::CMPMODE mode, const Pattern& pattern, bool equal_only, Widen widen);

// dst = bit ? src0 : src1, or the element at `scalar` if src1 is null. Mode 0 uses the same bits in every repeat, the
// others go on in the mask.
void select(const Lanes& dst, const Operand& bits, const Lanes& src0, const Lanes* src1, const void* scalar,
            AscendC::SELMODE mode, const Pattern& pattern);

// The count forms of Compare drop what doesn't fill a repeat.
Pattern compare_count(uint64_t size, uint64_t count);

template <typename T, typename U>
void compare_tensors(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
                     AscendC::CMPMODE mode, const Pattern& pattern, const AscendC::BinaryRepeatParams& p) {
  static_assert(CompareTypes::has<T>, "Compare: no overload for this element type on this architecture");
  static_assert(one_of<U, uint8_t, int8_t>, "Compare writes bits to uint8_t or int8_t");
  const Lanes second = lanes_in(src1, "src1", p.src1BlkStride, p.src1RepStride);
  compare("Compare", dst.operand().named("dst"), lanes_in(src0, "src0", p.src0BlkStride, p.src0RepStride), &second, 0,
          mode, pattern, !k3510 && std::is_same_v<T, int32_t>, widen_to_double<T>);
}

template <typename T, typename U>
void compare_scalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T& scalar, AscendC::CMPMODE mode,
                    const Pattern& pattern, const AscendC::UnaryRepeatParams& p) {
  static_assert(CompareTypes::has<T>, "CompareScalar: no overload for this element type on this architecture");
  static_assert(std::is_same_v<U, uint8_t>, "CompareScalar writes bits to uint8_t");
  compare("CompareScalar", dst.operand().named("dst"), lanes_in(src0, "src0", p.srcBlkStride, p.srcRepStride), nullptr,
          double(widen(scalar)), mode, pattern, !k3510 && std::is_same_v<T, int32_t>, widen_to_double<T>);
}

template <typename T, typename U>
void select_tensors(const LocalTensor<T>& dst, const LocalTensor<U>& bits, const LocalTensor<T>& src0,
                    const LocalTensor<T>* src1, const T& scalar, AscendC::SELMODE mode, const Pattern& pattern,
                    const AscendC::BinaryRepeatParams& p) {
  static_assert(SelectTypes::has<T>, "Select: no overload for this element type on this architecture");
  static_assert(one_of<U, uint8_t, uint16_t, uint32_t, uint64_t>, "Select takes its bits from an unsigned type");
  const Lanes second = lanes_in(src1 ? *src1 : src0, "src1", p.src1BlkStride, p.src1RepStride);
  select(lanes_in(dst, "dst", p.dstBlkStride, p.dstRepStride), bits.operand().named("selMask"),
         lanes_in(src0, "src0", p.src0BlkStride, p.src0RepStride), src1 ? &second : nullptr, &scalar, mode, pattern);
}

}  // namespace twin

namespace AscendC {

template <typename T, typename U>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             uint32_t count) {
  twin::compare_tensors(dst, src0, src1, cmpMode, twin::compare_count(sizeof(T), count), {});
}
template <typename T, typename U, bool isSetMask = true>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             uint64_t mask, const twin::RepeatTime& repeatTime, const BinaryRepeatParams& params) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::compare_tensors(dst, src0, src1, cmpMode, pattern, params);
}
template <typename T, typename U, bool isSetMask = true>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             const uint64_t mask[], const twin::RepeatTime& repeatTime, const BinaryRepeatParams& params) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::compare_tensors(dst, src0, src1, cmpMode, pattern, params);
}

template <typename T, typename U>
void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
                   uint32_t count) {
  twin::compare_scalar(dst, src0, src1Scalar, cmpMode, twin::compare_count(sizeof(T), count), {});
}
template <typename T, typename U, bool isSetMask = true>
void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
                   uint64_t mask, const twin::RepeatTime& repeatTime, const UnaryRepeatParams& params) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::compare_scalar(dst, src0, src1Scalar, cmpMode, pattern, params);
}

template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint32_t count) {
  const auto pattern = twin::count_form(twin::lanes_of(sizeof(T)), count);
  twin::select_tensors(dst, selMask, src0, &src1, T(), selMode, pattern, {});
}
template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
            SELMODE selMode, uint32_t count) {
  const LocalTensor<T>* none = nullptr;
  const auto pattern = twin::count_form(twin::lanes_of(sizeof(T)), count);
  twin::select_tensors(dst, selMask, src0, none, src1, selMode, pattern, {});
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint64_t mask, const twin::RepeatTime& repeatTime,
            const BinaryRepeatParams& params) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::select_tensors(dst, selMask, src0, &src1, T(), selMode, pattern, params);
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
            SELMODE selMode, uint64_t mask, const twin::RepeatTime& repeatTime, const BinaryRepeatParams& params) {
  const LocalTensor<T>* none = nullptr;
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::select_tensors(dst, selMask, src0, none, src1, selMode, pattern, params);
}

}  // namespace AscendC
