// Which lanes a vector instruction works on, in which order, and where they lie.
//
// A repeat is 8 data blocks of the widest element type; lane i of an operand lies in block i / (32 / size) of that
// repeat. Repeats run in order, so a result of repeat r is what repeat r + 1 reads where the API allows that overlap.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core.h"
#include "vector_params.h"

namespace twin {

constexpr uint64_t kBlockBytes = 32;
constexpr uint32_t kBlocksPerRepeat = 8;
constexpr uint64_t kRepeatBytes = kBlockBytes * kBlocksPerRepeat;
constexpr bool k3510 = __NPU_ARCH__ == 3510;

template <typename T, typename... Types>
constexpr bool one_of = (std::is_same_v<T, Types> || ...);

// Element types of an instruction, by architecture.
template <typename... Types>
struct TypeList {
  template <typename T>
  static constexpr bool has = one_of<T, Types...>;
};

// Repeats [first, first + repeats) with the same lanes: the leading `prefix` ones, or those of `bits`.
struct Part {
  uint32_t first = 0, repeats = 0;
  bool is_prefix = true;
  uint32_t prefix = 0;
  uint64_t bits[2] = {};
};

// The lanes of a whole instruction; no parts: it does nothing.
struct Pattern {
  uint32_t lanes = 0;  // of a repeat
  int parts = 0;
  Part part[2];

  uint64_t elements() const;
  uint32_t repeats() const { return parts ? part[parts - 1].first + part[parts - 1].repeats : 0; }

  static Pattern counted(uint32_t lanes, uint64_t count);  // `count` lanes on end
  static Pattern leading(uint32_t lanes, uint32_t prefix, uint32_t repeats);
  static Pattern masked(uint32_t lanes, uint64_t low, uint64_t high, uint32_t repeats);
};

// One operand of a vector instruction; strides in data blocks.
struct Lanes {
  Operand operand;
  uint32_t size = 4;    // bytes of an element
  uint32_t block = 1;   // between the blocks of a repeat
  uint32_t repeat = 8;  // between repeats

  uint64_t step() const { return repeat * kBlockBytes; }
  uint64_t offset(uint32_t repeat_index, uint32_t lane) const {
    const uint32_t per_block = static_cast<uint32_t>(kBlockBytes) / size;
    return repeat_index * step() + (lane / per_block) * uint64_t{block} * kBlockBytes +
           uint64_t{lane % per_block} * size;
  }
  const uint8_t* read(Op& op, const Pattern& pattern) const;
  uint8_t* write(Op& op, const Pattern& pattern) const;
};

// How the destination of an instruction lies to one of its sources.
enum class Overlap { none, exact, ordered };

// Fails unless destination and source are apart, or the same lane by lane within each repeat. `carries`: results of a
// repeat may be read by later ones (Add, Sub, Mul, Max, Min of half, int32 and float, second source, one stride 0).
Overlap check_overlap(const Lanes& dst, const Lanes& src, const Pattern& pattern, bool carries);

// Start on the memory's boundary, in UB, with a non-zero block stride for destinations.
void check_source(const Op& op, const Lanes& x);
void check_destination(const Op& op, const Lanes& x);

// Lanes of a repeat whose widest element has `size` bytes.
constexpr uint32_t lanes_of(uint64_t size) { return static_cast<uint32_t>(kRepeatBytes / size); }

// The lanes of a call, from its arguments and the core's mask mode. Empty where the call does nothing.
Pattern count_form(uint32_t lanes, int64_t count);
Pattern mask_form(uint32_t lanes, uint64_t mask, uint32_t repeats, bool set_mask);
Pattern mask_form(uint32_t lanes, const uint64_t* mask, uint32_t repeats, bool set_mask);

// What a zero count or repeat means: nothing on 2201, an error on 3510, where the API pages don't promise that.
void refuse_zero(const char* what);

// An element-wise instruction: `run` computes n lanes that are contiguous in every operand.
struct Elementwise {
  using Run = void (*)(const void* context, uint8_t* dst, const uint8_t* src0, const uint8_t* src1, uint64_t n);
  const char* name;
  Run run;
  const void* context;
  bool updates = false;  // reads its destination
  bool carries = false;  // see check_overlap
};

// Checks, reads, writes and computes. operands: dst, src0 and perhaps src1.
void run_elementwise(const Elementwise& instruction, const Pattern& pattern, const Lanes* operands, int count);

}  // namespace twin
