// Gather, GatherMask, Sort32, Transpose, TransDataTo5HD.
#pragma once

#include <limits>
#include <numeric>

#include "vector_apply.h"

namespace twin {

using GatherTypes = TypeList<int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>;

template <typename T> void check_gather_type(const char*) {
  static_assert(GatherTypes::has<T>, "no overload for this element type on this architecture");
}

inline bool apart(const Operand& a, uint64_t a_bytes, const Operand& b, uint64_t b_bytes) {
  return a.memory != b.memory || a.base + a_bytes <= b.base || b.base + b_bytes <= a.base;
}

// dst[i] = the element at src + base + offset[i] bytes.
template <typename T>
void gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& offsets, uint32_t base,
            uint64_t count) {
  check_gather_type<T>("Gather");
  const Pattern pattern = count_form(lanes_of(sizeof(T)), int64_t(count));
  if (pattern.parts == 0) return;
  Op op("Gather", Pipe::V, count);
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src"), o = offsets.operand().named("srcOffset");
  for (const Operand& x : {d, s, o}) check_source(op, {x, sizeof(T)});
  const auto* at = reinterpret_cast<const uint32_t*>(op.read(o, 0, count * sizeof(uint32_t)));
  uint64_t reach = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t from = uint64_t{base} + at[i];
    if (from % sizeof(T) != 0) {
      fail_operand(Check::alignment, "srcOffset", "element %llu: byte %llu isn't a multiple of the element size",
                   static_cast<unsigned long long>(i), static_cast<unsigned long long>(from));
    }
    if (k3510 && sizeof(T) == 2 && at[i] >= (1u << 17)) {
      fail_operand(Check::range, "srcOffset", "element %llu: %u exceeds 2^17 - 1, the limit for 16-bit elements",
                   static_cast<unsigned long long>(i), at[i]);
    }
    reach = std::max(reach, from + sizeof(T));
  }
  if (!apart(d, count * sizeof(T), s, reach)) fail_operand(Check::overlap, "dst", "overlaps src");
  if (!apart(d, count * sizeof(T), o, count * 4)) fail_operand(Check::overlap, "dst", "overlaps srcOffset");
  std::vector<T> values(count);
  for (uint64_t i = 0; i < count;) {  // neighbours in one read
    uint64_t n = 1;
    while (i + n < count && at[i + n] == at[i] + n * sizeof(T)) ++n;
    std::memcpy(values.data() + i, op.read(s, uint64_t{base} + at[i], n * sizeof(T)), n * sizeof(T));
    i += n;
  }
  std::memcpy(op.write(d, 0, count * sizeof(T)), values.data(), count * sizeof(T));
}

// Whether a fixed pattern (1 to 7) takes lane i: even, odd, every fourth from 0, 1, 2, 3, all.
inline bool fixed_pattern_takes(uint32_t pattern, uint32_t lane) {
  switch (pattern) {
    case 1: return lane % 2 == 0;
    case 2: return lane % 2 == 1;
    case 7: return true;
    default: return lane % 4 == pattern - 3;
  }
}

