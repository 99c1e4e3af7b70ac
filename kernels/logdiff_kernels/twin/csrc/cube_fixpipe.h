// Fixpipe: an L0C tile to row-major GM, as fp32 or rounded once to half or bfloat16_t.
#pragma once

#include "cube_load.h"

namespace twin {

// What the records of both architectures say.
struct FixpipeTile {
  uint32_t n, m;
  uint64_t column_step;    // bytes of L0C from column block to column block
  uint64_t row_step;       // elements of dst from row to row
  uint32_t count;          // tiles
  uint64_t src_tile_step;  // bytes
  uint64_t dst_tile_step;  // elements
  QuantMode_t quant;
  bool relu;
  uint8_t unit_flag;
  bool channel_split;
};

// `wanted`: the conversion that the element type of dst needs.
void store_tile(const Operand& dst, const Operand& src, Element element, QuantMode_t wanted, const FixpipeTile& tile);

template <typename T, typename U>
void store_tensor(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeTile& tile) {
  static_assert(std::is_same_v<U, float> && one_of<T, float, half, bfloat16_t>,
                "Fixpipe is modelled from float to float, half and bfloat16_t");
  constexpr QuantMode_t wanted = std::is_same_v<T, half>         ? QuantMode_t::F322F16
                                 : std::is_same_v<T, bfloat16_t> ? QuantMode_t::F322BF16
                                                                 : QuantMode_t::NoQuant;
  store_tile(to_dst(dst), to_src(src), element_of<T>(), wanted, tile);
}

}  // namespace twin

namespace AscendC {

#if __NPU_ARCH__ == 2201
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& p) {
  static_assert(config.format == CO2Layout::ROW_MAJOR, "Fixpipe is modelled for row-major output");
  if (p.ndNum > 1) twin::check_value("srcNdStride", p.srcNdStride, 1, 512);
  twin::store_tensor(dst, src, {p.nSize, p.mSize, p.srcStride * uint64_t{64}, p.dstStride, p.ndNum,
                                p.srcNdStride * uint64_t{1024}, p.dstNdStride, p.quantPre, p.reluEn, p.unitFlag,
                                p.isChannelSplit});
}
#else
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsArch3510<config.format>& p) {
  static_assert(config.format == CO2Layout::ROW_MAJOR && !config.isToUB,
                "Fixpipe is modelled for row-major output to GM");
  if (p.dualDstCtl != 0 || p.subBlockId) twin::fail(twin::Check::overload, "dualDstCtl and subBlockId are for UB");
  twin::store_tensor(dst, src, {p.nSize, p.mSize, p.srcStride * uint64_t{64}, p.dstStride, p.params.ndNum,
                                p.params.srcNdStride * uint64_t{64}, p.params.dstNdStride, p.quantPre, p.reluEn,
                                p.unitFlag, p.isChannelSplit});
}
#endif

}  // namespace AscendC
