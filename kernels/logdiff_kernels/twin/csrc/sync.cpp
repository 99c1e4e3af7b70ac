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

void learn(Core& core, Pipe pipe, const Clock& clock) {
  core.pipes[static_cast<int>(pipe)].clock.join(clock);
  if (pipe == Pipe::S) ++core.scalar_version;
}

EventFlag& event_flag(Core& core, const char* call, AscendC::HardEvent event, int id) {
  const EventPipes& pipes = pipes_of(event);
  if (id < 0 || id >= kEventIds) {
    fail(Check::flag, "%s<%s>(%d): event ids are 0 to %d", call, pipes.name, id, kEventIds - 1);
  }
  for (const Pipe pipe : {pipes.source, pipes.target}) {
    if (!core.has(pipe) || (core.cube && pipe == Pipe::S)) {
      fail(Check::overload, "%s<%s>: a %s core has no such flag", call, pipes.name, core.cube ? "cube" : "vector");
    }
  }
  return core.events[static_cast<int>(event)][static_cast<size_t>(id)];
}

}  // namespace

Clock complete(Core& core, Pipe pipe) {
  issue(core, pipe);
  PipeState& state = core.pipes[static_cast<int>(pipe)];
  Clock clock = state.clock;
  clock.local[static_cast<int>(pipe)] = state.count;
  return clock;
}

void barrier_all(Core& core) {
  Clock all;
  for (int i = 0; i < kPipes; ++i) all.join(complete(core, static_cast<Pipe>(i)));
  for (auto& state : core.pipes) state.clock = all;
  ++core.scalar_version;
  for (auto& state : core.pipes) state.seen_scalar = core.scalar_version;
}

uint64_t trace_event(Core& core, const char* name, Event event, uint8_t pipe, uint32_t detail) {
  Run& run = running();
  return run.options.trace ? run.trace.add(core.index, name, event, pipe, detail, 0) : kNone;
}

void add_edges(const std::vector<uint64_t>& from, uint64_t to) {
  for (const uint64_t record : from) {
    if (record != kNone) running().trace.edges.push_back({record, to});
  }
}

void set_flag(AscendC::HardEvent event, int id) {
  Core& core = current();
  const Doing doing("SetFlag");
  EventFlag& flag = event_flag(core, "SetFlag", event, id);
  const EventPipes& pipes = pipes_of(event);
  if (flag.set) fail(Check::flag, "SetFlag<%s>(%d) twice without a WaitFlag", pipes.name, id);
  flag.set = true;
  if (running().options.check_races) flag.clock = complete(core, pipes.source);
  flag.record =
      trace_event(core, pipes.name, Event::set_flag, static_cast<uint8_t>(pipes.source), static_cast<uint32_t>(id));
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
      trace_event(core, pipes.name, Event::wait_flag, static_cast<uint8_t>(pipes.target), static_cast<uint32_t>(id));
  if (at != kNone) add_edges({flag.record}, at);
}

void pipe_barrier(pipe_t pipe) {
  Core& core = current();
  const Doing doing("PipeBarrier");
  if (pipe == PIPE_S) fail(Check::overload, "PipeBarrier<PIPE_S>: the scalar unit is in order by itself");
  trace_event(core, "PipeBarrier", Event::barrier, static_cast<uint8_t>(pipe), 0);
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
