// One copy between UB and GM, or within UB, for test_copy.py.
#include "instruction_plan.h"

using namespace AscendC;

enum Copy : uint32_t { kIn, kInBlocks, kOut, kOutBlocks, kWithin, kWithinBlocks, kPadIn, kPadOut };

// One copy between an arena in UB (loaded before, stored after) and `other` in GM. strides: block count and length,
// gaps of source and destination; mask[0], mask[1]: left and right padding; mode: isPad.
template <typename T>
void copy_one(const InstructionPlan& plan, const LocalTensor<uint8_t>& arena, const GlobalTensor<T>& gm) {
  const auto local = [&](uint32_t at) { return arena[at].template ReinterpretCast<T>(); };
  const auto blocks = [&] { return DataCopyParams(plan.strides[0], plan.strides[1], plan.strides[2], plan.strides[3]); };
  const auto ext = [&] {
#if __NPU_ARCH__ == 3510
    return DataCopyExtParams(plan.strides[0], plan.strides[1], int32_t(plan.strides[2]), int32_t(plan.strides[3]), 0);
#else
    return DataCopyExtParams(plan.strides[0], plan.strides[1], plan.strides[2], plan.strides[3], 0);
#endif
  };
  const auto pad = [&] {
    return DataCopyPadExtParams<T>(plan.mode != 0, plan.mask[0], plan.mask[1], scalar_of<T>(plan));
  };
  switch (plan.op) {
    case kIn: return DataCopy(local(plan.dst), gm[plan.src0 / sizeof(T)], uint32_t(plan.count));
    case kInBlocks: return DataCopy(local(plan.dst), gm[plan.src0 / sizeof(T)], blocks());
    case kOut: return DataCopy(gm[plan.dst / sizeof(T)], local(plan.src0), uint32_t(plan.count));
    case kOutBlocks: return DataCopy(gm[plan.dst / sizeof(T)], local(plan.src0), blocks());
    case kWithin: return DataCopy(local(plan.dst), local(plan.src0), uint32_t(plan.count));
    case kWithinBlocks: return DataCopy(local(plan.dst), local(plan.src0), blocks());
    case kPadIn: return DataCopyPad(local(plan.dst), gm[plan.src0 / sizeof(T)], ext(), pad());
    case kPadOut: return DataCopyPad(gm[plan.dst / sizeof(T)], local(plan.src0), ext());
  }
}

// What DataCopyPad leaves unspecified around its blocks becomes 0xee, so that the arena can be stored.
void settle(const InstructionPlan& plan, const LocalTensor<uint8_t>& arena, uint32_t size) {
  const uint32_t left = plan.mask[0] * size, right = plan.mask[1] * size, length = plan.strides[1];
  const uint32_t row = (left + length + right + 31) / 32 * 32;
  for (uint32_t i = 0; i < plan.strides[0]; ++i) {
    const uint32_t begin = plan.dst + i * (row + plan.strides[3] * 32);
    for (uint32_t at = 0; at < row; ++at) {
      if (at < left || at >= left + length) arena.SetValue(begin + at, 0xee);
    }
  }
}

KERNEL(copy_instruction)(GM_ADDR before, GM_ADDR after, GM_ADDR other, InstructionPlan plan) {
  reset_modes(plan);
  const LocalTensor<uint8_t> arena(TPosition::VECCALC, 0, plan.bytes);
  DataCopy(arena, global<uint8_t>(before, plan.bytes), plan.bytes - plan.hole);
  PipeBarrier<PIPE_ALL>();
  switch (plan.form) {  // an atomic mode, numbered as types are, from 1 on
    case 1: SetAtomicAdd<int8_t>(); break;
    case 3: SetAtomicAdd<int16_t>(); break;
    case 5: SetAtomicAdd<int32_t>(); break;
    case 8: SetAtomicAdd<half>(); break;
    case 9: SetAtomicAdd<bfloat16_t>(); break;
    case 10: SetAtomicAdd<float>(); break;
  }
  for (int32_t i = 0; i < plan.repeats; ++i) {
    switch (plan.dst_type) {  // as in instructions.py's TYPES
      case 0: copy_one<int8_t>(plan, arena, global<int8_t>(other, 0)); break;
      case 2: copy_one<int16_t>(plan, arena, global<int16_t>(other, 0)); break;
      case 7: copy_one<half>(plan, arena, global<half>(other, 0)); break;
      case 8: copy_one<bfloat16_t>(plan, arena, global<bfloat16_t>(other, 0)); break;
      case 4: copy_one<int32_t>(plan, arena, global<int32_t>(other, 0)); break;
      default: copy_one<float>(plan, arena, global<float>(other, 0)); break;
    }
    PipeBarrier<PIPE_ALL>();
  }
  SetAtomicNone();
  if (plan.extra != 0) settle(plan, arena, plan.extra);
  PipeBarrier<PIPE_ALL>();
  DataCopy(global<uint8_t>(after, plan.bytes), arena, plan.bytes - plan.hole);
  PipeBarrier<PIPE_ALL>();
}
INSTRUCTION_LAUNCHER(copy_instruction, AIV_ONLY, POINTER(0), POINTER(1), POINTER(2))

