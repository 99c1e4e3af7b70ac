// Small kernels for test_core_*.py. `plan.variant` picks the program; 0 is the correct one.
#include "small_kernels.h"

using namespace AscendC;

// Four instructions, one per pipe that a vector core has, written to the twin's own interface.
template <typename T>
void Load(const LocalTensor<T>& dst, const GlobalTensor<T>& src, uint32_t count) {
  twin::Op op("Load", twin::Pipe::MTE2, count);
  const auto d = dst.operand().named("dst"), s = src.operand().named("src");
  op.align(d);
  const auto* from = op.read(s, 0, count * sizeof(T));
  std::memcpy(op.write(d, 0, count * sizeof(T)), from, count * sizeof(T));
}

template <typename T>
void Store(const GlobalTensor<T>& dst, const LocalTensor<T>& src, uint32_t count) {
  twin::Op op("Store", twin::Pipe::MTE3, count);
  const auto d = dst.operand().named("dst"), s = src.operand().named("src");
  op.align(s);
  const auto* from = op.read(s, 0, count * sizeof(T));
  std::memcpy(op.write(d, 0, count * sizeof(T)), from, count * sizeof(T));
}

void Sum(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b, uint32_t count) {
  twin::Op op("Sum", twin::Pipe::V, count);
  const auto d = dst.operand().named("dst"), x = a.operand().named("src0"), y = b.operand().named("src1");
  op.align(d);
  const auto* left = reinterpret_cast<const float*>(op.read(x, 0, count * 4));
  const auto* right = reinterpret_cast<const float*>(op.read(y, 0, count * 4));
  auto* out = reinterpret_cast<float*>(op.write(d, 0, count * 4));
  for (uint32_t i = 0; i < count; ++i) out[i] = left[i] + right[i];
}

void Fill(const LocalTensor<float>& dst, float value, uint32_t count) {
  twin::Op op("Fill", twin::Pipe::V, count);
  auto* out = reinterpret_cast<float*>(op.write(dst.operand().named("dst"), 0, count * 4));
  for (uint32_t i = 0; i < count; ++i) out[i] = value;
}

// On a cube core: GM -> L1 -> L0A -> (M) L0C -> GM.
void Move(const char* name, twin::Pipe pipe, const LocalTensor<float>& dst, const LocalTensor<float>& src,
          uint32_t count) {
  twin::Op op(name, pipe, count);
  const auto* from = op.read(src.operand().named("src"), 0, count * 4);
  std::memcpy(op.write(dst.operand().named("dst"), 0, count * 4), from, count * 4);
}

void Drain(const GlobalTensor<float>& dst, const LocalTensor<float>& src, uint32_t count) {
  twin::Op op("Drain", twin::Pipe::FIX, count);
  const auto* from = op.read(src.operand().named("src"), 0, count * 4);
  std::memcpy(op.write(dst.operand().named("dst"), 0, count * 4), from, count * 4);
}

template <HardEvent event>
void Cross(int id) {
  SetFlag<event>(id);
  WaitFlag<event>(id);
}

GlobalTensor<float> Global(GM_ADDR address, uint64_t count) {
  GlobalTensor<float> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(address), count);
  return tensor;
}

