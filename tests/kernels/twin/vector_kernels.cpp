// One vector instruction on an arena in UB, for test_vector.py and test_cast.py. The arena comes from GM and goes back.
#include "instruction_plan.h"

using namespace AscendC;

enum Type : uint32_t { kI8, kU8, kI16, kU16, kI32, kU32, kI64, kHalf, kBf16, kFloat, kU64 };

enum Operation : uint32_t {
  kAdd, kSub, kMul, kDiv, kMax, kMin, kMulAddDst, kFusedMulAdd, kAnd, kOr,              // dst, src0, src1
  kAdds = 20, kMuls, kMaxs, kMins, kAxpy, kShiftLeft, kShiftRight,                       // dst, src0, scalar
  kExp = 40, kLn, kSqrt, kAbs, kRelu, kNot, kDivExact, kSqrtExact,                       // dst, src0
  kDuplicate = 60, kBrcb, kCreateVecIndex,
  kCompare = 70, kCompareScalar, kSelect, kSelectScalar,
  kGather = 80, kGatherMask, kGatherMaskFixed, kSort32, kTranspose, kTransData,
  kPairReduceSum = 100, kBlockReduceSum, kBlockReduceMax, kBlockReduceMin, kWholeReduceSum, kWholeReduceMax,
  kWholeReduceMin, kReduceSum, kReduceMax, kReduceMin,
  kCast = 200
};

struct Operands {
  const InstructionPlan& plan;
  LocalTensor<uint8_t> arena;

  template <typename T> LocalTensor<T> at(uint32_t offset) const { return arena[offset].template ReinterpretCast<T>(); }
  template <typename T> LocalTensor<T> dst() const { return at<T>(plan.dst); }
  template <typename T> LocalTensor<T> src0() const { return at<T>(plan.src0); }
  template <typename T> LocalTensor<T> src1() const { return at<T>(plan.src1); }
};

BinaryRepeatParams binary_strides(const InstructionPlan& p) {
  return {p.strides[0], p.strides[1], p.strides[2], p.strides[3], p.strides[4], p.strides[5]};
}
UnaryRepeatParams unary_strides(const InstructionPlan& p) {
  return {p.strides[0], p.strides[1], p.strides[3], p.strides[4]};
}

// Runs an API function with three forms.
#define FORMS(call, params, ...)                                                  \
  do {                                                                            \
    if (plan.form == 0) return call(__VA_ARGS__, plan.count);                     \
    if (plan.form == 1) return call(__VA_ARGS__, plan.mask[0], plan.repeats, params); \
    return call(__VA_ARGS__, plan.mask, plan.repeats, params);                    \
  } while (0)
#define BINARY(name) FORMS(name, binary_strides(plan), x.dst<T>(), x.src0<T>(), x.src1<T>())
#define SCALAR(name) FORMS(name, unary_strides(plan), x.dst<T>(), x.src0<T>(), scalar_of<T>(plan))
#define UNARY(name) FORMS(name, unary_strides(plan), x.dst<T>(), x.src0<T>())

template <typename T, bool products, bool scalars> void arithmetic(const Operands& x) {
  const InstructionPlan& plan = x.plan;
  switch (plan.op) {
    case kAdd: BINARY(Add);
    case kSub: BINARY(Sub);
    case kMax: BINARY(Max);
    case kMin: BINARY(Min);
    case kMul: if constexpr (products) BINARY(Mul); break;
    case kAdds: if constexpr (scalars) SCALAR(Adds); break;
    case kMuls: if constexpr (scalars) SCALAR(Muls); break;
    case kMaxs: if constexpr (scalars) SCALAR(Maxs); break;
    case kMins: if constexpr (scalars) SCALAR(Mins); break;
  }
}

template <typename T> void floats(const Operands& x) {
  const InstructionPlan& plan = x.plan;
  switch (plan.op) {
    case kDiv: BINARY(Div);
    case kMulAddDst: BINARY(MulAddDst);
    case kFusedMulAdd: BINARY(FusedMulAdd);
    case kAxpy: SCALAR(Axpy);
    case kExp: UNARY(Exp);
    case kLn: UNARY(Ln);
    case kSqrt: UNARY(Sqrt);
    case kAbs: UNARY(Abs);
    case kRelu: UNARY(Relu);
#if __NPU_ARCH__ == 3510
    case kDivExact: {
      static constexpr DivConfig config{DivAlgo::PRECISION_0ULP_FTZ_FALSE};
      return Div<T, config>(x.dst<T>(), x.src0<T>(), x.src1<T>(), plan.count);
    }
    case kSqrtExact: {
      static constexpr SqrtConfig config{SqrtAlgo::PRECISION_0ULP_FTZ_FALSE};
      return Sqrt<T, config>(x.dst<T>(), x.src0<T>(), plan.count);
    }
#endif
  }
}

