#include "vector_lanes.h"

#include "modes.h"

namespace twin {

namespace {

constexpr uint32_t kNobody = ~0u;

// First and last byte that an operand touches, relative to its start.
struct Hull {
  uint64_t begin = ~0ull, end = 0;
};

Hull hull_of(const Lanes& x, const Pattern& pattern) {
  Hull hull;
  x.ranges(pattern, [&](uint64_t offset, uint64_t bytes, uint64_t count) {
    hull.begin = std::min(hull.begin, offset);
    hull.end = std::max(hull.end, offset + bytes + (count - 1) * x.step());
  });
  return hull;
}

// The data blocks (by address) of one repeat, one entry per block that has active lanes.
void blocks_of(const Lanes& x, const Part& part, uint32_t lanes, uint32_t repeat, std::vector<uint64_t>& out) {
  out.clear();
  const uint32_t per_block = static_cast<uint32_t>(kBlockBytes) / x.size;
  const uint64_t start = x.operand.base + repeat * x.step();
  part.lane_runs(lanes, [&](uint32_t lane, uint32_t n) {
    for (uint32_t b = lane / per_block; b <= (lane + n - 1) / per_block; ++b) {
      const uint64_t block = start / kBlockBytes + uint64_t{b} * x.block;
      if (out.empty() || out.back() != block) out.push_back(block);
    }
  });
}

bool intersects(const std::vector<uint64_t>& a, const std::vector<uint64_t>& b) {
  return std::any_of(a.begin(), a.end(), [&](uint64_t x) { return std::find(b.begin(), b.end(), x) != b.end(); });
}

Pattern refuse_zero(const char* what) {
  if (k3510) fail(Check::repeat, "%s is 0: on dav-3510 that isn't guaranteed to do nothing", what);
  return {};
}

Pattern by_mode(uint32_t lanes, uint64_t low, uint64_t high, uint64_t count, uint32_t repeats) {
  if (state().mask_mode.get() == AscendC::MaskMode::COUNTER) {
    return count ? Pattern::counted(lanes, count) : refuse_zero("the mask");
  }
  if (repeats == 0) return refuse_zero("repeatTime");
  if (lanes > 128) fail(Check::overload, "8-bit elements have no mask form");
  if (lanes <= 64 && high != 0) {
    fail(Check::mask, "the high mask word is %#llx but a repeat has %u lanes", static_cast<unsigned long long>(high),
         lanes);
  }
  const Pattern pattern = Pattern::masked(lanes, low, high, repeats);
  return pattern.parts ? pattern : refuse_zero("the mask");
}


Pattern by_register(uint32_t lanes, uint32_t repeats) {
  const MaskBits bits = state().mask.get();
  // The register's default is all ones in both words, whatever the element size.
  const uint64_t high = lanes <= 64 && bits.high == ~0ull ? 0 : bits.high;
  return by_mode(lanes, bits.low, high, bits.low, repeats);
}

}  // namespace

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
  for (int i = 0; i < pattern.parts; ++i) {
    const Part& part = pattern.part[i];
    for (uint32_t r = part.first; r < part.first + part.repeats; ++r) {
      blocks_of(src, part, pattern.lanes, r, reads);
      blocks_of(dst, part, pattern.lanes, r, writes);
      for (const uint64_t block : reads) {
        if (block < first || block - first >= writer.size() || writer[block - first] == kNobody) continue;
        if (!carries) {
          fail_operand(Check::overlap, label, "repeat %u reads what repeat %u writes", r, writer[block - first]);
        }
        ordered = true;
      }
      if (reads != writes && intersects(reads, writes)) {
        fail_operand(Check::overlap, label, "repeat %u: partly overlaps dst; only the same start is defined", r);
      }
      for (const uint64_t block : writes) writer[block - first] = r;
      ordered = ordered || intersects(reads, writes);
    }
  }
  return ordered ? Overlap::ordered : Overlap::none;
}

Pattern count_form(uint32_t lanes, int64_t count) {
  if (count < 0) fail(Check::repeat, "count is %lld", static_cast<long long>(count));
  // These forms run in counter mode and leave the normal mode and a full mask behind.
  state().mask_mode.set(AscendC::MaskMode::NORMAL);
  state().mask.set({});
  return count ? Pattern::counted(lanes, static_cast<uint64_t>(count)) : refuse_zero("count");
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

}  // namespace twin
