// The running launch. For the twin's own sources; kernels and instructions use core.h.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "clock.h"
#include "fiber.h"
#include "launch.h"
#include "op.h"
#include "queue.h"
#include "shadow.h"
#include "state.h"
#include "sync.h"
#include "trace.h"

namespace twin {

constexpr int kEvents = static_cast<int>(AscendC::HardEvent::MAX);
constexpr int kEventIds = 8;       // both architectures: docs of SetFlag/WaitFlag
constexpr int kCrossFlags = 32;    // 16 for modes 0 to 2; mode 4 of 3510 has 16..26 too
constexpr int kCounterLimit = 15;  // sets of one cross-core flag that nobody has waited for
constexpr int kQueueTensors = 8;   // tensors of one position in use at a time
constexpr int kQueueBuffers = 64;  // buffers of all queues of a TPipe
constexpr uint64_t kNone = ~0ull;

// Ends a core's body after another core has failed; never seen by a kernel.
struct Cancelled {};

// splitmix64: the same sequence on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t limit) { return next() % limit; }

 private:
  uint64_t state_;
};

struct PipeState {
  uint32_t count = 0;         // instructions issued
  Clock clock;                // what is complete before the next one starts
  uint64_t seen_scalar = 0;   // version of the scalar unit's clock that `clock` includes
  std::vector<const char*> recent;  // names of the last instructions, by number modulo the size
};

struct EventFlag {
  bool set = false;
  bool reserved = false;  // AllocEventID, a queue
  Clock clock;
  uint64_t record = kNone;
};

// What a cross-core flag carries from the core that set it.
struct Signal {
  Clock::Remote knowledge;
  std::vector<uint64_t> records;
  uint8_t mode = 0;
  Pipe pipe = Pipe::S;
};

enum class BufferState : uint8_t { free, allocated, queued, dequeued };

struct QueueBuffer {
  Queue* queue;
  uint64_t base, bytes;
  BufferState state = BufferState::free;
  int enqueued_event = -1, freed_event = -1;  // ids
};

struct Queue {
  AscendC::TPosition position;
  AscendC::HardEvent filled, freed;  // from the producer to the consumer, and back
  int depth;
  std::vector<std::unique_ptr<QueueBuffer>> buffers;
  std::deque<QueueBuffer*> queued;
};

enum class Status : uint8_t { ready, waiting, finished };

struct Core {
  uint32_t index = 0, block = 0, sub = 0;
  bool cube = false;
  Status status = Status::ready;
  std::unique_ptr<Fiber> fiber;
  State state;
  Op* op = nullptr;
  const char* doing = "";  // flag or queue call in progress, for messages

  std::array<PipeState, kPipes> pipes;
  uint64_t scalar_version = 1;
  std::array<std::unique_ptr<Arena>, kMemories> arenas;

  std::array<std::array<EventFlag, kEventIds>, kEvents> events;
  std::array<std::deque<Signal>, kCrossFlags> arrived;                       // may be waited for
  std::array<std::array<std::deque<Signal>, 2>, kCrossFlags> half_arrived;   // of a cube core: per vector core
  std::array<std::vector<std::deque<Signal>>, kCrossFlags> pair_arrived;     // of a cube core: mode 1 beside it
  int wait_flag = -1;                                                        // cross-core flag it waits for
  bool in_sync_all = false;

  bool has_pipe = false, has_allocator = false;
  std::array<uint64_t, kMemories> allocated{};
  std::vector<std::unique_ptr<Queue>> queues;
  std::vector<Op::Span> spans;

  bool has(Pipe pipe) const;
  bool has(Memory memory) const;
  Arena& arena(Memory memory);
  std::string label() const;
};

struct Run {
  const char* kernel;
  KernelMetaType kind;
  uint32_t blocks;
  Launch options;
  Random random;
  std::vector<std::unique_ptr<Core>> cores;
  std::vector<Core*> ready;
  std::vector<RegionShadow> regions;
  RegionShadow* last_region = nullptr;
  std::array<std::vector<std::unique_ptr<Arena>>, kMemories> spare_arenas;
  std::vector<std::unique_ptr<Fiber>> spare_fibers;
  std::array<std::array<std::vector<std::deque<Signal>>, 2>, kCrossFlags> everyone;  // mode 0: vector, cube cores
  std::vector<Signal> sync_arrived[2];  // SyncAll: vector cores only, all cores
  Clock::Remote sync_result[2];
  uint64_t sync_generation = 0;
  bool sync_used = false;       // SyncAll takes flags 11 to 14 for itself
  bool sync_flag_used = false;  // one of these was set by the kernel
  bool failed = false, cancelling = false;
  Failure failure{};
  Trace trace;
  uint64_t issued = 0;

  explicit Run(const Launch& launch) : options(launch), random(launch.seed * 2 + 1) {}
  bool mixed() const { return kind == KERNEL_TYPE_MIX_AIC_1_2; }
  bool scheduled() const { return kind != KERNEL_TYPE_AIV_ONLY && kind != KERNEL_TYPE_AIC_ONLY; }
};

Run& running();
Core& current();

// Names the call in progress for the messages of its checks.
class Doing {
 public:
  explicit Doing(const char* call) : core_(current()), before_(core_.doing) { core_.doing = call; }
  ~Doing() { core_.doing = before_; }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  Core& core_;
  const char* before_;
};

bool is_running();

void yield_core();                       // to another ready core, which may be this one
void wait_core();                        // until wake()
void wake(Core& core);
RegionShadow* find_region(uint64_t begin, uint64_t end);  // null if no region holds all of it
void finish_core(Core& core);            // checks of what a kernel must not leave behind

void issue(Core& core, Pipe pipe);      // the scalar unit's knowledge reaches the pipe
Clock complete(Core& core, Pipe pipe);  // everything issued on `pipe` so far, as what another pipe learns from it
void barrier_all(Core& core);

// A record of a flag or barrier, or kNone without a trace; and what it waited for.
uint64_t trace_event(Core& core, const char* name, Event event, uint8_t pipe, uint32_t detail);
void add_edges(const std::vector<uint64_t>& from, uint64_t to);

constexpr Pipe pipe_of(pipe_t pipe) { return static_cast<Pipe>(pipe); }

}  // namespace twin
