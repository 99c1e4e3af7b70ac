// Arguments of the attention kernels and how a sequence's rows are found in them.
#pragma once

#include <algorithm>
#include <cstdint>

extern "C" {

// Strides are in elements; the last dimension of every tensor has stride 1.
struct ld_attention_args {
  const void* q;               // [T, heads, dim]
  const void* k;               // packed [Tk, kv_heads, dim], or a cache [blocks, block_size, kv_heads, dim]
  const void* v;               // the same with dim_v
  void* out;                   // [T, heads, dim_v]
  float* lse;                  // [T, heads] contiguous, or null
  const float* sinks;          // [heads] or null
  const int64_t* q_start;      // [batch + 1] first query row of each sequence
  const int64_t* k_start;      // [batch] first key row of each sequence (packed keys only)
  const int64_t* k_len;        // [batch] keys of each sequence
  const int32_t* block_table;  // [batch, table_row] for a cache, else null
  int64_t batch, heads, kv_heads, dim, dim_v;
  int64_t q_row, q_head, k_row, k_head, v_row, v_head, out_row, out_head;
  int64_t k_block, v_block, block_size, table_row;
  int64_t window;  // key j is visible to query i only if j > i - window; 0 for none
  float scale, softcap;
  int32_t dtype, causal;
};

// Beside `forward` (its q, k, v, out and lse are those of the forward pass; keys are packed).
struct ld_attention_grad_args {
  const void* dout;  // [T, heads, dim_v]
  void* dq;          // [T, heads, dim] contiguous, like q
  void* dk;          // [Tk, kv_heads, dim] contiguous
  void* dv;          // [Tk, kv_heads, dim_v] contiguous
  float* dsinks;     // [heads] or null
  int64_t rows, key_rows;
  int64_t dout_row, dout_head;
};

}  // extern "C"

namespace ld {

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

}  // namespace ld
