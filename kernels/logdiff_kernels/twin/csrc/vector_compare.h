// Compare, CompareScalar (Compares) and Select with mask tensors: one bit per element, lowest bit first.
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

// IEEE: a NaN operand makes all comparisons false but NE.
template <typename A> bool holds(AscendC::CMPMODE mode, A a, A b) {
  using M = AscendC::CMPMODE;
  switch (mode) {
    case M::LT: return a < b;
    case M::GT: return a > b;
    case M::EQ: return a == b;
    case M::LE: return a <= b;
    case M::GE: return a >= b;
    default: return a != b;
  }
}

// Results of repeat r are bits [r * lanes, (r + 1) * lanes) of dst. In the mask forms 2201 ignores the mask and
// compares every lane; 3510 leaves the bits of masked-off lanes 0.
template <typename T, typename U, typename F>
void compare(const char* name, const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>* src1,
             AscendC::CMPMODE mode, const Pattern& called, const AscendC::BinaryRepeatParams& p, F second) {
  static_assert(CompareTypes::has<T>, "Compare: no overload for this element type on this architecture");
  static_assert(one_of<U, uint8_t, int8_t>, "Compare writes bits to uint8_t or int8_t");
  if (called.parts == 0) return;
  if (!k3510 && std::is_same_v<T, int32_t> && mode != AscendC::CMPMODE::EQ) {
    fail(Check::overload, "int32_t compares only with CMPMODE::EQ on dav-2201");
  }
  constexpr uint32_t lanes = lanes_of(sizeof(T));
  const uint32_t repeats = called.repeats();
  const Pattern pattern = k3510 ? called : Pattern::leading(lanes, lanes, repeats);
  Op op(name, Pipe::V, pattern.elements());
  const Operand d = dst.operand().named("dst");
  const Lanes x[2] = {{src0.operand().named("src0"), sizeof(T), p.src0BlkStride, p.src0RepStride},
                      {(src1 ? *src1 : src0).operand().named("src1"), sizeof(T), p.src1BlkStride, p.src1RepStride}};
  if (d.memory != Memory::UB) fail_operand(Check::overload, "dst", "is in %s, not in UB", name_of(d.memory));
  op.align(d);
  check_source(op, x[0]);
  check_source(op, x[1]);
  const uint8_t* a = x[0].read(op, pattern);
  const uint8_t* b = src1 ? x[1].read(op, pattern) : a;
  const uint64_t bytes = uint64_t{repeats} * lanes / 8;
  std::vector<uint8_t> bits(bytes, 0);
  for (int i = 0; i < pattern.parts; ++i) {
    const Part& part = pattern.part[i];
    for (uint32_t r = part.first; r < part.first + part.repeats; ++r) {
      part.lane_runs(lanes, [&](uint32_t lane, uint32_t n) {
        for (uint32_t l = lane; l < lane + n; ++l) {
          const uint32_t per_block = lanes / kBlocksPerRepeat;
          const auto at = [&](const Lanes& y) {
            return r * y.step() + (l / per_block) * uint64_t{y.block} * kBlockBytes + (l % per_block) * sizeof(T);
          };
          const T& left = *reinterpret_cast<const T*>(a + at(x[0]));
          const T& right = src1 ? *reinterpret_cast<const T*>(b + at(x[1])) : second;
          const uint64_t bit = uint64_t{r} * lanes + l;
          if (holds(mode, widen(left), widen(right))) bits[bit / 8] |= uint8_t(1u << (bit % 8));
        }
      });
    }
  }
  std::memcpy(op.write(d, 0, bytes), bits.data(), bytes);
}

template <typename T> Pattern compare_count(uint64_t count) {
  if (count * sizeof(T) % kRepeatBytes != 0) {
    fail(Check::repeat, "%llu elements of %d bytes aren't a multiple of 256 bytes: the rest would not be compared",
         static_cast<unsigned long long>(count), int(sizeof(T)));
  }
  return count_form(lanes_of(sizeof(T)), int64_t(count));
}

template <typename T>
AscendC::BinaryRepeatParams strides_of(const AscendC::UnaryRepeatParams& p) {
  return {uint16_t(p.dstBlkStride), uint16_t(p.srcBlkStride), 1, p.dstRepStride, p.srcRepStride, 8};
}