// The elements whose mask bit is 1, packed. Normal mode: repeats of 256 bytes. Counter mode: `mask` elements a repeat,
// the bits of a repeat starting at its own place in the pattern tensor.
template <typename T>
void gather_mask(const LocalTensor<T>& dst, const LocalTensor<T>& src, const Operand* bits, uint32_t fixed,
                 bool counter, uint32_t mask, const AscendC::GatherMaskParams& p, uint64_t& kept) {
  check_gather_type<T>("GatherMask");
  kept = 0;
  constexpr uint32_t lanes = lanes_of(sizeof(T));
  if (!bits && (fixed < 1 || fixed > 7)) fail(Check::overload, "fixed pattern %u: 1 to 7", fixed);
  if (counter && mask == 0) fail(Check::mask, "counter mode needs a mask of at least 1");
  const uint32_t per_repeat = counter ? mask : lanes, repeats = p.repeatTimes;
  state().mask_mode.set(AscendC::MaskMode::NORMAL);
  if (repeats == 0) {
    if (k3510) fail(Check::repeat, "repeatTimes is 0: on dav-3510 that isn't guaranteed to do nothing");
    return;
  }
  Op op("GatherMask", Pipe::V, uint64_t{per_repeat} * repeats);
  const Operand d = dst.operand().named("dst");
  const Lanes s{src.operand().named("src0"), sizeof(T), p.src0BlockStride, p.src0RepeatStride};
  check_source(op, {d, sizeof(T)});
  check_source(op, s);
  if (bits) check_source(op, {*bits, sizeof(T)});
  const uint32_t per_block = lanes / kBlocksPerRepeat;
  std::vector<T> values;
  for (uint32_t r = 0; r < repeats; ++r) {
    const uint8_t* pattern = nullptr;
    if (bits) pattern = op.read(*bits, r * uint64_t{p.src1RepeatStride} * kBlockBytes, (per_repeat + 7) / 8);
    for (uint32_t first = 0; first < per_repeat; first += per_block) {
      const uint32_t n = std::min(per_block, per_repeat - first);
      const uint64_t at = r * s.step() + (first / per_block) * uint64_t{s.block} * kBlockBytes;
      const T* block = reinterpret_cast<const T*>(op.read(s.operand, at, n * sizeof(T)));
      for (uint32_t i = 0; i < n; ++i) {
        const uint32_t lane = first + i;
        const bool take = bits ? (pattern[lane / 8] >> (lane % 8)) & 1u : fixed_pattern_takes(fixed, lane);
        if (take) values.push_back(block[i]);
      }
    }
  }
  kept = values.size();
  if (!apart(d, kept * sizeof(T), s.operand, 1) && d.base != s.operand.base) {
    fail_operand(Check::overlap, "dst", "overlaps src0 elsewhere than at its start");
  }
  if (kept) std::memcpy(op.write(d, 0, kept * sizeof(T)), values.data(), kept * sizeof(T));
}

// Descending (score, index) pairs of 8 bytes, 32 at a time; of equal scores the earlier one first, as the API page says.
template <typename T>
void sort32(const LocalTensor<T>& dst, const LocalTensor<T>& score, const LocalTensor<uint32_t>& index, int32_t repeats) {
  static_assert(one_of<T, half, float>, "Sort32 takes half and float");
  constexpr uint32_t kRun = 32;
  if (repeats < 0 || repeats > 255) fail(Check::repeat, "repeatTime is %d: 0 to 255", repeats);
  if (repeats == 0) {
    if (k3510) fail(Check::repeat, "repeatTime is 0: on dav-3510 that isn't guaranteed to do nothing");
    return;
  }
  const uint64_t n = uint64_t(repeats) * kRun;
  Op op("Sort32", Pipe::V, n);
  const Operand d = dst.operand().named("dst"), s = score.operand().named("src0"), x = index.operand().named("src1");
  op.align(d, 256);
  op.align(s, kRun * sizeof(T));
  op.align(x, 128);
  const T* scores = reinterpret_cast<const T*>(op.read(s, 0, n * sizeof(T)));
  const auto* indices = reinterpret_cast<const uint32_t*>(op.read(x, 0, n * sizeof(uint32_t)));
  for (uint64_t i = 0; i < n; ++i) {
    const float value = widen(scores[i]);
    if (value != value) fail_operand(Check::range, "src0", "NaN: where Sort32 puts it is not documented");
  }
  if (!apart(d, n * 8, s, n * sizeof(T)) || !apart(d, n * 8, x, n * 4)) {
    fail_operand(Check::overlap, "dst", "overlaps a source");
  }
  uint8_t* out = op.write(d, 0, n * 8);
  for (uint64_t first = 0; first < n; first += kRun) {
    uint32_t order[kRun];
    std::iota(order, order + kRun, 0u);
    std::stable_sort(order, order + kRun, [&](uint32_t a, uint32_t b) {
      return widen(scores[first + a]) > widen(scores[first + b]);
    });
    for (uint32_t i = 0; i < kRun; ++i) {
      uint8_t* pair = out + (first + i) * 8;
      std::memset(pair, 0, 8);
      std::memcpy(pair, &scores[first + order[i]], sizeof(T));
      std::memcpy(pair + 4, &indices[first + order[i]], 4);
    }
  }
}

