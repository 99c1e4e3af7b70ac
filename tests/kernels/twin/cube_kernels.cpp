// The cube's instructions, for test_cube.py: one of them on raw fractals, and whole tiles from GM to GM.
#include "instruction_plan.h"

using namespace AscendC;

constexpr uint32_t kFractal = 512;
enum CubeOp : uint32_t { kNothing, kNd2Nz, kFill, kLoad, kLoadBlock, kLoadTransposed, kOut, kBlocks };
enum Memory : uint32_t { kL0A, kL0B, kL1 };

template <HardEvent event> void cross() {
  SetFlag<event>(EVENT_ID0);
  WaitFlag<event>(EVENT_ID0);
}

template <typename T> LocalTensor<T> place(uint32_t memory, uint32_t offset) {
  const TPosition position = memory == kL0A ? TPosition::A2 : memory == kL0B ? TPosition::B2 : TPosition::A1;
  const LocalTensor<uint8_t> all(position, 0, memory == kL1 ? 320 * 1024 : 64 * 1024);
  return all[offset].template ReinterpretCast<T>();
}

// strides: the record's fields in their order; mode: transposed; count: addrMode.
template <typename T> void run_cube(GM_ADDR other, const InstructionPlan& plan) {
  const uint32_t* s = plan.strides;
  const auto dst = [&] { return place<T>(plan.form, plan.dst); };
  const auto src = [&] { return place<T>(kL1, plan.src0); };
  switch (plan.op) {
    case kNd2Nz: {
      const Nd2NzParams p(s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]);
      return DataCopy(dst(), global<T>(other, 0)[plan.src0 / sizeof(T)], p);
    }
    case kFill: {
      const InitConstValueParams<T> p(s[0], s[1], s[2], scalar_of<T>(plan));
      return plan.mode != 0 ? Fill(dst(), p) : InitConstValue(dst(), p);
    }
    case kLoad: return LoadData(dst(), src(), LoadData2DParams(s[0], s[1], s[2], 0, s[3], plan.mode != 0, plan.count));
#if __NPU_ARCH__ == 3510
    case kLoadBlock:
      return LoadData(dst(), src(), LoadData2DParamsV2(s[0], s[1], s[2], s[3], int32_t(s[4]), s[5], plan.mode != 0, 0));
#else
    case kLoadTransposed:
      return LoadDataWithTranspose(dst(), src(), LoadData2dTransposeParams(s[0], s[1], s[2], s[3], s[4], plan.count));
#endif
    case kBlocks:
      return DataCopy(dst(), global<T>(other, 0)[plan.src0 / sizeof(T)], DataCopyParams(s[0], s[1], s[2], s[3]));
    case kOut: return DataCopy(global<T>(other, 0), src(), 256);
  }
}

// One fractal to 16 x 16 floats in GM, as a product with the identity: as it is from L0A, turned from L0B and L1.
template <typename T> void dump(GM_ADDR after, const InstructionPlan& plan, uint32_t fractal) {
  const bool left = plan.form == kL0A;
  if (plan.form == kL1) {
    LoadData(place<T>(kL0B, 0), place<T>(kL1, fractal * kFractal), LoadData2DParams(0, 1, 1, 0, 0, false, 0));
    PipeBarrier<PIPE_ALL>();
  }
  const uint32_t at = plan.form == kL1 ? 0 : fractal * kFractal, identity = 127 * kFractal;
  const LocalTensor<float> l0c(TPosition::CO1, 0, 256);
  MmadParams p;
  p.m = 16;
  p.n = 16;
  p.k = 32 / sizeof(T);
  Mmad(l0c, place<T>(kL0A, left ? at : identity), place<T>(kL0B, left ? identity : at), p);
  PipeBarrier<PIPE_ALL>();
#if __NPU_ARCH__ == 3510
  const FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> out(16, 16, 16, 16);
#else
  const FixpipeParamsV220 out(16, 16, 16, 16, false);
#endif
  Fixpipe<float, float, CFG_ROW_MAJOR>(global<float>(after, 0)[fractal * 256], l0c, out);
  PipeBarrier<PIPE_ALL>();
}

