// Launchers: extern "C" functions that start a kernel, the same source for bisheng and for the twin.
//
//   LD_LAUNCHER_BEGIN(rms_norm, LdNormPlan, 6)                            // kernel, plan, number of GM arguments
//   LD_START(plan.dtype == ld::plan::kFloat32, KERNEL_TYPE_AIV_ONLY, ld_rms_norm_float32, LD_POINTERS_6)
//   LD_LAUNCHER_END
//
// gives ld_launch_rms_norm(blocks, stream, pointers, pointer_count, plan, plan_bytes): 0, or a negative PlanStatus (in
// the twin also the twin's own status). `stream` is the runtime's stream, or the twin's launch options.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernel_operator.h"
#include "plan/csrc/arch.h"

#if defined(ASCENDC_TWIN)
#define LD_RUN(kind, kernel, ...)                                                           \
    return twin::launch(#kernel, kind, blocks, static_cast<const twin::Launch*>(stream), [&] { kernel(__VA_ARGS__); })
#else
#define LD_RUN(kind, kernel, ...)                     \
    kernel<<<blocks, nullptr, stream>>>(__VA_ARGS__); \
    return 0
#endif

#define LD_LAUNCHER_BEGIN(kernel, Plan, count)                                                                       \
    extern "C" __attribute__((visibility("default"))) int ld_launch_##kernel(                                        \
        uint32_t blocks, void* stream, void* const* pointers, uint32_t pointer_count, const void* plan_data,         \
        uint32_t plan_bytes) {                                                                                       \
        if (pointer_count != count || plan_bytes != sizeof(Plan)) return -3;                                         \
        Plan plan;                                                                                                   \
        std::memcpy(&plan, plan_data, sizeof(Plan));                                                                 \
        if (blocks == 0) return 0;

#define LD_START(condition, kind, kernel, ...)       \
    if (condition) {                                 \
        LD_RUN(kind, kernel, __VA_ARGS__, plan);     \
    }

// The three dtypes of a kernel that has them all.
#define LD_START_DTYPES(kind, kernel, ...)                                                \
    LD_START(plan.dtype == ld::plan::kFloat32, kind, kernel##_float32, __VA_ARGS__)       \
    LD_START(plan.dtype == ld::plan::kBFloat16, kind, kernel##_bfloat16, __VA_ARGS__)     \
    LD_START(plan.dtype == ld::plan::kFloat16, kind, kernel##_float16, __VA_ARGS__)

#define LD_LAUNCHER_END                     \
    return -1; /* no kernel of this dtype */ \
    }

#define LD_POINTER(i) reinterpret_cast<GM_ADDR>(pointers[i])
#define LD_POINTERS_1 LD_POINTER(0)
#define LD_POINTERS_2 LD_POINTERS_1, LD_POINTER(1)
#define LD_POINTERS_3 LD_POINTERS_2, LD_POINTER(2)
#define LD_POINTERS_4 LD_POINTERS_3, LD_POINTER(3)
#define LD_POINTERS_5 LD_POINTERS_4, LD_POINTER(4)
#define LD_POINTERS_6 LD_POINTERS_5, LD_POINTER(5)
#define LD_POINTERS_7 LD_POINTERS_6, LD_POINTER(6)
#define LD_POINTERS_8 LD_POINTERS_7, LD_POINTER(7)
#define LD_POINTERS_9 LD_POINTERS_8, LD_POINTER(8)
#define LD_POINTERS_10 LD_POINTERS_9, LD_POINTER(9)
#define LD_POINTERS_11 LD_POINTERS_10, LD_POINTER(10)
#define LD_POINTERS_12 LD_POINTERS_11, LD_POINTER(11)
#define LD_POINTERS_13 LD_POINTERS_12, LD_POINTER(12)
#define LD_POINTERS_14 LD_POINTERS_13, LD_POINTER(13)
#define LD_POINTERS_15 LD_POINTERS_14, LD_POINTER(14)
#define LD_POINTERS_16 LD_POINTERS_15, LD_POINTER(15)
