// exp, ln, and what the contract makes of them: the hardware's Exp and Ln, or with LD_EXACT_EXP exp1 and ln1 from Mul,
// Add, Cast and integer shifts, whose bits are those of the CPU backend on every chip.
//
// All functions take counts that are a multiple of 64 and work memory of kExpWork floats; dst may be src. Instructions
// before a call need v_barrier() between; the last instruction of a call is not followed by one.
#pragma once

#include "common/divide.h"

namespace ld {

#if defined(LD_EXACT_EXP)
constexpr uint32_t kExpSlice = 1024;  // elements that share the work memory at a time
constexpr uint32_t kLnSlice = 512;
constexpr uint32_t kExpWork = 3 * kExpSlice + 3 * kExpSlice / 32;

// kUpper false: for values <= 0 or NaN.
template <bool kUpper>
LD_FN void exp1_slice(const LocalTensor<float>& dst, const LocalTensor<float>& src, const LocalTensor<float>& work,
                      uint32_t count) {
    const int32_t n = int32_t(count);
    const LocalTensor<float> q = work, t = work[kExpSlice];
    const LocalTensor<int32_t> power = work[2 * kExpSlice].ReinterpretCast<int32_t>();
    const LocalTensor<float> masks = work[3 * kExpSlice];
    const LocalTensor<uint8_t> above_low = masks.ReinterpretCast<uint8_t>();
    const LocalTensor<uint8_t> number = masks[kExpSlice / 32].ReinterpretCast<uint8_t>();
    const LocalTensor<uint8_t> below_high = masks[2 * kExpSlice / 32].ReinterpretCast<uint8_t>();

    CompareScalar(above_low, src, -87.33654f, CMPMODE::GE, count);
    Compare(number, src, src, CMPMODE::EQ, count);
    if (kUpper) CompareScalar(below_high, src, 88.72283f, CMPMODE::LE, count);
    v_barrier();
    Maxs(dst, src, -87.33654f, n);  // whether NaN survives here doesn't matter: it is put in at the end
    v_barrier();
    if (kUpper) {
        Mins(dst, dst, 88.72283f, n);
        v_barrier();
    }
    Muls(t, dst, 1.4426950408889634f, n);
    v_barrier();
    Cast(power, t, RoundMode::CAST_RINT, count);
    v_barrier();
    Cast(q, power, RoundMode::CAST_RINT, count);
    v_barrier();
    Muls(t, q, 0.693359375f, n);
    ShiftLeft(power, power, 23, n);
    v_barrier();
    Sub(dst, dst, t, n);
    Muls(q, q, -2.12194440e-4f, n);
    v_barrier();
    Sub(dst, dst, q, n);  // r
    v_barrier();
    Muls(q, dst, 0.000199179703486152f, n);
    Mul(t, dst, dst, n);
    v_barrier();
    Adds(q, q, 0.0013946190010756254f, n);
    v_barrier();
    Mul(q, q, dst, n);
    v_barrier();
    Adds(q, q, 0.008333264850080013f, n);
    v_barrier();
    Mul(q, q, dst, n);
    v_barrier();
    Adds(q, q, 0.041666269302368164f, n);
    v_barrier();
    Mul(q, q, dst, n);
    v_barrier();
    Adds(q, q, 0.1666666716337204f, n);
    v_barrier();
    Mul(q, q, dst, n);
    v_barrier();
    Adds(q, q, 0.5f, n);
    v_barrier();
    Mul(q, t, q, n);
    v_barrier();
    Add(q, q, dst, n);
    v_barrier();
    Adds(q, q, 1.0f, n);
    v_barrier();
    Add(q.ReinterpretCast<int32_t>(), q.ReinterpretCast<int32_t>(), power, n);
    v_barrier();
    if (kUpper) {
        Select(q, below_high, q, kInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
        v_barrier();
    }
    Select(q, above_low, q, 0.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    v_barrier();
    Select(dst, number, q, kNaN, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
}

template <bool kUpper = true>
LD_FN void exp1(const LocalTensor<float>& dst, const LocalTensor<float>& src, const LocalTensor<float>& work,
                uint32_t count) {
    for (uint32_t i = 0; i < count; i += kExpSlice) {
        if (i != 0) v_barrier();
        exp1_slice<kUpper>(dst[i], src[i], work, uint32_t(plan::least(kExpSlice, count - i)));
    }
}

// x = m 2^k, m in [sqrt(1/2), sqrt 2), f = m - 1, s = f / (2 + f): see contract/exp.py.
LD_FN void ln1_slice(const LocalTensor<float>& dst, const LocalTensor<float>& src, const LocalTensor<float>& work,
                     uint32_t count) {
    constexpr int32_t kRootHalf = 0x3f3504f3;
    const int32_t n = int32_t(count);
    const LocalTensor<float> f = work, k = work[kLnSlice], s = work[2 * kLnSlice], r = work[3 * kLnSlice];
    const LocalTensor<int32_t> f_bits = f.ReinterpretCast<int32_t>(), s_bits = s.ReinterpretCast<int32_t>();
    const LocalTensor<uint32_t> mantissa = f.ReinterpretCast<uint32_t>();
    const LocalTensor<float> masks = work[4 * kLnSlice];
    const LocalTensor<uint8_t> normal = masks.ReinterpretCast<uint8_t>();
    const LocalTensor<uint8_t> not_zero = masks[kLnSlice / 32].ReinterpretCast<uint8_t>();
    const LocalTensor<uint8_t> not_negative = masks[2 * kLnSlice / 32].ReinterpretCast<uint8_t>();
    const LocalTensor<uint8_t> finite = masks[3 * kLnSlice / 32].ReinterpretCast<uint8_t>();

    CompareScalar(normal, src, 0x1p-126f, CMPMODE::GE, count);
    CompareScalar(not_zero, src, 0.0f, CMPMODE::NE, count);
    CompareScalar(not_negative, src, 0.0f, CMPMODE::GE, count);  // NaN counts as negative: the result is NaN too
    CompareScalar(finite, src, kInfinity, CMPMODE::LT, count);
    Muls(f, src, 0x1p25f, n);
    Duplicate(k, 0.0f, n);
    v_barrier();
    Select(f, normal, src, f, SELMODE::VSEL_TENSOR_TENSOR_MODE, count);
    Select(k, normal, k, -25.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    v_barrier();
    Adds(f_bits, f_bits, 0x3f800000 - kRootHalf, n);
    v_barrier();
    ShiftRight(s_bits, f_bits, 23, n);
    v_barrier();
    Adds(s_bits, s_bits, -127, n);
    ShiftLeft(mantissa, mantissa, uint32_t(9), n);
    v_barrier();
    Cast(r, s_bits, RoundMode::CAST_RINT, count);
    ShiftRight(mantissa, mantissa, uint32_t(9), n);
    v_barrier();
    Add(k, k, r, n);
    Adds(f_bits, f_bits, kRootHalf, n);
    v_barrier();
    Adds(f, f, -1.0f, n);
    v_barrier();
    Adds(s, f, 2.0f, n);
    v_barrier();
    divide(s, f, s, count);
    v_barrier();
    Mul(dst, s, s, n);
    v_barrier();
    Muls(r, dst, 0.2333046794f, n);
    v_barrier();
    Adds(r, r, 0.2855082154f, n);
    v_barrier();
    Mul(r, r, dst, n);
    v_barrier();
    Adds(r, r, 0.4000012279f, n);
    v_barrier();
    Mul(r, r, dst, n);
    v_barrier();
    Adds(r, r, 0.6666666865f, n);
    v_barrier();
    Mul(r, r, dst, n);
    v_barrier();
    Mul(dst, f, f, n);
    v_barrier();
    Muls(dst, dst, 0.5f, n);
    v_barrier();
    Add(r, dst, r, n);
    v_barrier();
    Mul(r, s, r, n);
    v_barrier();
    Muls(s, k, -2.12194440e-4f, n);
    v_barrier();
    Add(r, r, s, n);
    Muls(k, k, 0.693359375f, n);
    v_barrier();
    Sub(r, dst, r, n);
    v_barrier();
    Sub(r, f, r, n);
    v_barrier();
    Add(r, r, k, n);
    v_barrier();
    Select(r, finite, r, kInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    v_barrier();
    Select(r, not_zero, r, -kInfinity, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
    v_barrier();
    Select(dst, not_negative, r, kNaN, SELMODE::VSEL_TENSOR_SCALAR_MODE, count);
}

LD_FN void ln1(const LocalTensor<float>& dst, const LocalTensor<float>& src, const LocalTensor<float>& work,
               uint32_t count) {
    for (uint32_t i = 0; i < count; i += kLnSlice) {
        if (i != 0) v_barrier();
        ln1_slice(dst[i], src[i], work, uint32_t(plan::least(kLnSlice, count - i)));
    }
}

#else
constexpr uint32_t kExpWork = 8;

template <bool kUpper = true>
LD_FN void exp1(const LocalTensor<float>& dst, const LocalTensor<float>& src, const LocalTensor<float>&,
                uint32_t count) {
    Exp(dst, src, int32_t(count));
}

LD_FN void ln1(const LocalTensor<float>& dst, const LocalTensor<float>& src, const LocalTensor<float>&,
               uint32_t count) {
    Ln(dst, src, int32_t(count));
}
#endif

// dst = tanh(src) with the sign of src; dst, src and scratch (count floats) are different memory.
LD_FN void tanh1(const LocalTensor<float>& dst, const LocalTensor<float>& src, const LocalTensor<float>& scratch,
                 const LocalTensor<float>& work, uint32_t count) {
    const int32_t n = int32_t(count);
    const LocalTensor<uint32_t> sign = scratch.ReinterpretCast<uint32_t>();
    Abs(dst, src, n);
    v_barrier();
    Muls(dst, dst, -2.0f, n);
    v_barrier();
    exp1<false>(dst, dst, work, count);
    v_barrier();
    Muls(scratch, dst, -1.0f, n);
    v_barrier();
    Adds(scratch, scratch, 1.0f, n);
    Adds(dst, dst, 1.0f, n);
    v_barrier();
    divide(dst, scratch, dst, count);
    v_barrier();
    ShiftRight(sign, src.ReinterpretCast<uint32_t>(), uint32_t(31), n);
    v_barrier();
    ShiftLeft(sign, sign, uint32_t(31), n);
    v_barrier();
    Add(dst.ReinterpretCast<int32_t>(), dst.ReinterpretCast<int32_t>(), scratch.ReinterpretCast<int32_t>(), n);
}

}  // namespace ld
