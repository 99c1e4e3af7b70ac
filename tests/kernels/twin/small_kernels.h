// What the sources of small test kernels share: their plan, and launchers of the shape that the twin's library expects.
#pragma once

#include "kernel_operator.h"

struct Plan {
  uint32_t variant, count, value, reserved;
};

#define KERNEL(name) extern "C" __global__ __aicore__ void name

#define LAUNCHER_BODY(name, kind, ...)                                                                                 \
  extern "C" __attribute__((visibility("default"))) int ld_launch_##name(                                              \
      uint32_t block_count, void* stream, void* const* pointers, uint32_t, const void* data, uint32_t bytes) {         \
    if (bytes != sizeof(Plan)) return -3;                                                                              \
    Plan plan;                                                                                                         \
    std::memcpy(&plan, data, sizeof plan);                                                                             \
    return twin::launch(#name, KERNEL_TYPE_##kind, block_count, static_cast<const twin::Launch*>(stream),              \
                        [&] { name(__VA_ARGS__, plan); });                                                             \
  }
#define POINTER(index) static_cast<GM_ADDR>(pointers[index])
#define LAUNCHER_2(name, kind) LAUNCHER_BODY(name, kind, POINTER(0), POINTER(1))
#define LAUNCHER_3(name, kind) LAUNCHER_BODY(name, kind, POINTER(0), POINTER(1), POINTER(2))
