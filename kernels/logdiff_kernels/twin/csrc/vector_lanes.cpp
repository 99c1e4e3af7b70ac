#include "vector_lanes.h"

#include <vector>

#include "modes.h"
#include "vector_walk.h"

namespace twin {

namespace {

constexpr uint32_t kNobody = ~0u;

// The data blocks (by address) of one repeat, one entry per block that has active lanes.
void blocks_of(const Lanes& x, const Part& part, uint32_t lanes, uint32_t repeat, std::vector<uint64_t>& out) {
  out.clear();
  const uint32_t per_block = static_cast<uint32_t>(kBlockBytes) / x.size;
  const uint64_t start = (x.operand.base + repeat * x.step()) / kBlockBytes;
  lane_runs(part, lanes, [&](uint32_t lane, uint32_t n) {
    for (uint32_t b = lane / per_block; b <= (lane + n - 1) / per_block; ++b) {
      const uint64_t block = start + uint64_t{b} * x.block;
      if (out.empty() || out.back() != block) out.push_back(block);
    }
  });
}

bool intersect(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](uint64_t x) { return std::find(b.begin(), b.end(), x) != b.end(); });
}

Pattern none(const char* what) {
  refuse_zero(what);
  return {};
}

Pattern by_mode(uint32_t lanes, uint64_t low, uint64_t high, uint64_t count, uint32_t repeats) {
  if (state().mask_mode.get() == AscendC::MaskMode::COUNTER) {
    return count ? Pattern::counted(lanes, count) : none("the mask");
  }
  if (repeats == 0) return none("repeatTime");
  if (lanes > 128) fail(Check::overload, "8-bit elements have no mask form");
  if (lanes <= 64 && high != 0) {
    fail(Check::mask, "the high mask word is %#llx but a repeat has %u lanes", static_cast<unsigned long long>(high),
         lanes);
  }
  const Pattern pattern = Pattern::masked(lanes, low, high, repeats);
  return pattern.parts ? pattern : none("the mask");
}

Pattern by_register(uint32_t lanes, uint32_t repeats) {
  const MaskBits bits = state().mask.get();
  // The register's default is all ones in both words, whatever the element size.
  const uint64_t high = lanes <= 64 && bits.high == ~0ull ? 0 : bits.high;
  return by_mode(lanes, bits.low, high, bits.low, repeats);
}

}  // namespace

uint64_t Pattern::elements() const {
  uint64_t sum = 0;
  for (int i = 0; i < parts; ++i) {
    uint64_t one = 0;
    lane_runs(part[i], lanes, [&](uint32_t, uint32_t n) { one += n; });
    sum += one * part[i].repeats;
  }
  return sum;
}

Pattern Pattern::counted(uint32_t lanes, uint64_t count) {
  Pattern p;
  p.lanes = lanes;
  const auto full = static_cast<uint32_t>(count / lanes), rest = static_cast<uint32_t>(count % lanes);
  if (full) p.part[p.parts++] = Part{0, full, true, lanes, {}};
  if (rest) p.part[p.parts++] = Part{full, 1, true, rest, {}};
  return p;
}

Pattern Pattern::leading(uint32_t lanes, uint32_t prefix, uint32_t repeats) {
  Pattern p;
  p.lanes = lanes;
  if (repeats && prefix) p.part[p.parts++] = Part{0, repeats, true, prefix, {}};
  return p;
}

Pattern Pattern::masked(uint32_t lanes, uint64_t low, uint64_t high, uint32_t repeats) {
  if (lanes <= 64) high = 0;
  if (lanes < 64) low &= (uint64_t{1} << lanes) - 1;
  const bool prefix = high ? low == ~0ull && (high & (high + 1)) == 0 : (low & (low + 1)) == 0;
  if (prefix) {
    const int set = __builtin_popcountll(low) + __builtin_popcountll(high);
    return leading(lanes, static_cast<uint32_t>(set), repeats);
  }
  Pattern p;
  p.lanes = lanes;
  if (repeats) p.part[p.parts++] = Part{0, repeats, false, 0, {low, high}};
  return p;
}

const uint8_t* Lanes::read(Op& op, const Pattern& pattern) const {
  const uint8_t* base = nullptr;
  ranges(*this, pattern, [&](uint64_t offset, uint64_t bytes, uint64_t count) {
    const uint8_t* at =
        count == 1 ? op.read(operand, offset, bytes) : op.read_strided(operand, offset, bytes, step(), count);
    base = at - offset;
  });
  return base;
}

uint8_t* Lanes::write(Op& op, const Pattern& pattern) const {
  uint8_t* base = nullptr;
  ranges(*this, pattern, [&](uint64_t offset, uint64_t bytes, uint64_t count) {
    uint8_t* at =
        count == 1 ? op.write(operand, offset, bytes) : op.write_strided(operand, offset, bytes, step(), count);
    base = at - offset;
  });
  return base;
}

