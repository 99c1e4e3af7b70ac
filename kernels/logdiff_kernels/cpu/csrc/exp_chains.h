// exp1 of several vectors with their chains side by side: the bits of exp1, without waiting for each step's latency.
#pragma once

#include "expln.h"

namespace ld {

// A compiler would walk one chain to its end first, and the scheduler of a CPU sees no further than one or two.
#if defined(LD_ISA_AVX2) || (defined(LD_ISA_AVX512) && !defined(LD_SIMDE))
#define LD_KEEP_HERE(vector) asm volatile("" : "+x"((vector).v))
#else
#define LD_KEEP_HERE(vector)
#endif

// kUpper = false leaves the upper limit out: for values <= 0 or NaN.
template <bool kUpper, int N> inline void exp1_chains(F (&x)[N]) {
    const F low = F::set1(-87.33654f), high = F::set1(88.72283f);
    F n[N], r[N], q[N];
#define LD_EACH_CHAIN(expression)                         \
    _Pragma("GCC unroll 8") for (int i = 0; i < N; ++i) { \
        expression;                                       \
        LD_KEEP_HERE(q[i]);                               \
    }
    // max and min keep a NaN of their second argument, and it goes through to the end
    LD_EACH_CHAIN(r[i] = max(low, x[i]); if (kUpper) r[i] = min(high, r[i]); q[i] = r[i] * F::set1(1.4426950408889634f))
    LD_EACH_CHAIN(n[i] = rint(q[i]); q[i] = n[i] * F::set1(0.693359375f))
    LD_EACH_CHAIN(r[i] = r[i] - q[i]; q[i] = n[i] * F::set1(-2.12194440e-4f))
    LD_EACH_CHAIN(r[i] = r[i] - q[i]; q[i] = F::set1(0.000199179703486152f) * r[i])
    LD_EACH_CHAIN(q[i] = q[i] + F::set1(0.0013946190010756254f))
    LD_EACH_CHAIN(q[i] = q[i] * r[i] + F::set1(0.008333264850080013f))
    LD_EACH_CHAIN(q[i] = q[i] * r[i] + F::set1(0.041666269302368164f))
    LD_EACH_CHAIN(q[i] = q[i] * r[i] + F::set1(0.1666666716337204f))
    LD_EACH_CHAIN(q[i] = q[i] * r[i] + F::set1(0.5f))
    LD_EACH_CHAIN(q[i] = (r[i] * r[i]) * q[i] + r[i])
    LD_EACH_CHAIN(q[i] = add_exponent(q[i] + F::set1(1.0f), n[i]))
    LD_EACH_CHAIN(if (kUpper) q[i] = select(gt(x[i], high), F::set1(__builtin_inff()), q[i]);
                  q[i] = select(lt(x[i], low), F::zero(), q[i]); x[i] = q[i])
#undef LD_EACH_CHAIN
}

}  // namespace ld
