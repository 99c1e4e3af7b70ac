// GM to L1 as NZ, L1 to L0A and L0B, and filling L1 and L0 with a value.
//
// A fractal is 16 rows of 32 bytes. L1 usually holds NZ: column blocks of fractals, one below the other. L0B is Zn (an
// NZ matrix of the transposed operand), L0A is Zz on 2201 (rows of fractals) and NZ on 3510.
#pragma once

#include "copy.h"
#include "cube_params.h"

namespace twin {

constexpr uint64_t kFractalBytes = 512;

inline void check_most(const char* name, uint64_t value, uint64_t least, uint64_t most) {
  if (value < least || value > most) {
    fail(Check::range, "%s is %llu: %llu to %llu", name, static_cast<unsigned long long>(value),
         static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
  }
}

// Rows of the source become rows of 32-byte pieces, one piece in each column block; the last piece is filled with 0.
template <typename T>
void copy_nd_to_nz(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const AscendC::Nd2NzParams& p) {
  static_assert(sizeof(T) <= 4, "Nd2Nz takes elements of up to 32 bits");
  if (p.ndNum == 0 || p.nValue == 0 || p.dValue == 0) return;
  check_most("ndNum", p.ndNum, 1, 4095);
  check_most("nValue", p.nValue, 1, 16384);
  check_most("srcDValue", p.srcDValue, 1, k3510 ? ~0ull >> 24 : 65535);
  check_most("dstNzC0Stride", p.dstNzC0Stride, 1, 16384);
  check_most("dstNzNStride", p.dstNzNStride, 1, 16384);
  if (!k3510) check_most("dstNzMatrixStride", p.dstNzMatrixStride, 0, 65535);
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  if (d.memory != Memory::L1) fail(Check::overload, "Nd2Nz into %s is not modelled", name_of(d.memory));
  Op op("DataCopy(Nd2Nz)", Pipe::MTE2, uint64_t{p.ndNum} * p.nValue * p.dValue);
  op.align(d);
  const uint64_t row = p.dValue * sizeof(T), blocks = (row + kBlockBytes - 1) / kBlockBytes;
  const uint64_t block_step = p.dstNzC0Stride * kBlockBytes, row_step = p.dstNzNStride * kBlockBytes;
  if (blocks > 1 && p.dstNzNStride == 1 && p.dstNzC0Stride < p.nValue) {
    fail_operand(Check::overlap, "dst", "column blocks of %u rows lie %u apart", unsigned(p.nValue),
                 unsigned(p.dstNzC0Stride));
  }
  for (uint64_t i = 0; i < p.ndNum; ++i) {
    const uint64_t source = i * p.srcNdMatrixStride * sizeof(T), target = i * p.dstNzMatrixStride * sizeof(T);
    const uint64_t pitch = p.srcDValue * sizeof(T);
    const uint8_t* from = pitch == row ? op.read(s, source, row * p.nValue)
                                       : op.read_strided(s, source, row, pitch, p.nValue);
    for (uint64_t b = 0; b < blocks; ++b) {
      const uint64_t at = target + b * block_step;
      uint8_t* to = row_step == kBlockBytes ? op.write(d, at, p.nValue * kBlockBytes)
                                            : op.write_strided(d, at, kBlockBytes, row_step, p.nValue);
      const uint64_t bytes = std::min(kBlockBytes, row - b * kBlockBytes);
      for (uint64_t r = 0; r < p.nValue; ++r) {
        std::memcpy(to + r * row_step, from + r * pitch + b * kBlockBytes, bytes);
        std::memset(to + r * row_step + bytes, 0, kBlockBytes - bytes);
      }
    }
  }
}

inline void check_l1_to_l0(const Op& op, const Operand& d, const Operand& s) {
  if (s.memory != Memory::L1 || (d.memory != Memory::L0A && d.memory != Memory::L0B)) {
    fail(Check::overload, "LoadData from %s to %s is not modelled", name_of(s.memory), name_of(d.memory));
  }
  op.align(d);
  op.align(s);
}

// One fractal of 16 x 16 elements of 16 bits, transposed.
inline void transpose_fractal(uint8_t* to, const uint8_t* from) {
  uint16_t in[16][16], out[16][16];
  std::memcpy(in, from, kFractalBytes);
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) out[c][r] = in[r][c];
  }
  std::memcpy(to, out, kFractalBytes);
}