// y = x + x with two buffers per queue, `count` tiles of 64.
KERNEL(queues)(GM_ADDR x, GM_ADDR y, Plan plan) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> in;
  TQue<TPosition::VECOUT, 1> out;
  pipe.InitBuffer(in, 2, 256);
  pipe.InitBuffer(out, 2, 256);
  const uint64_t elements = 64ull * plan.count;
  const GlobalTensor<float> from = Global(x, elements), to = Global(y, elements);
  for (uint32_t tile = 0; tile < plan.count; ++tile) {
    LocalTensor<float> a = in.AllocTensor<float>();
    Load(a, from[64 * tile], 64);
    if (plan.variant == 1) {  // used without EnQue and DeQue
      LocalTensor<float> b = out.AllocTensor<float>();
      Sum(b, a, a, 64);
    }
    in.EnQue(a);
    if (plan.variant == 2) in.EnQue(a);
    a = in.DeQue<float>();
    LocalTensor<float> b = out.AllocTensor<float>();
    Sum(b, a, a, 64);
    if (plan.variant == 3) in.FreeTensor(b);
    if (plan.variant != 4) in.FreeTensor(a);
    if (plan.variant == 5) in.FreeTensor(a);
    out.EnQue(b);
    b = out.DeQue<float>();
    Store(to[64 * tile], b, 64);
    out.FreeTensor(b);
    if (plan.variant == 6) Sum(b, b, b, 64);  // after FreeTensor
    if (plan.variant == 7 && tile) (void)in.DeQue<float>();
  }
  if (plan.variant == 8) (void)in.AllocTensor<float>();
  if (plan.variant == 9) {
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 1024);
    in.EnQue(buffer.Get<float>());
  }
  if (plan.variant == 10) {
    for (int i = 0; i < 3; ++i) (void)in.AllocTensor<float>();
  }
  if (plan.variant == 11) {
    TBuf<TPosition::VECCALC> buffer;
    pipe.InitBuffer(buffer, 180 * 1024);
    pipe.InitBuffer(buffer, 72 * 1024);
  }
  if (plan.variant == 12) TPipe second;
  if (plan.variant == 13) {
    TQue<TPosition::VECIN, 1> many;
    pipe.InitBuffer(many, 16, 32);
    for (int i = 0; i < 9; ++i) (void)many.AllocTensor<float>();
  }
  if (plan.variant == 14) {
    for (int i = 0; i < 9; ++i) (void)GetTPipePtr()->AllocEventID<HardEvent::MTE2_V>();
  }
  if (plan.variant == 15) {
    const TEventID id = pipe.AllocEventID<HardEvent::MTE2_V>();
    if (pipe.FetchEventID(HardEvent::MTE2_V) != id) pipe.ReleaseEventID<HardEvent::MTE2_V>(id);
  }
  if (plan.variant == 16) {
    TQue<TPosition::VECIN, 1> unready;
    (void)unready.AllocTensor<float>();
  }
}
LAUNCHER_2(queues, AIV_ONLY)

// y = x through one bound queue; variant 1 stores without EnQue and DeQue.
KERNEL(bound)(GM_ADDR x, GM_ADDR y, Plan plan) {
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
  pipe.InitBuffer(queue, 2, 256);
  const uint64_t elements = 64ull * plan.count;
  const GlobalTensor<float> from = Global(x, elements), to = Global(y, elements);
  for (uint32_t tile = 0; tile < plan.count; ++tile) {
    LocalTensor<float> a = queue.AllocTensor<float>();
    Load(a, from[64 * tile], 64);
    if (plan.variant == 0) {
      queue.EnQue(a);
      a = queue.DeQue<float>();
    }
    Store(to[64 * tile], a, 64);
    queue.FreeTensor(a);
  }
}
LAUNCHER_2(bound, AIV_ONLY)

