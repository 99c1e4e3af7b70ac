// Which lanes a vector instruction works on, in which order, and where they lie.
//
// A repeat is 8 data blocks of the widest element type; lane i of an operand lies in block i / (32 / size) of that
// repeat. Repeats run in order, so a result of repeat r is what repeat r + 1 reads where the API allows that overlap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core.h"
#include "vector_params.h"

namespace twin {

constexpr uint64_t kBlockBytes = 32;
constexpr uint32_t kBlocksPerRepeat = 8;
constexpr uint64_t kRepeatBytes = kBlockBytes * kBlocksPerRepeat;
constexpr bool k3510 = __NPU_ARCH__ == 3510;

template <typename T, typename... Types> constexpr bool one_of = (std::is_same_v<T, Types> || ...);

// Element types of an instruction, by architecture.
template <typename... Types> struct TypeList {
  template <typename T> static constexpr bool has = one_of<T, Types...>;
};

// Repeats [first, first + repeats) with the same lanes: the leading `prefix` ones, or those of `bits`.
struct Part {
  uint32_t first = 0, repeats = 0;
  bool is_prefix = true;
  uint32_t prefix = 0;
  uint64_t bits[2] = {};

  // fn(first lane, lanes) for each run of neighbouring lanes.
  template <typename Fn> void lane_runs(uint32_t lanes, Fn fn) const {
    if (is_prefix) {
      if (prefix) fn(0u, prefix);
      return;
    }
    for (uint32_t lane = 0; lane < lanes;) {
      const auto active = [&](uint32_t i) { return (bits[i / 64] >> (i % 64)) & 1u; };
      if (!active(lane)) {
        ++lane;
        continue;
      }
      uint32_t end = lane + 1;
      while (end < lanes && active(end)) ++end;
      fn(lane, end - lane);
      lane = end;
    }
  }
};

// The lanes of a whole instruction.
struct Pattern {
  uint32_t lanes = 0;  // of a repeat
  int parts = 0;
  Part part[2];

  uint64_t elements() const {
    uint64_t sum = 0;
    for (int i = 0; i < parts; ++i) {
      uint64_t one = 0;
      part[i].lane_runs(lanes, [&](uint32_t, uint32_t n) { one += n; });
      sum += one * part[i].repeats;
    }
    return sum;
  }
  uint32_t repeats() const { return parts ? part[parts - 1].first + part[parts - 1].repeats : 0; }

  // `count` lanes on end.
  static Pattern counted(uint32_t lanes, uint64_t count) {
    Pattern p;
    p.lanes = lanes;
    const auto full = static_cast<uint32_t>(count / lanes), rest = static_cast<uint32_t>(count % lanes);
    if (full) p.part[p.parts++] = Part{0, full, true, lanes, {}};
    if (rest) p.part[p.parts++] = Part{full, 1, true, rest, {}};
    return p;
  }
  static Pattern leading(uint32_t lanes, uint32_t prefix, uint32_t repeats) {
    Pattern p;
    p.lanes = lanes;
    if (repeats && prefix) p.part[p.parts++] = Part{0, repeats, true, prefix, {}};
    return p;
  }
  static Pattern masked(uint32_t lanes, uint64_t low, uint64_t high, uint32_t repeats) {
    if (lanes <= 64) high = 0;
    if (lanes < 64) low &= (uint64_t{1} << lanes) - 1;
    const bool prefix = high ? low == ~0ull && (high & (high + 1)) == 0 : (low & (low + 1)) == 0;
    if (prefix) {
      const auto set = __builtin_popcountll(low) + __builtin_popcountll(high);
      return leading(lanes, static_cast<uint32_t>(set), repeats);
    }
    Pattern p;
    p.lanes = lanes;
    if (repeats) p.part[p.parts++] = Part{0, repeats, false, 0, {low, high}};
    return p;
  }
};

// One operand of a vector instruction; strides in data blocks.
struct Lanes {
  Operand operand;
  uint32_t size;          // bytes of an element
  uint32_t block = 1;     // between the blocks of a repeat
  uint32_t repeat = 8;    // between repeats

  uint64_t step() const { return repeat * kBlockBytes; }

  // fn(offset, bytes) for each contiguous piece of one repeat.
  template <typename Fn> void pieces(const Part& part, uint32_t lanes, Fn fn) const {
    const uint32_t per_block = static_cast<uint32_t>(kBlockBytes) / size;
    uint64_t begin = 0, end = 0;
    part.lane_runs(lanes, [&](uint32_t lane, uint32_t n) {
      while (n) {
        const uint32_t inside = lane % per_block, take = block == 1 ? n : std::min(n, per_block - inside);
        const uint64_t offset = (lane / per_block) * uint64_t{block} * kBlockBytes + uint64_t{inside} * size;
        const uint64_t bytes = uint64_t{take} * size;
        if (end > begin && offset == end) {
          end += bytes;
        } else if (offset < begin || offset + bytes > end || end == begin) {
          if (end > begin) fn(begin, end - begin);
          begin = offset;
          end = offset + bytes;
        }
        lane += take;
        n -= take;
      }
    });
    if (end > begin) fn(begin, end - begin);
  }

