// One instruction on an arena: what the sources of instruction tests share. instructions.py mirrors the plan.
#pragma once

#include "kernel_operator.h"

struct InstructionPlan {
  uint32_t op, dst_type, src_type, form;  // form: 0 count, 1 contiguous mask, 2 mask bits
  uint32_t bytes;                         // of the arena
  uint32_t dst, src0, src1, extra;        // byte offsets of the operands in it
  int32_t count, repeats, mode;
  uint32_t strides[8];
  uint64_t mask[2];
  uint64_t scalar;                        // bits of a scalar argument
  uint32_t saturate, counter, unset, hole;  // unset: leave the modes of an earlier kernel; hole: bytes not loaded
};

#define KERNEL(name) extern "C" __global__ __aicore__ void name

#define INSTRUCTION_LAUNCHER(name, kind, ...)                                                                       \
  extern "C" __attribute__((visibility("default"))) int ld_launch_##name(                                           \
      uint32_t block_count, void* stream, void* const* pointers, uint32_t, const void* data, uint32_t bytes) {      \
    if (bytes != sizeof(InstructionPlan)) return -3;                                                                \
    InstructionPlan plan;                                                                                           \
    std::memcpy(&plan, data, sizeof plan);                                                                          \
    return twin::launch(#name, KERNEL_TYPE_##kind, block_count, static_cast<const twin::Launch*>(stream),           \
                        [&] { name(__VA_ARGS__, plan); });                                                          \
  }
#define POINTER(index) static_cast<GM_ADDR>(pointers[index])

inline void reset_modes(const InstructionPlan& plan) {
  if (plan.unset) return;
  AscendC::InitSocState();
  AscendC::SetHF32Mode(AscendC::HF32Mode::DISABLE);
  AscendC::SetCtrlSpr<48, 48>(plan.saturate ? 0 : 1);
  if (plan.counter) AscendC::SetMaskCount();
}

template <typename T> T scalar_of(const InstructionPlan& plan) {
  T value;
  std::memcpy(&value, &plan.scalar, sizeof value);
  return value;
}

// `bytes` of GM from an address on; 0: all that the argument has.
template <typename T> AscendC::GlobalTensor<T> global(GM_ADDR address, uint64_t bytes) {
  AscendC::GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address), bytes / sizeof(T));
  return tensor;
}
