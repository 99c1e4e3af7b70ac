// Entries and launcher of a vector kernel in one line:
//
//   LD_VECTOR_KERNEL(rms_norm, LdNormPlan, ld::RmsNorm, 6)       // a body for each dtype: ld::RmsNorm<float>, ...
//   LD_VECTOR_KERNEL_FP32(logprob_merge, LdLogprobPlan, ld::LogprobMerge, 2)
//
// The body is made from (plan, pipe) on each vector core, then run(GM arguments...) is called.
#pragma once

#include "common/reset.h"
#include "launch.h"

#define LD_NAMES_2 p0, p1
#define LD_NAMES_3 LD_NAMES_2, p2
#define LD_NAMES_4 LD_NAMES_3, p3
#define LD_NAMES_5 LD_NAMES_4, p4
#define LD_NAMES_6 LD_NAMES_5, p5
#define LD_NAMES_7 LD_NAMES_6, p6
#define LD_NAMES_8 LD_NAMES_7, p7
#define LD_NAMES_9 LD_NAMES_8, p8
#define LD_NAMES_10 LD_NAMES_9, p9
#define LD_PARAMETERS_2 GM_ADDR p0, GM_ADDR p1
#define LD_PARAMETERS_3 LD_PARAMETERS_2, GM_ADDR p2
#define LD_PARAMETERS_4 LD_PARAMETERS_3, GM_ADDR p3
#define LD_PARAMETERS_5 LD_PARAMETERS_4, GM_ADDR p4
#define LD_PARAMETERS_6 LD_PARAMETERS_5, GM_ADDR p5
#define LD_PARAMETERS_7 LD_PARAMETERS_6, GM_ADDR p6
#define LD_PARAMETERS_8 LD_PARAMETERS_7, GM_ADDR p7
#define LD_PARAMETERS_9 LD_PARAMETERS_8, GM_ADDR p8
#define LD_PARAMETERS_10 LD_PARAMETERS_9, GM_ADDR p9

#define LD_VECTOR_ENTRY(entry, Plan, Body, count)                                   \
    extern "C" __global__ __aicore__ void entry(LD_PARAMETERS_##count, Plan plan) { \
        KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);                             \
        ld::reset_core();                                                           \
        AscendC::TPipe pipe;                                                        \
        Body(plan, pipe).run(LD_NAMES_##count);                                     \
    }

#define LD_VECTOR_KERNEL(kernel, Plan, Body, count)                                      \
    LD_VECTOR_ENTRY(ld_##kernel##_float32, Plan, Body<float>, count)                     \
    LD_VECTOR_ENTRY(ld_##kernel##_bfloat16, Plan, Body<bfloat16_t>, count)               \
    LD_VECTOR_ENTRY(ld_##kernel##_float16, Plan, Body<half>, count)                      \
    LD_LAUNCHER_BEGIN(kernel, Plan, count)                                               \
    LD_START_DTYPES(KERNEL_TYPE_AIV_ONLY, ld_##kernel, LD_POINTERS_##count)              \
    LD_LAUNCHER_END

#define LD_VECTOR_KERNEL_FP32(kernel, Plan, Body, count)                                                           \
    LD_VECTOR_ENTRY(ld_##kernel##_float32, Plan, Body, count)                                                      \
    LD_LAUNCHER_BEGIN(kernel, Plan, count)                                                                         \
    LD_START(plan.dtype == ld::plan::kFloat32, KERNEL_TYPE_AIV_ONLY, ld_##kernel##_float32, LD_POINTERS_##count)   \
    LD_LAUNCHER_END