// y = (x + x) + (x + x), placed by hand.
KERNEL(flags)(GM_ADDR x, GM_ADDR y, Plan plan) {
  InitSocState();
  const uint32_t v = plan.variant;
  LocalMemAllocator<Hardware::UB> allocator;
  LocalTensor<float> a = allocator.Alloc<float, 64>(), b = allocator.Alloc<float, 64>();
  LocalTensor<float> c = allocator.Alloc<float, 64>();
  const GlobalTensor<float> from = Global(x, 64), to = Global(y, 64);
  Load(a, from, 64);
  if (v != 1) SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  if (v == 2) SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  if (v != 1 && v != 3) WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
  if (v == 4) WaitFlag<HardEvent::MTE2_V>(EVENT_ID1);
  if (v == 5) SetFlag<HardEvent::MTE2_V>(8);
  Sum(b, a, a, 64);
  if (v != 6) PipeBarrier<PIPE_V>();
  if (v == 7) {
    Sum(a, b, b, 64);  // writes what nothing reads any more
    PipeBarrier<PIPE_V>();
  }
  Sum(c, b, b, 64);
  if (v != 8) Cross<HardEvent::V_MTE3>(EVENT_ID0);
  Store(to, c, 64);
  if (v == 9) Sum(c, b, b, 64);  // WAR: MTE3 may still be reading
  if (v == 10) Load(c, from, 64);
  if (v == 11) Store(to, b, 64);  // WAW on GM within MTE3
  if (v == 12) {
    PipeBarrier<PIPE_MTE3>();
    Store(to, c, 64);
  }
  if (v == 13) {
    Cross<HardEvent::V_MTE2>(EVENT_ID0);
    Load(a, to, 64);  // reads GM that MTE3 is writing
  }
  if (v == 14) {
    Cross<HardEvent::MTE3_MTE2>(EVENT_ID0);
    Cross<HardEvent::V_MTE2>(EVENT_ID0);
    Load(a, to, 64);
  }
  if (v == 15) SetFlag<HardEvent::V_MTE2>(EVENT_ID2);  // left set
  if (v == 16) (void)c.GetValue(0);
  if (v == 17) {
    Cross<HardEvent::V_S>(EVENT_ID0);
    const float value = c.GetValue(0);
    Cross<HardEvent::MTE3_S>(EVENT_ID0);
    c.SetValue(0, value + 1);
    Cross<HardEvent::S_MTE3>(EVENT_ID0);
    PipeBarrier<PIPE_MTE3>();
    Store(to, c, 64);
  }
  if (v == 18) {
    PipeBarrier<PIPE_ALL>();
    c.SetValue(0, 1.0f);
    PipeBarrier<PIPE_MTE3>();
    Store(to, c, 64);  // S_MTE3 is missing
  }
  if (v == 19) {
    PipeBarrier<PIPE_ALL>();
    Sum(c, b, b, 64);
    PipeBarrier<PIPE_ALL>();
    Store(to, c, 64);
    PipeBarrier<PIPE_ALL>();
  }
  if (v == 20) (void)to.GetValue(0);  // scalar reads of GM that this launch writes
  if (v == 21) {
    PipeBarrier<PIPE_ALL>();
    (void)to.GetValue(0);
  }
}
LAUNCHER_2(flags, AIV_ONLY)

// Misuse of memory, one per variant; the first is fine.
KERNEL(memory)(GM_ADDR x, GM_ADDR y, Plan plan) {
  InitSocState();
  const GlobalTensor<float> from = Global(x, plan.variant == 1 ? 65 : 64), to = Global(y, 64);
  LocalTensor<float> a(TPosition::VECCALC, 0, 64), b(TPosition::VECCALC, 256, 64);
  switch (plan.variant) {
    case 0:
      Fill(a, 1, 64);
      Cross<HardEvent::V_MTE3>(0);
      Store(to, a, 64);
      break;
    case 2: Load(a, from[1], 64); break;
    case 3: Load(a[4], from, 56); break;
    case 4: Sum(b, a, a, 64); break;
    case 5:
      Fill(a, 1, 63);
      PipeBarrier<PIPE_V>();
      Sum(b, a, a, 64);
      break;
    case 6: LocalTensor<float>(TPosition::VECCALC, twin::capacity_of(twin::Memory::UB) - 224, 64).GetSize(); break;
    case 7: LocalTensor<float>(TPosition::VECCALC, 16, 64).GetSize(); break;
    case 8: LocalTensor<float>(TPosition::A1, 0, 64).GetSize(); break;
    case 9: Fill(a, 1, 65); break;
    case 10: Store(from, a, 0), Fill(a, 1, 64), Cross<HardEvent::V_MTE3>(0), Store(from, a, 64); break;
    case 11: Load(a, to, 64); break;
    case 12: (void)a[65]; break;
    case 13: Drain(to, a, 64); break;
    case 14: SetFlag<HardEvent::MTE1_M>(0); break;
    case 15: PipeBarrier<PIPE_M>(); break;
    case 16: Load(a, Global(nullptr, 0), 1); break;
    case 17: {
      TPipe pipe;
      LocalMemAllocator<Hardware::UB> allocator;
      break;
    }
    case 18: Fill(a, twin::state().hf32.get() ? 1 : 0, 1); break;
    case 19: Fill(a, twin::state().saturate.get() ? 1 : 0, 1); break;
    case 21:
      (void)Global(x, 64);
      Fill(a, static_cast<float>(Global(y, 0).GetSize()), 64);
      Cross<HardEvent::V_MTE3>(0);
      Store(to, a, 64);
      break;
    case 20: {
      twin::Op op("Scribble", twin::Pipe::V, 1);
      op.write_unspecified(a.operand(), 0, 256);
      break;
    }
    default: break;
  }
  if (plan.variant == 20) Sum(b, a, a, 64);
}
LAUNCHER_2(memory, AIV_ONLY)

