// attention backward: every output has one owner, sums in the order of the numeric contract.
#include <limits>
#include <vector>

#include "attention.h"
#include "attention_scalar.h"
#include "parallel.h"

namespace ld {
namespace {

constexpr int64_t kQueryBlock = 512;  // absolute positions of one dK/dV partial sum
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// P and dS of one (query row, key), rounded to the input dtype.
struct Pair {
  float p, ds;
};

template <class T>
struct Row {
  const Stored<T> *q, *dout;
  float lse, d;
  Visible seen;
};

template <class T>
Row<T> row_of(const ld_attention_args& a, const ld_attention_grad_args& g, const std::vector<float>& dots, int64_t b,
              int64_t row, int64_t head) {
  const int64_t rows = a.q_start[b + 1] - a.q_start[b], keys = a.k_len[b], token = a.q_start[b] + row;
  Row<T> r;
  r.q = static_cast<const Stored<T>*>(a.q) + token * a.q_row + head * a.q_head;
  r.dout = static_cast<const Stored<T>*>(g.dout) + token * g.dout_row + head * g.dout_head;
  r.lse = a.lse[token * a.heads + head];
  r.d = dots[token * a.heads + head];
  r.seen = visible_keys(a, keys - rows + row, keys);
  if (r.lse == kNegInf) r.seen.end = r.seen.begin;
  return r;
}

template <class T>
Pair pair_of(const ld_attention_args& a, const Row<T>& r, const Stored<T>* k, const Stored<T>* v) {
  float s = dot<T>(r.q, k, a.dim) * a.scale, slope = 1.f;
  if (a.softcap > 0.f) {
    const float t = tanh1(s / a.softcap);
    s = a.softcap * t;
    slope = 1.f - t * t;
  }
  const float dp = dot<T>(r.dout, v, a.dim_v);
  const float p = exp1(s - r.lse);
  float ds = p * (dp - r.d);
  if (a.softcap > 0.f) ds = ds * slope;
  return {round_to<T>(p), round_to<T>(ds)};
}

template <class T>
void dq_row(const ld_attention_args& a, const ld_attention_grad_args& g, const std::vector<float>& dots, int64_t b,
            int64_t row, int64_t head) {
  const Row<T> r = row_of<T>(a, g, dots, b, row, head);
  const int64_t kv_head = head / (a.heads / a.kv_heads);
  std::vector<float> sum(a.dim, 0.f), part(a.dim);
  for (int64_t step = r.seen.begin / kStep * kStep; step < r.seen.end; step += kStep) {
    std::fill(part.begin(), part.end(), 0.f);
    for (int64_t j = std::max(step, r.seen.begin); j < std::min(step + kStep, r.seen.end); ++j) {
      const Stored<T>* k = static_cast<const Stored<T>*>(a.k) + kv_head * a.k_head + key_offset(a, b, j, a.k_row, a.k_block);
      const Stored<T>* v = static_cast<const Stored<T>*>(a.v) + kv_head * a.v_head + key_offset(a, b, j, a.v_row, a.v_block);
      const Pair e = pair_of<T>(a, r, k, v);
      for (int64_t d = 0; d < a.dim; ++d) part[d] = std::fma(e.ds, load_scalar<T>(k + d), part[d]);
    }
    for (int64_t d = 0; d < a.dim; ++d) sum[d] = sum[d] + part[d];
  }
  Stored<T>* dq = static_cast<Stored<T>*>(g.dq) + ((a.q_start[b] + row) * a.heads + head) * a.dim;
  for (int64_t d = 0; d < a.dim; ++d) store_scalar<T>(dq + d, sum[d] * a.scale);
}

template <class T>
void dkv_key(const ld_attention_args& a, const ld_attention_grad_args& g, const std::vector<float>& dots, int64_t b,
             int64_t j, int64_t kv_head) {
  const int64_t rows = a.q_start[b + 1] - a.q_start[b], keys = a.k_len[b], group = a.heads / a.kv_heads;
  const Stored<T>* k = static_cast<const Stored<T>*>(a.k) + kv_head * a.k_head + key_offset(a, b, j, a.k_row, a.k_block);
  const Stored<T>* v = static_cast<const Stored<T>*>(a.v) + kv_head * a.v_head + key_offset(a, b, j, a.v_row, a.v_block);
  std::vector<float> dk(a.dim, 0.f), dv(a.dim_v, 0.f), part_k(a.dim), part_v(a.dim_v);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t row = 0; row < rows;) {
      const int64_t position = keys - rows + row;
      const int64_t block_end = (position >= 0 ? position / kQueryBlock + 1 : 0) * kQueryBlock;
      std::fill(part_k.begin(), part_k.end(), 0.f);
      std::fill(part_v.begin(), part_v.end(), 0.f);
      for (; row < rows && keys - rows + row < block_end; ++row) {
        const Row<T> r = row_of<T>(a, g, dots, b, row, head);
        if (j < r.seen.begin || j >= r.seen.end) continue;
        const Pair e = pair_of<T>(a, r, k, v);
        for (int64_t d = 0; d < a.dim; ++d) part_k[d] = std::fma(e.ds, load_scalar<T>(r.q + d), part_k[d]);
        for (int64_t d = 0; d < a.dim_v; ++d) part_v[d] = std::fma(e.p, load_scalar<T>(r.dout + d), part_v[d]);
      }
      for (int64_t d = 0; d < a.dim; ++d) dk[d] = dk[d] + part_k[d];
      for (int64_t d = 0; d < a.dim_v; ++d) dv[d] = dv[d] + part_v[d];
    }
  }
  const int64_t out = (a.k_start[b] + j) * a.kv_heads + kv_head;
  Stored<T>* dk_out = static_cast<Stored<T>*>(g.dk) + out * a.dim;
  Stored<T>* dv_out = static_cast<Stored<T>*>(g.dv) + out * a.dim_v;
  for (int64_t d = 0; d < a.dim; ++d) store_scalar<T>(dk_out + d, dk[d] * a.scale);
  for (int64_t d = 0; d < a.dim_v; ++d) store_scalar<T>(dv_out + d, dv[d]);
}

