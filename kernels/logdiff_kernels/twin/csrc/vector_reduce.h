// PairReduceSum, BlockReduce*, WholeReduce*, ReduceSum, ReduceMax, ReduceMin.
//
// Orders: ReducePairElem, ReduceDataBlock, ReduceRepeat and ReduceSum pages of the API (their newer names). Within a
// repeat sums are binary trees of neighbours; ReduceSum differs by form and by chip, see reduce_sum below.
#pragma once

#include <limits>

#include "vector_arithmetic.h"

namespace twin {

using ReduceTypes = TypeList<half, float>;

// One repeat of a source: values in fp32, and which of them take part.
struct RepeatValues {
  float value[128];
  bool active[128];
};

template <typename T>
void load_repeat(const uint8_t* base, const Lanes& x, const Part& part, uint32_t lanes, uint32_t repeat, float idle,
                 RepeatValues& out) {
  std::fill(out.value, out.value + lanes, idle);
  std::fill(out.active, out.active + lanes, false);
  const uint32_t per_block = lanes / kBlocksPerRepeat;
  part.lane_runs(lanes, [&](uint32_t lane, uint32_t n) {
    for (uint32_t l = lane; l < lane + n; ++l) {
      const uint64_t at = repeat * x.step() + (l / per_block) * uint64_t{x.block} * kBlockBytes +
                          (l % per_block) * sizeof(T);
      out.value[l] = widen(*reinterpret_cast<const T*>(base + at));
      out.active[l] = true;
    }
  });
}

// ((v0 + v1) + (v2 + v3)) + ..., each sum rounded to T; n is a power of two.
template <typename T> float tree_sum(float* v, uint32_t n, bool saturate) {
  for (; n > 1; n /= 2) {
    for (uint32_t i = 0; i < n / 2; ++i) v[i] = widen(narrow<T>(v[2 * i] + v[2 * i + 1], saturate));
  }
  return v[0];
}

// Position of the largest (or smallest) active value, the first of equal ones. A NaN wins, or is passed over where the
// launch perturbs: the API doesn't say.
inline uint32_t best_of(const RepeatValues& v, uint32_t begin, uint32_t end, bool largest) {
  const bool skip_nan = options().perturb != 0;
  uint32_t best = end;
  for (uint32_t i = begin; i < end; ++i) {
    if (!v.active[i]) continue;
    if (best == end) {
      best = i;
      continue;
    }
    const float x = v.value[i], y = v.value[best];
    if (y != y ? skip_nan && x == x : (x != x ? !skip_nan : largest ? x > y : x < y)) best = i;
  }
  return best;
}

enum class Reduction : uint8_t { sum, max, min };

inline float idle_value(Reduction reduction) {
  if (reduction == Reduction::sum) return 0.0f;
  const float infinity = std::numeric_limits<float>::infinity();
  return reduction == Reduction::max ? -infinity : infinity;
}

// A destination that receives `unit` bytes per repeat, `stride` units apart.
struct Results {
  Operand operand;
  uint64_t unit, stride;