template <typename T> void reductions(const Operands& x) {
  const InstructionPlan& plan = x.plan;
  const auto dst = x.dst<T>(), src = x.src0<T>(), tmp = x.src1<T>();
  const int32_t mask = int32_t(plan.mask[0]), dst_repeat = plan.strides[3], block = plan.strides[1],
                repeat = plan.strides[4];
#define GROUPS(name)                                                                             \
  if (plan.form == 1) return name(dst, src, plan.repeats, mask, dst_repeat, block, repeat);      \
  return name(dst, src, plan.repeats, plan.mask, dst_repeat, block, repeat)
#define BEST(name)                                                                               \
  if (plan.form == 0) return name(dst, src, tmp, plan.count, plan.mode != 0);                    \
  return name(dst, src, tmp, mask, plan.repeats, repeat, plan.mode != 0)
  switch (plan.op) {
    case kPairReduceSum: GROUPS(PairReduceSum);
    case kBlockReduceSum: GROUPS(BlockReduceSum);
    case kBlockReduceMax: GROUPS(BlockReduceMax);
    case kBlockReduceMin: GROUPS(BlockReduceMin);
    case kWholeReduceSum: return WholeReduceSum(dst, src, mask, plan.repeats, dst_repeat, block, repeat);
    case kWholeReduceMax:
      return WholeReduceMax(dst, src, mask, plan.repeats, dst_repeat, block, repeat, ReduceOrder(plan.mode));
    case kWholeReduceMin:
      return WholeReduceMin(dst, src, mask, plan.repeats, dst_repeat, block, repeat, ReduceOrder(plan.mode));
    case kReduceSum:
      if (plan.form == 0) return ReduceSum(dst, src, tmp, plan.count);
      return ReduceSum(dst, src, tmp, mask, plan.repeats, repeat);
    case kReduceMax: BEST(ReduceMax);
    case kReduceMin: BEST(ReduceMin);
  }
#undef GROUPS
#undef BEST
}

template <typename T> void comparisons(const Operands& x) {
  const InstructionPlan& plan = x.plan;
  const auto mode = CMPMODE(plan.mode);
  const auto bits = x.dst<uint8_t>();
  switch (plan.op) {
    case kCompare:
      if (plan.form == 0) return Compare(bits, x.src0<T>(), x.src1<T>(), mode, uint32_t(plan.count));
      if (plan.form == 1) {
        return Compare(bits, x.src0<T>(), x.src1<T>(), mode, plan.mask[0], plan.repeats, binary_strides(plan));
      }
      return Compare(bits, x.src0<T>(), x.src1<T>(), mode, plan.mask, plan.repeats, binary_strides(plan));
    case kCompareScalar:
      if (plan.form == 0) return CompareScalar(bits, x.src0<T>(), scalar_of<T>(plan), mode, uint32_t(plan.count));
      return CompareScalar(bits, x.src0<T>(), scalar_of<T>(plan), mode, plan.mask[0], plan.repeats, unary_strides(plan));
  }
}

template <typename T> void selections(const Operands& x) {
  const InstructionPlan& plan = x.plan;
  const auto bits = x.at<uint8_t>(plan.extra);
  const auto mode = SELMODE(plan.mode);
  switch (plan.op) {
    case kSelect:
      if (plan.form == 0) return Select(x.dst<T>(), bits, x.src0<T>(), x.src1<T>(), mode, uint32_t(plan.count));
      return Select(x.dst<T>(), bits, x.src0<T>(), x.src1<T>(), mode, plan.mask[0], plan.repeats, binary_strides(plan));
    case kSelectScalar:
      if (plan.form == 0) {
        return Select(x.dst<T>(), bits, x.src0<T>(), scalar_of<T>(plan), mode, uint32_t(plan.count));
      }
      return Select(x.dst<T>(), bits, x.src0<T>(), scalar_of<T>(plan), mode, plan.mask[0], plan.repeats,
                    binary_strides(plan));
  }
}

