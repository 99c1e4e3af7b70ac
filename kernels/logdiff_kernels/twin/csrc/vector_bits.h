// And, Or, Not, ShiftLeft, ShiftRight.
#pragma once

#include "vector_apply.h"

namespace twin {

#if __NPU_ARCH__ == 2201
// The count forms accept 32-bit types too, but work on half of `count` elements: reinterpret as 16-bit instead.
using LogicTypes = TypeList<int16_t, uint16_t>;
#else
using LogicTypes = TypeList<int16_t, uint16_t, int32_t, uint32_t>;
#endif
using ShiftTypes = TypeList<int16_t, uint16_t, int32_t, uint32_t>;

template <typename T> void check_shift(const T& distance) {
  constexpr int kWidth = int(sizeof(T)) * 8;
  if (int64_t(distance) < 0 || int64_t(distance) > kWidth) {
    fail(Check::range, "a shift by %lld of %d-bit elements", static_cast<long long>(distance), kWidth);
  }
}

template <typename T>
void shift_left(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& distance, const Pattern& pattern,
                const AscendC::UnaryRepeatParams& params) {
  check_shift(distance);
  apply1("ShiftLeft", dst, src, pattern, params,
         [n = unsigned(distance)](const T& x) { return static_cast<T>(uint64_t(std::make_unsigned_t<T>(x)) << n); });
}

// Arithmetic for signed types, logical for unsigned ones.
template <typename T>
void shift_right(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& distance, const Pattern& pattern,
                 const AscendC::UnaryRepeatParams& params) {
  check_shift(distance);
  apply1("ShiftRight", dst, src, pattern, params,
         [n = unsigned(distance)](const T& x) { return static_cast<T>(int64_t(x) >> n); });
}

}  // namespace twin

namespace AscendC {

#define TWIN_LOGIC(Name, symbol)                                                                                \
  TWIN_FORMS(Name, (typename T), (),                                                                            \
             (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1),               \
             BinaryRepeatParams, T, twin::LogicTypes::has<T>, twin::LogicTypes::has<T>,                         \
             twin::apply2(#Name, dst, src0, src1, pattern, params, false,                                       \
                          [](const T& a, const T& b) { return static_cast<T>(a symbol b); }))
TWIN_LOGIC(And, &)
TWIN_LOGIC(Or, |)
#undef TWIN_LOGIC

TWIN_FORMS(Not, (typename T), (), (const LocalTensor<T>& dst, const LocalTensor<T>& src), UnaryRepeatParams, T,
           twin::LogicTypes::has<T>, twin::LogicTypes::has<T>,
           twin::apply1("Not", dst, src, pattern, params, [](const T& x) { return static_cast<T>(~x); }))

TWIN_FORMS(ShiftLeft, (typename T), (),
           (const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue), UnaryRepeatParams, T,
           twin::ShiftTypes::has<T>, twin::ShiftTypes::has<T>,
           twin::shift_left(dst, src, scalarValue, pattern, params))

TWIN_FORMS(ShiftRight, (typename T), (),
           (const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue), UnaryRepeatParams, T,
           twin::ShiftTypes::has<T>, twin::ShiftTypes::has<T>,
           twin::shift_right(dst, src, scalarValue, pattern, params))

}  // namespace AscendC