  uint8_t* write(Op& op, uint64_t repeats) const {
    if (repeats == 1 || stride <= 1) return op.write(operand, 0, stride == 0 ? unit : unit * repeats);
    return op.write_strided(operand, 0, unit, unit * stride, repeats);
  }
  void check(const Op& op, const Lanes& src, const Pattern& pattern, uint64_t boundary) const {
    if (operand.memory != Memory::UB) fail_operand(Check::overload, "dst", "is not in UB");
    op.align(operand, boundary);
    if (stride > 0xffff) {
      fail(Check::stride, "dstRepStride %llu exceeds 65535", static_cast<unsigned long long>(stride));
    }
    const uint64_t end = operand.base + unit * (stride * (pattern.repeats() - 1) + 1);
    uint64_t s_end = 0;
    src.ranges(pattern, [&](uint64_t offset, uint64_t bytes, uint64_t count) {
      s_end = std::max(s_end, offset + bytes + (count - 1) * src.step());
    });
    if (operand.base < src.operand.base + s_end && src.operand.base < end) {
      fail_operand(Check::overlap, "src", "overlaps dst: a reduction's results may not lie in its source");
    }
  }
};

// Runs fn(repeat, values) over the repeats of a reduction's source.
template <typename T, typename Fn>
void each_repeat(const uint8_t* base, const Lanes& x, const Pattern& pattern, float idle, Fn fn) {
  RepeatValues values;
  for (int i = 0; i < pattern.parts; ++i) {
    const Part& part = pattern.part[i];
    for (uint32_t r = part.first; r < part.first + part.repeats; ++r) {
      load_repeat<T>(base, x, part, pattern.lanes, r, idle, values);
      fn(r, values);
    }
  }
}

template <typename T>
Lanes reduce_source(const LocalTensor<T>& src, int32_t block, int32_t repeat) {
  static_assert(ReduceTypes::has<T>, "reductions take half and float");
  if (block < 0 || block > 0xffff || repeat < 0 || repeat > 0xffff) {
    fail(Check::stride, "source strides %d and %d: 0 to 65535", block, repeat);
  }
  return {src.operand().named("src"), sizeof(T), uint32_t(block), uint32_t(repeat)};
}

// Whether some group of `group` neighbouring lanes has no active one.
inline bool leaves_idle(const Pattern& pattern, uint32_t group) {
  for (int i = 0; i < pattern.parts; ++i) {
    uint32_t busy = 0, next = 0;  // groups with an active lane; first group not yet counted
    pattern.part[i].lane_runs(pattern.lanes, [&](uint32_t lane, uint32_t n) {
      const uint32_t from = std::max(lane / group, next), to = (lane + n - 1) / group + 1;
      if (to > from) busy += to - from;
      next = std::max(next, to);
    });
    if (busy < pattern.lanes / group) return true;
  }
  return false;
}

// Groups of `group` neighbouring lanes each give one result. A group without an active lane keeps dst on 2201 and
// gives 0 or an infinity on 3510.
template <typename T>
void reduce_groups(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src, const Pattern& pattern,
                   uint32_t group, uint64_t boundary, int32_t dst_repeat, int32_t src_block, int32_t src_repeat,
                   Reduction reduction) {
  const Lanes x = reduce_source(src, src_block, src_repeat);
  if (pattern.parts == 0) return;
  Op op(name, Pipe::V, pattern.elements());
  const uint32_t groups = pattern.lanes / group;
  const Results out{dst.operand().named("dst"), uint64_t{groups} * sizeof(T), uint64_t(uint32_t(dst_repeat))};
  out.check(op, x, pattern, boundary);
  check_source(op, x);
  const bool saturate = saturates<T>();
  const uint8_t* in = x.read(op, pattern);
  uint8_t* whole = k3510 || !leaves_idle(pattern, group) ? out.write(op, pattern.repeats()) : nullptr;
  each_repeat<T>(in, x, pattern, idle_value(reduction), [&](uint32_t r, RepeatValues& v) {
    const uint64_t row = r * out.stride * out.unit;
    for (uint32_t g = 0; g < groups; ++g) {
      const bool idle = std::none_of(v.active + g * group, v.active + (g + 1) * group, [](bool on) { return on; });
      if (idle && !k3510) continue;
      float result;
      if (reduction == Reduction::sum) {
        result = tree_sum<T>(v.value + g * group, group, saturate);
      } else {
        const uint32_t best = best_of(v, g * group, (g + 1) * group, reduction == Reduction::max);
        result = idle ? idle_value(reduction) : v.value[best];
      }
      const T value = narrow<T>(result, saturate);
      const uint64_t at = row + g * sizeof(T);
      std::memcpy(whole ? whole + at : op.write(out.operand, at, sizeof(T)), &value, sizeof(T));
    }
  });
}

// One (value, index) of each repeat, in the order asked for; an index is stored as bits, 16 of them for half.
template <typename T>
void reduce_repeats(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src, const Pattern& pattern,
                    int32_t dst_repeat, int32_t src_block, int32_t src_repeat, bool largest,
                    AscendC::ReduceOrder order) {
  using Order = AscendC::ReduceOrder;
  const Lanes x = reduce_source(src, src_block, src_repeat);
  if (pattern.parts == 0) return;
  Op op(name, Pipe::V, pattern.elements());
  const uint64_t unit = order == Order::ORDER_ONLY_VALUE ? sizeof(T) : order == Order::ORDER_ONLY_INDEX ? 4 : 2 * sizeof(T);
  const Results out{dst.operand().named("dst"), unit, uint64_t(uint32_t(dst_repeat))};
  out.check(op, x, pattern, unit);
  check_source(op, x);
  const uint8_t* in = x.read(op, pattern);
  uint8_t* to = out.write(op, pattern.repeats());
  each_repeat<T>(in, x, pattern, idle_value(largest ? Reduction::max : Reduction::min),
                 [&](uint32_t r, RepeatValues& v) {
    const uint32_t index = best_of(v, 0, pattern.lanes, largest);
    const T value = narrow<T>(v.value[index], false);
    uint8_t* at = to + r * out.stride * unit;
    if (order == Order::ORDER_ONLY_INDEX) {
      std::memcpy(at, &index, 4);
      return;
    }
    const bool index_first = order == Order::ORDER_INDEX_VALUE;
    std::memcpy(at + (index_first ? sizeof(T) : 0), &value, sizeof(T));
    if (order != Order::ORDER_ONLY_VALUE) std::memcpy(at + (index_first ? 0 : sizeof(T)), &index, sizeof(T));
  });
}

inline uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

// ReduceSum. 2201, count form: trees of 256 bytes, their results added in order. 2201, mask forms, and 3510: a tree of
// the trees' results (64 or 128 at a time). 3510, count form up to 1024 bytes: lane by lane into one repeat, then its
// tree. `tmp` is used by the tree of trees on 2201.
template <typename T>
void reduce_sum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp,
                const Pattern& pattern, int32_t src_repeat, bool counted) {
  const Lanes x = reduce_source(src, 1, src_repeat);
  if (pattern.parts == 0) return;
  constexpr uint32_t lanes = lanes_of(sizeof(T));
  Op op("ReduceSum", Pipe::V, pattern.elements());
  check_source(op, x);
  const Results out{dst.operand().named("dst"), sizeof(T), 1};
  out.check(op, x, Pattern::leading(lanes, pattern.lanes, pattern.repeats()), sizeof(T));
  const bool saturate = saturates<T>();
  const auto add = [&](float a, float b) { return widen(narrow<T>(a + b, saturate)); };
  const uint8_t* in = x.read(op, pattern);
  std::vector<float> sums;
  float column[lanes] = {};
  each_repeat<T>(in, x, pattern, 0.0f, [&](uint32_t r, RepeatValues& v) {
    for (uint32_t i = 0; i < lanes; ++i) column[i] = r == 0 ? v.value[i] : add(column[i], v.value[i]);
    sums.push_back(tree_sum<T>(v.value, lanes, saturate));
  });
  float total;
  if (counted && k3510 && pattern.elements() * sizeof(T) <= 4 * kRepeatBytes) {
    total = tree_sum<T>(column, lanes, saturate);
  } else if (counted && !k3510) {
    total = sums[0];
    for (size_t i = 1; i < sums.size(); ++i) total = add(total, sums[i]);
  } else {
    if (!k3510) {
      const uint64_t bytes = round_up(sums.size() * sizeof(T), kBlockBytes);
      op.align(tmp.operand().named("sharedTmpBuffer"));
      op.write_unspecified(tmp.operand().named("sharedTmpBuffer"), 0, bytes);
    }
    while (sums.size() > 1) {
      sums.resize(round_up(sums.size(), lanes), 0.0f);
      std::vector<float> next;
      for (size_t i = 0; i < sums.size(); i += lanes) next.push_back(tree_sum<T>(sums.data() + i, lanes, saturate));
      sums = std::move(next);
    }
    total = sums[0];
  }
  const T value = narrow<T>(total, saturate);
  std::memcpy(op.write(out.operand, 0, sizeof(T)), &value, sizeof(T));
}

