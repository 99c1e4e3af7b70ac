// Four lanes of AArch64 Advanced SIMD.
#pragma once

#include <arm_neon.h>

namespace ld {

struct F {
    static constexpr int W = 4;
    float32x4_t v;

    static F load(const float* p) { return {vld1q_f32(p)}; }
    static F loadu_bf16(const uint16_t* p) {
        return {vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16))};
    }
    static F loadu_f16(const uint16_t* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
    static F load_partial(const float* p, int n) {
        float lanes[W] = {};
        for (int i = 0; i < n; ++i) lanes[i] = p[i];
        return load(lanes);
    }
    static F set1(float x) { return {vdupq_n_f32(x)}; }
    static F zero() { return set1(0.0f); }

    void store(float* p) const { vst1q_f32(p, v); }
    void store_bf16(uint16_t* p) const {
        const uint32x4_t u = vreinterpretq_u32_f32(v);
        const uint32x4_t high = vshrq_n_u32(u, 16);
        const uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
        const uint32x4_t sum = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
        const uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
        vst1_u16(p, vmovn_u32(vbslq_u32(vceqq_f32(v, v), vshrq_n_u32(sum, 16), quiet)));
    }
    void store_f16(uint16_t* p) const { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
    void store_partial(float* p, int n) const {
        float lanes[W];
        store(lanes);
        for (int i = 0; i < n; ++i) p[i] = lanes[i];
    }
};

struct M {
    uint32x4_t v;
};

inline F operator+(F a, F b) { return {vaddq_f32(a.v, b.v)}; }
inline F operator-(F a, F b) { return {vsubq_f32(a.v, b.v)}; }
inline F operator*(F a, F b) { return {vmulq_f32(a.v, b.v)}; }
inline F operator/(F a, F b) { return {vdivq_f32(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// Not FMAX/FMIN: these follow `a > b ? a : b`, as the other instruction sets do with NaN and with zeros.
inline F max(F a, F b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
inline F min(F a, F b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
inline F sqrt(F a) { return {vsqrtq_f32(a.v)}; }
inline F abs(F a) { return {vabsq_f32(a.v)}; }
inline F neg(F a) { return {vnegq_f32(a.v)}; }
inline F copysign(F a, F s) { return {vbslq_f32(vdupq_n_u32(0x80000000u), s.v, a.v)}; }
inline F rint(F a) { return {vrndnq_f32(a.v)}; }
inline F add_exponent(F y, F n) {
    const int32x4_t shift = vshlq_n_s32(vcvtnq_s32_f32(n.v), 23);
    return {vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(y.v), shift))};
}
inline F round_bf16(F a) {
    const uint32x4_t u = vreinterpretq_u32_f32(a.v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    const uint32x4_t sum = vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t r = vbslq_u32(vceqq_f32(a.v, a.v), sum, vorrq_u32(u, vdupq_n_u32(0x400000)));
    return {vreinterpretq_f32_u32(vandq_u32(r, vdupq_n_u32(0xffff0000u)))};
}
inline M lt(F a, F b) { return {vcltq_f32(a.v, b.v)}; }
inline M le(F a, F b) { return {vcleq_f32(a.v, b.v)}; }
inline M gt(F a, F b) { return {vcgtq_f32(a.v, b.v)}; }
inline M ge(F a, F b) { return {vcgeq_f32(a.v, b.v)}; }
inline M eq(F a, F b) { return {vceqq_f32(a.v, b.v)}; }
inline M isnan(F a) { return {vmvnq_u32(vceqq_f32(a.v, a.v))}; }
inline M operator&(M a, M b) { return {vandq_u32(a.v, b.v)}; }
inline M operator|(M a, M b) { return {vorrq_u32(a.v, b.v)}; }
inline M first(int n) {
    const int32_t lanes[4] = {0, 1, 2, 3};
    return {vcltq_s32(vld1q_s32(lanes), vdupq_n_s32(n))};
}
inline F select(M m, F a, F b) { return {vbslq_f32(m.v, a.v, b.v)}; }
inline bool any(M m) { return vmaxvq_u32(m.v) != 0; }

}  // namespace ld