// Two fractals of 16 x 8 elements of 32 bits, side by side, transposed into two such fractals.
inline void transpose_square(uint8_t* first, uint8_t* second, const uint8_t* left, const uint8_t* right) {
  uint32_t in[2][16][8], out[2][16][8];
  std::memcpy(in[0], left, kFractalBytes);
  std::memcpy(in[1], right, kFractalBytes);
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) out[r / 8][c][r % 8] = in[c / 8][r][c % 8];
  }
  std::memcpy(first, out[0], kFractalBytes);
  std::memcpy(second, out[1], kFractalBytes);
}

// Fractals of 2201's LoadData, also offered by 3510: one run, each transposed on the way if asked for.
template <typename T>
void load_fractals(const LocalTensor<T>& dst, const LocalTensor<T>& src, const AscendC::LoadData2DParams& p) {
  if (p.ifTranspose && sizeof(T) != 2) fail(Check::overload, "LoadData transposes elements of 16 bits only");
  if (p.addrMode != 0) fail(Check::overload, "addrMode 1 works from GM only");
  if (k3510 && p.dstGap != 0) fail(Check::stride, "dav-3510 ignores dstGap: leave it 0");
  if (p.repeatTimes == 0) return;
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  Op op("LoadData", Pipe::MTE1, p.repeatTimes * kFractalBytes / sizeof(T));
  check_l1_to_l0(op, d, s);
  const uint64_t src_step = p.srcStride * kFractalBytes, dst_step = (p.dstGap + uint64_t{1}) * kFractalBytes;
  const uint64_t start = p.startIndex * kFractalBytes, count = p.repeatTimes;
  const uint8_t* from = p.srcStride == 1 ? op.read(s, start, count * kFractalBytes)
                                         : op.read_strided(s, start, kFractalBytes, src_step, count);
  uint8_t* to = p.dstGap == 0 ? op.write(d, 0, count * kFractalBytes)
                              : op.write_strided(d, 0, kFractalBytes, dst_step, count);
  for (uint64_t i = 0; i < count; ++i) {
    if (p.ifTranspose) {
      transpose_fractal(to + i * dst_step, from + i * src_step);
    } else {
      std::memcpy(to + i * dst_step, from + i * src_step, kFractalBytes);
    }
  }
}

#if __NPU_ARCH__ == 3510
// Column j of the source block becomes column j of dst, or row j if transposed (32 bits: half a row of 16).
template <typename T>
void load_block(const LocalTensor<T>& dst, const LocalTensor<T>& src, const AscendC::LoadData2DParamsV2& p) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4, "LoadData is modelled for elements of 16 and 32 bits");
  constexpr bool wide = sizeof(T) == 4;
  check_most("mStep", p.mStep, 0, 255);
  check_most("kStep", p.kStep, 0, 255);
  if (p.mStep == 0 || p.kStep == 0) return;
  if (p.srcStride < 0) fail(Check::stride, "a negative srcStride is not modelled");
  if (p.ifTranspose && wide && p.kStep % 2 != 0) {
    fail(Check::range, "kStep %u: transposing 32-bit elements takes pairs of columns", unsigned(p.kStep));
  }
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  const uint64_t m = p.mStep, k = p.kStep;
  Op op("LoadData", Pipe::MTE1, m * k * kFractalBytes / sizeof(T));
  check_l1_to_l0(op, d, s);
  const auto source = [&](uint64_t j) {
    return ((p.kStartPosition + j) * uint64_t(p.srcStride) + p.mStartPosition) * kFractalBytes;
  };
  const uint8_t* base = nullptr;
  for (uint64_t j = 0; j < k; ++j) base = op.read(s, source(j), m * kFractalBytes) - source(j);
  const uint64_t columns = p.ifTranspose ? (wide ? 2 * m : m) : k;
  const uint64_t height = p.ifTranspose ? (wide ? k / 2 : k) : m;
  if (columns > 1 && p.dstStride < height) {
    fail_operand(Check::overlap, "dst", "columns of %llu fractals lie %u apart", static_cast<unsigned long long>(height),
                 unsigned(p.dstStride));
  }
  const uint64_t step = p.dstStride * kFractalBytes;
  uint8_t* to = nullptr;
  for (uint64_t c = 0; c < columns; ++c) to = op.write(d, c * step, height * kFractalBytes) - c * step;
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
// 2201: squares of 16 x 16, transposed; of two neighbouring fractals for 32 bits.
template <typename T>
void load_transposed(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                     const AscendC::LoadData2dTransposeParams& p) {
  static_assert(one_of<T, half, bfloat16_t, float, int32_t, uint32_t>,
                "LoadDataWithTranspose is modelled for half, bfloat16_t and 32 bits");
  constexpr uint64_t fractals = sizeof(T) / 2;
  if (p.addrMode != 0) fail(Check::overload, "addrMode 1 is not modelled");
  if (p.repeatTimes == 0) return;
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  Op op("LoadDataWithTranspose", Pipe::MTE1, p.repeatTimes * uint64_t{256});
  check_l1_to_l0(op, d, s);
  for (uint64_t i = 0; i < p.repeatTimes; ++i) {
    const uint64_t at = (p.startIndex + i * p.srcStride) * fractals * kFractalBytes;
    const uint64_t first = i * (p.dstGap + uint64_t{1}) * kFractalBytes;
    const uint8_t* from = op.read(s, at, fractals * kFractalBytes);
    uint8_t* to = op.write(d, first, kFractalBytes);
    if constexpr (fractals == 1) {
      transpose_fractal(to, from);
    } else {
      uint8_t* second = op.write(d, first + (p.dstFracGap + uint64_t{1}) * kFractalBytes, kFractalBytes);
      transpose_square(to, second, from, from + kFractalBytes);
    }
  }
}
#endif