KERNEL(uninitialised_modes)(GM_ADDR, GM_ADDR, Plan plan) {
  if (plan.variant == 0) InitSocState();
  if (plan.variant == 2) TPipe pipe;
  (void)twin::state().mask_mode.get();
  (void)twin::state().mask.get();
  (void)twin::state().atomic.get();
}
LAUNCHER_2(uninitialised_modes, AIV_ONLY)

// What an earlier kernel left, seen past the check that forbids to look.
KERNEL(left_over)(GM_ADDR, GM_ADDR y, Plan) {
  auto* out = reinterpret_cast<float*>(y);
  uint64_t bits = 0;
  std::memcpy(&bits, reinterpret_cast<const char*>(&twin::state().mask) + sizeof(const char*), sizeof bits);
  out[GetBlockIdx()] = static_cast<float>(bits % 4096);
}
LAUNCHER_2(left_over, AIV_ONLY)

// Block i writes y[i]; in variant 1 all blocks write y[0], in variant 2 neighbours share an element.
KERNEL(owners)(GM_ADDR, GM_ADDR y, Plan plan) {
  InitSocState();
  LocalTensor<float> a(TPosition::VECCALC, 0, 64);
  Fill(a, static_cast<float>(GetBlockIdx()), 3);
  Cross<HardEvent::V_MTE3>(0);
  const uint64_t at = plan.variant == 1 ? 0 : plan.variant == 2 ? 2 * GetBlockIdx() : 3 * GetBlockIdx();
  Store(Global(y, 3 * GetBlockNum())[at], a, 3);
}
LAUNCHER_2(owners, AIV_ONLY)

// Sum over blocks: each writes x[i] = i + 1, and after SyncAll every block adds them all.
template <int kind>
void gather(GM_ADDR x, GM_ADDR y, const Plan& plan) {
  InitSocState();
  LocalTensor<float> a(TPosition::VECCALC, 0, 64), b(TPosition::VECCALC, 256, 64), c(TPosition::VECCALC, 512, 64);
  const int64_t blocks = GetBlockNum(), block = GetBlockIdx();
  const GlobalTensor<float> shared = Global(x, 8 * blocks), out = Global(y, 8 * blocks);
  Fill(a, static_cast<float>(block + 1), 8);
  Cross<HardEvent::V_MTE3>(0);
  Store(shared[8 * block], a, 8);
  if (plan.variant == 0) SyncAll();
  if (plan.variant == 2) {
    CrossCoreSetFlag<0, PIPE_MTE3>(3);
    CrossCoreWaitFlag<0, PIPE_MTE2>(3);
  }
  if (plan.variant == 3) {
    CrossCoreSetFlag<0, PIPE_V>(3);  // the store may not be complete
    CrossCoreWaitFlag<0, PIPE_MTE2>(3);
  }
  if (plan.variant == 4 && block) SyncAll();
  if (plan.variant == 5) CrossCoreSetFlag<0, PIPE_MTE3>(3);
  Fill(c, 0, 8);
  for (int64_t i = 0; i < blocks; ++i) {
    Load(b, shared[8 * i], 8);
    Cross<HardEvent::MTE2_V>(0);
    PipeBarrier<PIPE_V>();
    Sum(c, c, b, 8);
    Cross<HardEvent::V_MTE2>(0);
  }
  Cross<HardEvent::V_MTE3>(0);
  Store(out[8 * block], c, 8);
}
KERNEL(gather_sync)(GM_ADDR x, GM_ADDR y, Plan plan) { gather<0>(x, y, plan); }
LAUNCHER_2(gather_sync, MIX_AIV_1_0)
KERNEL(gather_only)(GM_ADDR x, GM_ADDR y, Plan plan) { gather<1>(x, y, plan); }
LAUNCHER_2(gather_only, AIV_ONLY)