template <typename T> void cube_one(GM_ADDR before, GM_ADDR after, GM_ADDR identity, GM_ADDR other,
                                    const InstructionPlan& plan) {
  if (plan.bytes > plan.hole) {
    DataCopy(place<uint8_t>(kL1, 0), global<uint8_t>(before, plan.bytes), plan.bytes - plan.hole);
  }
  DataCopy(place<uint8_t>(kL1, 256 * 1024), global<uint8_t>(identity, kFractal), kFractal);
  PipeBarrier<PIPE_ALL>();
  run_cube<T>(other, plan);
  PipeBarrier<PIPE_ALL>();
  const LoadData2DParams one(0, 1, 1, 0, 0, false, 0);
  for (uint32_t memory : {kL0A, kL0B}) LoadData(place<T>(memory, 127 * kFractal), place<T>(kL1, 256 * 1024), one);
  PipeBarrier<PIPE_ALL>();
  for (uint32_t i = 0; i < 127; ++i) {
    if (plan.mask[i / 64] >> (i % 64) & 1) dump<T>(after, plan, i);
  }
}

KERNEL(cube_instruction)(GM_ADDR before, GM_ADDR after, GM_ADDR identity, GM_ADDR other, InstructionPlan plan) {
  reset_modes(plan);
  switch (plan.dst_type) {  // as in instructions.py's TYPES
    case 7: return cube_one<half>(before, after, identity, other, plan);
    case 8: return cube_one<bfloat16_t>(before, after, identity, other, plan);
    default: return cube_one<float>(before, after, identity, other, plan);
  }
}
INSTRUCTION_LAUNCHER(cube_instruction, AIC_ONLY, POINTER(0), POINTER(1), POINTER(2), POINTER(3))

// A rows x columns matrix of GM as NZ in L1, from `l1` on; rows rounded up to `height`. `by_rows`: 16 rows at a time,
// each such slab an NZ matrix of its own.
template <typename T>
void load_nz(const LocalTensor<T>& l1, const GlobalTensor<T>& gm, uint32_t rows, uint32_t columns, uint32_t height,
             bool by_rows) {
  const uint32_t padded = (columns + 15) / 16 * 16;
  Nd2NzParams p;
  p.ndNum = 1;
  p.nValue = rows;
  p.dValue = columns;
  p.srcNdMatrixStride = 0;
  p.srcDValue = columns;
  p.dstNzC0Stride = height;
  p.dstNzNStride = 1;
  p.dstNzMatrixStride = 0;
  InitConstValueParams<uint32_t> zero(1, height * padded * sizeof(T) / 32, 0, 0);
  InitConstValue(l1.template ReinterpretCast<uint32_t>(), zero);
  PipeBarrier<PIPE_MTE2>();
  if (!by_rows) return DataCopy(l1, gm, p);
  p.dstNzC0Stride = 16;
  for (uint32_t first = 0; first < rows; first += 16) {
    p.nValue = rows - first < 16 ? rows - first : 16;
    DataCopy(l1[first * padded], gm[first * columns], p);
  }
}

struct Tile {
  uint32_t m, n, k;
  bool a_turned, b_turned;  // A is k x m in GM, B is k x n (else n x k)
};

constexpr uint32_t up16(uint32_t x) { return (x + 15) / 16 * 16; }