  // fn(offset, bytes, repeats) for the whole instruction, neighbouring repeats made one.
  template <typename Fn> void ranges(const Pattern& pattern, Fn fn) const {
    for (int i = 0; i < pattern.parts; ++i) {
      const Part& part = pattern.part[i];
      pieces(part, pattern.lanes, [&](uint64_t offset, uint64_t bytes) {
        offset += part.first * step();
        if (part.repeats == 1 || repeat == 0) {
          fn(offset, bytes, uint64_t{1});
        } else if (step() == bytes) {
          fn(offset, bytes * part.repeats, uint64_t{1});
        } else {
          fn(offset, bytes, uint64_t{part.repeats});
        }
      });
    }
  }

  const uint8_t* read(Op& op, const Pattern& pattern) const {
    const uint8_t* base = nullptr;
    ranges(pattern, [&](uint64_t offset, uint64_t bytes, uint64_t count) {
      const uint8_t* at =
          count == 1 ? op.read(operand, offset, bytes) : op.read_strided(operand, offset, bytes, step(), count);
      base = at - offset;
    });
    return base;
  }
  uint8_t* write(Op& op, const Pattern& pattern) const {
    uint8_t* base = nullptr;
    ranges(pattern, [&](uint64_t offset, uint64_t bytes, uint64_t count) {
      uint8_t* at =
          count == 1 ? op.write(operand, offset, bytes) : op.write_strided(operand, offset, bytes, step(), count);
      base = at - offset;
    });
    return base;
  }
};

// How the destination of an instruction lies to one of its sources.
enum class Overlap { none, exact, ordered };

// Fails unless destination and source are apart, or the same lane by lane within each repeat. `carries`: results of a
// repeat may be read by later ones (Add, Sub, Mul, Max, Min of half, int32 and float, second source, one stride 0).
Overlap check_overlap(const Lanes& dst, const Lanes& src, const Pattern& pattern, bool carries);

// Calls fn(offsets, n) for runs of n lanes that are contiguous in every operand, repeats in order. `fuse`: several
// repeats may be one run.
template <int kOperands, typename Fn>
void walk(const Pattern& pattern, const Lanes (&x)[kOperands], bool fuse, Fn fn) {
  const uint32_t lanes = pattern.lanes, chunk = lanes / kBlocksPerRepeat;
  bool unit = true, dense = true;
  for (const Lanes& one : x) {
    unit = unit && one.block == 1;
    dense = dense && one.block == 1 && one.step() == uint64_t{lanes} * one.size;
  }
  for (int i = 0; i < pattern.parts; ++i) {
    const Part& part = pattern.part[i];
    uint64_t offset[kOperands];
    if (fuse && dense && part.is_prefix && part.prefix == lanes) {
      for (int k = 0; k < kOperands; ++k) offset[k] = part.first * x[k].step();
      fn(offset, uint64_t{lanes} * part.repeats);
      continue;
    }
    for (uint32_t r = part.first; r < part.first + part.repeats; ++r) {
      part.lane_runs(lanes, [&](uint32_t lane, uint32_t n) {
        while (n) {
          const uint32_t take = unit ? n : std::min(n, chunk - lane % chunk);
          for (int k = 0; k < kOperands; ++k) {
            const uint32_t per_block = static_cast<uint32_t>(kBlockBytes) / x[k].size;
            offset[k] = r * x[k].step() + (lane / per_block) * uint64_t{x[k].block} * kBlockBytes +
                        uint64_t{lane % per_block} * x[k].size;
          }
          fn(offset, uint64_t{take});
          lane += take;
          n -= take;
        }
      });
    }
  }
}

// Lanes of a repeat whose widest element has `size` bytes.
constexpr uint32_t lanes_of(uint64_t size) { return static_cast<uint32_t>(kRepeatBytes / size); }

// The lanes of a call, from its arguments and the core's mask mode. Empty where the call does nothing.
Pattern count_form(uint32_t lanes, int64_t count);
Pattern mask_form(uint32_t lanes, uint64_t mask, uint32_t repeats, bool set_mask);
Pattern mask_form(uint32_t lanes, const uint64_t* mask, uint32_t repeats, bool set_mask);

// Start on the memory's boundary, in UB, with a non-zero block stride for destinations.
void check_source(const Op& op, const Lanes& x);
void check_destination(const Op& op, const Lanes& x);

}  // namespace twin
