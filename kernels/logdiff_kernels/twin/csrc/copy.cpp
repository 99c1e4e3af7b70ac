#include "copy.h"

#include <cstring>

#include "vector_apply.h"
#include "vector_walk.h"

namespace twin {

namespace {

constexpr uint32_t kMostBlocks = 4095;

template <typename T>
void add_elements(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + i, sizeof(T));
    std::memcpy(&b, from + i, sizeof(T));
    if constexpr (std::is_integral_v<T>) {
      a = static_cast<T>(uint64_t(a) + uint64_t(b));
    } else {
      a = narrow<T>(widen(a) + widen(b), false);
    }
    std::memcpy(to + i, &a, sizeof(T));
  }
}

void add(Atomic mode, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  switch (mode) {
    case Atomic::add_float: return add_elements<float>(to, from, bytes);
    case Atomic::add_half: return add_elements<half>(to, from, bytes);
    case Atomic::add_bfloat16: return add_elements<bfloat16_t>(to, from, bytes);
    case Atomic::add_int32: return add_elements<int32_t>(to, from, bytes);
    case Atomic::add_int16: return add_elements<int16_t>(to, from, bytes);
    case Atomic::add_int8: return add_elements<int8_t>(to, from, bytes);
    case Atomic::none: break;
  }
}

void check_block_count(uint32_t count) {
  if (count > kMostBlocks) fail(Check::repeat, "blockCount %u exceeds 4095", count);
}

void check_gm(const Operand& gm, Element element) {
  if (gm.base % element.size != 0) fail_operand(Check::alignment, gm.label, "isn't aligned to its element type");
}

void check_to_gm(const Operand& src) {
  if (src.memory == Memory::UB) return;
  fail(Check::overload, "no copy from %s to GM: results of the cube leave L0C by Fixpipe", name_of(src.memory));
}

void check_gap(const char* name, int64_t gap, int64_t least, int64_t most) {
  if (gap < least || gap > most) fail(Check::stride, "%s %lld is out of range", name, static_cast<long long>(gap));
}

void check_ext(const AscendC::DataCopyExtParams& p, Element element) {
  check_block_count(p.blockCount);
  if (p.blockLen > 2097151u) fail(Check::range, "blockLen %u exceeds 2097151", unsigned(p.blockLen));
  if (p.blockLen % element.size != 0) {
    fail(Check::alignment, "blockLen %u isn't a multiple of the element size", unsigned(p.blockLen));
  }
}

void copy_blocks(uint8_t* to, const uint8_t* from, const Blocks& b) {
  for (uint64_t i = 0; i < b.count; ++i) std::memcpy(to + i * b.dst_step, from + i * b.src_step, b.bytes);
}

const uint8_t* read_blocks(Op& op, const Operand& src, const Blocks& b) {
  return b.src_step == b.bytes ? op.read(src, 0, b.bytes * b.count)
                               : op.read_strided(src, 0, b.bytes, b.src_step, b.count);
}

uint8_t* write_blocks(Op& op, const Operand& dst, const Blocks& b) {
  return b.dst_step == b.bytes ? op.write(dst, 0, b.bytes * b.count)
                               : op.write_strided(dst, 0, b.bytes, b.dst_step, b.count);
}

}  // namespace

void write_gm(Op& op, const Operand& dst, uint64_t offset, Element element, const uint8_t* from, uint64_t bytes) {
  const Atomic mode = state().atomic.get();
  if (mode == Atomic::none) {
    std::memcpy(op.write(dst, offset, bytes), from, bytes);
    return;
  }
  if (mode != element.add) fail_operand(Check::state, dst.label, "the atomic mode was set for another element type");
  op.read(dst, offset, bytes);
  add(mode, op.write(dst, offset, bytes), from, bytes);
}

Blocks blocks_of(const AscendC::DataCopyParams& p) {
  check_block_count(p.blockCount);
  const uint64_t bytes = p.blockLen * kBlockBytes;
  return {p.blockCount, bytes, bytes + p.srcStride * kBlockBytes, bytes + p.dstStride * kBlockBytes};
}

Blocks blocks_of(uint64_t count, uint32_t size) {
  const uint64_t bytes = count * size;
  if (bytes % kBlockBytes != 0) {
    fail(Check::alignment, "%llu bytes aren't a multiple of 32: the rest would not be copied (use DataCopyPad)",
         static_cast<unsigned long long>(bytes));
  }
  return {1, bytes, bytes, bytes};
}

void copy_in(const Operand& dst, const Operand& src, Element element, const Blocks& b) {
  if (b.count == 0 || b.bytes == 0) return;
  if (dst.memory != Memory::UB && dst.memory != Memory::L1) {
    fail(Check::overload, "no copy from GM to %s", name_of(dst.memory));
  }
  Op op("DataCopy", Pipe::MTE2, b.count * b.bytes / element.size);
  op.align(dst);
  if (dst.memory == Memory::UB) check_gm(src, element);
  const uint8_t* from = read_blocks(op, src, b);
  copy_blocks(write_blocks(op, dst, b), from, b);
}

