// Mmad: C = A B, or C + A B, of one tile in L0A, L0B and L0C.
//
// The order and width of the sum over k within one instruction are not documented: the launch chooses a model of it.
#pragma once

#include "cast_rounding.h"
#include "cube_params.h"
#include "launch.h"
#include "modes.h"

namespace twin {

// c[m][columns], columns = n rounded up to 16, += a[m][k] b[k][n] by the model. b: panels of 16 columns, [panel][k][16].
void multiply_add(Mmad model, float* c, const float* a, const float* b, uint32_t m, uint32_t columns, uint32_t k);

// Checks, reads and writes of one instruction; `widen` turns `count` elements into fp32.
void run_mmad(const Operand& c, const Operand& a, const Operand& b, const AscendC::MmadParams& params, uint32_t element,
              bool is_float, void (*widen)(float* to, const uint8_t* from, uint32_t count));

template <typename T> void widen_elements(float* to, const uint8_t* from, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    T x;
    std::memcpy(&x, from + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, half>) {
      to[i] = widen_half(x.bits);
    } else if constexpr (std::is_same_v<T, bfloat16_t>) {
      to[i] = widen_bf16(x.bits);
    } else {
      to[i] = x;
    }
  }
}

}  // namespace twin

namespace AscendC {

template <typename T, typename U, typename S>
void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm, const LocalTensor<S>& filter,
          const MmadParams& mmadParams) {
  static_assert(std::is_same_v<U, S>, "Mmad: both factors have one element type");
  static_assert(std::is_same_v<T, float> &&
                    (std::is_same_v<U, half> || std::is_same_v<U, bfloat16_t> || std::is_same_v<U, float>),
                "Mmad is modelled for half, bfloat16_t and float factors with a float result");
  twin::run_mmad(dst.operand().named("dst"), fm.operand().named("fm"), filter.operand().named("filter"), mmadParams,
                 sizeof(U), std::is_same_v<U, float>, twin::widen_elements<U>);
}

}  // namespace AscendC