// ReduceMax and ReduceMin: the value, then, if asked for, the index of its first occurrence as bits. 2201 needs `tmp`
// for a (value, index) pair of every repeat.
template <typename T>
void reduce_best(const char* name, const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& tmp,
                 const Pattern& pattern, int32_t src_repeat, bool with_index, bool largest) {
  const Lanes x = reduce_source(src, 1, src_repeat);
  if (pattern.parts == 0) return;
  Op op(name, Pipe::V, pattern.elements());
  check_source(op, x);
  const Results out{dst.operand().named("dst"), with_index ? 2 * sizeof(T) : sizeof(T), 1};
  out.check(op, x, Pattern::leading(pattern.lanes, pattern.lanes, 1), out.unit);
  const uint8_t* in = x.read(op, pattern);
  std::vector<std::pair<float, uint32_t>> found;
  each_repeat<T>(in, x, pattern, idle_value(largest ? Reduction::max : Reduction::min),
                 [&](uint32_t r, RepeatValues& v) {
    const uint32_t index = best_of(v, 0, pattern.lanes, largest);
    found.emplace_back(v.value[index], r * pattern.lanes + index);
  });
  if (!k3510) {
    const uint64_t bytes = round_up(2 * found.size() * sizeof(T), kBlockBytes);
    op.align(tmp.operand().named("sharedTmpBuffer"));
    op.write_unspecified(tmp.operand().named("sharedTmpBuffer"), 0, bytes);
  }
  RepeatValues v;
  std::pair<float, uint32_t> best = found[0];
  for (size_t i = 1; i < found.size(); ++i) {
    v.value[0] = best.first;
    v.value[1] = found[i].first;
    v.active[0] = v.active[1] = true;
    if (best_of(v, 0, 2, largest) == 1) best = found[i];
  }
  if (with_index && sizeof(T) == 2 && best.second > 0xffff) fail(Check::range, "the index doesn't fit 16 bits");
  const T value = narrow<T>(best.first, false);
  uint8_t* to = op.write(out.operand, 0, out.unit);
  std::memcpy(to, &value, sizeof(T));
  if (with_index) std::memcpy(to + sizeof(T), &best.second, sizeof(T));
}

}  // namespace twin

