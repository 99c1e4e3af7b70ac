// One score, and the scalar conversions that the attention kernels share.
#pragma once

#include <cmath>

#include "attention.h"
#include "dtype.h"
#include "expln.h"
#include "reduce.h"

namespace ld {

template <class T>
inline float dot(const Stored<T>* x, const Stored<T>* y, int64_t n) {
  float sum = 0.f;
  for (int64_t d = 0; d < n; ++d) sum = std::fma(load_scalar<T>(x + d), load_scalar<T>(y + d), sum);
  return sum;
}

template <class T>
inline float score(const ld_attention_args& a, const Stored<T>* q, const Stored<T>* k) {
  float s = dot<T>(q, k, a.dim);
  s = s * a.scale;
  if (a.softcap > 0.f) s = a.softcap * tanh1(s / a.softcap);
  return s;
}

}  // namespace ld