// 16 blocks of a source list, element by element, into 16 blocks of a destination list, `repeatTimes` times. 16-bit:
// element j of block i becomes element i of block j. 32-bit: element j of block i becomes element i % 8 of block
// 2 j + i / 8.
template <typename T>
void transpose_blocks(const LocalTensor<T> (&dst)[16], const LocalTensor<T> (&src)[16],
                      const AscendC::TransDataTo5HDParams& p) {
  static_assert(GatherTypes::has<T> && !(std::is_same_v<T, bfloat16_t> && !k3510),
                "TransDataTo5HD: no overload for this element type on this architecture");
  constexpr uint32_t per_block = kBlockBytes / sizeof(T);
  Op op("TransDataTo5HD", Pipe::V, uint64_t{p.repeatTimes} * 16 * per_block);
  for (uint32_t r = 0; r < p.repeatTimes; ++r) {
    // With one repeat the strides are added to the start as well.
    const uint64_t step = p.repeatTimes == 1 ? 1 : r;
    T block[16][per_block];
    for (int i = 0; i < 16; ++i) {
      const Operand s = src[i].operand().named("src");
      check_source(op, {s, sizeof(T)});
      std::memcpy(block[i], op.read(s, step * p.srcRepStride * kBlockBytes, kBlockBytes), kBlockBytes);
    }
    for (int i = 0; i < 16; ++i) {
      const Operand d = dst[i].operand().named("dst");
      check_source(op, {d, sizeof(T)});
      T* out = reinterpret_cast<T*>(op.write(d, step * p.dstRepStride * kBlockBytes, kBlockBytes));
      for (uint32_t k = 0; k < per_block; ++k) {
        out[k] = sizeof(T) == 2 ? block[k][i] : block[(i % 2) * 8 + k][i / 2];
      }
    }
  }
}

}  // namespace twin

namespace AscendC {

template <typename T>
void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
            const uint32_t srcBaseOffset, const uint32_t count) {
  twin::gather(dst, src, srcOffset, srcBaseOffset, count);
}

template <typename T, typename U>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<U>& src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& gatherMaskParams,
                uint64_t& rsvdCnt) {
  static_assert(sizeof(U) == sizeof(T) && std::is_unsigned_v<U>,
                "GatherMask: the pattern is an unsigned type as wide as the elements");
  const twin::Operand bits = src1Pattern.operand().named("src1Pattern");
  twin::gather_mask(dst, src0, &bits, 0, reduceMode, mask, gatherMaskParams, rsvdCnt);
}
template <typename T>
void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const uint8_t src1Pattern,
                const bool reduceMode, const uint32_t mask, const GatherMaskParams& gatherMaskParams,
                uint64_t& rsvdCnt) {
  twin::gather_mask(dst, src0, nullptr, src1Pattern, reduceMode, mask, gatherMaskParams, rsvdCnt);
}

template <typename T>
void Sort32(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<uint32_t>& src1,
            const int32_t repeatTime) {
  twin::sort32(dst, src0, src1, repeatTime);
}

// A 16 x 16 matrix of 16-bit elements.
template <typename T> void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src) {
  static_assert(twin::one_of<T, int16_t, uint16_t, half>, "Transpose takes 16-bit elements");
  LocalTensor<T> to[16], from[16];
  for (uint32_t i = 0; i < 16; ++i) {
    to[i] = dst[i * 16];
    from[i] = src[i * 16];
  }
  TransDataTo5HDParams params;
  twin::transpose_blocks(to, from, params);
}

template <typename T>
void TransDataTo5HD(const LocalTensor<T> (&dstList)[16], const LocalTensor<T> (&srcList)[16],
                    const TransDataTo5HDParams& nchwconvParams) {
  twin::transpose_blocks(dstList, srcList, nchwconvParams);
}

}  // namespace AscendC
