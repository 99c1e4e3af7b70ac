#include "vector_gather.h"

#include <numeric>
#include <vector>

#include "vector_walk.h"

namespace twin {

namespace {

// Whether a fixed pattern takes lane i: 1 even, 2 odd, 3 to 6 every fourth from 0, 1, 2, 3, 7 all.
bool fixed_pattern_takes(uint32_t pattern, uint32_t lane) {
  switch (pattern) {
    case 1: return lane % 2 == 0;
    case 2: return lane % 2 == 1;
    case 7: return true;
    default: return lane % 4 == pattern - 3;
  }
}

}  // namespace

void gather(const Lanes& dst, const Lanes& src, const Lanes& offsets, uint32_t base, uint32_t count) {
  const Pattern pattern = count_form(lanes_of(dst.size), count);
  if (pattern.parts == 0) return;
  Op op("Gather", Pipe::V, count);
  for (const Lanes* x : {&dst, &src, &offsets}) check_source(op, *x);
  const uint64_t size = dst.size;
  const uint8_t* raw = op.read(offsets.operand, 0, uint64_t{count} * 4);
  std::vector<uint64_t> from(count);
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t offset;
    std::memcpy(&offset, raw + uint64_t{i} * 4, 4);
    from[i] = uint64_t{base} + offset;
    if (from[i] % size != 0) {
      fail_operand(Check::alignment, "srcOffset", "element %u: byte %llu isn't a multiple of the element size", i,
                   static_cast<unsigned long long>(from[i]));
    }
    if (k3510 && size == 2 && offset >= (1u << 17)) {
      fail_operand(Check::range, "srcOffset", "element %u: %u exceeds 2^17 - 1, the limit for 16 bits", i, offset);
    }
  }
  const uint64_t reach = *std::max_element(from.begin(), from.end()) + size;
  if (!apart(dst.operand, count * size, src.operand, reach)) fail_operand(Check::overlap, "dst", "overlaps src");
  if (!apart(dst.operand, count * size, offsets.operand, uint64_t{count} * 4)) {
    fail_operand(Check::overlap, "dst", "overlaps srcOffset");
  }
  std::vector<uint8_t> values(count * size);
  for (uint32_t i = 0; i < count;) {  // neighbours in one read
    uint32_t n = 1;
    while (i + n < count && from[i + n] == from[i] + n * size) ++n;
    std::memcpy(values.data() + i * size, op.read(src.operand, from[i], n * size), n * size);
    i += n;
  }
  std::memcpy(op.write(dst.operand, 0, values.size()), values.data(), values.size());
}

uint64_t gather_mask(const Lanes& dst, const Lanes& src, const Lanes* bits, uint32_t fixed, bool counter,
                     uint32_t mask, const AscendC::GatherMaskParams& params) {
  const uint32_t lanes = lanes_of(dst.size), per_block = lanes / kBlocksPerRepeat;
  if (!bits && (fixed < 1 || fixed > 7)) fail(Check::overload, "fixed pattern %u: 1 to 7", fixed);
  if (counter && mask == 0) fail(Check::mask, "counter mode needs a mask of at least 1");
  const uint32_t per_repeat = counter ? mask : lanes, repeats = params.repeatTimes;
  state().mask_mode.set(AscendC::MaskMode::NORMAL);  // the call ends in normal mode, whatever it was
  if (repeats == 0) {
    refuse_zero("repeatTimes");
    return 0;
  }
  Lanes from = src;
  from.block = params.src0BlockStride;
  from.repeat = params.src0RepeatStride;
  Op op("GatherMask", Pipe::V, uint64_t{per_repeat} * repeats);
  check_source(op, dst);
  check_source(op, from);
  if (bits) check_source(op, *bits);
  std::vector<uint8_t> kept;
  for (uint32_t r = 0; r < repeats; ++r) {
    const uint8_t* pattern = bits ? op.read(bits->operand, r * bits->step(), (per_repeat + 7) / 8) : nullptr;
    for (uint32_t first = 0; first < per_repeat; first += per_block) {
      const uint32_t n = std::min(per_block, per_repeat - first);
      const uint8_t* block = op.read(from.operand, from.offset(r, first), uint64_t{n} * from.size);
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t lane = first + i;
        const bool take = bits ? ((pattern[lane / 8] >> (lane % 8)) & 1u) != 0 : fixed_pattern_takes(fixed, lane);
        if (take) kept.insert(kept.end(), block + i * from.size, block + (i + 1) * from.size);
      }
    }
  }
  if (kept.empty()) return 0;
  const uint64_t reach = from.offset(repeats - 1, per_repeat - 1) + from.size;
  if (dst.operand.base != from.operand.base && !apart(dst.operand, kept.size(), from.operand, reach)) {
    fail_operand(Check::overlap, "dst", "overlaps src0 elsewhere than at its start");
  }
  std::memcpy(op.write(dst.operand, 0, kept.size()), kept.data(), kept.size());
  return kept.size() / dst.size;
}

