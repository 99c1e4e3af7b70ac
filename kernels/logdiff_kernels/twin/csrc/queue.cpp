#include "queue.h"

#include <algorithm>

#include "modes.h"
#include "runtime.h"

namespace twin {

namespace {

using AscendC::HardEvent;
using AscendC::TPosition;

unsigned long long plain(uint64_t value) { return value; }

// The flags between the producer of a queue's tensors and their consumer: filled, and free again.
struct QueueEvents {
  HardEvent filled, freed;
};

QueueEvents events_of(TPosition source, TPosition target) {
  if (source == TPosition::VECIN && target == TPosition::VECOUT) return {HardEvent::MTE2_MTE3, HardEvent::MTE3_MTE2};
  if (source != target) fail(Check::queue, "the twin binds VECIN to VECOUT only");
  switch (source) {
    case TPosition::VECIN: return {HardEvent::MTE2_V, HardEvent::V_MTE2};
    case TPosition::VECOUT: return {HardEvent::V_MTE3, HardEvent::MTE3_V};
    case TPosition::A1: case TPosition::B1: case TPosition::C1: return {HardEvent::MTE2_MTE1, HardEvent::MTE1_MTE2};
    case TPosition::A2: case TPosition::B2: case TPosition::C2: return {HardEvent::MTE1_M, HardEvent::M_MTE1};
    case TPosition::CO1: return {HardEvent::M_FIX, HardEvent::FIX_M};
    default: fail(Check::queue, "no queue of this position has a producer and a consumer: use a TBuf");
  }
}

int raise_event(HardEvent event) {
  const int id = alloc_event_id(event);
  set_flag(event, id);
  return id;
}

void await_event(HardEvent event, int& id) {
  if (id < 0) return;
  wait_flag(event, id);
  release_event_id(event, id);
  id = -1;
}

const char* name_of(BufferState state) {
  constexpr const char* names[] = {"free", "allocated", "enqueued", "dequeued"};
  return names[static_cast<int>(state)];
}

Queue& checked(Queue* queue, const char* call) {
  if (!queue) fail(Check::queue, "%s on a queue without InitBuffer", call);
  return *queue;
}

QueueBuffer& owned(Queue& queue, QueueBuffer* buffer, const char* call) {
  if (!buffer) fail(Check::queue, "%s of a tensor that comes from no queue", call);
  if (buffer->queue != &queue) fail(Check::queue, "%s of another queue's tensor", call);
  return *buffer;
}

}  // namespace

void pipe_create() {
  Core& core = current();
  const Doing doing("TPipe");
  if (core.has_pipe) fail(Check::queue, "a second TPipe on one core");
  if (core.has_allocator) fail(Check::queue, "TPipe after LocalMemAllocator: the two styles can't be mixed");
  core.has_pipe = true;
  init_soc_state();
}

void pipe_require() {
  const Doing doing("GetTPipePtr");
  if (!current().has_pipe) fail(Check::queue, "GetTPipePtr without a TPipe");
}

void allocator_create() {
  Core& core = current();
  const Doing doing("LocalMemAllocator");
  if (core.has_pipe) fail(Check::queue, "LocalMemAllocator after TPipe: the two styles can't be mixed");
  core.has_allocator = true;
}

void pipe_reset() {
  Core& core = current();
  for (auto& queue : core.queues) {
    for (auto& buffer : queue->buffers) {
      if (buffer->state != BufferState::free) {
        fail(Check::queue, "TPipe::Reset with a tensor at %llu still %s", plain(buffer->base), name_of(buffer->state));
      }
      await_event(queue->freed, buffer->freed_event);
    }
  }
  core.allocated = {};
}

uint64_t pipe_allocate(Memory memory, uint64_t bytes) {
  Core& core = current();
  const Doing doing("InitBuffer");
  uint64_t& used = core.allocated[static_cast<int>(memory)];
  const uint64_t base = used, rounded = (bytes + kCell - 1) / kCell * kCell;
  check_placement(memory, base, rounded);
  used += rounded;
  return base;
}

Queue* make_queue(AscendC::TPosition source, AscendC::TPosition target, int depth, uint32_t buffers, uint64_t bytes) {
  Core& core = current();
  const Doing doing("InitBuffer");
  const QueueEvents events = events_of(source, target);
  size_t total = buffers;
  for (const auto& queue : core.queues) total += queue->buffers.size();
  if (total > static_cast<size_t>(kQueueBuffers)) {
    fail(Check::queue, "%zu buffers of queues: a TPipe has %d", total, kQueueBuffers);
  }
  auto queue = std::make_unique<Queue>();
  queue->position = source;
  queue->filled = events.filled;
  queue->freed = events.freed;
  queue->depth = depth;
  for (uint32_t i = 0; i < buffers; ++i) {
    const uint64_t base = pipe_allocate(memory_of(source), bytes);
    const uint64_t rounded = (bytes + kCell - 1) / kCell * kCell;
    queue->buffers.push_back(std::make_unique<QueueBuffer>(QueueBuffer{queue.get(), base, rounded}));
  }
  core.queues.push_back(std::move(queue));
  return core.queues.back().get();
}

QueueBuffer* queue_alloc(Queue* pointer) {
  const Doing doing("AllocTensor");
  Queue& queue = checked(pointer, "AllocTensor");
  Core& core = current();
  int busy = 0;
  for (const auto& other : core.queues) {
    if (other->position != queue.position) continue;
    for (const auto& buffer : other->buffers) busy += buffer->state != BufferState::free;
  }
  if (busy >= kQueueTensors) fail(Check::queue, "AllocTensor: %d tensors of one position are in use already", busy);
  // The buffer freed longest ago, as the ring of the real queue hands them out.
  auto& buffers = queue.buffers;
  const auto idle = [](const auto& buffer) { return buffer->state == BufferState::free; };
  const auto found = std::find_if(buffers.begin(), buffers.end(), idle);
  if (found == buffers.end()) {
    fail(Check::queue, "AllocTensor: all %zu buffers of the queue are in use", buffers.size());
  }
  std::rotate(found, found + 1, buffers.end());
  QueueBuffer& buffer = *buffers.back();
  await_event(queue.freed, buffer.freed_event);
  buffer.state = BufferState::allocated;
  core.arena(memory_of(queue.position)).written().mark(buffer.base, buffer.base + buffer.bytes, false);
  return &buffer;
}

void queue_enqueue(Queue* pointer, QueueBuffer* tensor) {
  const Doing doing("EnQue");
  Queue& queue = checked(pointer, "EnQue");
  QueueBuffer& buffer = owned(queue, tensor, "EnQue");
  if (buffer.state != BufferState::allocated && buffer.state != BufferState::dequeued) {
    fail(Check::queue, "EnQue of a tensor that is %s", name_of(buffer.state));
  }
  if (queue.depth > 0 && queue.queued.size() >= static_cast<size_t>(queue.depth)) {
    fail(Check::queue, "EnQue: the queue of depth %d is full", queue.depth);
  }
  buffer.state = BufferState::queued;
  buffer.enqueued_event = raise_event(queue.filled);
  queue.queued.push_back(&buffer);
}

QueueBuffer* queue_dequeue(Queue* pointer) {
  const Doing doing("DeQue");
  Queue& queue = checked(pointer, "DeQue");
  if (queue.queued.empty()) fail(Check::queue, "DeQue from an empty queue");
  QueueBuffer& buffer = *queue.queued.front();
  queue.queued.pop_front();
  await_event(queue.filled, buffer.enqueued_event);
  buffer.state = BufferState::dequeued;
  return &buffer;
}

void queue_free(Queue* pointer, QueueBuffer* tensor) {
  const Doing doing("FreeTensor");
  Queue& queue = checked(pointer, "FreeTensor");
  QueueBuffer& buffer = owned(queue, tensor, "FreeTensor");
  if (buffer.state != BufferState::allocated && buffer.state != BufferState::dequeued) {
    fail(Check::queue, "FreeTensor of a tensor that is %s", name_of(buffer.state));
  }
  buffer.state = BufferState::free;
  buffer.freed_event = raise_event(queue.freed);
}

bool queue_has_tensor(const Queue* queue) { return queue && !queue->queued.empty(); }

bool queue_has_idle(const Queue* queue) {
  if (!queue) return false;
  for (const auto& buffer : queue->buffers) {
    if (buffer->state == BufferState::free) return true;
  }
  return false;
}

uint64_t buffer_base(const QueueBuffer* buffer) { return buffer->base; }
uint64_t buffer_bytes(const QueueBuffer* buffer) { return buffer->bytes; }

}  // namespace twin