// The cube core moves x to the workspace through its memories; each vector core doubles its half; the cube core then
// copies the workspace to y. `count` rounds of 128 elements.
KERNEL(mixed)(GM_ADDR x, GM_ADDR w, GM_ADDR y, Plan plan) {
  InitSocState();
  const uint32_t v = plan.variant;
  const uint64_t elements = 128ull * plan.count * GetBlockNum();
  if ASCEND_IS_AIC {
    LocalTensor<float> l1(TPosition::A1, 0, 128), l0(TPosition::A2, 0, 128), l0c(TPosition::CO1, 0, 128);
    const uint64_t own = 128ull * plan.count * GetBlockIdx();
    const auto through = [&](const GlobalTensor<float>& from, const GlobalTensor<float>& to) {
      Load(l1, from, 128);
      Cross<HardEvent::MTE2_MTE1>(0);
      Move("ToL0A", twin::Pipe::MTE1, l0, l1, 128);
      Cross<HardEvent::MTE1_M>(0);
      if (v != 6) Cross<HardEvent::MTE1_MTE2>(1);
      Move("Product", twin::Pipe::M, l0c, l0, 128);
      if (v != 7) Cross<HardEvent::M_FIX>(0);
      Cross<HardEvent::M_MTE1>(0);
      Drain(to, l0c, 128);
      Cross<HardEvent::FIX_M>(0);
    };
    for (uint32_t round = 0; round < plan.count; ++round) {
      const uint64_t at = own + 128 * round;
      through(Global(x, elements)[at], Global(w, elements)[at]);
      if (v == 1) CrossCoreSetFlag<2, PIPE_MTE1>(0);
      else if (v != 2) CrossCoreSetFlag<2, PIPE_FIX>(0);
      if (v == 8) CrossCoreSetFlag<2, PIPE_FIX>(0);
      if (v != 3) CrossCoreWaitFlag<2, PIPE_MTE2>(1);
      through(Global(w, elements)[at], Global(y, elements)[at]);
    }
    if (v == 3) {
      for (uint32_t round = 0; round < plan.count; ++round) CrossCoreWaitFlag<2, PIPE_MTE2>(1);
    }
  }
  if ASCEND_IS_AIV {
    LocalTensor<float> a(TPosition::VECCALC, 0, 64), b(TPosition::VECCALC, 256, 64);
    const uint64_t own = 128ull * plan.count * (GetBlockIdx() / 2) + 64 * GetSubBlockIdx();
    for (uint32_t round = 0; round < plan.count; ++round) {
      const GlobalTensor<float> tile = Global(w, elements)[own + 128 * round];
      if (v != 4) CrossCoreWaitFlag<2, PIPE_MTE2>(0);
      Load(a, tile, 64);
      Cross<HardEvent::MTE2_V>(0);
      Cross<HardEvent::MTE3_V>(0);
      Sum(b, a, a, 64);
      Cross<HardEvent::V_MTE3>(0);
      Cross<HardEvent::V_MTE2>(0);
      Store(tile, b, 64);
      if (v != 5 || GetSubBlockIdx() == 0) CrossCoreSetFlag<2, PIPE_MTE3>(1);
    }
  }
}
LAUNCHER_3(mixed, MIX_AIC_1_2)

// Two products into one tile: variant 0 with a barrier, 1 without, 2 without but large enough to need none.
KERNEL(accumulate)(GM_ADDR, GM_ADDR, Plan plan) {
  InitSocState();
  const LocalTensor<float> tile(TPosition::CO1, 0, 256);
  for (int i = 0; i < 2; ++i) {
    if (i && plan.variant == 0) PipeBarrier<PIPE_M>();
    twin::Op op("Product", twin::Pipe::M, 256);
    if (plan.variant == 2) op.in_order(twin::Memory::L0C);
    if (i) (void)op.read(tile.operand().named("dst"), 0, 1024);
    (void)op.write(tile.operand().named("dst"), 0, 1024);
  }
}
LAUNCHER_2(accumulate, AIC_ONLY)

