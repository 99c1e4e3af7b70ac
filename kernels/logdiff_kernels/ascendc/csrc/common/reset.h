// The state that every kernel starts from. A stale saturation, atomic, mask or HF32 mode of an earlier kernel would
// change bits, so reset_core() is the first statement of every kernel.
#pragma once

#include "kernel_operator.h"

#define LD_FN __aicore__ inline

namespace ld {

using namespace AscendC;

LD_FN void reset_core() {
    InitSocState();
    SetAtomicNone();
    SetMaskNorm();
    // half and bfloat16_t keep infinities and NaN (contract, G5) instead of saturating
#if __NPU_ARCH__ == 2201
    SetSaturationFlag<SaturationMode::FLOAT>(false);
#else
    SetCtrlSpr<48, 48>(1);
#endif
    SetHF32Mode(HF32Mode::DISABLE);
}

// Orders the vector instructions before it with those after it: two that touch the same bytes need it between them.
LD_FN void v_barrier() { PipeBarrier<PIPE_V>(); }

}  // namespace ld
