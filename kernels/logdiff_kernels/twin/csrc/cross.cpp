// What passes between cores: cross-core flags and SyncAll.
#include "runtime.h"

namespace twin {

namespace {

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
    fail(Check::flag,
         "cross-core flag %u of %s is set on %s in mode %u while a set on %s in mode %u is not waited for yet", flag,
         core.label().c_str(), name_of(signal.pipe), signal.mode, name_of(queue.back().pipe), queue.back().mode);
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

void cross_core_set(uint8_t mode, pipe_t pipe, uint16_t flag) {
  Run& run = running();
  Core& core = current();
  const Doing doing("CrossCoreSetFlag");
  require_scheduler("CrossCoreSetFlag");
  const bool single = mode == 4;
  if (mode > 2 && !(single && __NPU_ARCH__ == 3510)) {
    fail(Check::flag, "CrossCoreSetFlag: no mode %u on this chip", mode);
  }
  if (flag >= (single && core.cube ? 27 : 16) || (single && flag % 16 > 10)) {
    fail(Check::flag, "CrossCoreSetFlag: no flag %u in mode %u", flag, mode);
  }
  if (pipe == PIPE_ALL || (pipe == PIPE_S && !single) || !core.has(pipe_of(pipe))) {
    fail(Check::flag, "CrossCoreSetFlag on %s: not on a %s core in mode %u",
         pipe == PIPE_ALL ? "ALL" : name_of(pipe_of(pipe)), core.cube ? "cube" : "vector", mode);
  }
  if (mode != 0 && !run.mixed()) {
    fail(Check::flag, "CrossCoreSetFlag: mode %u needs a kernel of kind MIX_AIC_1_2", mode);
  }
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
  signal.records = {trace_event(core, "CrossCoreSetFlag", Event::cross_set, static_cast<uint8_t>(pipe), flag)};
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
  const uint64_t at = trace_event(core, "CrossCoreWaitFlag", Event::cross_wait, static_cast<uint8_t>(held), flag);
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
  trace_event(core, "SyncAll", Event::sync_all, 7, static_cast<uint32_t>(run.sync_generation));
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

}  // namespace twin