KERNEL(overrun)(GM_ADDR, GM_ADDR y, Plan) {
  twin::Op op("Overrun", twin::Pipe::MTE3, 8);
  std::memset(op.write(Global(y, 8).operand(), 0, 32), 0, 36);
}
LAUNCHER_2(overrun, AIV_ONLY)

KERNEL(endless)(GM_ADDR, GM_ADDR, Plan) {
  InitSocState();
  const LocalTensor<float> a(TPosition::VECCALC, 0, 64);
  for (;;) Fill(a, 0, 0);
}
LAUNCHER_2(endless, AIV_ONLY)

// The scalar unit reads L1, which it can't.
KERNEL(scalar)(GM_ADDR x, GM_ADDR, Plan) {
  InitSocState();
  const LocalTensor<float> a(TPosition::A1, 0, 64);
  Load(a, Global(x, 64), 64);
  PipeBarrier<PIPE_ALL>();
  (void)a.GetValue(0);
}
LAUNCHER_2(scalar, AIC_ONLY)

KERNEL(throws)(GM_ADDR, GM_ADDR, Plan) { throw 1; }
LAUNCHER_2(throws, AIC_ONLY)

KERNEL(declared)(GM_ADDR, GM_ADDR, Plan plan) {
  if (plan.variant == 0) KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  else KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_MIX_AIC_1_2);
}
LAUNCHER_2(declared, AIV_ONLY)

// Flags that only a mixed kernel has, set and not waited for in other ways.
KERNEL(cross_flags)(GM_ADDR, GM_ADDR, Plan plan) {
  InitSocState();
  switch (plan.variant) {
    case 0:
      if ASCEND_IS_AIV CrossCoreSetFlag<1, PIPE_MTE3>(4), CrossCoreWaitFlag<1, PIPE_MTE2>(4);
      SyncAll<false>();
      break;
    case 1:
      if ASCEND_IS_AIC CrossCoreSetFlag<2, PIPE_FIX>(4);  // nobody waits
      break;
    case 2:
      if ASCEND_IS_AIC CrossCoreSetFlag<2, PIPE_FIX>(16);
      break;
    case 3:
      if ASCEND_IS_AIC CrossCoreSetFlag<2, PIPE_V>(4);
      break;
    case 4:
      for (int i = 0; i < 16; ++i) {
        if ASCEND_IS_AIC CrossCoreSetFlag<2, PIPE_FIX>(4);
      }
      break;
    case 5: SyncAll<true>(); break;
    case 6:
      if ASCEND_IS_AIV SyncAll<false>();  // the cube core is missing
      break;
    case 7:
      if ASCEND_IS_AIC CrossCoreSetFlag<4, PIPE_FIX>(16), CrossCoreWaitFlag<4, PIPE_FIX>(16);
      if (ASCEND_IS_AIV && GetSubBlockIdx() == 1) CrossCoreWaitFlag<4, PIPE_V>(0), CrossCoreSetFlag<4, PIPE_V>(0);
      break;
    case 8:
      SyncAll<false>();
      if ASCEND_IS_AIC CrossCoreSetFlag<2, PIPE_FIX>(12);
      if ASCEND_IS_AIV CrossCoreWaitFlag<2, PIPE_V>(12);
      break;
    case 9:
      if ASCEND_IS_AIC CrossCoreSetFlag<2, PIPE_FIX>(4), CrossCoreSetFlag<2, PIPE_MTE2>(4);
      break;
    case 10:
      if (ASCEND_IS_AIC && GetBlockIdx() == 0) CrossCoreSetFlag<0, PIPE_FIX>(4);  // the other cube cores don't
      break;
    default: break;
  }
}
LAUNCHER_2(cross_flags, MIX_AIC_1_2)