#if __NPU_ARCH__ == 3510
// A block of an NZ matrix of `height` x `width` into L0A (NZ) or L0B (Zn): the same instruction.
template <typename T>
void load_l0(const LocalTensor<T>& l0, const LocalTensor<T>& l1, uint32_t rows, uint32_t k, bool turned) {
  constexpr uint32_t c0 = 32 / sizeof(T);
  LoadData2DParamsV2 p;
  const uint32_t height = turned ? up16(k) : up16(rows), width = turned ? up16(rows) : (k + c0 - 1) / c0 * c0;
  p.mStep = height / 16;
  p.kStep = width / c0;
  p.srcStride = height / 16;
  p.dstStride = up16(rows) / 16;
  p.ifTranspose = turned;
  LoadData(l0, l1, p);
}
template <typename T> void load_left(const LocalTensor<T>& l0, const LocalTensor<T>& l1, const Tile& t) {
  load_l0(l0, l1, t.m, t.k, t.a_turned);
}
template <typename T> void load_right(const LocalTensor<T>& l0, const LocalTensor<T>& l1, const Tile& t) {
  load_l0(l0, l1, t.n, t.k, t.b_turned);
}
#else
// A to Zz. 16-bit turned: columns of fractals of the k x m matrix, transposed; 32-bit turned: slabs of 16 rows.
template <typename T> void load_left(const LocalTensor<T>& l0, const LocalTensor<T>& l1, const Tile& t) {
  constexpr uint32_t c0 = 32 / sizeof(T), fractal = 16 * c0;
  const uint32_t m1 = up16(t.m) / 16, k1 = (t.k + c0 - 1) / c0, k16 = up16(t.k) / 16;
  if (t.a_turned && sizeof(T) == 4) {
    LoadData2dTransposeParams p;
    p.repeatTimes = k16;
    p.srcStride = m1;  // squares from slab to slab
    p.dstGap = 1;
    p.dstFracGap = 0;
    for (uint32_t i = 0; i < m1; ++i) {
      if constexpr (sizeof(T) == 4) LoadDataWithTranspose(l0[i * k16 * 2 * fractal], l1[i * 2 * fractal], p);
    }
    return;
  }
  LoadData2DParams p;
  p.ifTranspose = t.a_turned;
  p.repeatTimes = t.a_turned ? k16 : k1;
  p.srcStride = t.a_turned ? 1 : m1;
  for (uint32_t i = 0; i < m1; ++i) LoadData(l0[i * p.repeatTimes * fractal], l1[(t.a_turned ? i * k16 : i) * fractal], p);
}
// B to Zn. Not turned, n x k in NZ is it already.
template <typename T> void load_right(const LocalTensor<T>& l0, const LocalTensor<T>& l1, const Tile& t) {
  constexpr uint32_t c0 = 32 / sizeof(T), fractal = 16 * c0;
  const uint32_t n1 = up16(t.n) / 16, k1 = (t.k + c0 - 1) / c0, k16 = up16(t.k) / 16;
  if (!t.b_turned) {
    LoadData2DParams p;
    p.repeatTimes = n1 * k1;
    p.srcStride = 1;
    return LoadData(l0, l1, p);
  }
  if constexpr (sizeof(T) == 4) {
    LoadData2dTransposeParams p;
    p.repeatTimes = n1;
    p.srcStride = 1;
    p.dstGap = 0;
    p.dstFracGap = n1 - 1;
    for (uint32_t i = 0; i < k16; ++i) LoadDataWithTranspose(l0[i * n1 * 2 * fractal], l1[i * n1 * 2 * fractal], p);
  } else {
    LoadData2DParams p;
    p.ifTranspose = true;
    p.repeatTimes = n1;
    p.srcStride = k16;
    for (uint32_t i = 0; i < k16; ++i) LoadData(l0[i * n1 * fractal], l1[i * fractal], p);
  }
}
#endif

enum Variant : uint32_t {
  kPlain, kNoBarrier, kRelu, kUnitFlag, kUnitFlagOut, kOtherQuant, kUnaligned, kBias, kAligned16, kSplit, kNoGemv,
  kSwapped, kOffsetOut, kSecondShape
};

template <typename Out> constexpr QuantMode_t kQuant = std::is_same_v<Out, half>         ? QuantMode_t::F322F16
                                                       : std::is_same_v<Out, bfloat16_t> ? QuantMode_t::F322BF16
                                                                                         : QuantMode_t::NoQuant;

// What Fixpipe is asked for: 0 stands for the tile's own size.
struct Store {
  uint32_t n, m, src_stride, dst_stride, first_row;
  uint32_t tiles, src_tile, dst_tile;
};

template <typename Out> void store(const GlobalTensor<Out>& gm, const LocalTensor<float>& l0c, const InstructionPlan& plan,
                                   const Store& s) {
#if __NPU_ARCH__ == 3510
  FixpipeParamsArch3510<CO2Layout::ROW_MAJOR> p(s.n, s.m, s.src_stride, s.dst_stride);
  p.params.ndNum = s.tiles;
  p.params.srcNdStride = s.src_tile;
  p.params.dstNdStride = s.dst_tile;
#else
  FixpipeParamsV220 p(s.n, s.m, s.src_stride, s.dst_stride, false);
  p.ndNum = s.tiles;
  p.srcNdStride = s.src_tile;
  p.dstNdStride = s.dst_tile;
#endif
  p.quantPre = plan.op == kOtherQuant ? QuantMode_t::NoQuant : kQuant<Out>;
  p.reluEn = plan.op == kRelu;
  p.unitFlag = plan.op == kUnitFlagOut ? 3 : 0;
  p.isChannelSplit = plan.op == kSplit;
  Fixpipe<Out, float, CFG_ROW_MAJOR>(gm, l0c[s.first_row * 16], p);
}