void copy_out(const Operand& dst, const Operand& src, Element element, const Blocks& b) {
  if (b.count == 0 || b.bytes == 0) return;
  check_to_gm(src);
  Op op("DataCopy", Pipe::MTE3, b.count * b.bytes / element.size);
  op.align(src);
  check_gm(dst, element);
  const uint8_t* from = read_blocks(op, src, b);
  const bool dense = b.src_step == b.bytes && b.dst_step == b.bytes;
  const uint64_t count = dense ? 1 : b.count, bytes = dense ? b.bytes * b.count : b.bytes;
  for (uint64_t i = 0; i < count; ++i) write_gm(op, dst, i * b.dst_step, element, from + i * b.src_step, bytes);
}

void copy_within(const Operand& dst, const Operand& src, Element element, const Blocks& b) {
  if (b.count == 0 || b.bytes == 0) return;
  if (dst.memory != Memory::UB || src.memory != Memory::UB) {
    fail(Check::overload, "a copy from %s to %s is not modelled%s", name_of(src.memory), name_of(dst.memory),
         k3510 ? "" : ": dav-2201 has no such path, go through GM");
  }
  Op op("DataCopy", Pipe::V, b.count * b.bytes / element.size);
  op.align(dst);
  op.align(src);
  if (!apart(dst, (b.count - 1) * b.dst_step + b.bytes, src, (b.count - 1) * b.src_step + b.bytes)) {
    fail_operand(Check::overlap, "dst", "overlaps src");
  }
  const uint8_t* from = read_blocks(op, src, b);
  copy_blocks(write_blocks(op, dst, b), from, b);
}

void pad_in(const Operand& dst, const Operand& src, Element element, const AscendC::DataCopyExtParams& p,
            const Padding& padding) {
  check_ext(p, element);
  if (k3510) {
    check_gap("srcStride", int64_t(p.srcStride), -int64_t(p.blockLen), (int64_t{1} << 40) - 1);
    check_gap("dstStride", int64_t(p.dstStride), 0, 65535);
  }
  const uint64_t left = padding.left * element.size, right = padding.right * element.size, length = p.blockLen;
  if (left > kBlockBytes || right > kBlockBytes) {
    fail(Check::range, "padding of %u and %u elements: at most 32 bytes a side", padding.left, padding.right);
  }
  if (p.blockCount == 0 || length == 0) return;
  if (dst.memory != Memory::UB) fail(Check::overload, "DataCopyPad from GM to %s is not modelled", name_of(dst.memory));
  Op op("DataCopyPad", Pipe::MTE2, p.blockCount * (length / element.size));
  op.align(dst);
  const uint64_t row = (left + length + right + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const uint64_t src_step = uint64_t(int64_t(length) + int64_t(p.srcStride));
  const uint64_t dst_step = row + uint64_t(p.dstStride) * kBlockBytes;
  const bool filled = padding.on && (left || right);
  const uint64_t begin = filled ? 0 : left, end = filled ? row : left + length;
  const uint8_t* from = read_blocks(op, src, {p.blockCount, length, src_step, 0});
  uint8_t* to = op.write_strided(dst, begin, end - begin, dst_step, p.blockCount) - begin;
  for (uint64_t i = 0; i < p.blockCount; ++i) {
    uint8_t* block = to + i * dst_step;
    for (uint64_t at = 0; filled && at < row; at += element.size) std::memcpy(block + at, padding.value, element.size);
    std::memcpy(block + left, from + i * src_step, length);
    if (filled) continue;
    if (left) op.write_unspecified(dst, i * dst_step, left);
    if (row > left + length) op.write_unspecified(dst, i * dst_step + left + length, row - left - length);
  }
}

void pad_out(const Operand& dst, const Operand& src, Element element, const AscendC::DataCopyExtParams& p) {
  check_ext(p, element);
  if (k3510) {
    check_gap("srcStride", int64_t(p.srcStride), 0, 65535);
    check_gap("dstStride", int64_t(p.dstStride), 0, (int64_t{1} << 40) - 1);
  }
  const uint64_t length = p.blockLen;
  if (p.blockCount == 0 || length == 0) return;
  check_to_gm(src);
  Op op("DataCopyPad", Pipe::MTE3, p.blockCount * (length / element.size));
  op.align(src);
  const uint64_t row = (length + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  const Blocks b{p.blockCount, length, row + uint64_t(p.srcStride) * kBlockBytes, length + uint64_t(p.dstStride)};
  const uint8_t* from = read_blocks(op, src, b);
  for (uint64_t i = 0; i < b.count; ++i) write_gm(op, dst, i * b.dst_step, element, from + i * b.src_step, length);
}

}  // namespace twin
