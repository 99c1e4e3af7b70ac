// Storage types as fp32 and back: widening is exact, narrowing rounds to nearest even (contract, G4).
#pragma once

#include <type_traits>

#include "common/reset.h"
#include "plan/csrc/arch.h"

namespace ld {

constexpr float kInfinity = __builtin_inff(), kNaN = __builtin_nanf("");

// dst = src, bit for bit but for the payload of a NaN.
LD_FN void copy_floats(const LocalTensor<float>& dst, const LocalTensor<float>& src, uint32_t count) {
    Muls(dst, src, 1.0f, int32_t(count));
}

template <class T> LD_FN void widen(const LocalTensor<float>& dst, const LocalTensor<T>& src, uint32_t count) {
    if constexpr (std::is_same_v<T, float>) {
        copy_floats(dst, src, count);
    } else {
        Cast(dst, src, RoundMode::CAST_NONE, count);
    }
}

template <class T> LD_FN void narrow(const LocalTensor<T>& dst, const LocalTensor<float>& src, uint32_t count) {
    if constexpr (std::is_same_v<T, float>) {
        copy_floats(dst, src, count);
    } else {
        Cast(dst, src, RoundMode::CAST_RINT, count);
    }
}

// A tensor whose dtype only the plan knows.
LD_FN void widen_any(const LocalTensor<float>& dst, const LocalTensor<float>& src, uint32_t dtype, uint32_t count) {
    if (dtype == plan::kBFloat16) {
        widen(dst, src.ReinterpretCast<bfloat16_t>(), count);
    } else if (dtype == plan::kFloat16) {
        widen(dst, src.ReinterpretCast<half>(), count);
    } else {
        widen(dst, src, count);
    }
}

LD_FN void narrow_any(const LocalTensor<float>& dst, const LocalTensor<float>& src, uint32_t dtype, uint32_t count) {
    if (dtype == plan::kBFloat16) {
        narrow(dst.ReinterpretCast<bfloat16_t>(), src, count);
    } else if (dtype == plan::kFloat16) {
        narrow(dst.ReinterpretCast<half>(), src, count);
    } else {
        narrow(dst, src, count);
    }
}

}  // namespace ld
