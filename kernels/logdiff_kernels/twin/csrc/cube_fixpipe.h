// Fixpipe: an L0C tile to row-major GM, as fp32 or rounded once to half or bfloat16_t.
#pragma once

#include "cube_load.h"

namespace twin {

// What both architectures' records say, in bytes and elements.
struct FixpipeTile {
  uint32_t n, m;
  uint64_t column_step;               // bytes of L0C from column block to column block
  uint64_t row_step;                  // elements of dst from row to row
  uint32_t count;                     // tiles
  uint64_t src_tile_step;             // bytes
  uint64_t dst_tile_step;             // elements
  QuantMode_t quant;
  bool relu;
};

template <typename T> constexpr QuantMode_t kQuantFor =
    std::is_same_v<T, half> ? QuantMode_t::F322F16 : std::is_same_v<T, bfloat16_t> ? QuantMode_t::F322BF16 : NoQuant;

template <typename T> void store_tile(const GlobalTensor<T>& dst, const LocalTensor<float>& src, const FixpipeTile& t) {
  static_assert(one_of<T, float, half, bfloat16_t>, "Fixpipe is modelled for float, half and bfloat16_t");
  if (t.quant != kQuantFor<T>) {
    fail(Check::overload, "quantPre %d doesn't go with this element type of dst", int(t.quant));
  }
  if (t.n > 4095) fail(Check::range, "nSize %u exceeds 4095", t.n);
  if (!k3510 && t.m > 8192) fail(Check::range, "mSize %u exceeds 8192", t.m);
  if (t.n == 0 || t.m == 0 || t.count == 0) return;
  if (t.row_step == 0) fail(Check::stride, "dstStride is 0");
  if (t.row_step < t.n && t.m > 1) fail_operand(Check::overlap, "dst", "rows of %u elements lie %llu apart", t.n,
                                                static_cast<unsigned long long>(t.row_step));
  const uint32_t blocks = (t.n + 15) / 16;
  if (t.column_step % 1024 != 0 || (blocks > 1 && t.column_step < t.m * uint64_t{64})) {
    fail(Check::stride, "srcStride %llu: the tile's rows rounded up to 16 are needed",
         static_cast<unsigned long long>(t.column_step / 64));
  }
  const Operand d = dst.operand().named("dst"), s = src.operand().named("src");
  if (s.memory != Memory::L0C) fail(Check::overload, "Fixpipe reads L0C, not %s", name_of(s.memory));
  Op op("Fixpipe", Pipe::FIX, uint64_t{t.n} * t.m * t.count);
  op.align(s, 64);
  bool saturate = false;
  if constexpr (!std::is_same_v<T, float>) saturate = state().saturate.get();
  std::vector<T> row(t.n);
  for (uint32_t i = 0; i < t.count; ++i) {
    const uint8_t* base = nullptr;
    for (uint32_t j = 0; j < blocks; ++j) {
      const uint64_t at = i * t.src_tile_step + j * t.column_step;
      const uint32_t bytes = std::min(16u, t.n - 16 * j) * 4;
      base = (bytes == 64 ? op.read(s, at, t.m * uint64_t{64}) : op.read_strided(s, at, bytes, 64, t.m)) -
             j * t.column_step;
    }
    for (uint32_t r = 0; r < t.m; ++r) {
      for (uint32_t c = 0; c < t.n; ++c) {
        float x;
        std::memcpy(&x, base + (c / 16) * t.column_step + r * 64 + (c % 16) * 4, 4);
        if (t.relu && !(x > 0.0f) && x == x) x = 0.0f;
        if constexpr (std::is_same_v<T, bfloat16_t>) {
          row[c].bits = saturate ? narrow_float<Bf16Format, RoundMode::CAST_RINT>(x, true) : nearest_bf16(x);
        } else {
          row[c] = narrow<T>(x, saturate);
        }
      }
      write_gm<T>(op, d, (i * t.dst_tile_step + r * t.row_step) * sizeof(T),
                  reinterpret_cast<const uint8_t*>(row.data()), t.n * sizeof(T));
    }
  }
}

inline void check_plain(uint8_t unit_flag, bool channel_split) {
  if (unit_flag != 0) fail(Check::overload, "unitFlag is not modelled: order Mmad and Fixpipe by M_FIX events");
  if (channel_split) fail(Check::overload, "channel split doesn't go with row-major output");
}

}  // namespace twin

namespace AscendC {

#if __NPU_ARCH__ == 2201
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& p) {
  static_assert(std::is_same_v<U, float>, "Fixpipe is modelled for a float source");
  static_assert(config.format == CO2Layout::ROW_MAJOR, "Fixpipe is modelled for row-major output");
  twin::check_plain(p.unitFlag, p.isChannelSplit);
  if (p.ndNum > 1) twin::check_most("srcNdStride", p.srcNdStride, 1, 512);
  twin::store_tile(dst, src, {p.nSize, p.mSize, p.srcStride * uint64_t{64}, p.dstStride, p.ndNum,
                              p.srcNdStride * uint64_t{1024}, p.dstNdStride, p.quantPre, p.reluEn});
}
#else
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsArch3510<config.format>& p) {
  static_assert(std::is_same_v<U, float>, "Fixpipe is modelled for a float source");
  static_assert(config.format == CO2Layout::ROW_MAJOR && !config.isToUB,
                "Fixpipe is modelled for row-major output to GM");
  twin::check_plain(p.unitFlag, p.isChannelSplit);
  if (p.dualDstCtl != 0 || p.subBlockId) twin::fail(twin::Check::overload, "dualDstCtl and subBlockId are for UB");
  twin::store_tile(dst, src, {p.nSize, p.mSize, p.srcStride * uint64_t{64}, p.dstStride, p.params.ndNum,
                              p.params.srcNdStride * uint64_t{64}, p.params.dstNdStride, p.quantPre, p.reluEn});
}
#endif

}  // namespace AscendC
