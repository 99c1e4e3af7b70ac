// The memories of one core: capacities, alignments, and what an instruction's operand says.
#pragma once

#include <cstdint>

#include "check.h"
#include "types.h"

namespace twin {

enum class Memory : uint8_t { GM, UB, L1, L0A, L0B, L0C, BIAS, FIXBUF };
constexpr int kMemories = 8;
constexpr uint64_t kCell = 32;  // data block: granularity of the race check on chip

const char* name_of(Memory memory);

// Usable bytes: what the compiler keeps for itself is taken off.
constexpr uint64_t capacity_of(Memory memory) {
#if __NPU_ARCH__ == 2201
  constexpr uint64_t bytes[kMemories] = {
      ~0ull, 192 * 1024 - 256 - 8 * 1024, 512 * 1024 - 256, 64 * 1024, 64 * 1024, 128 * 1024, 1024, 2048};
#else
  constexpr uint64_t bytes[kMemories] = {
      ~0ull, 248 * 1024, 512 * 1024, 64 * 1024, 64 * 1024, 256 * 1024, 4096, 4096};
#endif
  return bytes[static_cast<int>(memory)];
}

constexpr uint64_t alignment_of(Memory memory) {
  constexpr uint64_t bytes[kMemories] = {1, 32, 32, 512, 512, 64, 64, 64};
  return bytes[static_cast<int>(memory)];
}

constexpr Memory memory_of(AscendC::TPosition position) {
  using P = AscendC::TPosition;
  switch (position) {
    case P::A1: case P::B1: case P::C1: return Memory::L1;
    case P::A2: return Memory::L0A;
    case P::B2: return Memory::L0B;
    case P::C2: return Memory::BIAS;
    case P::CO1: return Memory::L0C;
    case P::C2PIPE2GM: return Memory::FIXBUF;
    case P::VECIN: case P::VECOUT: case P::VECCALC: return Memory::UB;
    default: return Memory::GM;
  }
}

constexpr Memory memory_of(AscendC::Hardware hardware) { return static_cast<Memory>(hardware); }

// A tensor as an instruction sees it. `base`: offset in the core's memory, or the host address for GM.
// `bytes`: what lies behind `base` within the tensor's own buffer; an access past it is an error.
struct Operand {
  Memory memory = Memory::UB;
  uint64_t base = 0;
  uint64_t bytes = 0;
  const char* label = "";

  Operand named(const char* name) const {
    Operand copy = *this;
    copy.label = name;
    return copy;
  }
};

}  // namespace twin
