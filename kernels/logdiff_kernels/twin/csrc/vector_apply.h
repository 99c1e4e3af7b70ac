// Applying a function lane by lane: what every element-wise instruction shares.
#pragma once

#include "cast_rounding.h"
#include "vector_lanes.h"

namespace twin {

using AscendC::LocalTensor;

// Arithmetic of 16-bit floats is that of fp32, rounded once more.
template <typename T> using Wide = std::conditional_t<one_of<T, half, bfloat16_t>, float, T>;

template <typename T> inline Wide<T> widen(const T& x) {
  if constexpr (std::is_same_v<T, half>) {
    return widen_half(x.bits);
  } else if constexpr (std::is_same_v<T, bfloat16_t>) {
    return widen_bf16(x.bits);
  } else {
    return x;
  }
}

template <typename T> inline T narrow(Wide<T> x, bool saturate) {
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
template <typename T> bool saturates() {
  if constexpr (std::is_same_v<T, half>) {
    return state().saturate.get();
  } else {
    return false;
  }
}

inline uint32_t dense_repeat(uint32_t lanes, uint64_t size) {
  return static_cast<uint32_t>(lanes * size / kBlockBytes);
}

// dst = f(src), or f(src, dst) where f takes two. S and D may differ in size, the lanes are those of the wider one.
template <typename D, typename S, typename F>
void apply1(const char* name, const LocalTensor<D>& dst, const LocalTensor<S>& src, const Pattern& pattern,
            const AscendC::UnaryRepeatParams& p, F f) {
  if (pattern.parts == 0) return;
  constexpr bool updates = std::is_invocable_v<F, S, D>;
  Op op(name, Pipe::V, pattern.elements());
  const Lanes x[2] = {{dst.operand().named("dst"), sizeof(D), p.dstBlkStride, p.dstRepStride},
                      {src.operand().named("src"), sizeof(S), p.srcBlkStride, p.srcRepStride}};
  check_destination(op, x[0]);
  check_source(op, x[1]);
  bool fuse = check_overlap(x[0], x[1], pattern, false) != Overlap::ordered;
  if (updates) fuse = check_overlap(x[0], x[0], pattern, false) != Overlap::ordered && fuse;
  const uint8_t* in = x[1].read(op, pattern);
  if (updates) x[0].read(op, pattern);
  uint8_t* out = x[0].write(op, pattern);
  walk(pattern, x, fuse, [&](const uint64_t (&at)[2], uint64_t n) {
    D* d = reinterpret_cast<D*>(out + at[0]);
    const S* s = reinterpret_cast<const S*>(in + at[1]);
#pragma GCC ivdep
    for (uint64_t i = 0; i < n; ++i) {
      if constexpr (updates) {
        d[i] = f(s[i], d[i]);
      } else {
        d[i] = f(s[i]);
      }
    }
  });
}

// dst = f(src0, src1), or f(src0, src1, dst) where f takes three. `carries`: see check_overlap.
template <typename D, typename S, typename F>
void apply2(const char* name, const LocalTensor<D>& dst, const LocalTensor<S>& src0, const LocalTensor<S>& src1,
            const Pattern& pattern, const AscendC::BinaryRepeatParams& p, bool carries, F f) {
  if (pattern.parts == 0) return;
  constexpr bool updates = std::is_invocable_v<F, S, S, D>;
  Op op(name, Pipe::V, pattern.elements());
  const Lanes x[3] = {{dst.operand().named("dst"), sizeof(D), p.dstBlkStride, p.dstRepStride},
                      {src0.operand().named("src0"), sizeof(S), p.src0BlkStride, p.src0RepStride},
                      {src1.operand().named("src1"), sizeof(S), p.src1BlkStride, p.src1RepStride}};
  check_destination(op, x[0]);
  check_source(op, x[1]);
  check_source(op, x[2]);
  carries = carries && (p.dstRepStride == 0 || p.src1RepStride == 0);
  bool fuse = check_overlap(x[0], x[1], pattern, false) != Overlap::ordered;
  fuse = check_overlap(x[0], x[2], pattern, carries) != Overlap::ordered && fuse;
  if (updates) fuse = check_overlap(x[0], x[0], pattern, false) != Overlap::ordered && fuse;
  const uint8_t* in0 = x[1].read(op, pattern);
  const uint8_t* in1 = x[2].read(op, pattern);
  if (updates) x[0].read(op, pattern);
  uint8_t* out = x[0].write(op, pattern);
  walk(pattern, x, fuse, [&](const uint64_t (&at)[3], uint64_t n) {
    D* d = reinterpret_cast<D*>(out + at[0]);
    const S* a = reinterpret_cast<const S*>(in0 + at[1]);
    const S* b = reinterpret_cast<const S*>(in1 + at[2]);
#pragma GCC ivdep
    for (uint64_t i = 0; i < n; ++i) {
      if constexpr (updates) {
        d[i] = f(a[i], b[i], d[i]);
      } else {
        d[i] = f(a[i], b[i]);
      }
    }
  });
}

// dst = f(lane index over the whole instruction), without a source.
template <typename D, typename F>
void generate(const char* name, const LocalTensor<D>& dst, const Pattern& pattern, uint32_t block, uint32_t repeat,
              F f) {
  if (pattern.parts == 0) return;
  Op op(name, Pipe::V, pattern.elements());
  const Lanes x[1] = {{dst.operand().named("dst"), sizeof(D), block, repeat}};
  check_destination(op, x[0]);
  uint8_t* out = x[0].write(op, pattern);
  uint64_t done = 0;
  walk(pattern, x, true, [&](const uint64_t (&at)[1], uint64_t n) {
    D* d = reinterpret_cast<D*>(out + at[0]);
    for (uint64_t i = 0; i < n; ++i) d[i] = f(done + i);
    done += n;
  });
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
