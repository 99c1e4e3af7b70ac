// Going over the lanes of a pattern: for the sources that implement instructions.
#pragma once

#include <algorithm>

#include "vector_lanes.h"

namespace twin {

// fn(first lane, lanes) for each run of neighbouring lanes of a repeat.
template <typename Fn>
void lane_runs(const Part& part, uint32_t lanes, Fn fn) {
  if (part.is_prefix) {
    if (part.prefix) fn(0u, part.prefix);
    return;
  }
  const auto active = [&](uint32_t i) { return ((part.bits[i / 64] >> (i % 64)) & 1u) != 0; };
  for (uint32_t lane = 0; lane < lanes;) {
    uint32_t end = lane;
    while (end < lanes && active(end)) ++end;
    if (end > lane) fn(lane, end - lane);
    lane = end + 1;
  }
}

// fn(part, repeat) for each repeat, in order.
template <typename Fn>
void each_repeat(const Pattern& pattern, Fn fn) {
  for (int i = 0; i < pattern.parts; ++i) {
    const Part& part = pattern.part[i];
    for (uint32_t r = part.first; r < part.first + part.repeats; ++r) fn(part, r);
  }
}

// fn(offset, bytes) for each contiguous piece of one repeat of an operand.
template <typename Fn>
void pieces(const Lanes& x, const Part& part, uint32_t lanes, Fn fn) {
  const uint32_t per_block = static_cast<uint32_t>(kBlockBytes) / x.size;
  uint64_t begin = 0, end = 0;
  lane_runs(part, lanes, [&](uint32_t lane, uint32_t n) {
    while (n) {
      const uint32_t take = x.block == 1 ? n : std::min(n, per_block - lane % per_block);
      const uint64_t offset = x.offset(0, lane), bytes = uint64_t{take} * x.size;
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
template <typename Fn>
void ranges(const Lanes& x, const Pattern& pattern, Fn fn) {
  for (int i = 0; i < pattern.parts; ++i) {
    const Part& part = pattern.part[i];
    pieces(x, part, pattern.lanes, [&](uint64_t offset, uint64_t bytes) {
      offset += part.first * x.step();
      if (part.repeats == 1 || x.repeat == 0) {
        fn(offset, bytes, uint64_t{1});
      } else if (x.step() == bytes) {
        fn(offset, bytes * part.repeats, uint64_t{1});
      } else {
        fn(offset, bytes, uint64_t{part.repeats});
      }
    });
  }
}

// First and last byte that an operand touches, relative to its start.
struct Hull {
  uint64_t begin = ~0ull, end = 0;
};

inline Hull hull_of(const Lanes& x, const Pattern& pattern) {
  Hull hull;
  ranges(x, pattern, [&](uint64_t offset, uint64_t bytes, uint64_t count) {
    hull.begin = std::min(hull.begin, offset);
    hull.end = std::max(hull.end, offset + bytes + (count - 1) * x.step());
  });
  return hull;
}

inline bool apart(const Operand& a, uint64_t a_bytes, const Operand& b, uint64_t b_bytes) {
  return a.memory != b.memory || a.base + a_bytes <= b.base || b.base + b_bytes <= a.base;
}

// Calls fn(offsets, n) for runs of n lanes that are contiguous in all operands, repeats in order. `fuse`: several
// repeats may be one run.
template <typename Fn>
void walk(const Pattern& pattern, const Lanes* x, int count, bool fuse, Fn fn) {
  const uint32_t lanes = pattern.lanes, chunk = lanes / kBlocksPerRepeat;
  bool unit = true, dense = true;
  for (int k = 0; k < count; ++k) {
    unit = unit && x[k].block == 1;
    dense = dense && x[k].block == 1 && x[k].step() == uint64_t{lanes} * x[k].size;
  }
  uint64_t offset[3] = {};
  for (int i = 0; i < pattern.parts; ++i) {
    const Part& part = pattern.part[i];
    if (fuse && dense && part.is_prefix && part.prefix == lanes) {
      for (int k = 0; k < count; ++k) offset[k] = part.first * x[k].step();
      fn(offset, uint64_t{lanes} * part.repeats);
      continue;
    }
    for (uint32_t r = part.first; r < part.first + part.repeats; ++r) {
      lane_runs(part, lanes, [&](uint32_t lane, uint32_t n) {
        while (n) {
          const uint32_t take = unit ? n : std::min(n, chunk - lane % chunk);
          for (int k = 0; k < count; ++k) offset[k] = x[k].offset(r, lane);
          fn(offset, uint64_t{take});
          lane += take;
          n -= take;
        }
      });
    }
  }
}

}  // namespace twin
