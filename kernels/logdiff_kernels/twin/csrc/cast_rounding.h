// Rounding, saturation and truncation of conversions between number formats: pure functions.
//
// Rules: api/SIMD-API, basic API, data structures, precision conversion (rounding modes), and SetCtrlSpr (saturation).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "types.h"

namespace twin {

using AscendC::RoundMode;

inline const char* name_of(RoundMode mode) {
  constexpr const char* kNames[] = {"NONE", "RINT", "FLOOR", "CEIL", "ROUND", "TRUNC", "ODD"};
  const auto index = static_cast<unsigned>(mode);
  return index < 7 ? kNames[index] : "an unknown mode";
}

inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Whether the kept part of a magnitude grows by one unit, given the dropped part and the weight of half a unit.
template <RoundMode mode> constexpr bool rounds_up(bool negative, uint64_t kept, uint64_t dropped, uint64_t half) {
  switch (mode) {
    case RoundMode::CAST_FLOOR: return negative && dropped != 0;
    case RoundMode::CAST_CEIL: return !negative && dropped != 0;
    case RoundMode::CAST_ROUND: return dropped >= half;
    case RoundMode::CAST_TRUNC: return false;
    case RoundMode::CAST_ODD: return dropped != 0 && (kept & 1) == 0;
    default: return dropped > half || (dropped == half && (kept & 1) != 0);
  }
}

template <RoundMode mode> constexpr bool overflows_to_infinity(bool negative) {
  switch (mode) {
    case RoundMode::CAST_FLOOR: return negative;
    case RoundMode::CAST_CEIL: return !negative;
    case RoundMode::CAST_TRUNC:
    case RoundMode::CAST_ODD: return false;
    default: return true;
  }
}

// A 16-bit float: `kMantissa` stored fraction bits under `kExponent` exponent bits.
template <int kMantissaBits, int kExponentBits> struct NarrowFormat {
  static constexpr int kMantissa = kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint32_t kInfinity = ((1u << kExponentBits) - 1u) << kMantissaBits;
  static constexpr uint32_t kLargest = kInfinity - 1;
};
using HalfFormat = NarrowFormat<10, 5>;
using Bf16Format = NarrowFormat<7, 8>;

// x in a 16-bit format. Saturating: infinities and overflows give the largest finite value, NaN gives +0.
template <class Format, RoundMode mode> inline uint16_t narrow_float(float x, bool saturate) {
  const uint32_t bits = float_bits(x);
  const bool negative = bits >> 31;
  const uint32_t sign = negative ? 0x8000u : 0u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    if (saturate) return 0;
    const uint32_t quiet = 1u << (Format::kMantissa - 1);
    const uint32_t payload = (magnitude & 0x7fffffu) >> (23 - Format::kMantissa);
    return uint16_t(sign | Format::kInfinity | quiet | payload);
  }
  if (magnitude == 0x7f800000u) return uint16_t(sign | (saturate ? Format::kLargest : Format::kInfinity));
  const uint32_t stored = magnitude >> 23;
  const uint32_t significand = (magnitude & 0x7fffffu) | (stored ? 0x800000u : 0u);
  const int target = int(stored ? stored : 1u) - 127 + Format::kBias;  // below 1 the result is subnormal
  int shift = 23 - Format::kMantissa + (target < 1 ? 1 - target : 0);
  if (shift > 25) shift = 25;  // everything is dropped and is below half a unit
  const uint32_t dropped = significand & ((1u << shift) - 1u);
  uint32_t kept = significand >> shift;
  kept += rounds_up<mode>(negative, kept, dropped, 1u << (shift - 1));
  uint32_t result = (target < 1 ? 0u : uint32_t(target - 1) << Format::kMantissa) + kept;
  if (result >= Format::kInfinity) {
    const bool away = overflows_to_infinity<mode>(negative);
    result = away && !saturate ? Format::kInfinity : Format::kLargest;
  }
  return uint16_t(sign | result);
}

// Branch-free forms of the commonest case, nearest even without saturation, which compilers turn into vector code.
inline uint16_t nearest_bf16(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline uint16_t nearest_half(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14 an fp32 add of 1/2 rounds at 2^-24, the unit of half subnormals.
  const uint32_t subnormal = float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
  return uint16_t(sign | (magnitude >= 0x477ff000u ? large : finite));  // from 65520 on: infinity
}

inline float widen_bf16(uint16_t bits) { return bits_float(uint32_t(bits) << 16); }

inline float widen_half(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u);
  const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
  const uint32_t subnormal = float_bits(float(int32_t(magnitude)) * 0x1p-24f);
  return bits_float(sign | (magnitude < 0x400u ? subnormal : normal | quiet));
}

// x rounded to an integral value.
template <RoundMode mode> inline double integral(double x) {
  switch (mode) {
    case RoundMode::CAST_FLOOR: return std::floor(x);
    case RoundMode::CAST_CEIL: return std::ceil(x);
    case RoundMode::CAST_ROUND: return std::round(x);
    case RoundMode::CAST_TRUNC: return std::trunc(x);
    default: return std::nearbyint(x);  // the host's mode is nearest even
  }
}

// x as an integer type: out of range it saturates, or keeps the low bits. NaN gives 0.
template <class Int, RoundMode mode> inline Int float_to_int(float x, bool saturate) {
  const double value = integral<mode>(double(x));
  if (value != value) return 0;
  constexpr double kLowest = double(std::numeric_limits<Int>::lowest());
  constexpr double kBeyond = sizeof(Int) == 8 ? 0x1p63 : double(std::numeric_limits<Int>::max()) + 1.0;
  if (value >= kLowest && value < kBeyond) return Int(value);
  if (saturate) return value < 0 ? std::numeric_limits<Int>::lowest() : std::numeric_limits<Int>::max();
  if (std::fabs(value) >= 0x1p63) return 0;  // a multiple of 2^40, or an infinity
  return Int(uint64_t(int64_t(value)));
}

// An integer as fp32.
template <RoundMode mode> inline float int_to_float(int64_t x) {
  const bool negative = x < 0;
  const uint64_t magnitude = negative ? 0u - uint64_t(x) : uint64_t(x);
  if (magnitude < (1u << 24)) return float(x);
  const int shift = 40 - __builtin_clzll(magnitude);
  uint64_t kept = magnitude >> shift;
  const uint64_t dropped = magnitude & ((uint64_t{1} << shift) - 1);
  kept += rounds_up<mode>(negative, kept, dropped, uint64_t{1} << shift >> 1);
  const float value = std::ldexp(float(kept), shift);  // at most 25 significant bits, the last one 0: exact
  return negative ? -value : value;
}

// A wider integer as a narrower one.
template <class To, class From> inline To int_to_int(From x, bool saturate) {
  if (saturate) {
    const auto value = static_cast<int64_t>(x);
    if (value < int64_t(std::numeric_limits<To>::lowest())) return std::numeric_limits<To>::lowest();
    if (value > int64_t(std::numeric_limits<To>::max())) return std::numeric_limits<To>::max();
  }
  return static_cast<To>(static_cast<uint64_t>(x));
}

}  // namespace twin
