// What a row of scores doesn't see: the selection that is shared by the forward pass and the gradients.
#pragma once

#include "attention_walk.h"
#include "common/softmax_step.h"

namespace ld {

// Lane of key `at` among `columns` keys from `key` on; those before and behind are the ends.
LD_FN uint32_t lane_of(uint32_t at, uint32_t key, uint32_t columns) {
    return at > key ? uint32_t(plan::least(at - key, columns)) : 0;
}

// Rows [row, end) of `where`, `columns` keys from `key` on: keys that a row doesn't see become `value`.
//
// `where` says which keys a row sees (visible) and how many rows from there on see the same ones (alike). Ranges rise
// with the row: the first one ends first, the last one begins last.
template <class Where>
LD_FN void hide_unseen(const LocalTensor<float>& x, const LdAttentionPlan& p, const Where& where, uint32_t row,
                       uint32_t end, uint32_t key, uint32_t columns, float value) {
    if (row >= end) return;
    const plan::KeyRange first = where.visible(p, row), last = where.visible(p, end - 1);
    if (first.begin < first.end && first.end >= key + columns && last.begin <= key) return;
    // What no row sees, for all rows at once; a row that sees nothing at all has the range {0, 0}.
    const uint32_t low = first.begin < first.end ? lane_of(first.begin, key, columns) : 0;
    const uint32_t high = last.begin < last.end ? lane_of(last.end, key, columns) : 0;
    v_barrier();
    fill_lanes(x, end - row, columns, 0, low, value);
    if (low > 0) v_barrier();  // both ends may lie in one data block
    fill_lanes(x, end - row, columns, high, columns, value);
    if (!p.causal && p.window == 0) return;
    v_barrier();  // rows go on within the same data blocks
    for (uint32_t r = row; r < end;) {
        const uint32_t now = uint32_t(plan::least(where.alike(p, r), end - r));
        const plan::KeyRange seen = where.visible(p, r);
        const uint32_t from = lane_of(seen.begin, key, columns), to = lane_of(seen.end, key, columns);
        const LocalTensor<float> rows = x[(r - row) * columns];
        if (from >= to) {
            fill_lanes(rows, now, columns, low, high, value);
        } else {
            fill_lanes(rows, now, columns, low, from, value);
            if (from > low) v_barrier();
            fill_lanes(rows, now, columns, to, high, value);
        }
        r += now;
    }
}

}  // namespace ld
