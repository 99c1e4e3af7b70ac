// GM to L1 as NZ, L1 to L0A and L0B, and filling L1 and L0 with a value.
//
// A fractal is 16 rows of 32 bytes. L1 usually holds NZ: column blocks of fractals, one below the other. L0B is Zn (an
// NZ matrix of the transposed operand), L0A is Zz on 2201 (rows of fractals) and NZ on 3510.
#pragma once

#include "copy.h"
#include "cube_params.h"

namespace twin {

constexpr uint64_t kFractalBytes = 512;

// Fails unless least <= value <= most.
void check_value(const char* name, uint64_t value, uint64_t least, uint64_t most);

// Rows of the source become rows of 32-byte pieces, one piece in each column block; the last piece is filled with 0.
void copy_nd_to_nz(const Operand& dst, const Operand& src, uint32_t size, const AscendC::Nd2NzParams& params);

// A run of fractals, each transposed on the way if asked for.
void load_fractals(const Operand& dst, const Operand& src, uint32_t size, const AscendC::LoadData2DParams& params);

#if __NPU_ARCH__ == 3510
// Column j of the source block becomes column j of dst, or row j if transposed (32 bits: half a row of 16).
void load_block(const Operand& dst, const Operand& src, uint32_t size, const AscendC::LoadData2DParamsV2& params);
#else
// Squares of 16 x 16, transposed; of two neighbouring fractals for 32 bits.
void load_transposed(const Operand& dst, const Operand& src, uint32_t size,
                     const AscendC::LoadData2dTransposeParams& params);
#endif

// Runs of blocks, filled with the element at `value`.
void fill_blocks(const Operand& dst, uint32_t size, const void* value, uint32_t repeats, uint32_t blocks, uint32_t gap);

template <typename T, typename U>
void fill_tensor(const LocalTensor<T>& dst, const AscendC::InitConstValueParams<U>& p) {
  static_assert(one_of<T, int16_t, uint16_t, half, bfloat16_t, int32_t, uint32_t, float>,
                "InitConstValue: no overload for this element type on this architecture");
  fill_blocks(to_dst(dst), sizeof(T), &p.initValue, p.repeatTimes, p.blockNum, p.dstGap);
}

template <typename T>
constexpr bool kLoads = sizeof(T) == 2 || sizeof(T) == 4;

}  // namespace twin

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& intriParams) {
  static_assert(twin::kLoads<T>, "Nd2Nz is modelled for elements of 16 and 32 bits");
  twin::copy_nd_to_nz(twin::to_dst(dst), twin::to_src(src), sizeof(T), intriParams);
}

template <typename T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParams& loadDataParams) {
  static_assert(twin::kLoads<T>, "LoadData is modelled for elements of 16 and 32 bits");
  twin::load_fractals(twin::to_dst(dst), twin::to_src(src), sizeof(T), loadDataParams);
}
#if __NPU_ARCH__ == 3510
template <typename T>
void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParamsV2& loadDataParams) {
  static_assert(twin::kLoads<T>, "LoadData is modelled for elements of 16 and 32 bits");
  twin::load_block(twin::to_dst(dst), twin::to_src(src), sizeof(T), loadDataParams);
}
#else
template <typename T>
void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                           const LoadData2dTransposeParams& loadDataParams) {
  static_assert(twin::one_of<T, half, bfloat16_t, float, int32_t, uint32_t>,
                "LoadDataWithTranspose is modelled for half, bfloat16_t and 32 bits");
  twin::load_transposed(twin::to_dst(dst), twin::to_src(src), sizeof(T), loadDataParams);
}
#endif

template <typename T, typename U = T, typename = std::enable_if_t<std::is_same_v<T, U>>>
void InitConstValue(const LocalTensor<T>& dst, const InitConstValueParams<U>& initConstValueParams) {
  twin::fill_tensor(dst, initConstValueParams);
}
template <typename T, typename U = T, typename = std::enable_if_t<std::is_same_v<T, U>>>
void Fill(const LocalTensor<T>& dst, const InitConstValueParams<U>& initConstValueParams) {
  twin::fill_tensor(dst, initConstValueParams);
}

}  // namespace AscendC
