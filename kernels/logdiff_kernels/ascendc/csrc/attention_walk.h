// The steps of a block of attention: items in the block's order, within an item the steps of 512 keys ascending.
//
// The cube core and both vector cores of a block walk the same steps, each at its own pace, so that no message between
// them has to say what comes next.
#pragma once

#include "common/reset.h"
#include "plan/csrc/attention.h"

namespace ld {

// The GM tables of a launch. Small index data that no kernel writes: the scalar unit reads them.
struct AttentionTables {
    GlobalTensor<int32_t> q_start, k_start, k_len, block_table;
    GlobalTensor<uint32_t> items;

    LD_FN void set(GM_ADDR q_start_gm, GM_ADDR k_start_gm, GM_ADDR k_len_gm, GM_ADDR block_table_gm, GM_ADDR items_gm) {
        q_start.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(q_start_gm));
        if (k_start_gm != nullptr) k_start.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(k_start_gm));
        k_len.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(k_len_gm));
        if (block_table_gm != nullptr) block_table.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(block_table_gm));
        items.SetGlobalBuffer(reinterpret_cast<__gm__ uint32_t*>(items_gm));
    }
};

// Which of a sequence's `keys` keys a query at absolute position `at` sees.
LD_FN plan::KeyRange visible_at(const LdAttentionPlan& p, uint32_t keys, int64_t at) {
    int64_t end = keys;
    if (p.causal && at + 1 < end) end = at + 1;
    const int64_t begin = p.window > 0 && at + 1 > int64_t(p.window) ? at + 1 - int64_t(p.window) : 0;
    if (begin >= end) return {0, 0};
    return {uint32_t(begin), uint32_t(end)};
}

// Packed rows of one tile, and the sequence that they belong to.
struct AttentionTile {
    uint32_t sequence, kv_head;
    uint32_t first_row;       // of the tile among the packed rows of its sequence and KV head
    uint32_t rows;            // that exist
    uint32_t tokens, keys;    // of the sequence
    uint32_t q_first, k_first;  // first query row and, with packed keys, first key row of the sequence

    // Rows that the vector cores work on: whole groups of 8, the last ones may not exist.
    LD_FN uint32_t padded_rows() const { return uint32_t(plan::round_up(rows, 8)); }
    // Rows [begin, end) of vector core `sub`: the halves of the padded rows, in groups of 8.
    LD_FN plan::Range part(uint32_t sub) const {
        const uint32_t half = uint32_t(plan::round_up(plan::ceil_div(padded_rows(), 2), 8));
        return sub == 0 ? plan::Range{0, half} : plan::Range{half, padded_rows()};
    }
    // Absolute position of the token of packed row `row` of the tile; negative if the sequence has fewer keys.
    LD_FN int64_t position(const LdAttentionPlan& p, uint32_t row) const {
        return int64_t(keys) - int64_t(tokens) + int64_t((first_row + row) / p.group);
    }
    // Keys that the row sees.
    LD_FN plan::KeyRange visible(const LdAttentionPlan& p, uint32_t row) const {
        return visible_at(p, keys, position(p, row));
    }
    // Rows from `row` on that see the same keys: those of one token.
    LD_FN uint32_t alike(const LdAttentionPlan& p, uint32_t row) const {
        return p.group - (first_row + row) % p.group;
    }
    // Rows from `row` on that lie one stride apart in a tensor with these strides, at most `most`.
    LD_FN uint32_t run(const LdAttentionPlan& p, uint32_t row, uint32_t most, int64_t row_stride,
                       int64_t head_stride) const {
        if (p.group == 1 || row_stride == int64_t(p.group) * head_stride) return most;
        return uint32_t(plan::least(most, alike(p, row)));
    }
    LD_FN int64_t stride(const LdAttentionPlan& p, int64_t row_stride, int64_t head_stride) const {
        return p.group == 1 ? row_stride : head_stride;
    }
    // Element offset of packed row `row` in a tensor [tokens of all sequences, heads, ...].
    LD_FN uint64_t offset(const LdAttentionPlan& p, uint32_t row, int64_t row_stride, int64_t head_stride) const {
        const uint32_t packed = first_row + row;
        return uint64_t((int64_t(q_first) + packed / p.group) * row_stride +
                        (int64_t(kv_head) * p.group + packed % p.group) * head_stride);
    }
};

LD_FN AttentionTile attention_tile(const LdAttentionPlan& p, const AttentionTables& tables, uint32_t sequence,
                                   uint32_t kv_head, uint32_t row_tile, uint32_t rows) {
    AttentionTile tile;
    tile.sequence = sequence;
    tile.kv_head = kv_head;
    tile.first_row = row_tile * plan::kTileM;
    tile.rows = rows;
    tile.q_first = uint32_t(tables.q_start.GetValue(sequence));
    tile.tokens = uint32_t(tables.q_start.GetValue(sequence + 1)) - tile.q_first;
    tile.keys = uint32_t(tables.k_len.GetValue(sequence));
    tile.k_first = p.block_size ? 0 : uint32_t(tables.k_start.GetValue(sequence));
    return tile;
}

