// Running a kernel on the twin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "check.h"
#include "types.h"

namespace twin {

enum class Mmad : uint32_t { ascending, pairwise16, fp64 };

// One GM allocation that the kernel may touch.
struct Region {
  const void* address;
  uint64_t bytes;
  const char* name;
  uint32_t initialised;  // 0: reading it before the kernel has written it is an error
  uint32_t read_only;    // 1: writing it is an error
};

// What the `stream` argument of a launcher points to in the twin; the mirror is twin/library.py.
struct Launch {
  uint32_t size = sizeof(Launch);
  uint32_t cores = 24;             // AIC of the chip; each comes with two AIV
  uint64_t seed = 0;
  Mmad mmad = Mmad::ascending;
  uint32_t check_races = 1;
  uint32_t trace = 0;
  uint32_t perturb = 0;            // 1: Exp and Ln are off by up to one ulp, as another chip's may be
  uint32_t switch_every = 64;      // mean number of instructions between random switches of the running core; 0: none
  uint64_t instruction_limit = 0;  // ends a launch that runs away; 0: none
  uint32_t region_count = 0;       // 0: GM is not checked for range and initialisation
  const Region* regions = nullptr;
};

const Launch& options();  // of the running launch

// Runs `body` once per core of each block. Returns 0, or kFailed with the reason in last_failure().
constexpr int kFailed = -100;
int launch(const char* kernel, KernelMetaType kind, uint32_t blocks, const Launch* options,
           const std::function<void()>& body);

}  // namespace twin
