#include "cube_load.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace twin {

namespace {

void check_l1_to_l0(const Op& op, const Operand& dst, const Operand& src) {
  if (src.memory != Memory::L1 || (dst.memory != Memory::L0A && dst.memory != Memory::L0B)) {
    fail(Check::overload, "LoadData from %s to %s is not modelled", name_of(src.memory), name_of(dst.memory));
  }
  op.align(dst);
  op.align(src);
}

// One fractal of 16 x 16 elements of 16 bits, transposed.
void transpose_fractal(uint8_t* to, const uint8_t* from) {
  uint16_t in[16][16], out[16][16];
  std::memcpy(in, from, kFractalBytes);
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) out[c][r] = in[r][c];
  }
  std::memcpy(to, out, kFractalBytes);
}

// Two fractals of 16 x 8 elements of 32 bits, side by side, transposed into two such fractals.
void transpose_square(uint8_t* first, uint8_t* second, const uint8_t* left, const uint8_t* right) {
  uint32_t in[2][16][8], out[2][16][8];
  std::memcpy(in[0], left, kFractalBytes);
  std::memcpy(in[1], right, kFractalBytes);
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) out[r / 8][c][r % 8] = in[c / 8][r][c % 8];
  }
  std::memcpy(first, out[0], kFractalBytes);
  std::memcpy(second, out[1], kFractalBytes);
}

// Fails where two pieces of 32 bytes of the result would lie on each other: the order of such writes is not given.
void check_pieces_apart(const AscendC::Nd2NzParams& p, uint64_t blocks, uint32_t size) {
  const int64_t row = p.dstNzNStride, column = p.dstNzC0Stride, rows = p.nValue, columns = int64_t(blocks);
  const uint64_t bytes = uint64_t(p.dstNzMatrixStride) * size;
  if (p.ndNum > 1 && bytes % kBlockBytes != 0) {
    fail_operand(Check::alignment, "dst", "dstNzMatrixStride %u puts matrices between data blocks",
                 unsigned(p.dstNzMatrixStride));
  }
  const int64_t matrix = int64_t(bytes / kBlockBytes);
  for (int64_t i = 0; i < p.ndNum; ++i) {
    for (int64_t j = i == 0 ? 1 : 1 - columns; j < columns; ++j) {
      const int64_t distance = i * matrix + j * column;
      if (i == 0 && distance > (rows - 1) * row) break;
      if (distance % row != 0 || std::abs(distance / row) >= rows) continue;
      fail_operand(Check::overlap, "dst", "rows %u, columns %u and matrices %lld data blocks apart lie on each other",
                   unsigned(p.dstNzNStride), unsigned(p.dstNzC0Stride), static_cast<long long>(matrix));
    }
  }
}

}  // namespace

