// Types, macros and enumerations of Ascend C as a kernel source uses them.
#pragma once

#include <cstdint>
#include <cstring>

#if !defined(__NPU_ARCH__)
#error "the twin needs __NPU_ARCH__: 2201 (910B, A3) or 3510 (950)"
#elif __NPU_ARCH__ != 2201 && __NPU_ARCH__ != 3510
#error "the twin knows __NPU_ARCH__ 2201 and 3510"
#endif

#define __global__
#define __aicore__
#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define __vector__
#define __cube__
#define __mix__(cube, vector)
#define GM_ADDR uint8_t*
#define ASCENDC_TWIN 1

namespace twin {

// IEEE binary16 from fp32, nearest even; NaN stays a quiet NaN, overflow gives infinity.
inline uint16_t half_bits(float value) {
  uint32_t x;
  std::memcpy(&x, &value, 4);
  const uint16_t sign = static_cast<uint16_t>((x >> 16) & 0x8000u);
  x &= 0x7fffffffu;
  if (x > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((x >> 13) & 0x1ffu));
  if (x >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (x < 0x38800000u) {  // below 2^-14: a subnormal half is a multiple of 2^-24
    if (x < 0x33000000u) return sign;
    const uint32_t shift = 126u - (x >> 23), mantissa = (x & 0x7fffffu) | 0x800000u;
    const uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
    return static_cast<uint16_t>(sign | (kept + ((rest > tie || (rest == tie && (kept & 1u))) ? 1u : 0u)));
  }
  return static_cast<uint16_t>(sign | ((x - 0x38000000u + 0xfffu + ((x >> 13) & 1u)) >> 13));
}

inline float half_value(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  uint32_t x;
  if (magnitude >= 0x7c00u) {
    x = 0x7f800000u | ((magnitude & 0x3ffu) << 13);
  } else if (magnitude >= 0x400u) {
    x = (magnitude << 13) + 0x38000000u;
  } else {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    std::memcpy(&x, &value, 4);
  }
  x |= sign;
  float value;
  std::memcpy(&value, &x, 4);
  return value;
}

// bfloat16 from fp32, nearest even; NaN stays a quiet NaN.
inline uint16_t bfloat16_bits(float value) {
  uint32_t x;
  std::memcpy(&x, &value, 4);
  if ((x & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((x >> 16) | 0x40u);
  return static_cast<uint16_t>((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
}

inline float bfloat16_value(uint16_t bits) {
  const uint32_t x = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &x, 4);
  return value;
}

}  // namespace twin

// 16-bit floats with trivial construction; arithmetic happens in fp32 after the implicit conversion.
struct half {
  uint16_t bits;
  half() = default;
  half(float value) : bits(twin::half_bits(value)) {}
  operator float() const { return twin::half_value(bits); }
};

struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  bfloat16_t(float value) : bits(twin::bfloat16_bits(value)) {}
  operator float() const { return twin::bfloat16_value(bits); }
};
static_assert(sizeof(half) == 2 && sizeof(bfloat16_t) == 2);

enum pipe_t { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };
enum event_t { EVENT_ID0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7 };

enum QuantMode_t { NoQuant, F322F16, F322BF16 };

// The MIX kinds start the scheduler that cross-core flags and SyncAll need; the ONLY kinds do not.
enum KernelMetaType {
  KERNEL_TYPE_AIV_ONLY, KERNEL_TYPE_AIC_ONLY, KERNEL_TYPE_MIX_AIV_1_0, KERNEL_TYPE_MIX_AIC_1_0,
  KERNEL_TYPE_MIX_AIC_1_2
};

namespace AscendC {

using TEventID = int8_t;

enum class TPosition : uint8_t { GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, C2PIPE2GM, MAX };
using QuePosition = TPosition;

enum class Hardware : uint8_t { GM, UB, L1, L0A, L0B, L0C, BIAS, FIXBUF, MAX };

// Source pipe, then the pipe that waits.
enum class HardEvent : uint8_t {
  MTE2_V, V_MTE2, MTE3_V, V_MTE3, MTE2_MTE1, MTE1_MTE2, MTE1_M, M_MTE1, M_FIX, FIX_M, MTE2_MTE3, MTE3_MTE2,
  MTE3_MTE1, MTE1_MTE3, MTE2_M, M_MTE2, MTE1_FIX, FIX_MTE1, MTE2_FIX, FIX_MTE2, FIX_MTE3, MTE3_FIX,
  S_V, V_S, S_MTE2, MTE2_S, S_MTE3, MTE3_S, MAX
};

enum class RoundMode : uint8_t {
  CAST_NONE, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD
};
enum class CMPMODE : uint8_t { LT, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class ReduceOrder : uint8_t { ORDER_VALUE_INDEX, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };
enum class MaskMode : uint8_t { NORMAL, COUNTER };
enum class SaturationMode : uint8_t { FLOAT, CAST };
enum class HF32Mode : uint8_t { DISABLE, ENABLE };
enum class HF32TransMode : uint8_t { NEAREST_ZERO_ROUND, NEAREST_EVEN_ROUND };
constexpr int32_t DEFAULT_BLK_NUM = 8, DEFAULT_BLK_SIZE = 256, DEFAULT_REPEAT_STRIDE = 8, ONE_BLK_SIZE = 32;

}  // namespace AscendC