template <typename T, typename Bits> void moves(const Operands& x) {
  const InstructionPlan& plan = x.plan;
  const GatherMaskParams mask_params(plan.strides[1], plan.repeats, plan.strides[4], plan.strides[5]);
  uint64_t kept = 0;
  switch (plan.op) {
    case kDuplicate:
      if (plan.form == 0) return Duplicate(x.dst<T>(), scalar_of<T>(plan), plan.count);
      if (plan.form == 1) {
        return Duplicate(x.dst<T>(), scalar_of<T>(plan), plan.mask[0], plan.repeats, plan.strides[0], plan.strides[3]);
      }
      return Duplicate(x.dst<T>(), scalar_of<T>(plan), plan.mask, plan.repeats, plan.strides[0], plan.strides[3]);
    case kBrcb: return Brcb(x.dst<T>(), x.src0<T>(), plan.repeats, {plan.strides[0], plan.strides[3]});
    case kGather: return Gather(x.dst<T>(), x.src0<T>(), x.src1<uint32_t>(), uint32_t(plan.scalar), uint32_t(plan.count));
    case kGatherMask:
      GatherMask(x.dst<T>(), x.src0<T>(), x.src1<Bits>(), plan.mode != 0, uint32_t(plan.mask[0]), mask_params, kept);
      break;
    case kGatherMaskFixed:
      GatherMask(x.dst<T>(), x.src0<T>(), uint8_t(plan.scalar), plan.mode != 0, uint32_t(plan.mask[0]), mask_params, kept);
      break;
    default: return;
  }
  if (plan.op == kGatherMask || plan.op == kGatherMaskFixed) {
    PipeBarrier<PIPE_ALL>();
    x.arena[plan.extra].ReinterpretCast<uint64_t>().SetValue(0, kept);
  }
}

template <typename T> void lists(const Operands& x) {
  const InstructionPlan& plan = x.plan;
  constexpr uint32_t kBlock = 32 / sizeof(T);
  LocalTensor<T> dst[16], src[16];
  for (uint32_t i = 0; i < 16; ++i) {
    dst[i] = x.dst<T>()[i * kBlock * plan.strides[0]];
    src[i] = x.src0<T>()[i * kBlock * plan.strides[1]];
  }
  TransDataTo5HDParams params;
  params.repeatTimes = plan.repeats;
  params.dstRepStride = plan.strides[3];
  params.srcRepStride = plan.strides[4];
  TransDataTo5HD(dst, src, params);
}

template <typename T> void bitwise(const Operands& x) {
  const InstructionPlan& plan = x.plan;
  if constexpr (sizeof(T) == 2 || __NPU_ARCH__ == 3510) {
    switch (plan.op) {
      case kAnd: BINARY(And);
      case kOr: BINARY(Or);
      case kNot: UNARY(Not);
    }
  }
  if (plan.op == kShiftLeft) SCALAR(ShiftLeft);
  if (plan.op == kShiftRight) SCALAR(ShiftRight);
}

template <typename D, typename S> void cast_between(const Operands& x) {
  const InstructionPlan& plan = x.plan;
  const auto mode = RoundMode(plan.mode);
  if (plan.form == 0) return Cast(x.dst<D>(), x.src0<S>(), mode, uint32_t(plan.count));
  if (plan.form == 1) return Cast(x.dst<D>(), x.src0<S>(), mode, plan.mask[0], plan.repeats, unary_strides(plan));
  return Cast(x.dst<D>(), x.src0<S>(), mode, plan.mask, plan.repeats, unary_strides(plan));
}

template <typename S> void cast_from(const Operands& x) {
  switch (x.plan.dst_type) {
#define TO(type, tag)                                                                       \
  case tag:                                                                                 \
    if constexpr (twin::cast_modes<type, S>() != 0) return cast_between<type, S>(x);        \
    break
    TO(int8_t, kI8);
    TO(uint8_t, kU8);
    TO(int16_t, kI16);
    TO(uint16_t, kU16);
    TO(int32_t, kI32);
    TO(uint32_t, kU32);
    TO(int64_t, kI64);
    TO(half, kHalf);
    TO(bfloat16_t, kBf16);
    TO(float, kFloat);
#undef TO
  }
  twin::fail(twin::Check::overload, "no such pair");
}