namespace AscendC {

#define TWIN_GROUPS(Name, group, boundary, reduction)                                                            \
  template <typename T, bool isSetMask = true>                                                                   \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const twin::RepeatTime& repeatTime,            \
            const int32_t mask, const int32_t dstRepStride, const int32_t srcBlkStride,                          \
            const int32_t srcRepStride) {                                                                        \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), uint64_t(mask), repeatTime, isSetMask);      \
    twin::reduce_groups(#Name, dst, src, pattern, group, boundary, dstRepStride, srcBlkStride, srcRepStride,     \
                        reduction);                                                                              \
  }                                                                                                              \
  template <typename T, bool isSetMask = true>                                                                   \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const twin::RepeatTime& repeatTime,            \
            const uint64_t mask[], const int32_t dstRepStride, const int32_t srcBlkStride,                       \
            const int32_t srcRepStride) {                                                                        \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);                \
    twin::reduce_groups(#Name, dst, src, pattern, group, boundary, dstRepStride, srcBlkStride, srcRepStride,     \
                        reduction);                                                                              \
  }
TWIN_GROUPS(PairReduceSum, 2, 32, twin::Reduction::sum)
TWIN_GROUPS(BlockReduceSum, 32 / sizeof(T), 8 * sizeof(T), twin::Reduction::sum)
TWIN_GROUPS(BlockReduceMax, 32 / sizeof(T), 8 * sizeof(T), twin::Reduction::max)
TWIN_GROUPS(BlockReduceMin, 32 / sizeof(T), 8 * sizeof(T), twin::Reduction::min)
#undef TWIN_GROUPS

template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,
                    const twin::RepeatTime& repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                    const int32_t srcRepStride) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), uint64_t(mask), repeatTime, isSetMask);
  twin::reduce_groups("WholeReduceSum", dst, src, pattern, twin::lanes_of(sizeof(T)), sizeof(T), dstRepStride,
                      srcBlkStride, srcRepStride, twin::Reduction::sum);
}
template <typename T, bool isSetMask = true>
void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[],
                    const twin::RepeatTime& repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,
                    const int32_t srcRepStride) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), mask, repeatTime, isSetMask);
  twin::reduce_groups("WholeReduceSum", dst, src, pattern, twin::lanes_of(sizeof(T)), sizeof(T), dstRepStride,
                      srcBlkStride, srcRepStride, twin::Reduction::sum);
}

#define TWIN_WHOLE_BEST(Name, largest)                                                                           \
  template <typename T, bool isSetMask = true>                                                                   \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask,                            \
            const twin::RepeatTime& repeatTime, const int32_t dstRepStride, const int32_t srcBlkStride,          \
            const int32_t srcRepStride, ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX) {                    \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), uint64_t(mask), repeatTime, isSetMask);      \
    twin::reduce_repeats(#Name, dst, src, pattern, dstRepStride, srcBlkStride, srcRepStride, largest, order);    \
  }
TWIN_WHOLE_BEST(WholeReduceMax, true)
TWIN_WHOLE_BEST(WholeReduceMin, false)
#undef TWIN_WHOLE_BEST

template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t count) {
  twin::reduce_sum(dst, src, sharedTmpBuffer, twin::count_form(twin::lanes_of(sizeof(T)), count), 8, true);
}
template <typename T>
void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
               const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride) {
  const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), uint64_t(mask), uint32_t(repeatTime), true);
  twin::reduce_sum(dst, src, sharedTmpBuffer, pattern, srcRepStride, false);
}

#define TWIN_BEST(Name, largest)                                                                                 \
  template <typename T>                                                                                          \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,         \
            const int32_t count, bool calIndex = false) {                                                        \
    const auto pattern = twin::count_form(twin::lanes_of(sizeof(T)), count);                                     \
    twin::reduce_best(#Name, dst, src, sharedTmpBuffer, pattern, 8, calIndex, largest);                          \
  }                                                                                                              \
  template <typename T>                                                                                          \
  void Name(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,         \
            const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride, bool calIndex = false) {   \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(T)), uint64_t(mask), uint32_t(repeatTime), true); \
    twin::reduce_best(#Name, dst, src, sharedTmpBuffer, pattern, srcRepStride, calIndex, largest);               \
  }
TWIN_BEST(ReduceMax, true)
TWIN_BEST(ReduceMin, false)
#undef TWIN_BEST

}  // namespace AscendC
