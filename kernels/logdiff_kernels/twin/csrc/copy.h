// DataCopy and DataCopyPad: GM to UB and L1, UB to GM and UB.
//
// Pipes: into UB and L1 from GM MTE2, out to GM MTE3, within UB V.
#pragma once

#include <cstring>

#include "copy_params.h"
#include "modes.h"
#include "vector_apply.h"

namespace twin {

using AscendC::GlobalTensor;

constexpr uint32_t kMostBlocks = 4095;

template <typename T> T atomic_sum(T old, T value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(uint64_t(old) + uint64_t(value));
  } else {
    return narrow<T>(widen(old) + widen(value), false);
  }
}

// `bytes` of elements of T to `dst` + offset in GM: stored, or added where the kernel has set an atomic mode.
template <typename T> void write_gm(Op& op, const Operand& dst, uint64_t offset, const uint8_t* from, uint64_t bytes) {
  const Atomic mode = state().atomic.get();
  if (mode == Atomic::none) {
    std::memcpy(op.write(dst, offset, bytes), from, bytes);
    return;
  }
  if constexpr (one_of<T, float, half, bfloat16_t, int32_t, int16_t, int8_t>) {
    if (mode == atomic_add_of<T>()) {
      const uint8_t* old = op.read(dst, offset, bytes);
      uint8_t* to = op.write(dst, offset, bytes);
      for (uint64_t i = 0; i < bytes; i += sizeof(T)) {
        T a, b;
        std::memcpy(&a, old + i, sizeof(T));
        std::memcpy(&b, from + i, sizeof(T));
        a = atomic_sum(a, b);
        std::memcpy(to + i, &a, sizeof(T));
      }
      return;
    }
  }
  fail_operand(Check::state, "dst", "the atomic mode was set for another element type");
}

inline Pipe pipe_from_gm(const Operand& dst) {
  if (dst.memory != Memory::UB && dst.memory != Memory::L1) {
    fail(Check::overload, "no copy from GM to %s", name_of(dst.memory));
  }
  return Pipe::MTE2;
}

inline void check_to_gm(const Operand& src) {
  if (src.memory == Memory::UB) return;
  fail(Check::overload, "no copy from %s to GM: results of the cube leave L0C by Fixpipe", name_of(src.memory));
}

template <typename T> void check_gm(const Operand& gm) {
  if (gm.base % sizeof(T) != 0) fail_operand(Check::alignment, gm.label, "isn't aligned to its element type");
}

template <typename T> uint64_t copy_bytes(uint64_t count) {
  const uint64_t bytes = count * sizeof(T);
  if (bytes % kBlockBytes != 0) {
    fail(Check::alignment, "%llu bytes aren't a multiple of 32: the rest would not be copied (use DataCopyPad)",
         static_cast<unsigned long long>(bytes));
  }
  return bytes;
}

inline void check_blocks(const AscendC::DataCopyParams& p) {
  if (p.blockCount > kMostBlocks) fail(Check::repeat, "blockCount %u exceeds 4095", unsigned(p.blockCount));
}

// Starts and lengths of a copy by blocks.
struct Blocks {
  uint64_t count, bytes, src_step, dst_step;
};

inline Blocks blocks_of(const AscendC::DataCopyParams& p) {
  check_blocks(p);
  const uint64_t bytes = p.blockLen * kBlockBytes;
  return {p.blockCount, bytes, bytes + p.srcStride * kBlockBytes, bytes + p.dstStride * kBlockBytes};
}

template <typename T> void copy_in(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Blocks& b) {
  if (b.count == 0 || b.bytes == 0) return;
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  Op op("DataCopy", pipe_from_gm(d), b.count * b.bytes / sizeof(T));
  op.align(d);
  if (d.memory == Memory::UB) check_gm<T>(s);
  const uint8_t* from = op.read_strided(s, 0, b.bytes, b.src_step, b.count);
  uint8_t* to = op.write_strided(d, 0, b.bytes, b.dst_step, b.count);
  for (uint64_t i = 0; i < b.count; ++i) std::memcpy(to + i * b.dst_step, from + i * b.src_step, b.bytes);
}

template <typename T> void copy_out(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const Blocks& b) {
  if (b.count == 0 || b.bytes == 0) return;
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  check_to_gm(s);
  Op op("DataCopy", Pipe::MTE3, b.count * b.bytes / sizeof(T));
  op.align(s);
  check_gm<T>(d);
  const uint8_t* from = op.read_strided(s, 0, b.bytes, b.src_step, b.count);
  for (uint64_t i = 0; i < b.count; ++i) write_gm<T>(op, d, i * b.dst_step, from + i * b.src_step, b.bytes);
}

template <typename T> void copy_within(const LocalTensor<T>& dst, const LocalTensor<T>& src, const Blocks& b) {
  if (b.count == 0 || b.bytes == 0) return;
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  if (d.memory != Memory::UB || s.memory != Memory::UB) {
    fail(Check::overload, "a copy from %s to %s is not modelled%s", name_of(s.memory), name_of(d.memory),
         k3510 ? "" : ": dav-2201 has no such path, go through GM");
  }
  Op op("DataCopy", Pipe::V, b.count * b.bytes / sizeof(T));
  op.align(d);
  op.align(s);
  const uint64_t d_end = d.base + (b.count - 1) * b.dst_step + b.bytes;
  const uint64_t s_end = s.base + (b.count - 1) * b.src_step + b.bytes;
  if (d.base < s_end && s.base < d_end) fail_operand(Check::overlap, "dst", "overlaps src");
  const uint8_t* from = op.read_strided(s, 0, b.bytes, b.src_step, b.count);
  uint8_t* to = op.write_strided(d, 0, b.bytes, b.dst_step, b.count);
  for (uint64_t i = 0; i < b.count; ++i) std::memcpy(to + i * b.dst_step, from + i * b.src_step, b.bytes);
}