template <typename T>
void fill_blocks(const LocalTensor<T>& dst, const AscendC::InitConstValueParams<T>& p) {
  static_assert(one_of<T, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>,
                "InitConstValue: no overload for this element type on this architecture");
  const Operand d = dst.operand().named("dst");
  const bool in_l0 = d.memory == Memory::L0A || d.memory == Memory::L0B;
  if (d.memory != Memory::L1 && !in_l0) fail(Check::overload, "InitConstValue in %s", name_of(d.memory));
  if (in_l0 && k3510) fail(Check::overload, "dav-3510 has no instruction that fills L0A or L0B");
  check_most("repeatTimes", p.repeatTimes, 0, 32767);
  check_most("blockNum", p.blockNum, 0, 32767);
  check_most("dstGap", p.dstGap, 0, 32767);
  if (p.repeatTimes == 0 || p.blockNum == 0) return;
  const uint64_t block = in_l0 ? kFractalBytes : kBlockBytes, bytes = p.blockNum * block;
  Op op("InitConstValue", in_l0 ? Pipe::MTE1 : Pipe::MTE2, p.repeatTimes * bytes / sizeof(T));
  op.align(d);
  const uint64_t step = bytes + p.dstGap * block;
  uint8_t* to = op.write_strided(d, 0, bytes, step, p.repeatTimes);
  for (uint64_t r = 0; r < p.repeatTimes; ++r) {
    T* run = reinterpret_cast<T*>(to + r * step);
    std::fill(run, run + bytes / sizeof(T), p.initValue);
  }
}

}  // namespace twin

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& intriParams) {
  twin::copy_nd_to_nz(dst, src, intriParams);
}

template <typename T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParams& loadDataParams) {
  twin::load_fractals(dst, src, loadDataParams);
}
#if __NPU_ARCH__ == 3510
template <typename T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParamsV2& loadDataParams) {
  twin::load_block(dst, src, loadDataParams);
}
#else
template <typename T>
void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                           const LoadData2dTransposeParams& loadDataParams) {
  twin::load_transposed(dst, src, loadDataParams);
}
#endif

template <typename T, typename U = T, typename = std::enable_if_t<std::is_same_v<T, U>>>
void InitConstValue(const LocalTensor<T>& dst, const InitConstValueParams<U>& initConstValueParams) {
  twin::fill_blocks(dst, initConstValueParams);
}
template <typename T, typename U = T, typename = std::enable_if_t<std::is_same_v<T, U>>>
void Fill(const LocalTensor<T>& dst, const InitConstValueParams<U>& initConstValueParams) {
  twin::fill_blocks(dst, initConstValueParams);
}

}  // namespace AscendC
