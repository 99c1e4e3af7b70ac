#include "sync.h"

#include <string>

#include "modes.h"
#include "runtime.h"

namespace twin {

namespace {

struct EventPipes {
  Pipe source, target;
  const char* name;
};

const EventPipes& pipes_of(AscendC::HardEvent event) {
  using P = Pipe;
  static constexpr EventPipes table[] = {
      {P::MTE2, P::V, "MTE2_V"},       {P::V, P::MTE2, "V_MTE2"},       {P::MTE3, P::V, "MTE3_V"},
      {P::V, P::MTE3, "V_MTE3"},       {P::MTE2, P::MTE1, "MTE2_MTE1"}, {P::MTE1, P::MTE2, "MTE1_MTE2"},
      {P::MTE1, P::M, "MTE1_M"},       {P::M, P::MTE1, "M_MTE1"},       {P::M, P::FIX, "M_FIX"},
      {P::FIX, P::M, "FIX_M"},         {P::MTE2, P::MTE3, "MTE2_MTE3"}, {P::MTE3, P::MTE2, "MTE3_MTE2"},
      {P::MTE3, P::MTE1, "MTE3_MTE1"}, {P::MTE1, P::MTE3, "MTE1_MTE3"}, {P::MTE2, P::M, "MTE2_M"},
      {P::M, P::MTE2, "M_MTE2"},       {P::MTE1, P::FIX, "MTE1_FIX"},   {P::FIX, P::MTE1, "FIX_MTE1"},
      {P::MTE2, P::FIX, "MTE2_FIX"},   {P::FIX, P::MTE2, "FIX_MTE2"},   {P::FIX, P::MTE3, "FIX_MTE3"},
      {P::MTE3, P::FIX, "MTE3_FIX"},   {P::S, P::V, "S_V"},             {P::V, P::S, "V_S"},
      {P::S, P::MTE2, "S_MTE2"},       {P::MTE2, P::S, "MTE2_S"},       {P::S, P::MTE3, "S_MTE3"},
      {P::MTE3, P::S, "MTE3_S"}};
  static_assert(sizeof table / sizeof table[0] == kEvents);
  return table[static_cast<int>(event)];
}

// Everything issued on `pipe` so far, as what another pipe learns from it.
Clock complete(Core& core, Pipe pipe) {
  issue(core, pipe);
  PipeState& state = core.pipes[static_cast<int>(pipe)];
  Clock clock = state.clock;
  clock.local[static_cast<int>(pipe)] = state.count;
  return clock;
}

void learn(Core& core, Pipe pipe, const Clock& clock) {
  core.pipes[static_cast<int>(pipe)].clock.join(clock);
  if (pipe == Pipe::S) ++core.scalar_version;
}

void barrier_all(Core& core) {
  Clock all;
  for (int i = 0; i < kPipes; ++i) all.join(complete(core, static_cast<Pipe>(i)));
  for (auto& state : core.pipes) state.clock = all;
  ++core.scalar_version;
  for (auto& state : core.pipes) state.seen_scalar = core.scalar_version;
}

uint64_t trace(Core& core, const char* name, Event event, uint8_t pipe, uint32_t detail) {
  Run& run = running();
  return run.options.trace ? run.trace.add(core.index, name, event, pipe, detail, 0) : kNone;
}

void add_edges(const std::vector<uint64_t>& from, uint64_t to) {
  for (const uint64_t record : from) {
    if (record != kNone) running().trace.edges.push_back({record, to});
  }
}

EventFlag& event_flag(Core& core, const char* call, AscendC::HardEvent event, int id) {
  const EventPipes& pipes = pipes_of(event);
  if (id < 0 || id >= kEventIds) fail(Check::flag, "%s<%s>(%d): event ids are 0 to %d", call, pipes.name, id, kEventIds - 1);
  for (const Pipe pipe : {pipes.source, pipes.target}) {
    if (!core.has(pipe) || (core.cube && pipe == Pipe::S)) {
      fail(Check::overload, "%s<%s>: a %s core has no such flag", call, pipes.name, core.cube ? "cube" : "vector");
    }
  }
  return core.events[static_cast<int>(event)][static_cast<size_t>(id)];
}

Signal merge(std::vector<std::deque<Signal>*> queues) {
  Signal all;
  all.mode = queues[0]->front().mode;
  all.pipe = queues[0]->front().pipe;
  Clock joined;
  for (auto* queue : queues) {
    joined.join_remote(queue->front().knowledge);
    for (const uint64_t record : queue->front().records) all.records.push_back(record);
    queue->pop_front();
  }
  all.knowledge = joined.remote;
  return all;
}

void deliver(Core& core, uint16_t flag, const Signal& signal) {
  auto& queue = core.arrived[flag];
  if (!queue.empty() && (queue.back().pipe != signal.pipe || queue.back().mode != signal.mode)) {
    fail(Check::flag, "cross-core flag %u of %s is set on %s in mode %u while a set on %s in mode %u is not waited for yet",
         flag, core.label().c_str(), name_of(signal.pipe), signal.mode, name_of(queue.back().pipe), queue.back().mode);
  }
  queue.push_back(signal);
  if (queue.size() > static_cast<size_t>(kCounterLimit)) {
    fail(Check::flag, "cross-core flag %u of %s was set %zu times without a wait: its counter ends at %d", flag,
         core.label().c_str(), queue.size(), kCounterLimit);
  }
  if (core.wait_flag == flag) wake(core);
}

// Once every one of `members` has set the flag, each of them may pass it once.
void meet(std::vector<std::deque<Signal>>& arrived, const std::vector<Core*>& members, const Core& self, uint16_t flag,
          Signal signal) {
  arrived.resize(members.size());
  std::vector<std::deque<Signal>*> all;
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] == &self) arrived[i].push_back(std::move(signal));
    all.push_back(&arrived[i]);
  }
  for (const auto* queue : all) {
    if (queue->empty()) return;
  }
  const Signal merged = merge(all);
  for (Core* member : members) deliver(*member, flag, merged);
}

