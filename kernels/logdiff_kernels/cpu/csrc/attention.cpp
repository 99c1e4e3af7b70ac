// attention: online softmax over steps of 512 keys in chunks of 4096 (numeric contract, section `attention`).
#include "attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "attention_scalar.h"
#include "parallel.h"

namespace ld {
namespace {

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

template <class T>
void attend_row(const ld_attention_args& a, int64_t b, int64_t row, int64_t head, std::vector<float>& memory) {
  const int64_t rows = a.q_start[b + 1] - a.q_start[b], keys = a.k_len[b];
  const Visible seen = visible_keys(a, keys - rows + row, keys);
  const int64_t kv_head = head / (a.heads / a.kv_heads), token = a.q_start[b] + row;
  const Stored<T>* q = static_cast<const Stored<T>*>(a.q) + token * a.q_row + head * a.q_head;
  const Stored<T>* k = static_cast<const Stored<T>*>(a.k) + kv_head * a.k_head;
  const Stored<T>* v = static_cast<const Stored<T>*>(a.v) + kv_head * a.v_head;

  memory.assign(kStep + 3 * a.dim_v, 0.f);
  float* p = memory.data();
  float* total = p + kStep;
  float* chunk_out = total + a.dim_v;
  float* step_out = chunk_out + a.dim_v;
  float m = a.sinks ? a.sinks[head] : kNegInf, l = a.sinks ? 1.f : 0.f;

  for (int64_t chunk = seen.begin / kChunk * kChunk; chunk < seen.end; chunk += kChunk) {
    float mc = kNegInf, lc = 0.f;
    std::fill_n(chunk_out, a.dim_v, 0.f);
    for (int64_t step = chunk; step < chunk + kChunk; step += kStep) {
      const int64_t begin = std::max(seen.begin, step), end = std::min(seen.end, step + kStep);
      if (begin >= end) continue;
      std::fill_n(p, kStep, kNegInf);
      float m_new = mc;
      for (int64_t j = begin; j < end; ++j) {
        p[j - step] = score<T>(a, q, k + key_offset(a, b, j, a.k_row, a.k_block));
        m_new = p[j - step] > m_new ? p[j - step] : m_new;
      }
      const float u = m_new == kNegInf ? 0.f : m_new;
      for (int64_t j = 0; j < kStep; ++j) p[j] = exp1(p[j] - u);
      const float r = r64(p, kStep), c = exp1(mc - u);
      lc = lc * c + r;
      std::fill_n(step_out, a.dim_v, 0.f);
      for (int64_t j = begin; j < end; ++j) {
        const float weight = round_to<T>(p[j - step]);
        const Stored<T>* value = v + key_offset(a, b, j, a.v_row, a.v_block);
        for (int64_t d = 0; d < a.dim_v; ++d) step_out[d] = std::fma(weight, load_scalar<T>(value + d), step_out[d]);
      }
      for (int64_t d = 0; d < a.dim_v; ++d) chunk_out[d] = chunk_out[d] * c + step_out[d];
      mc = m_new;
    }
    const float m_new = mc > m ? mc : m;
    const float u = m_new == kNegInf ? 0.f : m_new;
    const float ea = exp1(m - u), eb = exp1(mc - u);
    l = l * ea + lc * eb;
    for (int64_t d = 0; d < a.dim_v; ++d) total[d] = total[d] * ea + chunk_out[d] * eb;
    m = m_new;
  }

  Stored<T>* out = static_cast<Stored<T>*>(a.out) + token * a.out_row + head * a.out_head;
  const float denominator = l == 0.f ? 1.f : l;
  for (int64_t d = 0; d < a.dim_v; ++d) store_scalar<T>(out + d, total[d] / denominator + 0.f);
  if (a.lse) a.lse[token * a.heads + head] = seen.begin == seen.end ? kNegInf : m + ln1(l);
}

template <class T>
void forward(const ld_attention_args& a) {
  const int64_t first = a.q_start[0], tokens = a.q_start[a.batch] - first;
  parallel_for(tokens * a.heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> memory;
    int64_t b = 0;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t token = first + item / a.heads;
      while (token >= a.q_start[b + 1]) ++b;
      attend_row<T>(a, b, token - a.q_start[b], item % a.heads, memory);
    }
  });
}

}  // namespace
}  // namespace ld

LD_API int ld_attention(const ld_attention_args* args) {
  return ld::guard([&] {
    return ld::dispatch(args->dtype, [&](auto type) {
      ld::forward<decltype(type)>(*args);
      return int(ld::kOk);
    });
  });
}
