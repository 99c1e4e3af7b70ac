// Setting the modes of a core: mask, atomics, saturation, HF32.
#pragma once

#include <type_traits>

#include "state.h"

namespace twin {

template <typename T>
constexpr Atomic atomic_add_of() {
  if constexpr (std::is_same_v<T, float>) return Atomic::add_float;
  else if constexpr (std::is_same_v<T, half>) return Atomic::add_half;
  else if constexpr (std::is_same_v<T, bfloat16_t>) return Atomic::add_bfloat16;
  else if constexpr (std::is_same_v<T, int32_t>) return Atomic::add_int32;
  else if constexpr (std::is_same_v<T, int16_t>) return Atomic::add_int16;
  else {
    static_assert(std::is_same_v<T, int8_t>, "SetAtomicAdd takes float, half, bfloat16_t, int32_t, int16_t, int8_t");
    return Atomic::add_int8;
  }
}

// The first `count` lanes of a repeat, as mask bits.
inline MaskBits leading_lanes(uint64_t count) {
  const auto bits = [](uint64_t n) { return n >= 64 ? ~0ull : (1ull << n) - 1ull; };
  return {bits(count), count > 64 ? bits(count - 64) : 0};
}

// Sets the state as InitSocState does: atomics off, normal mask mode, full mask. Saturation and HF32 stay as they are:
// on 2201 no CTRL bit is reset, on 3510 all but the saturation bit, so a kernel has to set these by name.
void init_soc_state();

}  // namespace twin

namespace AscendC {

inline void InitSocState() { twin::init_soc_state(); }

inline void SetMaskNorm() { twin::state().mask_mode.set(MaskMode::NORMAL); }
inline void SetMaskCount() { twin::state().mask_mode.set(MaskMode::COUNTER); }
inline void ResetMask() { twin::state().mask.set({}); }

// Normal mode: bits of the lanes. Counter mode: `low` is the element count.
template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(uint64_t high, uint64_t low) {
  if (mode == MaskMode::NORMAL && sizeof(T) >= 4 && high != 0) {
    twin::fail(twin::Check::mask, "SetVectorMask: a repeat of %d-byte elements has no upper 64 lanes",
               static_cast<int>(sizeof(T)));
  }
  twin::state().mask.set({low, high});
}
template <typename T, MaskMode mode = MaskMode::NORMAL>
void SetVectorMask(int32_t count) {
  if (mode == MaskMode::COUNTER) {
    twin::state().mask.set({static_cast<uint64_t>(count), 0});
    return;
  }
  if (count < 0 || count > static_cast<int32_t>(256 / sizeof(T)) || count > 128) {
    twin::fail(twin::Check::mask, "SetVectorMask: %d lanes of %d-byte elements", count, static_cast<int>(sizeof(T)));
  }
  twin::state().mask.set(twin::leading_lanes(static_cast<uint64_t>(count)));
}

template <typename T>
void SetAtomicAdd() {
  twin::state().atomic.set(twin::atomic_add_of<T>());
}
inline void SetAtomicNone() { twin::state().atomic.set(twin::Atomic::none); }
inline void DisableDmaAtomic() { SetAtomicNone(); }

#if __NPU_ARCH__ == 2201
// FLOAT: half and bfloat16_t results and conversions; CAST (integer conversions) is not modelled.
template <SaturationMode mode>
void SetSaturationFlag(bool enable) {
  static_assert(mode == SaturationMode::FLOAT, "the twin models the saturation of half and bfloat16_t only");
  twin::state().saturate.set(enable);
}
#endif

// CTRL[48]: 0 saturates half and bfloat16_t (inf to the largest value, NaN to 0), 1 keeps inf and NaN.
template <int8_t first, int8_t last>
void SetCtrlSpr(int64_t value) {
  static_assert(first == 48 && last == 48, "the twin models CTRL[48] only");
  twin::state().saturate.set(value == 0);
}

inline void SetHF32Mode(HF32Mode mode) { twin::state().hf32.set(mode == HF32Mode::ENABLE); }
inline void SetHF32Mode(bool enable) { twin::state().hf32.set(enable); }

}  // namespace AscendC
