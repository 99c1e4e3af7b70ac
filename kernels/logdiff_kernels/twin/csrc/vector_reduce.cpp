#include "vector_reduce.h"

#include <limits>
#include <vector>

#include "launch.h"
#include "vector_walk.h"

namespace twin {

namespace {

// Elements of a reduction: half or float, and whether results in half saturate.
struct Element {
  bool is_half, saturate;

  explicit Element(bool half) : is_half(half), saturate(half && state().saturate.get()) {}
  uint32_t size() const { return is_half ? 2 : 4; }
  float load(const uint8_t* from) const {
    if (!is_half) {
      float x;
      std::memcpy(&x, from, 4);
      return x;
    }
    uint16_t bits;
    std::memcpy(&bits, from, 2);
    return widen_half(bits);
  }
  void store(uint8_t* to, float x, bool saturating) const {
    if (is_half) {
      const uint16_t bits = narrow<half>(x, saturating).bits;
      std::memcpy(to, &bits, 2);
    } else {
      std::memcpy(to, &x, 4);
    }
  }
  float add(float a, float b) const { return is_half ? widen(narrow<half>(a + b, saturate)) : a + b; }

  // ((v0 + v1) + (v2 + v3)) + ..., n a power of two.
  float tree(float* v, uint32_t n) const {
    for (; n > 1; n /= 2) {
      for (uint32_t i = 0; i < n / 2; ++i) v[i] = add(v[2 * i], v[2 * i + 1]);
    }
    return v[0];
  }
};

// One repeat of a source: values in fp32, and which of them take part.
struct RepeatValues {
  float value[128];
  bool active[128];
};

void load_repeat(const Element& element, const uint8_t* base, const Lanes& x, const Part& part, uint32_t lanes,
                 uint32_t repeat, float idle, RepeatValues& out) {
  std::fill(out.value, out.value + lanes, idle);
  std::fill(out.active, out.active + lanes, false);
  lane_runs(part, lanes, [&](uint32_t lane, uint32_t n) {
    for (uint32_t l = lane; l < lane + n; ++l) {
      out.value[l] = element.load(base + x.offset(repeat, l));
      out.active[l] = true;
    }
  });
}

// fn(repeat, values) over the repeats of a source.
template <typename Fn>
void each_values(const Element& element, const uint8_t* base, const Lanes& x, const Pattern& pattern, float idle,
                 Fn fn) {
  RepeatValues values;
  each_repeat(pattern, [&](const Part& part, uint32_t r) {
    load_repeat(element, base, x, part, pattern.lanes, r, idle, values);
    fn(r, values);
  });
}

// Position of the largest (or smallest) active value, the first of equal ones. A NaN wins, or is passed over where the
// launch perturbs: the API doesn't say.
uint32_t best_of(const RepeatValues& v, uint32_t begin, uint32_t end, bool largest) {
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

float idle_value(Reduction reduction) {
  if (reduction == Reduction::sum) return 0.0f;
  const float infinity = std::numeric_limits<float>::infinity();
  return reduction == Reduction::max ? -infinity : infinity;
}

// Whether some group of `group` neighbouring lanes has no active one.
bool leaves_idle(const Pattern& pattern, uint32_t group) {
  for (int i = 0; i < pattern.parts; ++i) {
    uint32_t busy = 0, next = 0;  // groups with an active lane; first group not yet counted
    lane_runs(pattern.part[i], pattern.lanes, [&](uint32_t lane, uint32_t n) {
      const uint32_t from = std::max(lane / group, next), to = (lane + n - 1) / group + 1;
      if (to > from) busy += to - from;
      next = std::max(next, to);
    });
    if (busy < pattern.lanes / group) return true;
  }
  return false;
}

void check_results(const Op& op, const Operand& dst, uint64_t bytes, uint64_t boundary, const Lanes& src,
                   const Pattern& pattern) {
  if (dst.memory != Memory::UB) fail_operand(Check::overload, "dst", "is in %s, not in UB", name_of(dst.memory));
  op.align(dst, boundary);
  check_source(op, src);
  if (!apart(dst, bytes, src.operand, hull_of(src, pattern).end)) {
    fail_operand(Check::overlap, "src", "overlaps dst: a reduction's results may not lie in its source");
  }
}

uint64_t check_stride(int32_t stride) {
  if (stride < 0 || stride > 0xffff) fail(Check::stride, "dstRepStride is %d: 0 to 65535", stride);
  return static_cast<uint64_t>(stride);
}

uint8_t* write_rows(Op& op, const Operand& dst, uint64_t bytes, uint64_t step, uint64_t count) {
  if (count == 1 || step == 0) return op.write(dst, 0, bytes);
  return step == bytes ? op.write(dst, 0, bytes * count) : op.write_strided(dst, 0, bytes, step, count);
}

uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

void use_scratch(Op& op, const Operand& tmp, uint64_t bytes) {
  const Operand scratch = tmp.named("sharedTmpBuffer");
  op.align(scratch);
  op.write_unspecified(scratch, 0, round_up(bytes, kBlockBytes));
}

}  // namespace

void reduce_groups(const char* name, const Operand& dst, const Lanes& src, bool is_half, const Pattern& pattern,
                   uint32_t group, uint64_t boundary, int32_t stride, Reduction reduction) {
  if (pattern.parts == 0) return;
  const Element element(is_half);
  Op op(name, Pipe::V, pattern.elements());
  const uint32_t groups = pattern.lanes / group;
  const uint64_t row = uint64_t{groups} * element.size(), step = row * check_stride(stride);
  check_results(op, dst, step * (pattern.repeats() - 1) + row, boundary, src, pattern);
  const uint8_t* in = src.read(op, pattern);
  uint8_t* whole =
      k3510 || !leaves_idle(pattern, group) ? write_rows(op, dst, row, step, pattern.repeats()) : nullptr;
  each_values(element, in, src, pattern, idle_value(reduction), [&](uint32_t r, RepeatValues& v) {
    for (uint32_t g = 0; g < groups; ++g) {
      const uint32_t begin = g * group, end = begin + group;
      const bool idle = std::none_of(v.active + begin, v.active + end, [](bool on) { return on; });
      if (idle && !k3510) continue;
      float result;
      if (reduction == Reduction::sum) {
        result = element.tree(v.value + begin, group);
      } else {
        result = idle ? idle_value(reduction) : v.value[best_of(v, begin, end, reduction == Reduction::max)];
      }
      const uint64_t at = r * step + g * element.size();
      element.store(whole ? whole + at : op.write(dst, at, element.size()), result, element.saturate);
    }
  });
}

void reduce_repeats(const char* name, const Operand& dst, const Lanes& src, bool is_half, const Pattern& pattern,
                    int32_t stride, bool largest, AscendC::ReduceOrder order) {
  using Order = AscendC::ReduceOrder;
  if (pattern.parts == 0) return;
  const Element element(is_half);
  Op op(name, Pipe::V, pattern.elements());
  const uint64_t size = element.size();
  const uint64_t unit = order == Order::ORDER_ONLY_VALUE ? size : order == Order::ORDER_ONLY_INDEX ? 4 : 2 * size;
  const uint64_t step = unit * check_stride(stride);
  check_results(op, dst, step * (pattern.repeats() - 1) + unit, unit, src, pattern);
  const uint8_t* in = src.read(op, pattern);
  uint8_t* to = write_rows(op, dst, unit, step, pattern.repeats());
  const Reduction reduction = largest ? Reduction::max : Reduction::min;
  each_values(element, in, src, pattern, idle_value(reduction), [&](uint32_t r, RepeatValues& v) {
    const uint32_t index = best_of(v, 0, pattern.lanes, largest);
    uint8_t* at = to + r * step;
    if (order == Order::ORDER_ONLY_INDEX) {
      std::memcpy(at, &index, 4);
      return;
    }
    const bool index_first = order == Order::ORDER_INDEX_VALUE;
    element.store(at + (index_first ? size : 0), v.value[index], false);
    if (order != Order::ORDER_ONLY_VALUE) std::memcpy(at + (index_first ? 0 : size), &index, size);
  });
}

void reduce_sum(const Operand& dst, const Lanes& src, const Operand& tmp, bool is_half, const Pattern& pattern,
                bool counted) {
  if (pattern.parts == 0) return;
  const Element element(is_half);
  const uint32_t lanes = pattern.lanes;
  Op op("ReduceSum", Pipe::V, pattern.elements());
  check_results(op, dst, element.size(), element.size(), src, pattern);
  const uint8_t* in = src.read(op, pattern);
  std::vector<float> sums;
  float column[128];
  each_values(element, in, src, pattern, 0.0f, [&](uint32_t r, RepeatValues& v) {
    for (uint32_t i = 0; i < lanes; ++i) column[i] = r == 0 ? v.value[i] : element.add(column[i], v.value[i]);
    sums.push_back(element.tree(v.value, lanes));
  });
  if (counted && k3510 && pattern.elements() * element.size() <= 4 * kRepeatBytes) {
    sums.assign(1, element.tree(column, lanes));
  } else if (counted && !k3510) {
    for (size_t i = 1; i < sums.size(); ++i) sums[0] = element.add(sums[0], sums[i]);
  } else {
    if (!k3510) use_scratch(op, tmp, sums.size() * element.size());
    while (sums.size() > 1) {
      sums.resize(round_up(sums.size(), lanes), 0.0f);
      std::vector<float> next;
      for (size_t i = 0; i < sums.size(); i += lanes) next.push_back(element.tree(sums.data() + i, lanes));
      sums = std::move(next);
    }
  }
  element.store(op.write(dst, 0, element.size()), sums[0], element.saturate);
}

void reduce_best(const char* name, const Operand& dst, const Lanes& src, const Operand& tmp, bool is_half,
                 const Pattern& pattern, bool with_index, bool largest) {
  if (pattern.parts == 0) return;
  const Element element(is_half);
  Op op(name, Pipe::V, pattern.elements());
  const uint64_t size = element.size(), unit = with_index ? 2 * size : size;
  check_results(op, dst, unit, unit, src, pattern);
  const uint8_t* in = src.read(op, pattern);
  RepeatValues duel;
  duel.active[0] = duel.active[1] = true;
  uint32_t best = 0;
  const Reduction reduction = largest ? Reduction::max : Reduction::min;
  each_values(element, in, src, pattern, idle_value(reduction), [&](uint32_t r, RepeatValues& v) {
    const uint32_t index = best_of(v, 0, pattern.lanes, largest);
    duel.value[1] = v.value[index];
    if (r != 0 && best_of(duel, 0, 2, largest) == 0) return;
    duel.value[0] = v.value[index];
    best = r * pattern.lanes + index;
  });
  if (!k3510) use_scratch(op, tmp, 2 * pattern.repeats() * size);
  if (with_index && is_half && best > 0xffff) fail(Check::range, "the index %u doesn't fit 16 bits", best);
  uint8_t* to = op.write(dst, 0, unit);
  element.store(to, duel.value[0], false);
  if (with_index) std::memcpy(to + size, &best, size);
}

}  // namespace twin