KERNEL(places)(GM_ADDR, GM_ADDR y, Plan) {
  InitSocState();
  if ASCEND_IS_AIV {
    LocalTensor<float> a(TPosition::VECCALC, 0, 8);
    Fill(a, static_cast<float>(100 * GetBlockNum() + 10 * GetSubBlockIdx() + GetTaskRatio()), 1);
    Cross<HardEvent::V_MTE3>(0);
    Store(Global(y, 2 * GetBlockNum())[GetBlockIdx()], a, 1);
  }
}
LAUNCHER_2(places, MIX_AIC_1_2)

// Runs a program that the test wrote: for each core `count` rows (what, a, b, c) of int32.
// 0: an instruction on pipe a that reads cell b and writes cell c; 1: SetFlag of event a, id b; 2: WaitFlag; 3: barrier
// of pipe a; 4: CrossCoreSetFlag<2> on pipe a, flag b; 5: CrossCoreWaitFlag of flag b; 6: nothing. Cells below 8 are on
// chip, the others in GM.
void RunRow(const int32_t* row, const GlobalTensor<float>& shared) {
  const bool cube = ASCEND_IS_AIC;
  const LocalTensor<float> own(cube ? TPosition::A1 : TPosition::VECCALC, 0, 64);
  switch (row[0]) {
    case 0: {
      twin::Op op("Step", static_cast<twin::Pipe>(row[1]), 8);
      const auto at = [&](int cell) { return cell < 8 ? own[8 * cell].operand() : shared[8 * (cell - 8)].operand(); };
      if (row[2] >= 0) (void)op.read(at(row[2]), 0, 32);
      if (row[3] >= 0) (void)op.write(at(row[3]), 0, 32);
      break;
    }
    case 1: twin::set_flag(static_cast<HardEvent>(row[1]), row[2]); break;
    case 2: twin::wait_flag(static_cast<HardEvent>(row[1]), row[2]); break;
    case 3: twin::pipe_barrier(static_cast<pipe_t>(row[1])); break;
    case 4: twin::cross_core_set(2, static_cast<pipe_t>(row[1]), static_cast<uint16_t>(row[2])); break;
    case 5: twin::cross_core_wait(2, PIPE_S, static_cast<uint16_t>(row[2])); break;
    default: break;
  }
}

KERNEL(program)(GM_ADDR rows, GM_ADDR memory, Plan plan) {
  InitSocState();
  const GlobalTensor<float> shared = Global(memory, 64);
  {  // every cell of the core's own memory is written once, in order with all that follows
    const LocalTensor<float> own(ASCEND_IS_AIC ? TPosition::A1 : TPosition::VECCALC, 0, 64);
    twin::Op op("Begin", twin::Pipe::MTE2, 64);
    (void)op.write(own.operand(), 0, 256);
  }
  PipeBarrier<PIPE_ALL>();
  const int core = ASCEND_IS_AIC ? 0 : 1 + static_cast<int>(GetSubBlockIdx());
  const auto* row = reinterpret_cast<const int32_t*>(rows) + 4 * static_cast<uint64_t>(plan.count) * core;
  for (uint32_t i = 0; i < plan.count; ++i) RunRow(row + 4 * i, shared);
}
LAUNCHER_2(program, MIX_AIC_1_2)

// Byte ranges, `count` rows (what, begin, end, 0) of int32: 0 reads, 1 writes, 2 writes what nobody may rely on. In GM
// for variant 0, in UB else.
KERNEL(ranges)(GM_ADDR rows, GM_ADDR memory, Plan plan) {
  InitSocState();
  const LocalTensor<float> own(TPosition::VECCALC, 0, 64);
  const twin::Operand place = plan.variant ? own.operand() : Global(memory, 64).operand();
  const auto* row = reinterpret_cast<const int32_t*>(rows);
  for (uint32_t i = 0; i < plan.count; ++i, row += 4) {
    const auto begin = static_cast<uint64_t>(row[1]), bytes = static_cast<uint64_t>(row[2] - row[1]);
    PipeBarrier<PIPE_ALL>();
    twin::Op op("Range", twin::Pipe::MTE2, i);
    if (row[0] == 0) (void)op.read(place, begin, bytes);
    if (row[0] == 1) (void)op.write(place, begin, bytes);
    if (row[0] == 2) op.write_unspecified(place, begin, bytes);
  }
}
LAUNCHER_2(ranges, AIV_ONLY)