// strides: m, n, k of Mmad, A turned, B turned; tiles of Fixpipe and their steps. `dst`: dstStride, `extra`: srcStride,
// `src0`: first row in L0C, `src1`: mSize, `count`: nSize. `repeats`: Mmads into one tile. mask: another m, n, k for Mmad.
template <typename T> void matmul(GM_ADDR a, GM_ADDR b, GM_ADDR c, const InstructionPlan& plan) {
  const Tile t{plan.strides[0], plan.strides[1], plan.strides[2], plan.strides[3] != 0, plan.strides[4] != 0};
  const bool slabs = sizeof(T) == 4 && __NPU_ARCH__ == 2201;
  const LocalTensor<T> l1a(TPosition::A1, 0, 64 * 1024 / sizeof(T));
  const LocalTensor<T> l1b(TPosition::B1, 64 * 1024, 64 * 1024 / sizeof(T));
  const LocalTensor<T> l0a(TPosition::A2, 0, 64 * 1024 / sizeof(T));
  const LocalTensor<T> l0b(TPosition::B2, 0, 64 * 1024 / sizeof(T));
  const LocalTensor<float> l0c(TPosition::CO1, 0, 16 * 1024);
  const uint64_t a_bytes = uint64_t{t.m} * t.k * sizeof(T), b_bytes = uint64_t{t.n} * t.k * sizeof(T);
  load_nz(l1a, global<T>(a, a_bytes), t.a_turned ? t.k : t.m, t.a_turned ? t.m : t.k, up16(t.a_turned ? t.k : t.m),
          t.a_turned && slabs);
  load_nz(l1b, global<T>(b, b_bytes), t.b_turned ? t.k : t.n, t.b_turned ? t.n : t.k, up16(t.b_turned ? t.k : t.n),
          t.b_turned && slabs);
  cross<HardEvent::MTE2_MTE1>();
  load_left(l0a, l1a, t);
  load_right(l0b, l1b, t);
  cross<HardEvent::MTE1_M>();
  MmadParams p;
  p.m = plan.mask[1] ? plan.mask[0] & 0xffff : t.m;
  p.n = plan.mask[1] ? plan.mask[0] >> 16 & 0xffff : t.n;
  p.k = plan.mask[1] ? plan.mask[0] >> 32 : t.k;
  p.unitFlag = plan.op == kUnitFlag ? 2 : 0;
  p.cmatrixSource = plan.op == kBias;
#if __NPU_ARCH__ == 2201
  p.kDirectionAlign = (t.a_turned && sizeof(T) == 4 && plan.op != kUnaligned) || plan.op == kAligned16;
#else
  p.disableGemv = plan.op == kNoGemv;
  p.kDirectionAlign = plan.op == kAligned16;
#endif
  if (plan.op == kOffsetOut) return Mmad(l0c[256 / 2], l0a, l0b, p);
  if (plan.op == kSwapped) return Mmad(l0c, l0b, l0a, p);
  for (int32_t i = 0; i < plan.repeats; ++i) {
    if (i > 0 && plan.op != kNoBarrier) PipeBarrier<PIPE_M>();
    p.cmatrixInitVal = i == 0 || plan.op == kSecondShape;
    if (plan.op == kSecondShape) {  // the whole tile, then the other shape
      p.m = i == 0 ? t.m : plan.mask[0] & 0xffff;
      p.n = i == 0 ? t.n : plan.mask[0] >> 16 & 0xffff;
    }
    Mmad(l0c, l0a, l0b, p);
  }
  cross<HardEvent::M_FIX>();
  Store s;
  s.n = plan.count ? plan.count : t.n;
  s.m = plan.src1 ? plan.src1 : t.m;
  s.src_stride = plan.extra ? plan.extra : up16(t.m);
  s.dst_stride = plan.dst ? plan.dst : s.n;
  s.first_row = plan.src0;
  s.tiles = plan.strides[5];
  s.src_tile = plan.strides[6];
  s.dst_tile = plan.strides[7];
  switch (plan.dst_type) {
    case 7: store(global<half>(c, 0), l0c, plan, s); break;
    case 8: store(global<bfloat16_t>(c, 0), l0c, plan, s); break;
    default: store(global<float>(c, 0), l0c, plan, s); break;
  }
  PipeBarrier<PIPE_ALL>();
}

KERNEL(matmul_tile)(GM_ADDR a, GM_ADDR b, GM_ADDR c, InstructionPlan plan) {
  reset_modes(plan);
  if (plan.mode != 0) SetHF32Mode(HF32Mode::ENABLE);
  switch (plan.src_type) {
    case 7: return matmul<half>(a, b, c, plan);
    case 8: return matmul<bfloat16_t>(a, b, c, plan);
    default: return matmul<float>(a, b, c, plan);
  }
}
INSTRUCTION_LAUNCHER(matmul_tile, AIC_ONLY, POINTER(0), POINTER(1), POINTER(2))
