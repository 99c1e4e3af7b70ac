#include "launch.h"

#include <algorithm>
#include <cstdio>
#include <mutex>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "runtime.h"

namespace twin {

namespace {

// Nearest even, subnormals kept, as long as it lives; the caller's mode comes back.
class IeeeArithmetic {
 public:
#if defined(__SSE2__)
  IeeeArithmetic() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~IeeeArithmetic() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  IeeeArithmetic() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~IeeeArithmetic() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

std::mutex one_launch;
std::unique_ptr<Run> run_now, run_last;
Core* core_now = nullptr;

void make_cores(Run& run) {
  const bool cube = run.kind == KERNEL_TYPE_AIC_ONLY || run.kind == KERNEL_TYPE_MIX_AIC_1_0;
  for (uint32_t block = 0; block < run.blocks; ++block) {
    for (uint32_t i = 0; i < (run.mixed() ? 3u : 1u); ++i) {
      auto core = std::make_unique<Core>();
      core->index = static_cast<uint32_t>(run.cores.size());
      core->block = block;
      core->cube = run.mixed() ? i == 0 : cube;
      core->sub = run.mixed() && i ? i - 1 : 0;
      State& state = core->state;
      state.mask_mode.dirty(run.random.below(2) ? AscendC::MaskMode::COUNTER : AscendC::MaskMode::NORMAL);
      state.mask.dirty({run.random.next(), run.random.next()});
      state.atomic.dirty(static_cast<Atomic>(run.random.below(7)));
      state.saturate.dirty(run.random.below(2));
      state.hf32.dirty(run.random.below(2));
      run.trace.cores.push_back({core->block, core->sub, core->cube});
      run.cores.push_back(std::move(core));
    }
  }
}

void start(Run& run, Core& core, const std::function<void()>& body) {
  if (run.spare_fibers.empty()) {
    core.fiber = std::make_unique<Fiber>();
  } else {
    core.fiber = std::move(run.spare_fibers.back());
    run.spare_fibers.pop_back();
  }
  core.fiber->start([&core, &body] {
    try {
      body();
      finish_core(core);
    } catch (const Cancelled&) {
    } catch (...) {
      Run& run = running();
      if (!run.failed) {
        run.failed = true;
        run.failure = {Check::launch, run.kernel, core.label(), "", core.doing, "", "the kernel threw a C++ exception"};
      }
    }
  });
  run.ready.push_back(&core);
}

void resume(Core& core) {
  core_now = &core;
  core.fiber->resume();
  core_now = nullptr;
}

void retire(Run& run, Core& core) {
  core.status = Status::finished;
  for (int i = 0; i < kMemories; ++i) {
    if (core.arenas[i]) run.spare_arenas[i].push_back(std::move(core.arenas[i]));
  }
  auto fresh = std::move(core.fiber);
  fresh->recycle();
  run.spare_fibers.push_back(std::move(fresh));
}

void report_deadlock(Run& run) {
  std::string who;
  int listed = 0, waiting = 0;
  const Core* first = nullptr;
  for (const auto& core : run.cores) {
    if (core->status != Status::waiting) continue;
    ++waiting;
    if (!first) first = core.get();
    if (++listed > 8) continue;
    who += who.empty() ? "" : "; ";
    who += core->label() + " waits for ";
    who += core->in_sync_all ? "the other cores in SyncAll" : "cross-core flag " + std::to_string(core->wait_flag);
  }
  if (waiting > 8) who += "; and " + std::to_string(waiting - 8) + " more";
  run.failed = true;
  run.failure = {Check::deadlock, run.kernel, first ? first->label() : "", "", first ? first->doing : "", "", who};
}

void check_left_flags(Run& run) {
  for (const auto& core : run.cores) {
    for (int flag = 0; flag < kCrossFlags && !run.failed; ++flag) {
      size_t left = core->arrived[flag].size();
      for (const auto& half : core->half_arrived[flag]) left += half.size();
      for (const auto& pair : core->pair_arrived[flag]) left += pair.size();
      const auto& everyone = run.everyone[flag][core->cube];
      const uint32_t member = run.mixed() && !core->cube ? 2 * core->block + core->sub : core->block;
      if (!everyone.empty()) left += everyone[member].size();
      if (!left) continue;
      run.failed = true;
      run.failure = {Check::flag, run.kernel, core->label(), "", "end of the kernel", "",
                     "cross-core flag " + std::to_string(flag) + " was set " + std::to_string(left) +
                         " times more than it was waited for"};
    }
  }
}

// Blocks in shuffled order, as many at a time as there are cores; among the ready cores a random one runs.
void schedule(Run& run, const std::function<void()>& body) {
  const uint32_t width = run.mixed() ? 3 : 1;
  const bool per_cube = run.mixed() || run.kind == KERNEL_TYPE_AIC_ONLY || run.kind == KERNEL_TYPE_MIX_AIC_1_0;
  const uint32_t room = per_cube ? run.options.cores : 2 * run.options.cores;
  std::vector<uint32_t> order(run.blocks);
  for (uint32_t i = 0; i < run.blocks; ++i) order[i] = i;
  for (uint32_t i = run.blocks; i > 1; --i) std::swap(order[i - 1], order[run.random.below(i)]);
  std::vector<uint32_t> alive(run.blocks, width);
  uint32_t next = 0, resident = 0, finished = 0;
  while (finished < run.blocks && !run.failed) {
    for (; resident < room && next < run.blocks; ++next, ++resident) {
      for (uint32_t i = 0; i < width; ++i) start(run, *run.cores[order[next] * width + i], body);
    }
    if (run.ready.empty()) {
      report_deadlock(run);
      break;
    }
    const size_t at = run.random.below(run.ready.size());
    Core& core = *run.ready[at];
    resume(core);
    if (core.status == Status::ready && !core.fiber->finished()) continue;
    run.ready.erase(std::find(run.ready.begin(), run.ready.end(), &core));
    if (!core.fiber->finished()) continue;
    retire(run, core);
    if (--alive[core.block] == 0) {
      --resident;
      ++finished;
    }
  }
  if (!run.failed) check_left_flags(run);
  run.cancelling = true;  // so that every stack unwinds
  for (const auto& core : run.cores) {
    if (core->fiber && core->fiber->begun() && !core->fiber->finished()) resume(*core);
  }
}

void register_regions(Run& run) {
  const Launch& launch = run.options;
  for (uint32_t i = 0; i < launch.region_count; ++i) {
    const Region& region = launch.regions[i];
    if (!region.bytes) continue;
    RegionShadow shadow;
    shadow.begin = reinterpret_cast<uint64_t>(region.address);
    shadow.end = shadow.begin + region.bytes;
    shadow.name = region.name ? region.name : "";
    shadow.initialised = region.initialised;
    shadow.read_only = region.read_only;
    if (!region.initialised) shadow.written.resize(region.bytes);
    run.regions.push_back(std::move(shadow));
  }
  if (!launch.region_count) run.regions.push_back({0, ~0ull, "GM", true, false, {}, {}});
  std::sort(run.regions.begin(), run.regions.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
}

}  // namespace

Run& running() { return *run_now; }
Core& current() { return *core_now; }
bool is_running() { return run_now && core_now; }
const Launch& options() { return run_now->options; }

void yield_core() {
  core_now->fiber->pause();
  if (run_now->cancelling) throw Cancelled{};
}

void wait_core() {
  Core& core = *core_now;
  core.status = Status::waiting;
  yield_core();
}

void wake(Core& core) {
  if (core.status != Status::waiting) return;
  core.status = Status::ready;
  run_now->ready.push_back(&core);
}

RegionShadow* find_region(uint64_t begin, uint64_t end) {
  Run& run = *run_now;
  const auto holds = [&](const RegionShadow& region) { return begin >= region.begin && end <= region.end; };
  if (run.last_region && holds(*run.last_region)) return run.last_region;
  auto after = std::upper_bound(run.regions.begin(), run.regions.end(), begin,
                                [](uint64_t at, const RegionShadow& region) { return at < region.begin; });
  if (after == run.regions.begin() || !holds(*(after - 1))) return nullptr;
  return run.last_region = &*(after - 1);
}

bool Core::has(Pipe pipe) const {
  switch (pipe) {
    case Pipe::V: return !cube;
    case Pipe::M: case Pipe::MTE1: case Pipe::FIX: return cube;
    default: return true;
  }
}

bool Core::has(Memory memory) const {
  return memory == Memory::GM || (memory == Memory::UB) == !cube;
}

Arena& Core::arena(Memory memory) {
  auto& own = arenas[static_cast<int>(memory)];
  if (!own) {
    auto& spare = run_now->spare_arenas[static_cast<int>(memory)];
    if (spare.empty()) {
      own = std::make_unique<Arena>(memory);
    } else {
      own = std::move(spare.back());
      spare.pop_back();
      own->reset();
    }
  }
  return *own;
}

std::string Core::label() const {
  std::string text = cube ? "AIC" : "AIV";
  if (run_now && run_now->mixed() && !cube) text += std::to_string(sub);
  return text + " of block " + std::to_string(block);
}

void check_placement(Memory memory, uint64_t base, uint64_t bytes) {
  const Core& core = current();
  const Doing doing(*core.doing ? core.doing : "LocalTensor");
  if (memory == Memory::GM) fail(Check::capacity, "a local tensor in a position that is not on chip");
  if (!core.has(memory)) {
    fail(Check::overload, "%s on a %s core", name_of(memory), core.cube ? "cube" : "vector");
  }
  if (base % kCell) {
    fail(Check::alignment, "local tensor at %s address %llu, not a multiple of 32", name_of(memory),
         static_cast<unsigned long long>(base));
  }
  if (base + bytes > capacity_of(memory)) {
    fail(Check::capacity, "%s: %llu bytes from %llu on, and the core has %llu", name_of(memory),
         static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(base),
         static_cast<unsigned long long>(capacity_of(memory)));
  }
}

uint64_t gm_extent(const void* address, uint64_t bytes) {
  const Doing doing("SetGlobalBuffer");
  if (!address) return 0;
  const auto begin = reinterpret_cast<uint64_t>(address);
  const RegionShadow* region = find_region(begin, begin + std::max<uint64_t>(bytes, 1));
  if (!region) {
    fail(Check::range, "%llu bytes at %p: no tensor of the launch holds them",
         static_cast<unsigned long long>(bytes), address);
  }
  return bytes ? bytes : region->end - begin;
}

int launch(const char* kernel, KernelMetaType kind, uint32_t blocks, const Launch* options,
           const std::function<void()>& body) {
  const std::lock_guard<std::mutex> lock(one_launch);
  [[maybe_unused]] const IeeeArithmetic ieee;
  Launch chosen;
  if (options) chosen = *options;
  auto run = std::make_unique<Run>(chosen);
  run->kernel = kernel;
  run->kind = kind;
  run->blocks = blocks;
  if (run_last) {
    run->spare_arenas = std::move(run_last->spare_arenas);
    run->spare_fibers = std::move(run_last->spare_fibers);
    run_last.reset();
  }
  run_now = std::move(run);
  if (options && options->size != sizeof(Launch)) {
    run_now->failed = true;
    run_now->failure = {Check::launch, kernel, "", "", "", "", "the launch record is of another version"};
  } else if (!blocks || blocks > 65535 || !chosen.cores) {
    run_now->failed = true;
    run_now->failure = {Check::launch, kernel, "", "", "", "", "a launch takes 1 to 65535 blocks on at least 1 core"};
  } else {
    register_regions(*run_now);
    make_cores(*run_now);
    schedule(*run_now, body);
  }
  for (auto& core : run_now->cores) {
    for (int i = 0; i < kMemories; ++i) {
      if (core->arenas[i]) run_now->spare_arenas[i].push_back(std::move(core->arenas[i]));
    }
  }
  run_last = std::move(run_now);
  return run_last->failed ? kFailed : 0;
}

const Run* last_run() { return run_last.get(); }

}  // namespace twin