template <typename T> void check_ext(const AscendC::DataCopyExtParams& p) {
  if (p.blockCount > kMostBlocks) fail(Check::repeat, "blockCount %u exceeds 4095", unsigned(p.blockCount));
  if (p.blockLen > 2097151u) fail(Check::range, "blockLen %u exceeds 2097151", unsigned(p.blockLen));
  if (p.blockLen % sizeof(T) != 0) {
    fail(Check::alignment, "blockLen %u isn't a multiple of the element size", unsigned(p.blockLen));
  }
}

inline void check_gap(const char* name, int64_t gap, int64_t least, int64_t most) {
  if (gap < least || gap > most) fail(Check::stride, "%s %lld is out of range", name, static_cast<long long>(gap));
}

// Each block with its padding starts on a data block. What fills the last data block up is paddingValue if isPad and
// some padding is asked for; else nobody may rely on it.
template <typename T>
void pad_in(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const AscendC::DataCopyExtParams& p,
            const AscendC::DataCopyPadExtParams<T>& pad) {
  check_ext<T>(p);
  if (k3510) {
    check_gap("srcStride", int64_t(p.srcStride), -int64_t(p.blockLen), (int64_t{1} << 40) - 1);
    check_gap("dstStride", int64_t(p.dstStride), 0, 65535);
  }
  const uint64_t left = pad.leftPadding * sizeof(T), right = pad.rightPadding * sizeof(T);
  if (left > kBlockBytes || right > kBlockBytes) {
    fail(Check::range, "padding of %u and %u elements: at most 32 bytes a side", unsigned(pad.leftPadding),
         unsigned(pad.rightPadding));
  }
  if (p.blockCount == 0 || p.blockLen == 0) return;
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  if (d.memory != Memory::UB) fail(Check::overload, "DataCopyPad from GM to %s is not modelled", name_of(d.memory));
  Op op("DataCopyPad", Pipe::MTE2, uint64_t{p.blockCount} * (p.blockLen / sizeof(T)));
  op.align(d);
  const uint64_t length = p.blockLen, used = left + length + right, row = (used + 31) / 32 * 32;
  const uint64_t src_step = uint64_t(int64_t(length) + int64_t(p.srcStride)), dst_step = row + p.dstStride * kBlockBytes;
  const uint8_t* from = op.read_strided(s, 0, length, src_step, p.blockCount);
  const bool filled = pad.isPad && (left || right);
  const uint64_t begin = filled ? 0 : left, end = filled ? row : left + length;
  uint8_t* to = op.write_strided(d, begin, end - begin, dst_step, p.blockCount) - begin;
  for (uint64_t i = 0; i < p.blockCount; ++i) {
    uint8_t* block = to + i * dst_step;
    if (filled) {
      for (uint64_t at = 0; at < row; at += sizeof(T)) std::memcpy(block + at, &pad.paddingValue, sizeof(T));
    }
    std::memcpy(block + left, from + i * src_step, length);
    if (!filled) {
      if (left) op.write_unspecified(d, i * dst_step, left);
      if (row > left + length) op.write_unspecified(d, i * dst_step + left + length, row - left - length);
    }
  }
}

template <typename T>
void pad_out(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const AscendC::DataCopyExtParams& p) {
  check_ext<T>(p);
  if (k3510) {
    check_gap("srcStride", int64_t(p.srcStride), 0, 65535);
    check_gap("dstStride", int64_t(p.dstStride), 0, (int64_t{1} << 40) - 1);
  }
  if (p.blockCount == 0 || p.blockLen == 0) return;
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  check_to_gm(s);
  Op op("DataCopyPad", Pipe::MTE3, uint64_t{p.blockCount} * (p.blockLen / sizeof(T)));
  op.align(s);
  const uint64_t length = p.blockLen, src_step = (length + 31) / 32 * 32 + p.srcStride * kBlockBytes;
  const uint64_t dst_step = length + uint64_t(int64_t(p.dstStride));
  const uint8_t* from = op.read_strided(s, 0, length, src_step, p.blockCount);
  for (uint64_t i = 0; i < p.blockCount; ++i) write_gm<T>(op, d, i * dst_step, from + i * src_step, length);
}

}  // namespace twin

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count) {
  const uint64_t bytes = twin::copy_bytes<T>(count);
  twin::copy_in(dst, src, {1, bytes, bytes, bytes});
}
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count) {
  const uint64_t bytes = twin::copy_bytes<T>(count);
  twin::copy_out(dst, src, {1, bytes, bytes, bytes});
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count) {
  const uint64_t bytes = twin::copy_bytes<T>(count);
  twin::copy_within(dst, src, {1, bytes, bytes, bytes});
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& repeatParams) {
  twin::copy_in(dst, src, twin::blocks_of(repeatParams));
}
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& repeatParams) {
  twin::copy_out(dst, src, twin::blocks_of(repeatParams));
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& repeatParams) {
  twin::copy_within(dst, src, twin::blocks_of(repeatParams));
}

template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& dataCopyParams,
                 const DataCopyPadExtParams<T>& padParams) {
  twin::pad_in(dst, src, dataCopyParams, padParams);
}
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& dataCopyParams) {
  twin::pad_out(dst, src, dataCopyParams);
}

}  // namespace AscendC
