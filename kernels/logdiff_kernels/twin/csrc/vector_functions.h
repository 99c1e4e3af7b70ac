// Exp, Ln, Sqrt, Div: instructions whose accuracy is a matter of the chip; Abs, Relu; Rsqrt and Reciprocal, refused.
//
// 950 documents 1 ulp without subnormals for the plain forms and other algorithms by a template parameter; nothing is
// published for 2201. The twin rounds the fp64 result, or, where the launch perturbs, gives the fp32 on its other side
// for some operands: within 1 ulp as well. Exact results such as Exp(0) = 1 and Ln(1) = 0 stay as they are.
#pragma once

#include <cmath>

#include "launch.h"
#include "vector_arithmetic.h"

namespace AscendC {

#if __NPU_ARCH__ == 3510
enum class ExpAlgo { INTRINSIC = 0, PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE };
enum class LnAlgo { INTRINSIC = 0, PRECISION_1ULP_FTZ_TRUE, PRECISION_1ULP_FTZ_FALSE };
enum class SqrtAlgo {
  INTRINSIC = 0, FAST_INVERSE, PRECISION_1ULP_FTZ_TRUE, PRECISION_0ULP_FTZ_FALSE, PRECISION_1ULP_FTZ_FALSE
};
enum class DivAlgo {
  INTRINSIC = 0, DIFF_COMPENSATION, PRECISION_1ULP_FTZ_TRUE, PRECISION_0ULP_FTZ_TRUE, PRECISION_0ULP_FTZ_FALSE,
  PRECISION_1ULP_FTZ_FALSE
};
struct ExpConfig { ExpAlgo algo = ExpAlgo::INTRINSIC; };
struct LnConfig { LnAlgo algo = LnAlgo::INTRINSIC; };
struct SqrtConfig { SqrtAlgo algo = SqrtAlgo::INTRINSIC; };
struct DivConfig { DivAlgo algo = DivAlgo::INTRINSIC; };
constexpr ExpConfig DEFAULT_EXP_CONFIG = {};
constexpr LnConfig DEFAULT_LN_CONFIG = {};
constexpr SqrtConfig DEFAULT_SQRT_CONFIG = {};
constexpr DivConfig DEFAULT_DIV_CONFIG = {};
#endif

}  // namespace AscendC