template <class T>
void backward(const ld_attention_args& a, const ld_attention_grad_args& g) {
  std::vector<float> dots(g.rows * a.heads, 0.f);
  parallel_for(g.rows * a.heads, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> product(a.dim_v);
    for (int64_t i = begin; i < end; ++i) {
      const Stored<T>* o = static_cast<const Stored<T>*>(a.out) + i / a.heads * a.out_row + i % a.heads * a.out_head;
      const Stored<T>* d = static_cast<const Stored<T>*>(g.dout) + i / a.heads * g.dout_row + i % a.heads * g.dout_head;
      for (int64_t c = 0; c < a.dim_v; ++c) product[c] = load_scalar<T>(d + c) * load_scalar<T>(o + c);
      dots[i] = r64(product.data(), a.dim_v);
    }
  });
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t rows = a.q_start[b + 1] - a.q_start[b];
    parallel_for(rows * a.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) dq_row<T>(a, g, dots, b, i / a.heads, i % a.heads);
    });
    parallel_for(a.k_len[b] * a.kv_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) dkv_key<T>(a, g, dots, b, i / a.kv_heads, i % a.kv_heads);
    });
  }
  if (!g.dsinks) return;
  parallel_for(a.heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> terms(g.rows);
    for (int64_t h = begin; h < end; ++h) {
      for (int64_t t = 0; t < g.rows; ++t) {
        const float lse = a.lse[t * a.heads + h];
        terms[t] = lse == kNegInf ? 0.f : -(exp1(a.sinks[h] - lse) * dots[t * a.heads + h]);
      }
      g.dsinks[h] = r64(terms.data(), g.rows);
    }
  });
}

}  // namespace
}  // namespace ld

LD_API int ld_attention_backward(const ld_attention_args* forward, const ld_attention_grad_args* grad) {
  return ld::guard([&] {
    return ld::dispatch(forward->dtype, [&](auto type) {
      ld::backward<decltype(type)>(*forward, *grad);
      return int(ld::kOk);
    });
  });
}
