// Work tables of attention and which block takes which item. Host only: it sorts and allocates.
//
// Everything here is assignment. Who computes an item, and whether the chunks of a row tile are computed by one block
// or by several, doesn't change a bit of the result, so these functions may look at batch and core count.
#pragma once

#include <algorithm>
#include <vector>

#include "attention_backward.h"

namespace ld::plan {

// A row tile is a candidate for being cut into its chunks if it costs more than this part of a block's even share.
constexpr uint64_t kSplitShare = 8;

// Cost of leaving and fetching the state of a chunk, in sub-tiles: 2 for a full row tile of fp32 O through GM.
inline uint64_t state_cost(uint32_t rows) { return ceil_div(2 * uint64_t(rows), kTileM); }

// Largest sum of costs of a block when blocks take the sorted items boustrophedon.
template <class Item> uint64_t snake_makespan(const std::vector<Item>& sorted, uint32_t blocks) {
    uint64_t longest = 0;
    for (uint32_t block = 0; block < blocks; ++block) {
        uint64_t load = 0;
        for (uint32_t round = 0; uint64_t(round) * blocks < sorted.size(); ++round) {
            const uint32_t item = snake_item(round, block, blocks);
            if (item < sorted.size()) load += sorted[item].cost;
        }
        longest = std::max(longest, load);
    }
    return longest;
}

template <class Item> void sort_by_cost(std::vector<Item>& items) {
    std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
}

struct AttentionTable {
    std::vector<LdAttentionItem> items;
    std::vector<LdAttentionCombine> combines;
    uint32_t slots = 0, slot_rows = 0;
};

// Every row tile as one item, in the order sequence, KV head, row tile.
inline std::vector<LdAttentionItem> whole_items(const LdAttentionPlan& p, const int32_t* q_start,
                                                const int32_t* k_len) {
    std::vector<LdAttentionItem> items;
    for (uint32_t s = 0; s < p.batch; ++s) {
        const uint32_t tokens = uint32_t(q_start[s + 1] - q_start[s]), keys = uint32_t(k_len[s]);
        const uint64_t packed = uint64_t(tokens) * p.group;
        for (uint32_t h = 0; h < p.kv_heads; ++h)
            for (uint32_t t = 0; t < row_tiles(p, tokens); ++t) {
                const KeyRange seen = visible_keys(p, tokens, keys, t);
                const uint32_t first = seen.begin / kChunk;
                const uint32_t chunks = uint32_t(ceil_div(seen.end, kChunk)) - first;
                const uint32_t rows = uint32_t(least(kTileM, packed - uint64_t(t) * kTileM));
                items.push_back({s, h, t, first, chunks, kNoSlot, rows, sub_tiles(seen, first, chunks)});
            }
    }
    return items;
}

// The same row tiles with the long ones cut into their chunks.
inline AttentionTable cut_items(const LdAttentionPlan& p, const int32_t* q_start, const int32_t* k_len,
                                const std::vector<LdAttentionItem>& whole) {
    uint64_t total = 0;
    for (const LdAttentionItem& item : whole) total += item.cost;
    AttentionTable table;
    for (const LdAttentionItem& item : whole) {
        if (item.chunks < 2 || item.cost * kSplitShare * p.cores <= total) {
            table.items.push_back(item);
            continue;
        }
        const uint32_t tokens = uint32_t(q_start[item.sequence + 1] - q_start[item.sequence]);
        const KeyRange seen = visible_keys(p, tokens, uint32_t(k_len[item.sequence]), item.row_tile);
        table.combines.push_back(
            {item.sequence, item.kv_head, item.row_tile, table.slots, item.chunks, item.rows, 0, 0});
        table.slot_rows = std::max(table.slot_rows, uint32_t(round_up(item.rows, kFractal)));
        for (uint32_t i = 0; i < item.chunks; ++i) {
            LdAttentionItem part = item;
            part.first_chunk = item.first_chunk + i;
            part.chunks = 1;
            part.slot = table.slots++;
            part.cost = uint32_t(sub_tiles(seen, part.first_chunk, 1) + state_cost(item.rows));
            table.items.push_back(part);
        }
    }
    return table;
}

// The table of the launch: row tiles are cut into chunks only if that shortens the longest block.
inline AttentionTable attention_table(const LdAttentionPlan& p, const int32_t* q_start, const int32_t* k_len) {
    AttentionTable whole{whole_items(p, q_start, k_len), {}, 0, 0};
    AttentionTable cut = cut_items(p, q_start, k_len, whole.items);
    sort_by_cost(whole.items);
    if (cut.slots == 0) return whole;
    sort_by_cost(cut.items);
    return snake_makespan(cut.items, p.cores) < snake_makespan(whole.items, p.cores) ? cut : whole;
}

struct BackwardTable {
    std::vector<LdAttentionGradItem> dq, dkv;
};

inline BackwardTable backward_table(const LdAttentionPlan& p, const int32_t* q_start, const int32_t* k_len) {
    BackwardTable table;
    for (const LdAttentionItem& item : whole_items(p, q_start, k_len)) {
        const uint32_t tokens = uint32_t(q_start[item.sequence + 1] - q_start[item.sequence]);
        const KeyRange seen = visible_keys(p, tokens, uint32_t(k_len[item.sequence]), item.row_tile);
        const uint32_t first = seen.begin / kStep, steps = uint32_t(ceil_div(seen.end, kStep)) - first;
        table.dq.push_back({item.sequence, item.kv_head, item.row_tile, item.rows, first, steps, item.cost, 0});
    }
    for (uint32_t s = 0; s < p.batch; ++s) {
        const uint32_t tokens = uint32_t(q_start[s + 1] - q_start[s]), keys = uint32_t(k_len[s]);
        for (uint32_t h = 0; h < p.kv_heads; ++h)
            for (uint32_t t = 0; t * kTileM < keys; ++t) {
                const KeyRange queries = seeing_queries(p, tokens, keys, t);
                const uint32_t first = queries.begin / kStep, blocks = uint32_t(ceil_div(queries.end, kStep)) - first;
                const uint32_t tiles = uint32_t(ceil_div(queries.end, kTileM)) - queries.begin / kTileM;
                const uint32_t rows = uint32_t(least(kTileM, keys - t * kTileM));
                table.dkv.push_back({s, h, t, rows, first, blocks, tiles * p.group, 0});
            }
    }
    sort_by_cost(table.dq);
    sort_by_cost(table.dkv);
    return table;
}

}  // namespace ld::plan