namespace twin {

// What an algorithm does beyond the function itself.
struct Accuracy {
  bool exact = false;  // 0 ulp: never perturbed
  bool flush = k3510;  // subnormal operands and results count as 0
};

#if __NPU_ARCH__ == 3510
constexpr Accuracy accuracy_of(AscendC::ExpConfig c) {
  return {false, c.algo != AscendC::ExpAlgo::PRECISION_1ULP_FTZ_FALSE};
}
constexpr Accuracy accuracy_of(AscendC::LnConfig c) {
  return {false, c.algo != AscendC::LnAlgo::PRECISION_1ULP_FTZ_FALSE};
}
constexpr Accuracy accuracy_of(AscendC::SqrtConfig c) {
  using A = AscendC::SqrtAlgo;
  const bool exact = c.algo == A::FAST_INVERSE || c.algo == A::PRECISION_0ULP_FTZ_FALSE;
  return {exact, c.algo == A::INTRINSIC || c.algo == A::PRECISION_1ULP_FTZ_TRUE};
}
constexpr Accuracy accuracy_of(AscendC::DivConfig c) {
  using A = AscendC::DivAlgo;
  const bool exact = c.algo == A::DIFF_COMPENSATION || c.algo == A::PRECISION_0ULP_FTZ_TRUE ||
                     c.algo == A::PRECISION_0ULP_FTZ_FALSE;
  return {exact, c.algo != A::PRECISION_0ULP_FTZ_FALSE && c.algo != A::PRECISION_1ULP_FTZ_FALSE};
}
#endif

inline float flushed(float x, bool flush) {
  return flush && std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

// `exact` as fp32, or, chosen by the operands' bits where `perturb`, the other fp32 next to it. Zeros, infinities and
// exact results stay.
inline float rounded(double exact, uint32_t a, uint32_t b, bool perturb) {
  const float nearest = float(exact);
  if (!perturb || nearest == 0.0f || !std::isfinite(nearest) || double(nearest) == exact) return nearest;
  const uint32_t mixed = ((a ^ (b * 0x9e3779b9u)) * 0x85ebca6bu) >> 31;
  return mixed ? std::nextafter(nearest, exact > double(nearest) ? HUGE_VALF : -HUGE_VALF) : nearest;
}

struct Inexact {
  Accuracy accuracy;
  bool perturb = options().perturb != 0 && !accuracy.exact;
};

struct ExpOp : Inexact {
  float operator()(float x) const {
    x = flushed(x, accuracy.flush);
    return flushed(rounded(std::exp(double(x)), float_bits(x), 1, perturb), accuracy.flush);
  }
};
struct LnOp : Inexact {
  float operator()(float x) const {
    x = flushed(x, accuracy.flush);
    return rounded(std::log(double(x)), float_bits(x), 2, perturb);
  }
};
struct SqrtOp : Inexact {
  float operator()(float x) const {
    // The exact algorithm of 950 is documented to give 0 above 2^126.
    if (k3510 && accuracy.exact && x > 0x1p126f) return 0.0f;
    x = flushed(x, accuracy.flush);
    return perturb ? rounded(std::sqrt(double(x)), float_bits(x), 3, true) : std::sqrt(x);
  }
};
struct DivOp : Inexact {
  float operator()(float a, float b) const {
    a = flushed(a, accuracy.flush);
    b = flushed(b, accuracy.flush);
    const float y = perturb ? rounded(double(a) / double(b), float_bits(a), float_bits(b), true) : a / b;
    return flushed(y, accuracy.flush);
  }
};

struct AbsOp {
  template <typename A> A operator()(A x) const {
    if constexpr (std::is_integral_v<A>) return x < 0 ? wrap<A>(0u - uint64_t(x)) : x;
    else return std::fabs(x);
  }
};
struct ReluOp {
  template <typename A> A operator()(A x) const { return x > A(0) ? x : x == x ? A(0) : x; }
};

template <typename T, typename F>
void unary(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src, const Pattern& pattern,
           const AscendC::UnaryRepeatParams& params, F f) {
  const bool saturate = saturates<T>();
  apply1(name, dst, src, pattern, params, [=](const T& x) { return narrow<T>(f(widen(x)), saturate); });
}

using FloatTypes = TypeList<half, float>;
using ReluTypes = TypeList<half, int32_t, float>;
#if __NPU_ARCH__ == 2201
using AbsTypes = FloatTypes;
#else
using AbsTypes = TypeList<int16_t, half, int32_t, float>;
#endif

}  // namespace twin

namespace AscendC {

#define TWIN_UNARY(Name, Types, extra, function)                                                                \
  TWIN_FORMS(Name, (typename T), extra, (const LocalTensor<T>& dst, const LocalTensor<T>& src),                 \
             UnaryRepeatParams, T, twin::Types::has<T>, twin::Types::has<T>,                                    \
             twin::unary(#Name, dst, src, pattern, params, function))
#define TWIN_DIV(extra, function)                                                                               \
  TWIN_FORMS(Div, (typename T), extra,                                                                          \
             (const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1),               \
             BinaryRepeatParams, T, twin::FloatTypes::has<T>, twin::FloatTypes::has<T>,                         \
             twin::binary("Div", dst, src0, src1, pattern, params, false, function))

#if __NPU_ARCH__ == 3510
TWIN_UNARY(Exp, FloatTypes, (, const ExpConfig& config = DEFAULT_EXP_CONFIG), twin::ExpOp{{twin::accuracy_of(config)}})
TWIN_UNARY(Ln, FloatTypes, (, const LnConfig& config = DEFAULT_LN_CONFIG), twin::LnOp{{twin::accuracy_of(config)}})
TWIN_UNARY(Sqrt, FloatTypes, (, const SqrtConfig& config = DEFAULT_SQRT_CONFIG),
           twin::SqrtOp{{twin::accuracy_of(config)}})
TWIN_DIV((, const DivConfig& config = DEFAULT_DIV_CONFIG), twin::DivOp{{twin::accuracy_of(config)}})
#else
TWIN_UNARY(Exp, FloatTypes, (), twin::ExpOp{})
TWIN_UNARY(Ln, FloatTypes, (), twin::LnOp{})
TWIN_UNARY(Sqrt, FloatTypes, (), twin::SqrtOp{})
TWIN_DIV((), twin::DivOp{})
#endif
TWIN_UNARY(Abs, AbsTypes, (), twin::AbsOp{})
TWIN_UNARY(Relu, ReluTypes, (), twin::ReluOp{})
#undef TWIN_UNARY
#undef TWIN_DIV

// The API pages say of both that float results miss even a relative error of 1e-4.
template <typename T, typename... Arguments> void Rsqrt(const LocalTensor<T>&, const Arguments&...) {
  static_assert(sizeof(T) == 0, "Rsqrt is documented as inaccurate: use Sqrt and Div");
}
template <typename T, typename... Arguments> void Reciprocal(const LocalTensor<T>&, const Arguments&...) {
  static_assert(sizeof(T) == 0, "Reciprocal is documented as inaccurate: use Div");
}

}  // namespace AscendC
