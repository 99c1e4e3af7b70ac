// The plans as a C library, for ctypes: the functions of the headers, nothing of its own.
#include <cstring>

#include "attention.h"
#include "attention_backward.h"
#include "linear.h"
#include "rows.h"
#include "schedule.h"

#define LD_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace ld::plan;

template <class Item> int copy_out(const std::vector<Item>& from, Item* to, uint64_t room) {
    if (from.size() > room) return kPlanArgument;
    if (!from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(Item));
    return kPlanOk;
}

}  // namespace

LD_EXPORT int ld_plan_capacity(uint32_t arch, Usage* out) {
    if (!known_arch(arch)) return kPlanArgument;
    *out = capacity(arch);
    return kPlanOk;
}

LD_EXPORT uint32_t ld_plan_default_cores(uint32_t arch) { return default_cores(arch); }

LD_EXPORT uint32_t ld_plan_snake_item(uint32_t round, uint32_t block, uint32_t blocks) {
    return snake_item(round, block, blocks);
}

LD_EXPORT int ld_plan_rows(LdRows* cut, uint32_t kernel, uint32_t dtype, uint32_t rows, uint32_t length, uint32_t cores,
                           uint32_t split) {
    if (element_bytes(dtype) == 0) return kPlanDType;
    if (kernel >= kRowKernels || cores == 0 || split > kStrided) return kPlanArgument;
    cut_rows(*cut, kernel, dtype, rows, length, cores, split);
    return kPlanOk;
}

LD_EXPORT RowWalk ld_plan_row_walk(const LdRows* cut, uint32_t block) { return row_walk(*cut, block); }

LD_EXPORT uint64_t ld_plan_row_ub_bytes(uint32_t kernel, uint32_t dtype, uint64_t tile, uint64_t rows) {
    return row_ub_bytes(kernel, dtype, tile, rows);
}

LD_EXPORT int ld_plan_linear(LdLinearPlan* p) { return plan_linear(*p); }

LD_EXPORT uint32_t ld_plan_row_leaves(uint32_t k) { return row_leaves(k); }

LD_EXPORT uint32_t ld_plan_linear_pieces(const LdLinearPlan* p, uint32_t k) { return linear_pieces(*p, k); }

LD_EXPORT Range ld_plan_linear_piece(const LdLinearPlan* p, uint32_t k, uint32_t i) { return linear_piece(*p, k, i); }

LD_EXPORT TilePlace ld_plan_linear_place(uint32_t index, uint32_t tiles_m, uint32_t tiles_n) {
    return linear_place(index, tiles_m, tiles_n);
}

LD_EXPORT Usage ld_plan_linear_usage(const LdLinearPlan* p) { return linear_usage(*p); }

LD_EXPORT int ld_plan_attention(LdAttentionPlan* p) { return plan_attention(*p); }

LD_EXPORT Usage ld_plan_attention_usage(const LdAttentionPlan* p) { return attention_usage(*p); }

LD_EXPORT KeyRange ld_plan_visible_keys(const LdAttentionPlan* p, uint32_t tokens, uint32_t keys, uint32_t row_tile) {
    return visible_keys(*p, tokens, keys, row_tile);
}

// Number of items and of combines that the table can have at most: room[0], room[1].
LD_EXPORT void ld_plan_attention_room(const LdAttentionPlan* p, const int32_t* q_start, const int32_t* k_len,
                                      uint64_t* room) {
    room[0] = room[1] = 0;
    for (const LdAttentionItem& item : whole_items(*p, q_start, k_len)) {
        room[0] += most(1, item.chunks);
        room[1] += 1;
    }
}

// Writes the table and fills the third part of the plan.
LD_EXPORT int ld_plan_attention_table(LdAttentionPlan* p, const int32_t* q_start, const int32_t* k_len,
                                      LdAttentionItem* items, uint64_t item_room, LdAttentionCombine* combines,
                                      uint64_t combine_room) {
    const AttentionTable table = attention_table(*p, q_start, k_len);
    if (const int status = copy_out(table.items, items, item_room); status != kPlanOk) return status;
    if (const int status = copy_out(table.combines, combines, combine_room); status != kPlanOk) return status;
    p->items = uint32_t(table.items.size());
    p->combines = uint32_t(table.combines.size());
    p->blocks = uint32_t(least(p->items, p->cores));
    p->slots = table.slots;
    p->slot_rows = table.slot_rows;
    p->workspace = attention_workspace(*p);
    return kPlanOk;
}

LD_EXPORT int ld_plan_attention_backward(LdAttentionBackwardPlan* p) { return plan_attention_backward(*p); }

LD_EXPORT Usage ld_plan_attention_backward_usage(const LdAttentionBackwardPlan* p) { return backward_usage(*p); }

// The number of items of both kinds: room[0] of dQ, room[1] of dK and dV.
LD_EXPORT void ld_plan_attention_backward_room(const LdAttentionBackwardPlan* p, const int32_t* q_start,
                                               const int32_t* k_len, uint64_t* room) {
    room[0] = room[1] = 0;
    for (uint32_t s = 0; s < p->forward.batch; ++s) {
        room[0] += uint64_t(p->forward.kv_heads) * row_tiles(p->forward, uint32_t(q_start[s + 1] - q_start[s]));
        room[1] += p->forward.kv_heads * ceil_div(uint64_t(k_len[s]), kTileM);
    }
}

LD_EXPORT int ld_plan_attention_backward_table(LdAttentionBackwardPlan* p, const int32_t* q_start, const int32_t* k_len,
                                               LdAttentionGradItem* dq, uint64_t dq_room, LdAttentionGradItem* dkv,
                                               uint64_t dkv_room) {
    for (uint32_t s = 0; s < p->forward.batch && !p->forward.causal; ++s)
        if (q_start[s + 1] - q_start[s] > k_len[s]) return kPlanShape;
    const BackwardTable table = backward_table(p->forward, q_start, k_len);
    if (const int status = copy_out(table.dq, dq, dq_room); status != kPlanOk) return status;
    if (const int status = copy_out(table.dkv, dkv, dkv_room); status != kPlanOk) return status;
    p->tokens = uint32_t(q_start[p->forward.batch]);
    cut_dots(*p);
    p->dq_items = uint32_t(table.dq.size());
    p->dkv_items = uint32_t(table.dkv.size());
    p->dq_blocks = uint32_t(least(p->dq_items, p->forward.cores));
    p->dkv_blocks = uint32_t(least(p->dkv_items, p->forward.cores));
    p->workspace = backward_workspace(*p);
    return kPlanOk;
}