std::vector<Core*> same_kind(const Core& self, bool own_block) {
  std::vector<Core*> found;
  for (const auto& core : running().cores) {
    if (core->cube == self.cube && (!own_block || core->block == self.block)) found.push_back(core.get());
  }
  return found;
}

void require_scheduler(const char* call) {
  if (!running().scheduled()) {
    fail(Check::flag, "%s in a kernel of kind AIV_ONLY or AIC_ONLY, which starts no scheduler: use a MIX kind", call);
  }
}

void check_sync_flags(const Run& run) {
  if (run.sync_used && run.sync_flag_used) {
    fail(Check::flag, "cross-core flags 11 to 14 are SyncAll's, which this kernel calls too");
  }
}

void require_resident(const char* call) {
  const Run& run = running();
  const uint32_t room = run.mixed() || run.kind == KERNEL_TYPE_MIX_AIC_1_0 ? run.options.cores : 2 * run.options.cores;
  if (run.blocks > room) {
    fail(Check::deadlock, "%s with %u blocks on %u cores: those that wait keep the others from starting", call,
         run.blocks, room);
  }
}

}  // namespace

void set_flag(AscendC::HardEvent event, int id) {
  Core& core = current();
  const Doing doing("SetFlag");
  EventFlag& flag = event_flag(core, "SetFlag", event, id);
  const EventPipes& pipes = pipes_of(event);
  if (flag.set) fail(Check::flag, "SetFlag<%s>(%d) twice without a WaitFlag", pipes.name, id);
  flag.set = true;
  if (running().options.check_races) flag.clock = complete(core, pipes.source);
  flag.record = trace(core, pipes.name, Event::set_flag, static_cast<uint8_t>(pipes.source), static_cast<uint32_t>(id));
}

void wait_flag(AscendC::HardEvent event, int id) {
  Core& core = current();
  const Doing doing("WaitFlag");
  EventFlag& flag = event_flag(core, "WaitFlag", event, id);
  const EventPipes& pipes = pipes_of(event);
  if (!flag.set) fail(Check::flag, "WaitFlag<%s>(%d), which no SetFlag has set: the core hangs", pipes.name, id);
  flag.set = false;
  if (running().options.check_races) {
    issue(core, pipes.target);
    learn(core, pipes.target, flag.clock);
  }
  const uint64_t at =
      trace(core, pipes.name, Event::wait_flag, static_cast<uint8_t>(pipes.target), static_cast<uint32_t>(id));
  if (at != kNone) add_edges({flag.record}, at);
}

void pipe_barrier(pipe_t pipe) {
  Core& core = current();
  const Doing doing("PipeBarrier");
  if (pipe == PIPE_S) fail(Check::overload, "PipeBarrier<PIPE_S>: the scalar unit is in order by itself");
  trace(core, "PipeBarrier", Event::barrier, static_cast<uint8_t>(pipe), 0);
  if (pipe != PIPE_ALL && !core.has(pipe_of(pipe))) {
    fail(Check::overload, "PipeBarrier<PIPE_%s>: a %s core has no such pipe", name_of(pipe_of(pipe)),
         core.cube ? "cube" : "vector");
  }
  if (!running().options.check_races) return;
  if (pipe == PIPE_ALL) {
    barrier_all(core);
  } else {
    PipeState& state = core.pipes[static_cast<int>(pipe)];
    state.clock.local[static_cast<int>(pipe)] = state.count;
  }
}

