// Arguments of the attention kernels and how a sequence's rows are found in them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dtype.h"

extern "C" {

// Strides are in elements; the last dimension of every tensor has stride 1.
struct ld_attention_args {
    const void* q;               // [q_rows, heads, dim]
    const void* k;               // packed [k_rows, kv_heads, dim], or a cache [k_rows, block_size, kv_heads, dim]
    const void* v;               // the same with dim_v
    void* out;                   // [q_rows, heads, dim_v]
    float* lse;                  // [q_rows, heads] contiguous, or null
    const float* sinks;          // [heads] or null
    const int64_t* q_start;      // [batch + 1] first query row of each sequence
    const int64_t* k_start;      // [batch] first key row of each sequence (packed keys only)
    const int64_t* k_len;        // [batch] keys of each sequence
    const int32_t* block_table;  // [batch, table_row] for a cache, else null
    int64_t batch, heads, kv_heads, dim, dim_v, q_rows, k_rows;
    int64_t q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head;
    int64_t k_block, v_block, block_size, table_row, table_columns;
    int64_t window;  // key j is visible to query i only if j > i - window; 0 for none
    float scale, softcap;
    int32_t dtype, causal;
    int32_t narrow;  // q_start and k_len are int32_t
};

// Beside `forward` (its q, k, v, out and lse are those of the forward pass; keys are packed).
struct ld_attention_grad_args {
    const void* dout;  // [T, heads, dim_v]
    void* dq;          // [T, heads, dim] contiguous, like q
    void* dk;          // [Tk, kv_heads, dim] contiguous
    void* dv;          // [Tk, kv_heads, dim_v] contiguous
    float* dsinks;     // [heads] or null
    int64_t dout_row, dout_head;
};

}  // extern "C"

namespace ld {

template <class T> using Stored = typename T::type;

// What the functions refuse, beside the codes of dtype.h.
enum AttentionStatus : int {
    kBadQueryStarts = -11,
    kBadKeyStarts = -12,
    kBadLengths = -13,
    kBadPage = -14,
    kBadSlot = -15,
};

constexpr int64_t kStep = 512;   // keys of one online-softmax step
constexpr int64_t kChunk = 4096;  // keys of one independent chunk

// The keys that one query row sees: [begin, end), possibly empty.
struct Visible {
    int64_t begin, end;
};

inline Visible visible_keys(const ld_attention_args& a, int64_t position, int64_t keys) {
    int64_t end = a.causal ? std::min(keys, position + 1) : keys;
    int64_t begin = a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
    if (end < begin) end = begin;
    return {begin, end};
}

// Element offset of the row of key `j` of sequence `b` in a key or value tensor, head 0.
inline int64_t key_offset(const ld_attention_args& a, int64_t b, int64_t j, int64_t row, int64_t block) {
    if (!a.block_table) return (a.k_start[b] + j) * row;
    const int64_t page = a.block_table[b * a.table_row + j / a.block_size];
    return page * block + (j % a.block_size) * row;
}

// kOk, or why the starts, lengths or pages don't fit the tensors.
inline int check_arguments(const ld_attention_args& a) {
    if (a.q_start[0] != 0) return kBadQueryStarts;
    for (int64_t b = 0; b < a.batch; ++b) {
        if (a.q_start[b + 1] < a.q_start[b] || a.q_start[b + 1] > a.q_rows) return kBadQueryStarts;
        const int64_t keys = a.k_len[b];
        if (!a.block_table) {
            if (keys < 0 || a.k_start[b] < 0 || a.k_start[b] + keys > a.k_rows) return kBadKeyStarts;
            continue;
        }
        if (keys < 0 || (keys > 0 && a.block_size < 1)) return kBadLengths;
        const int64_t pages = keys == 0 ? 0 : (keys - 1) / a.block_size + 1;
        if (pages > a.table_columns) return kBadLengths;
        for (int64_t i = 0; i < pages; ++i) {
            const int64_t page = a.block_table[b * a.table_row + i];
            if (page < 0 || page >= a.k_rows) return kBadPage;
        }
    }
    return kOk;
}

}  // namespace ld