void run_one(const Operands& x) {
  constexpr bool k950 = __NPU_ARCH__ == 3510;
  const uint32_t op = x.plan.op;
  if (op == kCast) {
    switch (x.plan.src_type) {
      case kI8: return cast_from<int8_t>(x);
      case kU8: return cast_from<uint8_t>(x);
      case kI16: return cast_from<int16_t>(x);
      case kU16: return cast_from<uint16_t>(x);
      case kI32: return cast_from<int32_t>(x);
      case kU32: return cast_from<uint32_t>(x);
      case kI64: return cast_from<int64_t>(x);
      case kHalf: return cast_from<half>(x);
      case kBf16: return cast_from<bfloat16_t>(x);
      default: return cast_from<float>(x);
    }
  }
  if (op == kCreateVecIndex) {
    if (x.plan.dst_type == kI32) return CreateVecIndex(x.dst<int32_t>(), scalar_of<int32_t>(x.plan), x.plan.count);
    return CreateVecIndex(x.dst<float>(), scalar_of<float>(x.plan), x.plan.count);
  }
  if (op == kSort32) {
    const auto index = x.src1<uint32_t>();
    if (x.plan.dst_type == kHalf) return Sort32(x.dst<half>(), x.src0<half>(), index, x.plan.repeats);
    return Sort32(x.dst<float>(), x.src0<float>(), index, x.plan.repeats);
  }
  if (op == kTranspose) return Transpose(x.dst<uint16_t>(), x.src0<uint16_t>());
  const bool moving = op == kDuplicate || op == kBrcb || (op >= kGather && op <= kGatherMaskFixed);
  const bool bits = op == kAnd || op == kOr || op == kNot || op == kShiftLeft || op == kShiftRight;
  switch (x.plan.dst_type) {
    case kHalf:
    case kFloat: {
      const auto with = [&](auto tag) {
        using T = decltype(tag);
        using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
        if (moving) return moves<T, Bits>(x);
        if (op >= kPairReduceSum) return reductions<T>(x);
        if (op == kSelect || op == kSelectScalar) return selections<T>(x);
        if (op == kCompare || op == kCompareScalar) return comparisons<T>(x);
        if (op == kTransData) return lists<T>(x);
        floats<T>(x);
        arithmetic<T, true, true>(x);
      };
      return x.plan.dst_type == kHalf ? with(half()) : with(float());
    }
    case kBf16:
      if (moving) return moves<bfloat16_t, uint16_t>(x);
      if constexpr (k950) {
        if (op == kSelect || op == kSelectScalar) return selections<bfloat16_t>(x);
        return arithmetic<bfloat16_t, true, true>(x);
      }
      break;
    case kI16:
      if (moving) return moves<int16_t, uint16_t>(x);
      return bits ? bitwise<int16_t>(x) : arithmetic<int16_t, true, true>(x);
    case kU16: return bitwise<uint16_t>(x);
    case kI32:
      if (moving) return moves<int32_t, uint32_t>(x);
      if (op == kCompare || op == kCompareScalar) return comparisons<int32_t>(x);
      return bits ? bitwise<int32_t>(x) : arithmetic<int32_t, true, true>(x);
    case kU32: return bitwise<uint32_t>(x);
  }
}

KERNEL(vector_instruction)(GM_ADDR before, GM_ADDR after, InstructionPlan plan) {
  reset_modes(plan);
  GlobalTensor<uint8_t> in, out;
  in.SetGlobalBuffer(before, plan.bytes);
  out.SetGlobalBuffer(after, plan.bytes);
  const LocalTensor<uint8_t> arena(TPosition::VECCALC, 0, plan.bytes);
  const uint32_t loaded = plan.bytes - plan.hole;
  DataCopy(arena, in, loaded);
  PipeBarrier<PIPE_ALL>();
  run_one({plan, arena});
  PipeBarrier<PIPE_ALL>();
  const bool scratch = plan.op >= kReduceSum && plan.op <= kReduceMin && plan.extra == 0;  // undefined from src1 on
  DataCopy(out, arena, scratch ? plan.src1 / 32 * 32 : loaded);
  PipeBarrier<PIPE_ALL>();
}
INSTRUCTION_LAUNCHER(vector_instruction, AIV_ONLY, POINTER(0), POINTER(1))