void cross_core_set(uint8_t mode, pipe_t pipe, uint16_t flag) {
  Run& run = running();
  Core& core = current();
  const Doing doing("CrossCoreSetFlag");
  require_scheduler("CrossCoreSetFlag");
  const bool single = mode == 4;
  if (mode > 2 && !(single && __NPU_ARCH__ == 3510)) fail(Check::flag, "CrossCoreSetFlag: no mode %u on this chip", mode);
  if (flag >= (single && core.cube ? 27 : 16) || (single && flag % 16 > 10)) {
    fail(Check::flag, "CrossCoreSetFlag: no flag %u in mode %u", flag, mode);
  }
  if (pipe == PIPE_ALL || (pipe == PIPE_S && !single) || !core.has(pipe_of(pipe))) {
    fail(Check::flag, "CrossCoreSetFlag on %s: not on a %s core in mode %u", pipe == PIPE_ALL ? "ALL" : name_of(pipe_of(pipe)),
         core.cube ? "cube" : "vector", mode);
  }
  if (mode != 0 && !run.mixed()) fail(Check::flag, "CrossCoreSetFlag: mode %u needs a kernel of kind MIX_AIC_1_2", mode);
  if (mode == 0) require_resident("CrossCoreSetFlag<0>");
  if (flag >= 11 && flag <= 14) run.sync_flag_used = true;
  check_sync_flags(run);
  Signal signal;
  signal.mode = mode;
  signal.pipe = pipe_of(pipe);
  if (run.options.check_races) {
    signal.knowledge =
        complete(core, pipe_of(pipe)).published(core.index, static_cast<uint32_t>(run.cores.size()));
  }
  signal.records = {trace(core, "CrossCoreSetFlag", Event::cross_set, static_cast<uint8_t>(pipe), flag)};
  if (mode == 0) {
    meet(run.everyone[flag][core.cube], same_kind(core, false), core, flag, signal);
  } else if (mode == 1) {
    if (core.cube) fail(Check::flag, "CrossCoreSetFlag: mode 1 is for the vector cores of a block");
    Core& cube = *run.cores[core.index - 1 - core.sub];
    std::vector<std::deque<Signal>>& pair = cube.pair_arrived[flag];
    meet(pair, same_kind(core, true), core, flag, signal);
  } else if (core.cube) {
    for (uint32_t sub = 0; sub < 2; ++sub) {
      if (!single || sub == flag / 16u) deliver(*run.cores[core.index + 1 + sub], flag % 16, signal);
    }
  } else {
    Core& cube = *run.cores[core.index - 1 - core.sub];
    if (single) {
      deliver(cube, static_cast<uint16_t>(flag + 16 * core.sub), signal);
      return;
    }
    auto& halves = cube.half_arrived[flag];
    halves[core.sub].push_back(signal);
    if (!halves[0].empty() && !halves[1].empty()) deliver(cube, flag, merge({&halves[0], &halves[1]}));
  }
}

void cross_core_wait(uint8_t mode, pipe_t pipe, uint16_t flag) {
  Run& run = running();
  Core& core = current();
  const Doing doing("CrossCoreWaitFlag");
  require_scheduler("CrossCoreWaitFlag");
  if (flag >= (__NPU_ARCH__ == 3510 && core.cube && mode == 4 ? 27 : 16)) {
    fail(Check::flag, "CrossCoreWaitFlag: no flag %u", flag);
  }
  // 2201 holds back every later instruction whatever the template says; 3510 those of the named pipe.
  const Pipe held = __NPU_ARCH__ == 2201 || pipe == PIPE_ALL ? Pipe::S : pipe_of(pipe);
  if (core.arrived[flag].empty()) {
    core.wait_flag = flag;
    wait_core();
    core.wait_flag = -1;
  }
  const Signal signal = std::move(core.arrived[flag].front());
  core.arrived[flag].pop_front();
  if (run.options.check_races) {
    core.pipes[static_cast<int>(held)].clock.learn(signal.knowledge, core.index);
    if (held == Pipe::S) ++core.scalar_version;
  }
  const uint64_t at = trace(core, "CrossCoreWaitFlag", Event::cross_wait, static_cast<uint8_t>(held), flag);
  if (at != kNone) add_edges(signal.records, at);
}

