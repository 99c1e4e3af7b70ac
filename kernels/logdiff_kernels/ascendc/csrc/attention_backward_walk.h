// The units of a block of the attention backward: for a dQ item the steps of 512 keys ascending, for a dK and dV item
// the heads of the group ascending and within a head the blocks of 512 positions ascending.
//
// The cube core and both vector cores of a block walk the same units, each at its own pace.
#pragma once

#include "attention_walk.h"
#include "plan/csrc/attention_backward.h"

namespace ld {

struct GradTables {
    AttentionTables attention;      // its items aren't used
    GlobalTensor<uint32_t> items[2];  // of dQ; of dK and dV

    LD_FN void set(GM_ADDR q_start, GM_ADDR k_start, GM_ADDR k_len, GM_ADDR dq_items, GM_ADDR dkv_items) {
        attention.set(q_start, k_start, k_len, nullptr, dq_items);
        items[0].SetGlobalBuffer(reinterpret_cast<__gm__ uint32_t*>(dq_items));
        items[1].SetGlobalBuffer(reinterpret_cast<__gm__ uint32_t*>(dkv_items));
    }
};

// Scores of a unit are up to four products of 128 x 128, its sub-tiles. dQ: side by side in rows of 512 columns (keys).
// dK and dV: one below the other in 512 rows (queries of one head, at their positions in the block) of 128 columns.
struct GradUnit {
    AttentionTile tile;  // the item's packed rows; with `keys` its keys: `first_row` is the first one, `rows` how many
    bool keys;           // a unit of dK and dV
    uint32_t item;       // number among the block's items
    uint32_t number;     // among the block's units that see something: its ring entry is number % ring
    uint32_t origin;     // first key of the step, or first position of the query block
    uint32_t head;       // with `keys`: of the group
    uint32_t begin, end;           // rows of the scores that exist
    uint32_t sub_tile, sub_tiles;  // sub-tiles [sub_tile, sub_tile + sub_tiles) are seen by some row
    bool opens, closes;            // first and last unit of its item

    // An item that sees nothing is one unit without sub-tiles, of which the cube core knows nothing.
    LD_FN bool empty() const { return sub_tiles == 0; }
    LD_FN uint32_t pitch() const { return keys ? plan::kTileM : plan::kStep; }
    LD_FN uint32_t columns() const { return keys ? plan::kTileM : sub_tiles * plan::kSubTile; }
    LD_FN uint32_t first_column() const { return keys ? 0 : sub_tile * plan::kSubTile; }
    LD_FN uint32_t first_key() const { return keys ? tile.first_row : origin + sub_tile * plan::kSubTile; }

    // Rows of sub-tile `i` of a query block that exist.
    LD_FN plan::Range rows(uint32_t i) const {
        const uint32_t from = i * plan::kSubTile, to = from + plan::kSubTile;
        return {uint32_t(plan::most(begin, from)) - from, uint32_t(plan::least(end, to)) - from};
    }
    // Row of q, dO and dQ of position `at`, with `keys`.
    LD_FN uint64_t token(uint32_t at) const { return uint64_t(tile.q_first) + at + tile.tokens - tile.keys; }
    LD_FN uint32_t query_head(const LdAttentionPlan& p) const { return tile.kv_head * p.group + head; }

    // Keys that row `row` of the scores sees, and how many rows from there on see the same ones.
    LD_FN plan::KeyRange visible(const LdAttentionPlan& p, uint32_t row) const {
        return keys ? visible_at(p, tile.keys, int64_t(origin) + row) : tile.visible(p, row);
    }
    LD_FN uint32_t alike(const LdAttentionPlan& p, uint32_t row) const {
        return keys ? 1 : tile.alike(p, row);
    }

