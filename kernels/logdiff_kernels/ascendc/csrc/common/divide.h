// Division and square root with one IEEE rounding and subnormals.
//
// 950's plain forms flush subnormals and may be one unit off; it documents exact algorithms, which are chosen here. The
// exact Sqrt is documented to give 0 above 2^126, so large arguments are scaled. For 910B nothing is documented: the
// self-test on a device says.
#pragma once

#include "common/dtype.h"

namespace ld {

#if __NPU_ARCH__ == 3510
constexpr DivConfig kExactDiv = {DivAlgo::PRECISION_0ULP_FTZ_FALSE};
constexpr SqrtConfig kExactSqrt = {SqrtAlgo::PRECISION_0ULP_FTZ_FALSE};
#endif

// Floats of work memory that square_root needs for up to 64 values.
constexpr uint32_t kRootWork = 64 + 16;

LD_FN void divide(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                  uint32_t count) {
#if __NPU_ARCH__ == 3510
    Div<float, kExactDiv>(dst, a, b, int32_t(count));
#else
    Div(dst, a, b, int32_t(count));
#endif
}

// Whole repeats with strides.
LD_FN void divide_rows(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                       uint32_t repeats, const BinaryRepeatParams& params) {
#if __NPU_ARCH__ == 3510
    Div<float, true, kExactDiv>(dst, a, b, uint64_t(plan::kLanes), uint8_t(repeats), params);
#else
    Div(dst, a, b, uint64_t(plan::kLanes), uint8_t(repeats), params);
#endif
}

// dst may be src. work: kRootWork floats. count: 64.
LD_FN void square_root(const LocalTensor<float>& dst, const LocalTensor<float>& src, const LocalTensor<float>& work,
                       uint32_t count) {
#if __NPU_ARCH__ == 3510
    const LocalTensor<uint8_t> small = work[64].ReinterpretCast<uint8_t>();
    const LocalTensor<uint8_t> finite = work[72].ReinterpretCast<uint8_t>();
    CompareScalar(small, src, 0x1p100f, CMPMODE::LE, count);
    Muls(work, src, 0x1p-64f, int32_t(count));
    v_barrier();
    Select(dst, small, src, work, SELMODE::VSEL_TENSOR_TENSOR_MODE, count);
    CompareScalar(finite, work, 0x1p64f, CMPMODE::LE, count);  // infinity and NaN: not, and they stay in work
    v_barrier();
    Sqrt<float, kExactSqrt>(dst, dst, int32_t(count));
    v_barrier();
    Select(work, finite, dst, work, SELMODE::VSEL_TENSOR_TENSOR_MODE, count);
    v_barrier();
    Muls(dst, work, 0x1p32f, int32_t(count));
    v_barrier();
    Select(dst, small, work, dst, SELMODE::VSEL_TENSOR_TENSOR_MODE, count);
#else
    (void)work;
    Sqrt(dst, src, int32_t(count));
#endif
}

}  // namespace ld
