// One instruction: who runs it, what it reads and writes.
#pragma once

#include <cstdint>
#include <vector>

#include "check.h"
#include "memory.h"

namespace twin {

struct Core;

// An instruction issued by the running core on one pipe. Make it, name what is read, then what is written, compute
// through the pointers; the destructor checks the races, so keep the object alive until the instruction is complete.
// One Op at a time; an instruction that CANN builds from several is several Ops.
class Op {
 public:
  // `name` must outlive the launch (a literal). Fails if the core lacks the pipe.
  Op(const char* name, Pipe pipe, uint64_t elements);
  ~Op() noexcept(false);
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  // Start address on its memory's boundary (32 B in UB and L1, 512 in L0A and L0B, 64 in L0C), or on `boundary`.
  void align(const Operand& operand) const { align(operand, alignment_of(operand.memory)); }
  void align(const Operand& operand, uint64_t boundary) const;

  // Bytes [offset, offset + bytes) behind the operand's start: within the tensor, written before, no race.
  const uint8_t* read(const Operand& operand, uint64_t offset, uint64_t bytes);
  // Same for a write; marks the bytes as written.
  uint8_t* write(const Operand& operand, uint64_t offset, uint64_t bytes);

  // `count` runs of `bytes`, their starts `stride` bytes apart. Returns the address of the first run.
  const uint8_t* read_strided(const Operand& operand, uint64_t offset, uint64_t bytes, uint64_t stride, uint64_t count);
  uint8_t* write_strided(const Operand& operand, uint64_t offset, uint64_t bytes, uint64_t stride, uint64_t count);

  // A write whose contents nobody may rely on: later reads of these bytes fail as uninitialised.
  void write_unspecified(const Operand& operand, uint64_t offset, uint64_t bytes);

  // Accesses of this Op to that memory are in order with earlier ones of the same pipe (Mmad into a large L0C tile).
  void in_order(Memory memory) { in_order_ = memory; }

  // Elements, when known only after the fact (GatherMask).
  void set_elements(uint64_t elements) { elements_ = elements; }

  struct Span {
    Memory memory;
    bool write;
    uint64_t begin, end;  // offset in the core's memory, or host address
    const char* label;
  };

  const char* name() const { return name_; }
  Pipe pipe() const { return pipe_; }

 private:
  uint8_t* touch(const Operand& operand, uint64_t offset, uint64_t bytes, bool write, bool specified);
  void note(const Operand& operand, uint64_t begin, uint64_t end, bool write);
  void check_span(const Span& span);
  [[noreturn]] void report(const Span& span, uint32_t core, uint8_t pipe, uint32_t number);

  Core& core_;
  const char* name_;
  Pipe pipe_;
  Memory in_order_ = Memory::GM;  // GM: none
  uint64_t elements_;
  uint32_t number_ = 0;  // within its pipe
  int exceptions_;
  uint64_t read_bytes_[kMemories] = {};
  uint64_t written_bytes_[kMemories] = {};
  std::vector<Span>& spans_;
};

}  // namespace twin
