// Cast: conversions between element types.
//
// Legal pairs and rounding modes by architecture: Cast page of the API, data types. What is out of the destination's
// range saturates, or becomes an infinity where the kernel has switched saturation off; see cast_rounding.h.
#pragma once

#include "launch.h"
#include "vector_apply.h"

namespace twin {

constexpr unsigned bit_of(RoundMode mode) { return 1u << static_cast<unsigned>(mode); }
constexpr unsigned kExact = bit_of(RoundMode::CAST_NONE);
constexpr unsigned kDirected = bit_of(RoundMode::CAST_RINT) | bit_of(RoundMode::CAST_FLOOR) |
                               bit_of(RoundMode::CAST_CEIL) | bit_of(RoundMode::CAST_ROUND) |
                               bit_of(RoundMode::CAST_TRUNC);
constexpr unsigned kDirectedOrNone2201 = kDirected | (k3510 ? 0u : kExact);

// Rounding modes of the conversion S -> D as a bit set; 0: no such conversion.
template <typename D, typename S> constexpr unsigned cast_modes() {
  constexpr auto is = [](auto d, auto s) {
    return std::is_same_v<decltype(d), D> && std::is_same_v<decltype(s), S>;
  };
  using h = half;
  using b = bfloat16_t;
  using f = float;
  if (is(f(), h()) || is(f(), b()) || is(h(), int8_t()) || is(h(), uint8_t()) || is(f(), int16_t())) return kExact;
  if (is(int16_t(), int32_t()) || is(int64_t(), int32_t()) || is(int32_t(), int64_t())) return kExact;
  if (is(h(), f())) return kDirected | kExact | bit_of(RoundMode::CAST_ODD);
  if (is(b(), f()) || is(f(), f()) || is(int16_t(), f()) || is(int32_t(), f()) || is(int64_t(), f())) return kDirected;
  if (is(int16_t(), h()) || is(int32_t(), h()) || is(int32_t(), b()) || is(f(), int64_t())) return kDirected;
  if (is(h(), int16_t()) || is(int8_t(), h()) || is(uint8_t(), h()) || is(f(), int32_t())) return kDirectedOrNone2201;
  if (!k3510) return 0;
  if (is(b(), h()) || is(h(), b())) return kDirected;
  if (is(int16_t(), int8_t()) || is(int32_t(), int8_t()) || is(uint16_t(), uint8_t()) || is(uint32_t(), uint8_t()) ||
      is(uint8_t(), int16_t()) || is(int32_t(), int16_t()) || is(uint32_t(), int16_t()) || is(uint8_t(), uint16_t()) ||
      is(uint32_t(), uint16_t()) || is(uint8_t(), int32_t()) || is(uint16_t(), int32_t()) ||
      is(uint8_t(), uint32_t()) || is(int16_t(), uint32_t()) || is(uint16_t(), uint32_t())) {
    return kExact;
  }
  return 0;
}

// How results out of range come out: infinities and NaN, integers.
struct Saturation {
  bool floats, integers;
};

template <typename D, typename S, RoundMode mode> D convert(const S& x, Saturation saturation) {
  constexpr bool from_float = one_of<S, float, half, bfloat16_t>;
  if constexpr (one_of<D, half, bfloat16_t>) {
    using Format = std::conditional_t<std::is_same_v<D, half>, HalfFormat, Bf16Format>;
    D out;
    float value;
    if constexpr (from_float) {
      value = widen(x);
    } else {
      value = float(x);  // 8 and 16 bits: exact
    }
    if (mode == RoundMode::CAST_RINT && !saturation.floats) {
      out.bits = std::is_same_v<D, half> ? nearest_half(value) : nearest_bf16(value);
    } else {
      out.bits = narrow_float<Format, mode>(value, saturation.floats);
    }
    return out;
  } else if constexpr (std::is_same_v<D, float>) {
    if constexpr (std::is_same_v<S, float>) {
      return float(integral<mode>(x));
    } else if constexpr (from_float) {
      return widen(x);
    } else {
      return int_to_float<mode>(x);
    }
  } else if constexpr (from_float) {
    return float_to_int<D, mode>(widen(x), saturation.integers);
  } else {
    return int_to_int<D>(x, saturation.integers);
  }
}

template <typename D, typename S> using Conversion = D (*)(const S&, Saturation);

template <typename D, typename S> Conversion<D, S> conversion(RoundMode mode) {
  switch (mode) {
    case RoundMode::CAST_FLOOR: return convert<D, S, RoundMode::CAST_FLOOR>;
    case RoundMode::CAST_CEIL: return convert<D, S, RoundMode::CAST_CEIL>;
    case RoundMode::CAST_ROUND: return convert<D, S, RoundMode::CAST_ROUND>;
    case RoundMode::CAST_TRUNC: return convert<D, S, RoundMode::CAST_TRUNC>;
    case RoundMode::CAST_ODD: return convert<D, S, RoundMode::CAST_ODD>;
    default: return convert<D, S, RoundMode::CAST_RINT>;
  }
}

template <typename D, typename S>
void cast(const LocalTensor<D>& dst, const LocalTensor<S>& src, RoundMode mode, const Pattern& pattern,
          const AscendC::UnaryRepeatParams& params) {
  static_assert(!(std::is_same_v<D, half> && std::is_same_v<S, int32_t>),
                "Cast int32_t to half needs SetDeqScale, which the twin does not model: go through float");
  constexpr unsigned modes = cast_modes<D, S>();
  static_assert(modes != 0, "Cast: no conversion between these element types on this architecture");
  if (static_cast<unsigned>(mode) > 6 || (modes & bit_of(mode)) == 0) {
    fail(Check::overload, "rounding mode %s doesn't exist for this pair of element types", name_of(mode));
  }
  Saturation saturation{false, options().perturb == 0};  // the integer mode isn't modelled: its default, or the other
  if constexpr (one_of<D, half, bfloat16_t>) saturation.floats = state().saturate.get();
  if (!saturation.floats && (mode == RoundMode::CAST_RINT || mode == RoundMode::CAST_NONE)) {  // inlined for speed
    apply1("Cast", dst, src, pattern, params, [integers = saturation.integers](const S& x) {
      return convert<D, S, RoundMode::CAST_RINT>(x, {false, integers});
    });
    return;
  }
  const auto one = conversion<D, S>(mode);
  apply1("Cast", dst, src, pattern, params, [=](const S& x) { return one(x, saturation); });
}

// Lanes of a repeat of a conversion: those of the wider type.
template <typename D, typename S> constexpr uint32_t kCastLanes = lanes_of(sizeof(D) > sizeof(S) ? sizeof(D) : sizeof(S));

}  // namespace twin

namespace AscendC {

template <typename T, typename U>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint32_t count) {
  constexpr uint32_t lanes = twin::kCastLanes<T, U>;
  const UnaryRepeatParams params(1, 1, twin::dense_repeat(lanes, sizeof(T)), twin::dense_repeat(lanes, sizeof(U)));
  twin::cast(dst, src, roundMode, twin::count_form(lanes, count), params);
}

template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, uint64_t mask,
          const twin::RepeatTime& repeatTime, const UnaryRepeatParams& params) {
  twin::cast(dst, src, roundMode, twin::mask_form(twin::kCastLanes<T, U>, mask, repeatTime, isSetMask), params);
}

template <typename T, typename U, bool isSetMask = true>
void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint64_t mask[],
          const twin::RepeatTime& repeatTime, const UnaryRepeatParams& params) {
  twin::cast(dst, src, roundMode, twin::mask_form(twin::kCastLanes<T, U>, mask, repeatTime, isSetMask), params);
}

}  // namespace AscendC
