// Add, Sub, Mul, Div, Max, Min; Adds, Muls, Maxs, Mins; Axpy, MulAddDst, FusedMulAdd.
//
// Element types by architecture: the data type sections of the API pages of each function. Arithmetic in fp32 is IEEE
// with one rounding, in half and bfloat16_t the fp32 result is rounded once more, integers wrap.
#pragma once

#include <cmath>

#include "launch.h"
#include "vector_apply.h"

namespace twin {

template <typename A> inline A wrap(uint64_t value) { return static_cast<A>(value); }

struct AddOp {
  template <typename A> A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) return wrap<A>(uint64_t(a) + uint64_t(b));
    else return a + b;
  }
};
struct SubOp {
  template <typename A> A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) return wrap<A>(uint64_t(a) - uint64_t(b));
    else return a - b;
  }
};
struct MulOp {
  template <typename A> A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) return wrap<A>(uint64_t(a) * uint64_t(b));
    else return a * b;
  }
};

// What Max and Min do with NaN and with zeros of unlike sign is not documented. A NaN operand gives NaN here, or the
// other operand where the launch perturbs what chips are free to choose; so do -0 and +0 with the first or second one.
struct MaxOp {
  bool other = options().perturb != 0;
  template <typename A> A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) return a > b ? a : b;
    else if (other) return a >= b || b != b ? a : b;
    else return a != a ? a : (a > b ? a : b);
  }
};
struct MinOp {
  bool other = options().perturb != 0;
  template <typename A> A operator()(A a, A b) const {
    if constexpr (std::is_integral_v<A>) return a < b ? a : b;
    else if (other) return a <= b || b != b ? a : b;
    else return a != a ? a : (a < b ? a : b);
  }
};

template <typename T, typename F>
void binary(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,
            const Pattern& pattern, const AscendC::BinaryRepeatParams& params, bool carries, F f) {
  const bool saturate = saturates<T>();
  apply2(name, dst, src0, src1, pattern, params, carries && one_of<T, half, int32_t, float>,
         [=](const T& a, const T& b) { return narrow<T>(f(widen(a), widen(b)), saturate); });
}

template <typename T, typename F>
void with_scalar(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalar,
                 const Pattern& pattern, const AscendC::UnaryRepeatParams& params, F f) {
  const bool saturate = saturates<T>();
  const Wide<T> value = widen(scalar);
  apply1(name, dst, src, pattern, params, [=](const T& a) { return narrow<T>(f(widen(a), value), saturate); });
}

// a * b + c by fma in fp32; half and bfloat16_t results are rounded once more.
template <typename D, typename S> D fused(const S& a, const S& b, const D& c, bool saturate) {
  return narrow<D>(std::fma(float(widen(a)), float(widen(b)), float(widen(c))), saturate);
}

#if __NPU_ARCH__ == 2201
using SumTypes = TypeList<int16_t, half, int32_t, float>;
using SumMaskTypes = SumTypes;
using ProductTypes = SumTypes;
using ScalarTypes = SumTypes;
using FusedTypes = TypeList<half, float>;
#else
using SumMaskTypes = TypeList<int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>;
using SumTypes = TypeList<int8_t, uint8_t, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>;
using ProductTypes = SumMaskTypes;
using ScalarTypes = TypeList<int16_t, half, bfloat16_t, int32_t, float>;
using FusedTypes = TypeList<half, bfloat16_t, float>;
#endif
using QuotientTypes = TypeList<half, float>;

// Destination and source types of Axpy and MulAddDst.
template <typename D, typename S>
constexpr bool kFusedPair = (std::is_same_v<D, S> && QuotientTypes::has<D>) ||
                            (std::is_same_v<D, float> && std::is_same_v<S, half>);

}  // namespace twin

namespace AscendC {

#define TWIN_BINARY(Name, Types, MaskTypes, carries, function)                                                  \
  TWIN_FORMS(Name, (typename T), (),                                                                            \
             (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1),               \
             BinaryRepeatParams, T, twin::Types::has<T>, twin::MaskTypes::has<T>,                               \
             twin::binary(#Name, dst, src0, src1, pattern, params, carries, function))

TWIN_BINARY(Add, SumTypes, SumMaskTypes, true, twin::AddOp{})
TWIN_BINARY(Sub, SumTypes, SumMaskTypes, true, twin::SubOp{})
TWIN_BINARY(Mul, ProductTypes, ProductTypes, true, twin::MulOp{})
TWIN_BINARY(Max, SumTypes, SumMaskTypes, true, twin::MaxOp{})
TWIN_BINARY(Min, SumTypes, SumMaskTypes, true, twin::MinOp{})
#undef TWIN_BINARY

#define TWIN_SCALAR(Name, function)                                                                             \
  TWIN_FORMS(Name, (typename T), (),                                                                            \
             (const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue), UnaryRepeatParams, T, \
             twin::ScalarTypes::has<T>, twin::ScalarTypes::has<T>,                                              \
             twin::with_scalar(#Name, dst, src, scalarValue, pattern, params, function))

TWIN_SCALAR(Adds, twin::AddOp{})
TWIN_SCALAR(Muls, twin::MulOp{})
TWIN_SCALAR(Maxs, twin::MaxOp{})
TWIN_SCALAR(Mins, twin::MinOp{})
#undef TWIN_SCALAR

// dst = src * scalar + dst in one rounding. Documented as such on 950; for 2201 nothing is said, so kernels of this
// project use Mul and Add.
TWIN_FORMS(Axpy, (typename T, typename U), (),
           (const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue), UnaryRepeatParams, T,
           (twin::kFusedPair<T, U>), (twin::kFusedPair<T, U>),
           const bool saturate = twin::saturates<T>();
           twin::apply1("Axpy", dst, src, pattern, params, [=](const U& a, const T& c) {
             return twin::fused<T, U>(a, scalarValue, c, saturate);
           }))

// dst = src0 * src1 + dst in one rounding.
TWIN_FORMS(MulAddDst, (typename T, typename U), (),
           (const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1), BinaryRepeatParams, T,
           (twin::kFusedPair<T, U>), (twin::kFusedPair<T, U>),
           const bool saturate = twin::saturates<T>();
           twin::apply2("MulAddDst", dst, src0, src1, pattern, params, false,
                        [=](const U& a, const U& b, const T& c) {
             return twin::fused<T, U>(a, b, c, saturate);
           }))

// dst = src0 * dst + src1 in one rounding.
TWIN_FORMS(FusedMulAdd, (typename T), (),
           (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1), BinaryRepeatParams, T,
           twin::FusedTypes::has<T>, twin::FusedTypes::has<T>,
           const bool saturate = twin::saturates<T>();
           twin::apply2("FusedMulAdd", dst, src0, src1, pattern, params, false,
                        [=](const T& a, const T& b, const T& c) {
             return twin::fused<T, T>(a, c, b, saturate);
           }))

}  // namespace AscendC