Overlap check_overlap(const Lanes& dst, const Lanes& src, const Pattern& pattern, bool carries) {
  if (pattern.parts == 0 || dst.operand.memory != src.operand.memory) return Overlap::none;
  const Hull d = hull_of(dst, pattern), s = hull_of(src, pattern);
  const uint64_t d_base = dst.operand.base, s_base = src.operand.base;
  if (d_base + d.end <= s_base + s.begin || s_base + s.end <= d_base + d.begin) return Overlap::none;
  const char* label = src.operand.label;
  if (dst.size != src.size) {
    fail_operand(Check::overlap, label, "overlaps dst, which has elements of another size");
  }
  const bool same = d_base == s_base && dst.block == src.block && (dst.repeat == src.repeat || pattern.repeats() == 1);
  if (same && (pattern.repeats() == 1 || dst.repeat >= kBlocksPerRepeat * dst.block)) return Overlap::exact;

  std::vector<uint64_t> reads, writes;
  const uint64_t first = (d_base + d.begin) / kBlockBytes;
  std::vector<uint32_t> writer((d_base + d.end - 1) / kBlockBytes - first + 1, kNobody);  // last one of each block
  bool ordered = false;
  each_repeat(pattern, [&](const Part& part, uint32_t r) {
    blocks_of(src, part, pattern.lanes, r, reads);
    blocks_of(dst, part, pattern.lanes, r, writes);
    for (const uint64_t block : reads) {
      if (block < first || block - first >= writer.size() || writer[block - first] == kNobody) continue;
      if (!carries) {
        fail_operand(Check::overlap, label, "repeat %u reads what repeat %u writes", r, writer[block - first]);
      }
      ordered = true;
    }
    if (intersect(reads, writes)) {
      if (reads != writes) {
        fail_operand(Check::overlap, label, "repeat %u: partly overlaps dst; only the same start is defined", r);
      }
      ordered = true;
    }
    for (const uint64_t block : writes) writer[block - first] = r;
  });
  return ordered ? Overlap::ordered : Overlap::none;
}

void refuse_zero(const char* what) {
  if (k3510) fail(Check::repeat, "%s is 0: on dav-3510 that isn't guaranteed to do nothing", what);
}

Pattern count_form(uint32_t lanes, int64_t count) {
  if (count < 0) fail(Check::repeat, "count is %lld", static_cast<long long>(count));
  // These forms run in counter mode and leave the normal mode and a full mask behind.
  state().mask_mode.set(AscendC::MaskMode::NORMAL);
  state().mask.set({});
  return count ? Pattern::counted(lanes, static_cast<uint64_t>(count)) : none("count");
}

Pattern mask_form(uint32_t lanes, uint64_t mask, uint32_t repeats, bool set_mask) {
  if (!set_mask) return by_register(lanes, repeats);
  if (state().mask_mode.get() == AscendC::MaskMode::COUNTER) {
    state().mask.set({mask, 0});
    return by_mode(lanes, 0, 0, mask, repeats);
  }
  if (mask > lanes) {
    fail(Check::mask, "mask is %llu but a repeat has %u lanes", static_cast<unsigned long long>(mask), lanes);
  }
  const MaskBits bits = leading_lanes(mask);
  state().mask.set(bits);
  return by_mode(lanes, bits.low, bits.high, mask, repeats);
}

Pattern mask_form(uint32_t lanes, const uint64_t* mask, uint32_t repeats, bool set_mask) {
  if (!set_mask) return by_register(lanes, repeats);
  const uint64_t high = lanes <= 64 ? 0 : mask[1];
  state().mask.set({mask[0], high});
  return by_mode(lanes, mask[0], high, mask[0], repeats);
}

void check_source(const Op& op, const Lanes& x) {
  if (x.operand.memory != Memory::UB) {
    fail_operand(Check::overload, x.operand.label, "is in %s: vector operands are in UB", name_of(x.operand.memory));
  }
  op.align(x.operand);
}

void check_destination(const Op& op, const Lanes& x) {
  check_source(op, x);
  if (x.block == 0) fail_operand(Check::stride, x.operand.label, "a block stride of 0 is undefined");
}

void run_elementwise(const Elementwise& instruction, const Pattern& pattern, const Lanes* x, int count) {
  if (pattern.parts == 0) return;
  Op op(instruction.name, Pipe::V, pattern.elements());
  check_destination(op, x[0]);
  const uint8_t* in[2] = {};
  bool fuse = true;
  for (int k = 1; k < count; ++k) {
    check_source(op, x[k]);
    const bool carries = instruction.carries && k == 2 && (x[0].repeat == 0 || x[2].repeat == 0);
    fuse = check_overlap(x[0], x[k], pattern, carries) != Overlap::ordered && fuse;
  }
  if (instruction.updates) fuse = check_overlap(x[0], x[0], pattern, false) != Overlap::ordered && fuse;
  for (int k = 1; k < count; ++k) in[k - 1] = x[k].read(op, pattern);
  if (instruction.updates) x[0].read(op, pattern);
  uint8_t* out = x[0].write(op, pattern);
  walk(pattern, x, count, fuse, [&](const uint64_t* at, uint64_t n) {
    instruction.run(instruction.context, out + at[0], in[0] + at[1], in[1] + at[2], n);
  });
}

}  // namespace twin