void check_value(const char* name, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return;
  fail(Check::range, "%s is %llu: %llu to %llu", name, static_cast<unsigned long long>(value),
       static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
}

void copy_nd_to_nz(const Operand& dst, const Operand& src, uint32_t size, const AscendC::Nd2NzParams& p) {
  if (p.ndNum == 0 || p.nValue == 0 || p.dValue == 0) return;
  check_value("ndNum", p.ndNum, 1, 4095);
  check_value("nValue", p.nValue, 1, 16384);
  check_value("srcDValue", p.srcDValue, 1, k3510 ? (uint64_t{1} << 40) - 1 : 65535);
  check_value("dstNzC0Stride", p.dstNzC0Stride, 1, 16384);
  check_value("dstNzNStride", p.dstNzNStride, 1, 16384);
  if (p.ndNum > 1) check_value("dstNzMatrixStride", p.dstNzMatrixStride, 0, 16384);
  if (dst.memory != Memory::L1) fail(Check::overload, "Nd2Nz into %s is not modelled", name_of(dst.memory));
  const uint64_t rows = p.nValue, row = uint64_t{p.dValue} * size, blocks = (row + kBlockBytes - 1) / kBlockBytes;
  const uint64_t block_step = p.dstNzC0Stride * kBlockBytes, row_step = p.dstNzNStride * kBlockBytes;
  const uint64_t pitch = uint64_t(p.srcDValue) * size;
  Op op("DataCopy(Nd2Nz)", Pipe::MTE2, p.ndNum * rows * p.dValue);
  op.align(dst);
  check_pieces_apart(p, blocks, size);
  for (uint64_t i = 0; i < p.ndNum; ++i) {
    const uint64_t source = i * uint64_t(p.srcNdMatrixStride) * size, target = i * uint64_t(p.dstNzMatrixStride) * size;
    const uint8_t* from = pitch == row ? op.read(src, source, row * rows) : op.read_strided(src, source, row, pitch, rows);
    for (uint64_t b = 0; b < blocks; ++b) {
      const uint64_t at = target + b * block_step, bytes = std::min(kBlockBytes, row - b * kBlockBytes);
      uint8_t* to = row_step == kBlockBytes ? op.write(dst, at, rows * kBlockBytes)
                                            : op.write_strided(dst, at, kBlockBytes, row_step, rows);
      for (uint64_t r = 0; r < rows; ++r) {
        std::memcpy(to + r * row_step, from + r * pitch + b * kBlockBytes, bytes);
        std::memset(to + r * row_step + bytes, 0, kBlockBytes - bytes);
      }
    }
  }
}

void load_fractals(const Operand& dst, const Operand& src, uint32_t size, const AscendC::LoadData2DParams& p) {
  if (p.ifTranspose && size != 2) fail(Check::overload, "LoadData transposes elements of 16 bits only");
  if (p.addrMode != 0) fail(Check::overload, "addrMode 1 works from GM only");
  if (k3510 && p.dstGap != 0) fail(Check::stride, "dav-3510 ignores dstGap: leave it 0");
  if (p.repeatTimes == 0) return;
  const uint64_t count = p.repeatTimes, start = p.startIndex * kFractalBytes;
  Op op("LoadData", Pipe::MTE1, count * kFractalBytes / size);
  check_l1_to_l0(op, dst, src);
  const uint64_t src_step = p.srcStride * kFractalBytes, dst_step = (p.dstGap + uint64_t{1}) * kFractalBytes;
  const uint8_t* from = p.srcStride == 1 ? op.read(src, start, count * kFractalBytes)
                                         : op.read_strided(src, start, kFractalBytes, src_step, count);
  uint8_t* to = p.dstGap == 0 ? op.write(dst, 0, count * kFractalBytes)
                              : op.write_strided(dst, 0, kFractalBytes, dst_step, count);
  for (uint64_t i = 0; i < count; ++i) {
    if (p.ifTranspose) {
      transpose_fractal(to + i * dst_step, from + i * src_step);
    } else {
      std::memcpy(to + i * dst_step, from + i * src_step, kFractalBytes);
    }
  }
}

#if __NPU_ARCH__ == 3510
void load_block(const Operand& dst, const Operand& src, uint32_t size, const AscendC::LoadData2DParamsV2& p) {
  const bool wide = size == 4;
  const uint64_t m = p.mStep, k = p.kStep, step = p.dstStride * kFractalBytes;
  check_value("mStep", m, 0, 255);
  check_value("kStep", k, 0, 255);
  if (m == 0 || k == 0) return;
  if (p.srcStride < 0) fail(Check::stride, "a negative srcStride is not modelled");
  if (p.ifTranspose && wide && k % 2 != 0) {
    fail(Check::range, "kStep %u: transposing 32-bit elements takes pairs of columns", unsigned(p.kStep));
  }
  const uint64_t columns = p.ifTranspose ? (wide ? 2 * m : m) : k;
  const uint64_t height = p.ifTranspose ? (wide ? k / 2 : k) : m;
  if (columns > 1 && p.dstStride < height) {
    fail_operand(Check::overlap, "dst", "columns of %llu fractals lie %u apart",
                 static_cast<unsigned long long>(height), unsigned(p.dstStride));
  }
  Op op("LoadData", Pipe::MTE1, m * k * kFractalBytes / size);
  check_l1_to_l0(op, dst, src);
  const auto source = [&](uint64_t j) {
    return ((p.kStartPosition + j) * uint64_t(p.srcStride) + p.mStartPosition) * kFractalBytes;
  };
  const uint8_t* base = nullptr;
  uint8_t* to = nullptr;
  for (uint64_t j = 0; j < k; ++j) base = op.read(src, source(j), m * kFractalBytes) - source(j);
  for (uint64_t c = 0; c < columns; ++c) to = op.write(dst, c * step, height * kFractalBytes) - c * step;
  for (uint64_t j = 0; j < k; ++j) {
    for (uint64_t i = 0; i < m; ++i) {
      const uint8_t* from = base + source(j) + i * kFractalBytes;
      if (!p.ifTranspose) {
        std::memcpy(to + j * step + i * kFractalBytes, from, kFractalBytes);
      } else if (!wide) {
        transpose_fractal(to + i * step + j * kFractalBytes, from);
      } else if (j % 2 == 0) {
        uint8_t* first = to + 2 * i * step + j / 2 * kFractalBytes;
        transpose_square(first, first + step, from, base + source(j + 1) + i * kFractalBytes);
      }
    }
  }
}
#else
void load_transposed(const Operand& dst, const Operand& src, uint32_t size,
                     const AscendC::LoadData2dTransposeParams& p) {
  const uint64_t square = size / 2 * kFractalBytes;
  if (p.addrMode != 0) fail(Check::overload, "addrMode 1 is not modelled");
  if (p.repeatTimes == 0) return;
  Op op("LoadDataWithTranspose", Pipe::MTE1, p.repeatTimes * uint64_t{256});
  check_l1_to_l0(op, dst, src);
  for (uint64_t i = 0; i < p.repeatTimes; ++i) {
    const uint64_t first = i * (p.dstGap + uint64_t{1}) * kFractalBytes;
    const uint8_t* from = op.read(src, (p.startIndex + i * p.srcStride) * square, square);
    uint8_t* to = op.write(dst, first, kFractalBytes);
    if (size == 2) {
      transpose_fractal(to, from);
    } else {
      uint8_t* second = op.write(dst, first + (p.dstFracGap + uint64_t{1}) * kFractalBytes, kFractalBytes);
      transpose_square(to, second, from, from + kFractalBytes);
    }
  }
}
#endif

void fill_blocks(const Operand& dst, uint32_t size, const void* value, uint32_t repeats, uint32_t blocks,
                 uint32_t gap) {
  const bool in_l0 = dst.memory == Memory::L0A || dst.memory == Memory::L0B;
  if (dst.memory != Memory::L1 && !in_l0) fail(Check::overload, "InitConstValue in %s", name_of(dst.memory));
  if (in_l0 && k3510) fail(Check::overload, "dav-3510 has no instruction that fills L0A or L0B");
  check_value("repeatTimes", repeats, 0, 32767);
  check_value("blockNum", blocks, 0, 32767);
  check_value("dstGap", gap, 0, 32767);
  if (repeats == 0 || blocks == 0) return;
  const uint64_t block = in_l0 ? kFractalBytes : kBlockBytes, bytes = blocks * block, step = bytes + gap * block;
  Op op("InitConstValue", in_l0 ? Pipe::MTE1 : Pipe::MTE2, repeats * bytes / size);
  op.align(dst);
  uint8_t* to = gap == 0 ? op.write(dst, 0, bytes * repeats) : op.write_strided(dst, 0, bytes, step, repeats);
  for (uint64_t r = 0; r < repeats; ++r) {
    for (uint64_t at = 0; at < bytes; at += size) std::memcpy(to + r * step + at, value, size);
  }
}

}  // namespace twin
