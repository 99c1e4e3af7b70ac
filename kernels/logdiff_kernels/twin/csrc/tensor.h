// LocalTensor and GlobalTensor.
#pragma once

#include <cstdint>
#include <type_traits>

#include "memory.h"
#include "op.h"

namespace twin {

struct QueueBuffer;

// Fails if the address and size are outside of the memory, or the core lacks it.
void check_placement(Memory memory, uint64_t base, uint64_t bytes);
// Host address range of GM: `elements` of `size` bytes lie in one registered region, or all that is left of it for 0.
uint64_t gm_extent(const void* address, uint64_t bytes);

}  // namespace twin

namespace AscendC {

template <typename T>
class LocalTensor {
 public:
  using PrimType = T;

  LocalTensor() = default;
  // Static placement: `address` in bytes from the start of the position's memory, `elements` of T.
  LocalTensor(TPosition position, uint32_t address, uint32_t elements)
      : LocalTensor(position, address, static_cast<uint64_t>(elements) * sizeof(T), nullptr) {
    twin::check_placement(operand_.memory, operand_.base, operand_.bytes);
  }
  LocalTensor(TPosition position, uint64_t base, uint64_t bytes, twin::QueueBuffer* buffer)
      : position_(position), operand_{twin::memory_of(position), base, bytes, ""}, buffer_(buffer) {}

  // View from element `offset` to the end.
  LocalTensor operator[](uint32_t offset) const {
    const uint64_t skip = static_cast<uint64_t>(offset) * sizeof(T);
    if (skip > operand_.bytes) {
      twin::fail(twin::Check::range, "element %u of a tensor of %u", offset, GetSize());
    }
    LocalTensor view = *this;
    view.operand_.base += skip;
    view.operand_.bytes -= skip;
    return view;
  }

  template <typename U>
  LocalTensor<U> ReinterpretCast() const {
    return LocalTensor<U>(position_, operand_.base, operand_.bytes, buffer_);
  }

  // Scalar access: runs on PIPE_S, so the writer's pipe has to be waited for.
  T GetValue(uint32_t index) const {
    twin::Op op("GetValue", twin::Pipe::S, 1);
    T value;
    std::memcpy(&value, op.read(operand_.named("src"), static_cast<uint64_t>(index) * sizeof(T), sizeof(T)), sizeof(T));
    return value;
  }
  void SetValue(uint32_t index, T value) const {
    twin::Op op("SetValue", twin::Pipe::S, 1);
    auto* place = op.write(operand_.named("dst"), static_cast<uint64_t>(index) * sizeof(T), sizeof(T));
    std::memcpy(place, &value, sizeof(T));
  }

  uint32_t GetSize() const { return static_cast<uint32_t>(operand_.bytes / sizeof(T)); }
  uint32_t GetLength() const { return static_cast<uint32_t>(operand_.bytes); }
  TPosition GetPosition() const { return position_; }

  twin::Operand operand() const { return operand_; }
  twin::QueueBuffer* buffer() const { return buffer_; }

 private:
  TPosition position_ = TPosition::VECCALC;
  twin::Operand operand_{};
  twin::QueueBuffer* buffer_ = nullptr;
};

template <typename T>
class GlobalTensor {
 public:
  using PrimType = T;

  // `elements` of T from `address` on; 0 means up to the end of the region.
  void SetGlobalBuffer(__gm__ T* address, uint64_t elements = 0) {
    const uint64_t bytes = twin::gm_extent(address, elements * sizeof(T));
    operand_ = {twin::Memory::GM, reinterpret_cast<uint64_t>(address), bytes, ""};
  }

  GlobalTensor operator[](uint64_t offset) const {
    const uint64_t skip = offset * sizeof(T);
    if (skip > operand_.bytes) {
      twin::fail(twin::Check::range, "element %llu of a global tensor of %llu", static_cast<unsigned long long>(offset),
                 static_cast<unsigned long long>(GetSize()));
    }
    GlobalTensor view = *this;
    view.operand_.base += skip;
    view.operand_.bytes -= skip;
    return view;
  }

  // Scalar read through the data cache: fine for what no core of this launch writes.
  T GetValue(uint64_t index) const {
    twin::Op op("GlobalTensor::GetValue", twin::Pipe::S, 1);
    T value;
    std::memcpy(&value, op.read(operand_.named("src"), index * sizeof(T), sizeof(T)), sizeof(T));
    return value;
  }
  void SetValue(uint64_t, T) const {
    static_assert(sizeof(T) == 0, "scalar stores to GM are reported unreliable: store through UB");
  }

  uint64_t GetSize() const { return operand_.bytes / sizeof(T); }
  const __gm__ T* GetPhyAddr() const { return reinterpret_cast<const T*>(operand_.base); }
  const __gm__ T* GetPhyAddr(uint64_t offset) const { return GetPhyAddr() + offset; }

  twin::Operand operand() const { return operand_; }

 private:
  twin::Operand operand_{twin::Memory::GM, 0, 0, ""};
};

}  // namespace AscendC