struct AttentionStep {
    AttentionTile tile;
    uint32_t slot;               // of the chunk's state, or kNoSlot
    uint32_t key;                // first key of the step
    uint32_t sub_tile, sub_tiles;  // sub-tiles [sub_tile, sub_tile + sub_tiles) of the step are seen by some row
    uint32_t number;             // among the block's steps that see something: its ring entry is number % ring
    uint32_t item, chunk;        // numbers among the block's items and chunks
    bool opens, closes;          // first and last step of its chunk
    bool first_chunk, last_chunk;   // it lies in the first, in the last chunk of the item

    // An item whose rows see nothing is one step without keys, of which the cube core knows nothing.
    LD_FN bool empty() const { return sub_tiles == 0; }
    LD_FN uint32_t columns() const { return sub_tiles * plan::kSubTile; }
    LD_FN uint32_t first_column() const { return sub_tile * plan::kSubTile; }
};

class AttentionWalk {
public:
    LD_FN AttentionWalk(const LdAttentionPlan& p, const AttentionTables& tables, uint32_t block)
        : plan_(p), tables_(tables), block_(block) {}

    // To the next step; false when there is none.
    LD_FN bool next() {
        if (at_ + 1 >= end_) {
            if (!next_item()) return false;
        } else {
            ++at_;
        }
        place();
        return true;
    }

    // To the next step that sees something.
    LD_FN bool next_seeing() {
        do {
            if (!next()) return false;
        } while (step_.empty());
        return true;
    }

    LD_FN const AttentionStep& step() const { return step_; }

private:
    LD_FN bool next_item() {
        const uint32_t index = plan::snake_item(round_, block_, plan_.blocks);
        if (uint64_t(round_) * plan_.blocks >= plan_.items) return false;
        ++round_;
        if (index >= plan_.items) return next_item_of_last_round();
        const uint32_t row_tile = word(index, 2);
        step_.tile = attention_tile(plan_, tables_, word(index, 0), word(index, 1), row_tile, word(index, 6));
        step_.slot = word(index, 5);
        seen_ = plan::visible_keys(plan_, step_.tile.tokens, step_.tile.keys, row_tile);
        const uint64_t first = word(index, 3), chunks = word(index, 4);
        seen_.begin = uint32_t(plan::most(seen_.begin, first * plan::kChunk));
        seen_.end = uint32_t(plan::least(seen_.end, (first + chunks) * plan::kChunk));
        if (seen_.begin >= seen_.end) seen_ = {0, 0};
        first_ = seen_.begin / plan::kStep;
        end_ = uint32_t(plan::ceil_div(seen_.end, plan::kStep));
        at_ = first_;
        ++items_;
        return true;
    }

    LD_FN uint32_t word(uint32_t index, uint32_t i) const {
        constexpr uint32_t words = sizeof(LdAttentionItem) / sizeof(uint32_t);
        return tables_.items.GetValue(uint64_t(index) * words + i);
    }

    // Only the last round can lack an item, so nothing follows it.
    LD_FN bool next_item_of_last_round() {
        at_ = end_ = 0;
        return false;
    }

    LD_FN void place() {
        const bool nothing = seen_.begin >= seen_.end;
        step_.opens = at_ == first_ || at_ % plan::kChunkSteps == 0;
        step_.closes = at_ + 1 >= end_ || (at_ + 1) % plan::kChunkSteps == 0;
        step_.first_chunk = at_ / plan::kChunkSteps == first_ / plan::kChunkSteps;
        step_.last_chunk = nothing || at_ / plan::kChunkSteps == (end_ - 1) / plan::kChunkSteps;
        step_.key = at_ * plan::kStep;
        step_.item = items_ - 1;
        if (step_.opens) ++chunks_;
        step_.chunk = chunks_ - 1;
        if (nothing) {
            step_.sub_tile = step_.sub_tiles = 0;
            return;
        }
        const uint32_t from = uint32_t(plan::most(seen_.begin, step_.key)) - step_.key;
        const uint32_t to = uint32_t(plan::least(seen_.end, uint64_t(step_.key) + plan::kStep)) - step_.key;
        step_.sub_tile = from / plan::kSubTile;
        step_.sub_tiles = uint32_t(plan::ceil_div(to, plan::kSubTile)) - step_.sub_tile;
        step_.number = steps_++;
    }

    const LdAttentionPlan& plan_;
    const AttentionTables& tables_;
    uint32_t block_;
    uint32_t round_ = 0, items_ = 0, chunks_ = 0, steps_ = 0;
    uint32_t at_ = 0, first_ = 0, end_ = 0;  // step of 512 keys: now, first of the item, behind its last
    plan::KeyRange seen_{0, 0};
    AttentionStep step_;
};

}  // namespace ld