void sort32(const Operand& dst, const Operand& scores, const Operand& indices, bool is_half, int32_t repeats) {
  constexpr uint32_t kRun = 32;
  if (repeats < 0 || repeats > 255) fail(Check::repeat, "repeatTime is %d: 0 to 255", repeats);
  if (repeats == 0) return refuse_zero("repeatTime");
  const uint64_t n = uint64_t(repeats) * kRun, size = is_half ? 2 : 4;
  Op op("Sort32", Pipe::V, n);
  op.align(dst, 256);
  op.align(scores, kRun * size);
  op.align(indices, 128);
  if (!apart(dst, n * 8, scores, n * size) || !apart(dst, n * 8, indices, n * 4)) {
    fail_operand(Check::overlap, "dst", "overlaps a source");
  }
  const uint8_t* in = op.read(scores, 0, n * size);
  const uint8_t* index = op.read(indices, 0, n * 4);
  std::vector<float> value(n);
  for (uint64_t i = 0; i < n; ++i) {
    if (is_half) {
      uint16_t bits;
      std::memcpy(&bits, in + i * 2, 2);
      value[i] = widen_half(bits);
    } else {
      std::memcpy(&value[i], in + i * 4, 4);
    }
    if (value[i] != value[i]) fail_operand(Check::range, "src0", "NaN: where Sort32 puts it is not documented");
  }
  uint8_t* out = op.write(dst, 0, n * 8);
  for (uint64_t first = 0; first < n; first += kRun) {
    uint32_t order[kRun];
    std::iota(order, order + kRun, 0u);
    std::stable_sort(order, order + kRun, [&](uint32_t a, uint32_t b) { return value[first + a] > value[first + b]; });
    for (uint32_t i = 0; i < kRun; ++i) {
      uint8_t* pair = out + (first + i) * 8;
      std::memset(pair, 0, 8);
      std::memcpy(pair, in + (first + order[i]) * size, size);
      std::memcpy(pair + 4, index + (first + order[i]) * 4, 4);
    }
  }
}

void transpose_blocks(const Lanes* dst, const Lanes* src, const AscendC::TransDataTo5HDParams& params) {
  const uint32_t size = dst[0].size, per_block = uint32_t(kBlockBytes) / size;
  if (params.repeatTimes == 0) return;
  Op op("TransDataTo5HD", Pipe::V, uint64_t{params.repeatTimes} * 16 * per_block);
  for (uint32_t r = 0; r < params.repeatTimes; ++r) {
    const uint64_t step = params.repeatTimes == 1 ? 1 : r;  // of one repeat the strides shift the start, as documented
    uint8_t block[16][kBlockBytes];
    for (int i = 0; i < 16; ++i) {
      check_source(op, src[i]);
      std::memcpy(block[i], op.read(src[i].operand, step * params.srcRepStride * kBlockBytes, kBlockBytes), kBlockBytes);
    }
    for (uint32_t i = 0; i < 16; ++i) {
      check_source(op, dst[i]);
      uint8_t* out = op.write(dst[i].operand, step * params.dstRepStride * kBlockBytes, kBlockBytes);
      for (uint32_t k = 0; k < per_block; ++k) {
        const uint8_t* from = size == 2 ? block[k] + i * 2 : block[(i % 2) * 8 + k] + (i / 2) * 4;
        std::memcpy(out + k * size, from, size);
      }
    }
  }
}

}  // namespace twin
