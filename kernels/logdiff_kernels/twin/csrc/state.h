// Modes of a core that outlive a kernel: each launch starts with whatever an earlier one left.
#pragma once

#include <cstdint>

#include "check.h"
#include "types.h"

namespace twin {

// A mode. Until this kernel has set it, its value is a random one and an instruction that depends on it fails.
template <typename T>
class Mode {
 public:
  explicit Mode(const char* name) : name_(name) {}
  void dirty(T value) {
    value_ = value;
    known_ = false;
  }
  void set(T value) {
    value_ = value;
    known_ = true;
  }
  bool known() const { return known_; }
  const T& get() const {
    if (!known_) fail(Check::state, "%s was never set by this kernel: an earlier kernel's value would count", name_);
    return value_;
  }

 private:
  const char* name_;
  T value_{};
  bool known_ = false;
};

struct MaskBits {
  uint64_t low = ~0ull, high = ~0ull;
};

// What an atomic write to GM does; `type` is the element type of SetAtomicAdd.
enum class Atomic : uint8_t { none, add_float, add_half, add_bfloat16, add_int32, add_int16, add_int8 };

// Only NORMAL mask mode, a full mask and no atomics come from InitSocState. Saturation and HF32 have to be set by name.
struct State {
  Mode<AscendC::MaskMode> mask_mode{"the mask mode (SetMaskNorm, SetMaskCount, InitSocState)"};
  Mode<MaskBits> mask{"the vector mask (SetVectorMask, InitSocState)"};  // counter mode: element count in `low`
  Mode<Atomic> atomic{"the atomic mode (SetAtomicNone, InitSocState)"};
  Mode<bool> saturate{"the saturation mode of casts (SetSaturationFlag, SetCtrlSpr)"};
  Mode<bool> hf32{"the HF32 mode (SetHF32Mode)"};
};

State& state();  // of the running core

}  // namespace twin