// dst = bit ? src0 : (src1, or the scalar). Mode 0 uses the same bits in every repeat, the others go on in the mask.
template <typename T, typename U>
void select(const LocalTensor<T>& dst, const LocalTensor<U>& mask, const LocalTensor<T>& src0,
            const LocalTensor<T>* src1, const T& scalar, AscendC::SELMODE mode, const Pattern& pattern,
            const AscendC::BinaryRepeatParams& p) {
  static_assert(SelectTypes::has<T>, "Select: no overload for this element type on this architecture");
  static_assert(one_of<U, uint8_t, uint16_t, uint32_t, uint64_t>, "Select takes its bits from an unsigned type");
  if (pattern.parts == 0) return;
  const bool needs_scalar = mode == AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE;
  if (needs_scalar != (src1 == nullptr)) {
    fail(Check::overload, "mode %d doesn't go with a %s as second source", int(mode), src1 ? "tensor" : "scalar");
  }
  Op op("Select", Pipe::V, pattern.elements());
  const Lanes x[3] = {{dst.operand().named("dst"), sizeof(T), p.dstBlkStride, p.dstRepStride},
                      {src0.operand().named("src0"), sizeof(T), p.src0BlkStride, p.src0RepStride},
                      {(src1 ? *src1 : src0).operand().named("src1"), sizeof(T), p.src1BlkStride, p.src1RepStride}};
  check_destination(op, x[0]);
  check_source(op, x[1]);
  check_source(op, x[2]);
  check_overlap(x[0], x[1], pattern, false);
  if (src1) check_overlap(x[0], x[2], pattern, false);
  const Operand bits_operand = mask.operand().named("selMask");
  if (bits_operand.memory != Memory::UB) fail_operand(Check::overload, "selMask", "is not in UB");
  op.align(bits_operand);
  const bool repeated = mode == AscendC::SELMODE::VSEL_CMPMASK_SPR;
  const Part& last = pattern.part[pattern.parts - 1];
  const uint64_t span = uint64_t{pattern.repeats() - 1} * pattern.lanes + (last.is_prefix ? last.prefix : pattern.lanes);
  const uint64_t bit_count = repeated ? std::min<uint64_t>(span, pattern.lanes) : span;
  const uint8_t* bits = op.read(bits_operand, 0, (bit_count + 7) / 8);
  const uint8_t* a = x[1].read(op, pattern);
  const uint8_t* b = src1 ? x[2].read(op, pattern) : nullptr;
  uint8_t* out = x[0].write(op, pattern);
  const uint32_t lanes = pattern.lanes, per_block = lanes / kBlocksPerRepeat;
  for (int i = 0; i < pattern.parts; ++i) {
    const Part& part = pattern.part[i];
    for (uint32_t r = part.first; r < part.first + part.repeats; ++r) {
      part.lane_runs(lanes, [&](uint32_t lane, uint32_t n) {
        for (uint32_t l = lane; l < lane + n; ++l) {
          const auto at = [&](const Lanes& y) {
            return r * y.step() + (l / per_block) * uint64_t{y.block} * kBlockBytes + (l % per_block) * sizeof(T);
          };
          const uint64_t bit = repeated ? l : uint64_t{r} * lanes + l;
          const bool first = (bits[bit / 8] >> (bit % 8)) & 1u;
          *reinterpret_cast<T*>(out + at(x[0])) = first ? *reinterpret_cast<const T*>(a + at(x[1]))
                                                  : src1 ? *reinterpret_cast<const T*>(b + at(x[2]))
                                                         : scalar;
        }
      });
    }
  }
}

}  // namespace twin

namespace AscendC {

template <typename T, typename U>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             uint32_t count) {
  twin::compare("Compare", dst, src0, &src1, cmpMode, twin::compare_count<T>(count), {}, T());
}
template <typename T, typename U, bool isSetMask = true>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             uint64_t mask, const twin::RepeatTime& repeatTime, const BinaryRepeatParams& params) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::compare("Compare", dst, src0, &src1, cmpMode, pattern, params, T());
}
template <typename T, typename U, bool isSetMask = true>
void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
             const uint64_t mask[], const twin::RepeatTime& repeatTime, const BinaryRepeatParams& params) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::compare("Compare", dst, src0, &src1, cmpMode, pattern, params, T());
}

template <typename T, typename U>
void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
                   uint32_t count) {
  const LocalTensor<T>* none = nullptr;
  twin::compare("CompareScalar", dst, src0, none, cmpMode, twin::compare_count<T>(count), {}, src1Scalar);
}
template <typename T, typename U, bool isSetMask = true>
void CompareScalar(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,
                   uint64_t mask, const twin::RepeatTime& repeatTime, const UnaryRepeatParams& params) {
  const LocalTensor<T>* none = nullptr;
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::compare("CompareScalar", dst, src0, none, cmpMode, pattern, twin::strides_of<T>(params), src1Scalar);
}

template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint32_t count) {
  const auto pattern = twin::count_form(twin::lanes_of(sizeof(T)), count);
  twin::select(dst, selMask, src0, &src1, T(), selMode, pattern, {});
}
template <typename T, typename U>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
            SELMODE selMode, uint32_t count) {
  const LocalTensor<T>* none = nullptr;
  const auto pattern = twin::count_form(twin::lanes_of(sizeof(T)), count);
  twin::select(dst, selMask, src0, none, src1, selMode, pattern, {});
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
            const LocalTensor<T>& src1, SELMODE selMode, uint64_t mask, const twin::RepeatTime& repeatTime,
            const BinaryRepeatParams& params) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::select(dst, selMask, src0, &src1, T(), selMode, pattern, params);
}
template <typename T, typename U, bool isSetMask = true>
void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
            SELMODE selMode, uint64_t mask, const twin::RepeatTime& repeatTime, const BinaryRepeatParams& params) {
  const LocalTensor<T>* none = nullptr;
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::select(dst, selMask, src0, none, src1, selMode, pattern, params);
}

}  // namespace AscendC