    // Rows of the scores, and rows of the products, that vector core `sub` has.
    LD_FN plan::Range score_part(uint32_t sub) const {
        const uint32_t middle = begin + (end - begin + 1) / 2;
        return sub == 0 ? plan::Range{begin, middle} : plan::Range{middle, end};
    }
    LD_FN plan::Range sum_part(uint32_t sub) const {
        const uint32_t middle = (tile.rows + 1) / 2;
        return sub == 0 ? plan::Range{0, middle} : plan::Range{middle, tile.rows};
    }
};

class GradWalk {
public:
    LD_FN GradWalk(const LdAttentionBackwardPlan& p, const GradTables& tables, uint32_t block)
        : plan_(p), tables_(tables), block_(block) {}

    // To the next unit; false when there is none.
    LD_FN bool next() {
        if (at_ + 1 < units_) {
            ++at_;
        } else if (!next_item()) {
            return false;
        }
        place();
        return true;
    }

    // To the next unit that sees something.
    LD_FN bool next_seeing() {
        do {
            if (!next()) return false;
        } while (unit_.empty());
        return true;
    }

    LD_FN const GradUnit& unit() const { return unit_; }

private:
    LD_FN bool next_item() {
        for (; kind_ < 2; ++kind_, round_ = 0) {
            const uint32_t items = kind_ == 0 ? plan_.dq_items : plan_.dkv_items;
            const uint32_t blocks = kind_ == 0 ? plan_.dq_blocks : plan_.dkv_blocks;
            if (block_ >= blocks || uint64_t(round_) * blocks >= items) continue;
            // The blocks that end the items of the first kind late begin those of the second with the cheaper ones.
            const uint32_t turn = kind_ == 0 ? block_ : blocks - 1 - block_;
            const uint32_t index = plan::snake_item(round_, turn, blocks);
            ++round_;
            if (index >= items) continue;  // only the last round can lack an item
            open(index);
            return true;
        }
        return false;
    }

    LD_FN uint32_t word(uint32_t index, uint32_t i) const {
        constexpr uint32_t words = sizeof(LdAttentionGradItem) / sizeof(uint32_t);
        return tables_.items[kind_].GetValue(uint64_t(index) * words + i);
    }

    LD_FN void open(uint32_t index) {
        const LdAttentionPlan& p = plan_.forward;
        const uint32_t number = word(index, 2);
        unit_.tile = attention_tile(p, tables_.attention, word(index, 0), word(index, 1), number, word(index, 3));
        unit_.keys = kind_ == 1;
        unit_.item = items_++;
        seen_ = unit_.keys ? plan::seeing_queries(p, unit_.tile.tokens, unit_.tile.keys, number)
                           : plan::visible_keys(p, unit_.tile.tokens, unit_.tile.keys, number);
        first_ = word(index, 4);
        steps_ = word(index, 5);
        units_ = uint32_t(plan::most(1, steps_ * (unit_.keys ? p.group : 1)));
        at_ = 0;
    }

    LD_FN void place() {
        unit_.opens = at_ == 0;
        unit_.closes = at_ + 1 >= units_;
        if (steps_ == 0) {
            unit_.sub_tile = unit_.sub_tiles = unit_.begin = unit_.end = unit_.head = unit_.origin = 0;
            return;
        }
        unit_.head = at_ / steps_;
        unit_.origin = (first_ + at_ % steps_) * plan::kStep;
        const uint32_t from = uint32_t(plan::most(seen_.begin, unit_.origin)) - unit_.origin;
        const uint32_t to = uint32_t(plan::least(seen_.end, uint64_t(unit_.origin) + plan::kStep)) - unit_.origin;
        unit_.begin = unit_.keys ? from : 0;
        unit_.end = unit_.keys ? to : unit_.tile.rows;
        unit_.sub_tile = from / plan::kSubTile;
        unit_.sub_tiles = uint32_t(plan::ceil_div(to, plan::kSubTile)) - unit_.sub_tile;
        unit_.number = number_++;
    }

    const LdAttentionBackwardPlan& plan_;
    const GradTables& tables_;
    uint32_t block_;
    uint32_t kind_ = 0, round_ = 0, items_ = 0, number_ = 0;
    uint32_t at_ = 0, units_ = 0, first_ = 0, steps_ = 0;  // of the item
    plan::KeyRange seen_{0, 0};
    GradUnit unit_;
};

}  // namespace ld
