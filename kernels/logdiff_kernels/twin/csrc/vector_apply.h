// Applying a function lane by lane: what every element-wise instruction shares.
#pragma once

#include "cast_rounding.h"
#include "vector_lanes.h"

namespace twin {

using AscendC::LocalTensor;

// Arithmetic of 16-bit floats is that of fp32, rounded once more.
template <typename T>
using Wide = std::conditional_t<one_of<T, half, bfloat16_t>, float, T>;

template <typename T>
inline Wide<T> widen(const T& x) {
  if constexpr (std::is_same_v<T, half>) {
    return widen_half(x.bits);
  } else if constexpr (std::is_same_v<T, bfloat16_t>) {
    return widen_bf16(x.bits);
  } else {
    return x;
  }
}

template <typename T>
inline T narrow(Wide<T> x, bool saturate) {
  T out;
  if constexpr (std::is_same_v<T, half>) {
    out.bits = saturate ? narrow_float<HalfFormat, RoundMode::CAST_RINT>(x, true) : nearest_half(x);
  } else if constexpr (std::is_same_v<T, bfloat16_t>) {
    out.bits = nearest_bf16(x);
  } else {
    out = x;
  }
  return out;
}

// Whether results of arithmetic in T saturate: CTRL[48] governs half.
template <typename T>
bool saturates() {
  if constexpr (std::is_same_v<T, half>) {
    return state().saturate.get();
  } else {
    return false;
  }
}

inline uint32_t dense_repeat(uint32_t lanes, uint64_t size) {
  return static_cast<uint32_t>(lanes * size / kBlockBytes);
}

template <typename T>
Lanes lanes_in(const LocalTensor<T>& tensor, const char* label, uint32_t block = 1, uint32_t repeat = 8) {
  return {tensor.operand().named(label), sizeof(T), block, repeat};
}

// dst = f(src), or f(src, dst) where f takes two. S and D may differ in size, the lanes are those of the wider one.
// f holds what it needs by value.
template <typename D, typename S, typename F>
void apply1(const char* name, const LocalTensor<D>& dst, const LocalTensor<S>& src, const Pattern& pattern,
            const AscendC::UnaryRepeatParams& p, const F& f) {
  constexpr bool updates = std::is_invocable_v<F, S, D>;
  const Lanes x[2] = {lanes_in(dst, "dst", p.dstBlkStride, p.dstRepStride),
                      lanes_in(src, "src", p.srcBlkStride, p.srcRepStride)};
  const auto run = [](const void* context, uint8_t* out, const uint8_t* in, const uint8_t*, uint64_t n) {
    const F function = *static_cast<const F*>(context);
    D* d = reinterpret_cast<D*>(out);
    const S* s = reinterpret_cast<const S*>(in);
#pragma GCC ivdep
    for (uint64_t i = 0; i < n; ++i) {
      if constexpr (updates) {
        d[i] = function(s[i], d[i]);
      } else {
        d[i] = function(s[i]);
      }
    }
  };
  run_elementwise({name, run, &f, updates}, pattern, x, 2);
}

// dst = f(src0, src1), or f(src0, src1, dst) where f takes three. `carries`: see check_overlap.
template <typename D, typename S, typename F>
void apply2(const char* name, const LocalTensor<D>& dst, const LocalTensor<S>& src0, const LocalTensor<S>& src1,
            const Pattern& pattern, const AscendC::BinaryRepeatParams& p, bool carries, const F& f) {
  constexpr bool updates = std::is_invocable_v<F, S, S, D>;
  const Lanes x[3] = {lanes_in(dst, "dst", p.dstBlkStride, p.dstRepStride),
                      lanes_in(src0, "src0", p.src0BlkStride, p.src0RepStride),
                      lanes_in(src1, "src1", p.src1BlkStride, p.src1RepStride)};
  const auto run = [](const void* context, uint8_t* out, const uint8_t* in0, const uint8_t* in1, uint64_t n) {
    const F function = *static_cast<const F*>(context);
    D* d = reinterpret_cast<D*>(out);
    const S* a = reinterpret_cast<const S*>(in0);
    const S* b = reinterpret_cast<const S*>(in1);
#pragma GCC ivdep
    for (uint64_t i = 0; i < n; ++i) {
      if constexpr (updates) {
        d[i] = function(a[i], b[i], d[i]);
      } else {
        d[i] = function(a[i], b[i]);
      }
    }
  };
  run_elementwise({name, run, &f, updates, carries}, pattern, x, 3);
}

}  // namespace twin

// Defines the three forms of an API function: count, contiguous mask, mask bits.
//   types, extra, operands: parenthesised lists of template parameters, of those after isSetMask, and of parameters;
//   Params: record of strides; Widest: element type that makes up the lanes;
//   legal_count, legal_mask: whether the count form and the mask forms exist for these types;
//   run: what to do, with `pattern` and `params` in scope.
#define TWIN_UNPACK(...) __VA_ARGS__
#define TWIN_FORMS(Name, types, extra, operands, Params, Widest, legal_count, legal_mask, run)                    \
  template <TWIN_UNPACK types TWIN_UNPACK extra>                                                                  \
  void Name(TWIN_UNPACK operands, const int32_t& count) {                                                         \
    static_assert(legal_count, #Name ": no overload for these element types on this architecture");               \
    const auto pattern = twin::count_form(twin::lanes_of(sizeof(Widest)), count);                                 \
    const Params params;                                                                                          \
    run;                                                                                                          \
  }                                                                                                               \
  template <TWIN_UNPACK types, bool isSetMask = true TWIN_UNPACK extra>                                           \
  void Name(TWIN_UNPACK operands, uint64_t mask, const twin::RepeatTime& repeatTime, const Params& params) {      \
    static_assert(legal_mask, #Name ": no mask form for these element types on this architecture");               \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(Widest)), mask, repeatTime, isSetMask);            \
    run;                                                                                                          \
  }                                                                                                               \
  template <TWIN_UNPACK types, bool isSetMask = true TWIN_UNPACK extra>                                           \
  void Name(TWIN_UNPACK operands, const uint64_t mask[], const twin::RepeatTime& repeatTime,                      \
            const Params& params) {                                                                               \
    static_assert(legal_mask, #Name ": no mask form for these element types on this architecture");               \
    const auto pattern = twin::mask_form(twin::lanes_of(sizeof(Widest)), mask, repeatTime, isSetMask);            \
    run;                                                                                                          \
  }
