// TPipe, TQue, TBuf and the static allocator.
#pragma once

#include <cstdint>

#include "check.h"
#include "memory.h"
#include "sync.h"
#include "tensor.h"

namespace twin {

struct Queue;
struct QueueBuffer;

void pipe_create();
void pipe_require();  // fails if the core has no TPipe
void pipe_reset();
uint64_t pipe_allocate(Memory memory, uint64_t bytes);  // bump allocation in 32-byte granules
void allocator_create();                                // of the static style, which excludes TPipe
// A queue whose tensors are filled at `source` and used at `target` (the same position for a TQue).
Queue* make_queue(AscendC::TPosition source, AscendC::TPosition target, int depth, uint32_t buffers, uint64_t bytes);
QueueBuffer* queue_alloc(Queue* queue);
void queue_enqueue(Queue* queue, QueueBuffer* buffer);
QueueBuffer* queue_dequeue(Queue* queue);
void queue_free(Queue* queue, QueueBuffer* buffer);
bool queue_has_tensor(const Queue* queue);
bool queue_has_idle(const Queue* queue);
uint64_t buffer_base(const QueueBuffer* buffer);
uint64_t buffer_bytes(const QueueBuffer* buffer);

}  // namespace twin

namespace AscendC {

class TPipe;

// Tensors that go in at `source` and out at `target` without a vector instruction: TQueBind<VECIN, VECOUT, depth>.
template <TPosition source, TPosition target, int32_t depth>
class TQueBind {
 public:
  template <typename T>
  LocalTensor<T> AllocTensor() {
    return tensor<T>(twin::queue_alloc(queue_));
  }
  template <typename T>
  bool EnQue(const LocalTensor<T>& tensor) {
    twin::queue_enqueue(queue_, tensor.buffer());
    return true;
  }
  template <typename T>
  LocalTensor<T> DeQue() {
    return tensor<T>(twin::queue_dequeue(queue_));
  }
  template <typename T>
  void FreeTensor(const LocalTensor<T>& tensor) {
    twin::queue_free(queue_, tensor.buffer());
  }
  bool HasTensorInQue() const { return twin::queue_has_tensor(queue_); }
  bool HasIdleBuffer() const { return twin::queue_has_idle(queue_); }

 private:
  template <typename T>
  static LocalTensor<T> tensor(twin::QueueBuffer* buffer) {
    return LocalTensor<T>(source, twin::buffer_base(buffer), twin::buffer_bytes(buffer), buffer);
  }
  friend class TPipe;
  twin::Queue* queue_ = nullptr;
};

template <TPosition position, int32_t depth>
class TQue : public TQueBind<position, position, depth> {};

template <TPosition position>
class TBuf {
 public:
  template <typename T>
  LocalTensor<T> Get() const {
    return LocalTensor<T>(position, base_, bytes_, nullptr);
  }
  template <typename T>
  LocalTensor<T> Get(uint32_t elements) const {
    return GetWithOffset<T>(elements, 0);
  }
  template <typename T>
  LocalTensor<T> GetWithOffset(uint32_t elements, uint32_t offset) const {
    const uint64_t bytes = static_cast<uint64_t>(elements) * sizeof(T);
    if (offset + bytes > bytes_) {
      twin::fail(twin::Check::range, "TBuf::Get of %llu bytes at %u in a buffer of %llu",
                 static_cast<unsigned long long>(bytes), offset, static_cast<unsigned long long>(bytes_));
    }
    return LocalTensor<T>(position, base_ + offset, bytes, nullptr);
  }

 private:
  friend class TPipe;
  uint64_t base_ = 0, bytes_ = 0;
};

class TPipe {
 public:
  TPipe() { twin::pipe_create(); }
  TPipe(const TPipe&) = delete;
  TPipe& operator=(const TPipe&) = delete;

  template <TPosition source, TPosition target, int32_t depth>
  bool InitBuffer(TQueBind<source, target, depth>& queue, uint8_t buffers, uint32_t bytes) {
    queue.queue_ = twin::make_queue(source, target, depth, buffers, bytes);
    return true;
  }
  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, uint32_t bytes) {
    buffer.bytes_ = (static_cast<uint64_t>(bytes) + 31) / 32 * 32;
    buffer.base_ = twin::pipe_allocate(twin::memory_of(position), buffer.bytes_);
    return true;
  }
  void Reset() { twin::pipe_reset(); }
  void Destroy() { twin::pipe_reset(); }
  TEventID FetchEventID(HardEvent event) { return static_cast<TEventID>(twin::fetch_event_id(event)); }
  template <HardEvent event>
  TEventID FetchEventID() {
    return FetchEventID(event);
  }
  template <HardEvent event>
  TEventID AllocEventID() {
    return static_cast<TEventID>(twin::alloc_event_id(event));
  }
  template <HardEvent event>
  void ReleaseEventID(TEventID id) {
    twin::release_event_id(event, id);
  }

 private:
  struct Existing {};
  explicit TPipe(Existing) {}
  friend TPipe* GetTPipePtr();
};

inline TPipe* GetTPipePtr() {
  static TPipe pipe{TPipe::Existing{}};  // a TPipe has no state: all of it is the core's
  twin::pipe_require();
  return &pipe;
}

// Static placement: tensors one behind the other from the start of the memory.
template <Hardware hardware = Hardware::UB>
class LocalMemAllocator {
 public:
  LocalMemAllocator() { twin::allocator_create(); }
  template <typename T, uint32_t elements>
  LocalTensor<T> Alloc() {
    return Alloc<T>(elements);
  }
  template <typename T>
  LocalTensor<T> Alloc(uint32_t elements) {
    return place<T>(default_position(), elements);
  }
  template <TPosition position, typename T, uint32_t elements>
  LocalTensor<T> Alloc() {
    return Alloc<position, T>(elements);
  }
  template <TPosition position, typename T>
  LocalTensor<T> Alloc(uint32_t elements) {
    static_assert(twin::memory_of(position) == twin::memory_of(hardware), "position lies in another memory");
    return place<T>(position, elements);
  }
  uint32_t GetCurAddr() const { return static_cast<uint32_t>(next_); }

 private:
  static constexpr TPosition default_position() {
    switch (hardware) {
      case Hardware::L1: return TPosition::A1;
      case Hardware::L0A: return TPosition::A2;
      case Hardware::L0B: return TPosition::B2;
      case Hardware::L0C: return TPosition::CO1;
      case Hardware::BIAS: return TPosition::C2;
      case Hardware::FIXBUF: return TPosition::C2PIPE2GM;
      default: return TPosition::VECCALC;
    }
  }
  template <typename T>
  LocalTensor<T> place(TPosition position, uint32_t elements) {
    const uint64_t bytes = static_cast<uint64_t>(elements) * sizeof(T);
    twin::check_placement(twin::memory_of(hardware), next_, bytes);
    LocalTensor<T> tensor(position, next_, bytes, nullptr);
    constexpr uint64_t boundary = twin::alignment_of(twin::memory_of(hardware));
    next_ += (bytes + boundary - 1) / boundary * boundary;
    return tensor;
  }
  uint64_t next_ = 0;
};

}  // namespace AscendC
