// DataCopy and DataCopyPad: GM to UB and L1, UB to GM and UB.
//
// Pipes: into UB and L1 from GM MTE2, out to GM MTE3, within UB V.
#pragma once

#include "copy_params.h"
#include "modes.h"
#include "vector_lanes.h"

namespace twin {

using AscendC::GlobalTensor;
using AscendC::LocalTensor;

// What a copy has to know of its elements: bytes, and the atomic mode that adds them (none: it can't).
struct Element {
  uint32_t size;
  Atomic add;
};

template <typename T>
constexpr Element element_of() {
  if constexpr (one_of<T, float, half, bfloat16_t, int32_t, int16_t, int8_t>) {
    return {sizeof(T), atomic_add_of<T>()};
  } else {
    return {sizeof(T), Atomic::none};
  }
}

// Starts and lengths of a copy by blocks, in bytes.
struct Blocks {
  uint64_t count, bytes, src_step, dst_step;
};

Blocks blocks_of(const AscendC::DataCopyParams& params);
Blocks blocks_of(uint64_t count, uint32_t size);  // one block, a multiple of 32 bytes

void copy_in(const Operand& dst, const Operand& src, Element element, const Blocks& blocks);
void copy_out(const Operand& dst, const Operand& src, Element element, const Blocks& blocks);
void copy_within(const Operand& dst, const Operand& src, Element element, const Blocks& blocks);

// Each block with its padding starts on a data block. What fills the last data block up is the value if isPad and some
// padding is asked for; else nobody may rely on it.
struct Padding {
  bool on;
  uint32_t left, right;  // elements
  const void* value;
};
void pad_in(const Operand& dst, const Operand& src, Element element, const AscendC::DataCopyExtParams& params,
            const Padding& padding);
void pad_out(const Operand& dst, const Operand& src, Element element, const AscendC::DataCopyExtParams& params);

// `bytes` of elements to `dst` + offset in GM: stored, or added where the kernel has set an atomic mode.
void write_gm(Op& op, const Operand& dst, uint64_t offset, Element element, const uint8_t* from, uint64_t bytes);

template <typename Tensor>
Operand to_dst(const Tensor& tensor) {
  return tensor.operand().named("dst");
}
template <typename Tensor>
Operand to_src(const Tensor& tensor) {
  return tensor.operand().named("src");
}

}  // namespace twin

namespace AscendC {

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count) {
  twin::copy_in(twin::to_dst(dst), twin::to_src(src), twin::element_of<T>(), twin::blocks_of(count, sizeof(T)));
}
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count) {
  twin::copy_out(twin::to_dst(dst), twin::to_src(src), twin::element_of<T>(), twin::blocks_of(count, sizeof(T)));
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count) {
  twin::copy_within(twin::to_dst(dst), twin::to_src(src), twin::element_of<T>(), twin::blocks_of(count, sizeof(T)));
}

template <typename T>
void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& repeatParams) {
  twin::copy_in(twin::to_dst(dst), twin::to_src(src), twin::element_of<T>(), twin::blocks_of(repeatParams));
}
template <typename T>
void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& repeatParams) {
  twin::copy_out(twin::to_dst(dst), twin::to_src(src), twin::element_of<T>(), twin::blocks_of(repeatParams));
}
template <typename T>
void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& repeatParams) {
  twin::copy_within(twin::to_dst(dst), twin::to_src(src), twin::element_of<T>(), twin::blocks_of(repeatParams));
}

template <typename T>
void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& dataCopyParams,
                 const DataCopyPadExtParams<T>& padParams) {
  twin::pad_in(twin::to_dst(dst), twin::to_src(src), twin::element_of<T>(), dataCopyParams,
               {padParams.isPad, padParams.leftPadding, padParams.rightPadding, &padParams.paddingValue});
}
template <typename T>
void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& dataCopyParams) {
  twin::pad_out(twin::to_dst(dst), twin::to_src(src), twin::element_of<T>(), dataCopyParams);
}

}  // namespace AscendC
