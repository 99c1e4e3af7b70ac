// z = logits / T, for rows of logits in UB.
#pragma once

#include "common/row_tiles.h"

namespace ld {

// Lanes [from, to) of x = value; to is a multiple of 64.
LD_FN void fill_from(const LocalTensor<float>& x, uint32_t from, uint32_t to, float value) {
    const uint32_t used = from % kLanes, next = uint32_t(plan::round_up(from, kLanes));
    if (used != 0) {
        const uint64_t mask[2] = {~((uint64_t(1) << used) - 1), 0};
        Duplicate(x[from - used], value, mask, 1, 1, 8);
    }
    if (next < to) Duplicate(x[next], value, int32_t(to - next));
}

// x = x / T for `count` values, a multiple of 64; T = 1 and T = 0 leave x alone. `work`: 64 lanes. Ends with a barrier.
LD_FN void temper(const LocalTensor<float>& x, uint32_t count, float temperature, const LocalTensor<float>& work) {
    if (temperature == 1.0f || temperature == 0.0f) return;
    const BinaryRepeatParams params(1, 1, 1, 8, 8, 0);
    Duplicate(work, temperature, int32_t(kLanes));
    v_barrier();
    for (uint32_t i = 0; i < count; i += kMostRepeats * kLanes) {
        const uint32_t repeats = uint32_t(plan::least(kMostRepeats, (count - i) / kLanes));
        divide_rows(x[i], x[i], work, repeats, params);
    }
    v_barrier();
}

}  // namespace ld