void sync_all(bool vector_only) {
  Run& run = running();
  Core& core = current();
  const Doing doing("SyncAll");
  require_scheduler("SyncAll");
  require_resident("SyncAll");
  if (vector_only && core.cube) fail(Check::flag, "SyncAll<true> on a cube core: it joins vector cores only");
  if (!vector_only && !run.mixed()) fail(Check::flag, "SyncAll<false> in a kernel without both kinds of cores hangs");
  run.sync_used = true;
  check_sync_flags(run);
  const size_t group = vector_only ? 0 : 1;
  Signal signal;
  if (run.options.check_races) {
    barrier_all(core);
    signal.knowledge = core.pipes[0].clock.published(core.index, static_cast<uint32_t>(run.cores.size()));
  }
  uint32_t members = 0;
  for (const auto& other : run.cores) members += !vector_only || !other->cube;
  trace(core, "SyncAll", Event::sync_all, 7, static_cast<uint32_t>(run.sync_generation));
  run.sync_arrived[group].push_back(signal);
  if (run.sync_arrived[group].size() == members) {
    Clock joined;
    for (const Signal& one : run.sync_arrived[group]) joined.join_remote(one.knowledge);
    run.sync_arrived[group].clear();
    run.sync_result[group] = joined.remote;
    ++run.sync_generation;
    for (const auto& other : run.cores) {
      if (other->in_sync_all && (!vector_only || !other->cube) && other.get() != &core) wake(*other);
    }
  } else {
    core.in_sync_all = true;
    wait_core();
    core.in_sync_all = false;
  }
  if (run.options.check_races) {
    for (auto& state : core.pipes) state.clock.learn(run.sync_result[group], core.index);
    ++core.scalar_version;
  }
}

int fetch_event_id(AscendC::HardEvent event) {
  Core& core = current();
  const Doing doing("FetchEventID");
  for (int id = 0; id < kEventIds; ++id) {
    const EventFlag& flag = core.events[static_cast<int>(event)][static_cast<size_t>(id)];
    if (!flag.reserved) return id;
  }
  fail(Check::flag, "no event id of %s is left: queues and AllocEventID hold all %d", pipes_of(event).name, kEventIds);
}

int alloc_event_id(AscendC::HardEvent event) {
  const int id = fetch_event_id(event);
  current().events[static_cast<int>(event)][static_cast<size_t>(id)].reserved = true;
  return id;
}

void release_event_id(AscendC::HardEvent event, int id) {
  const Doing doing("ReleaseEventID");
  EventFlag& flag = event_flag(current(), "ReleaseEventID", event, id);
  if (!flag.reserved) fail(Check::flag, "ReleaseEventID<%s>(%d), which is not taken", pipes_of(event).name, id);
  flag.reserved = false;
}

void init_soc_state() {
  State& modes = state();
  modes.mask_mode.set(AscendC::MaskMode::NORMAL);
  modes.mask.set({});
  modes.atomic.set(Atomic::none);
}

void check_kind(KernelMetaType kind) {
  if (kind != running().kind) {
    fail(Check::launch, "the kernel declares kind %d, the launcher starts it as %d", static_cast<int>(kind),
         static_cast<int>(running().kind));
  }
}

void finish_core(Core& core) {
  const Doing doing("end of the kernel");
  for (const auto& queue : core.queues) {
    for (const auto& buffer : queue->buffers) {
      if (buffer->state != BufferState::free) {
        const char* what[] = {"", "allocated", "enqueued", "dequeued"};
        fail(Check::queue, "a queue tensor at %llu is still %s at the end of the kernel",
             static_cast<unsigned long long>(buffer->base), what[static_cast<int>(buffer->state)]);
      }
    }
  }
  pipe_reset();
  for (int event = 0; event < kEvents; ++event) {
    for (int id = 0; id < kEventIds; ++id) {
      if (core.events[event][id].set) {
        fail(Check::flag, "event %s %d is left set at the end of the kernel",
             pipes_of(static_cast<AscendC::HardEvent>(event)).name, id);
      }
    }
  }
}

bool on_cube_core() { return current().cube; }

int64_t block_index() {
  const Core& core = current();
  return running().mixed() && !core.cube ? 2 * static_cast<int64_t>(core.block) + core.sub : core.block;
}

int64_t block_count() { return running().blocks; }
int64_t sub_block_index() { return current().sub; }
int64_t sub_block_count() { return running().mixed() ? 2 : 1; }

State& state() { return current().state; }

}  // namespace twin
