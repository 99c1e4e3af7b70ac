// logprob: eight leaves of the vocabulary, merged by a balanced tree (numeric contract, row `logprob`).
#include <limits>

#include "exp_chains.h"
#include "packed.h"
#include "parallel.h"
#include "reduce.h"
#include "rows.h"

namespace {

using namespace ld;

constexpr float kNegInf = -std::numeric_limits<float>::infinity();
constexpr int kLeaves = 8;

struct Part {
    float m = kNegInf, s = 0.0f, h = 0.0f;
    float base() const { return m == kNegInf ? 0.0f : m; }
};

// z = logits / T, the division left out where T is 1.
struct Row {
    const float* logits;
    float temperature;
    F at(int64_t i, int m) const {
        const F z = load_upto<f32_t>(logits + i, m);
        return temperature == 1.0f ? z : z / F::set1(temperature);
    }
    float at(int64_t i) const { return temperature == 1.0f ? logits[i] : logits[i] / temperature; }
};

Row row_of(const float* logits, const float* temperature, int64_t t, int64_t stride) {
    const float value = temperature == nullptr ? 1.0f : temperature[t];
    return {logits + t * stride, value == 0.0f ? 1.0f : value};
}

// e = exp1(z - u) and h = e * (z - u), 0 where z = -inf, of up to 64 columns; lanes beyond `count` are +0.
inline void exponentials(const Row& row, int64_t begin, int64_t count, F u, F (&e)[R64::kVectors],
                         F (&h)[R64::kVectors]) {
    constexpr int N = 4;
    const F gone = F::set1(kNegInf);
    for (int v = 0; v < R64::kVectors; v += N) {
        F x[N];
        for (int j = 0; j < N; ++j) {
            const int64_t left = count - int64_t(v + j) * F::W, at = begin + int64_t(v + j) * F::W;
            F z = gone;
            if (left >= F::W)
                z = row.at(at, F::W);
            else if (left > 0)
                z = select(first(int(left)), row.at(at, int(left)), gone);
            x[j] = z - u;
            h[v + j] = z;
        }
        exp1_chains<false>(x);
        for (int j = 0; j < N; ++j) {
            e[v + j] = x[j];
            h[v + j] = select(eq(h[v + j], gone), F::zero(), x[j] * (h[v + j] - u));
        }
    }
}

// Columns begin .. end-1 of the row; columns of a leaf beyond the vocabulary are -inf and add nothing.
Part leaf(const Row& row, int64_t begin, int64_t end, bool entropy) {
    Part part;
    if (begin >= end) return part;
    const int64_t n = end - begin;
    constexpr int kRunning = 4;
    F largest[kRunning];
    for (F& v : largest) v = F::set1(kNegInf);
    int64_t i = 0;
    for (; i + kRunning * F::W <= n; i += kRunning * F::W)
        for (int j = 0; j < kRunning; ++j) largest[j] = max(row.at(begin + i + j * F::W, F::W), largest[j]);
    for (; i < n; i += F::W) {
        const int m = int(std::min<int64_t>(F::W, n - i));
        largest[0] = max(select(first(m), row.at(begin + i, m), F::set1(kNegInf)), largest[0]);
    }
    for (int j = 1; j < kRunning; ++j) largest[0] = max(largest[j], largest[0]);
    float lane[F::W];
    largest[0].store(lane);
    for (float value : lane) part.m = max(value, part.m);
    const F u = F::set1(part.base());
    R64 sum, weighted;
    for (int64_t i = 0; i < n; i += R64::kLanes) {
        F e[R64::kVectors], h[R64::kVectors];
        exponentials(row, begin + i, std::min<int64_t>(R64::kLanes, n - i), u, e, h);
        sum.add_chunk([&](int j) { return e[j]; });
        if (entropy) weighted.add_chunk([&](int j) { return h[j]; });
    }
    part.s = sum.finish();
    if (entropy) part.h = weighted.finish();
    return part;
}

Part operator+(const Part& a, const Part& b) {
    Part r;
    r.m = max(a.m, b.m);
    const float u = r.base();
    const float ea = exp1(a.m - u), eb = exp1(b.m - u);
    r.s = a.s * ea + b.s * eb;
    const float ha = a.m == kNegInf ? 0.0f : (a.h + a.s * (a.m - u)) * ea;
    const float hb = b.m == kNegInf ? 0.0f : (b.h + b.s * (b.m - u)) * eb;
    r.h = ha + hb;
    return r;
}

Part merged(const Part* parts, int count) {
    return tree(0, count, [&](int i) { return parts[i]; });
}

// Columns of one leaf: the vocabulary rounded up to a multiple of 64, in eight.
int64_t leaf_width(int64_t vocabulary) { return (vocabulary + 63) / 64 * 8; }

}  // namespace

// stats [T, 3] = m, s, h of `leaves` leaves from `first_leaf` on; logits [T, columns] start with that leaf's first
// column. Leaf work of one row may run on several threads.
LD_API int ld_logprob_stats(const float* logits, const float* temperature, float* stats, int64_t tokens,
                            int64_t columns, int64_t stride, int64_t vocabulary, int64_t first_leaf, int64_t leaves,
                            int32_t entropy) {
    return guard([&] {
        if (leaves < 1 || leaves > kLeaves || (leaves & (leaves - 1)) != 0) return int(kBadShape);
        const int64_t width = leaf_width(vocabulary), start = first_leaf * width;
        const int64_t known = std::min(columns, vocabulary - start);
        Part* parts = scratch<Part>(tokens * leaves, 0);
        parallel_for(tokens * leaves, row_grain(width), [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const Row row = row_of(logits, temperature, i / leaves, stride);
                const int64_t from = i % leaves * width;
                parts[i] = leaf(row, from, std::min(known, from + width), entropy != 0);
            }
        });
        for (int64_t t = 0; t < tokens; ++t) {
            const Part all = merged(parts + t * leaves, int(leaves));
            stats[3 * t] = all.m;
            stats[3 * t + 1] = all.s;
            stats[3 * t + 2] = all.h;
        }
        return int(kOk);
    });
}

// partial [T, count, 3] of contiguous shards in order -> stats [T, 3].
LD_API int ld_logprob_merge(const float* partial, float* stats, int64_t tokens, int64_t count) {
    return guard([&] {
        if (count < 1 || count > kLeaves || (count & (count - 1)) != 0) return int(kBadShape);
        for (int64_t t = 0; t < tokens; ++t) {
            Part parts[kLeaves];
            for (int64_t i = 0; i < count; ++i) {
                const float* p = partial + (t * count + i) * 3;
                parts[i].m = p[0];
                parts[i].s = p[1];
                parts[i].h = p[2];
            }
            const Part all = merged(parts, int(count));
            stats[3 * t] = all.m;
            stats[3 * t + 1] = all.s;
            stats[3 * t + 2] = all.h;
        }
        return int(kOk);
    });
}

// logp = ((target - u) - ln1(s)) + 0; entropy (may be null) = ln1(s) - h/s. target [T] is z of the token.
LD_API int ld_logprob_finish(const float* stats, const float* target, float* logp, float* entropy, int64_t tokens) {
    return guard([&] {
        for (int64_t t = 0; t < tokens; ++t) {
            const float m = stats[3 * t], s = stats[3 * t + 1], h = stats[3 * t + 2];
            const float u = m == kNegInf ? 0.0f : m, log_sum = ln1(s);
            if (logp != nullptr) logp[t] = ((target[t] - u) - log_sum) + 0.0f;
            if (entropy != nullptr) entropy[t] = log_sum - h / s;
        }
        return int(kOk);
    });
}

// target[t] = z of column ids[t] - first_column, -inf beyond the vocabulary; columns elsewhere: owned[t] = 0, target 0.
LD_API int ld_logprob_target(const float* logits, const float* temperature, const int64_t* ids, float* target,
                             uint8_t* owned, int64_t tokens, int64_t columns, int64_t stride, int64_t vocabulary,
                             int64_t first_column) {
    return guard([&] {
        for (int64_t t = 0; t < tokens; ++t) {
            const int64_t column = ids[t] - first_column;
            const bool here = column >= 0 && column < columns;
            if (owned != nullptr) owned[t] = here ? 1 : 0;
            if (!here) {
                if (owned == nullptr) return int(kBadArgument);
                target[t] = 0.0f;
            } else if (ids[t] >= vocabulary) {
                target[t] = kNegInf;
            } else {
                target[t] = row_of(logits, temperature, t, stride).at(column);
            }
        }
        return int(kOk);
    });
}

// All of it for one rank: stats [T, 3], logp [T] and, unless null, entropy [T].
LD_API int ld_logprob(const float* logits, const float* temperature, const int64_t* ids, float* stats, float* logp,
                      float* entropy, int64_t tokens, int64_t columns, int64_t stride, int64_t vocabulary) {
    int status = ld_logprob_target(logits, temperature, ids, logp, nullptr, tokens, columns, stride, vocabulary, 0);
    if (status == kOk)
        status = ld_logprob_stats(logits, temperature, stats, tokens, columns, stride, vocabulary, 0, kLeaves,
                                  entropy != nullptr);
    return status == kOk ? ld_logprob_finish(stats, logp, logp, entropy, tokens) : status;
}

// out [T, columns] contiguous: every column's log-probability, with the bits of ld_logprob_finish.
LD_API int ld_log_softmax(const float* logits, const float* temperature, const float* stats, float* out,
                          int64_t tokens, int64_t columns, int64_t stride, int64_t vocabulary) {
    return guard([&] {
        constexpr int64_t kPiece = 8192;
        const int64_t pieces = (columns + kPiece - 1) / kPiece;
        parallel_for(tokens * pieces, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t t = i / pieces, from = i % pieces * kPiece;
                const Row row = row_of(logits, temperature, t, stride);
                const float m = stats[3 * t], base = m == kNegInf ? 0.0f : m;
                const F u = F::set1(base), log_sum = F::set1(ln1(stats[3 * t + 1]));
                each_vector(std::min(kPiece, columns - from), [&](int64_t j, int width) {
                    const int64_t at = from + j;
                    F z = row.at(at, width);
                    if (at + width > vocabulary)
                        z = select(first(int(std::max<int64_t>(0, vocabulary - at))), z, F::set1(kNegInf));
                    store_upto<f32_t>(out + t * columns + at, ((z - u) - log_sum) + F::zero(), width);
                });
            }
        });
        return int(kOk);
    });
}

// dlogits [T, columns] contiguous. l_j = (z_j - u) - ln1(s), p_j = exp1(l_j), 0 beyond the vocabulary;
// d_j = dlogp * ([j = id] - p_j) - dentropy * (p_j * (l_j + H)), each term only where its gradient is given, / T.
LD_API int ld_logprob_backward(const float* logits, const float* temperature, const float* stats, const int64_t* ids,
                               const float* dlogp, const float* entropy, const float* dentropy, float* dlogits,
                               int64_t tokens, int64_t columns, int64_t stride, int64_t vocabulary) {
    return guard([&] {
        constexpr int64_t kPiece = 8192;
        const int64_t pieces = (columns + kPiece - 1) / kPiece;
        parallel_for(tokens * pieces, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                const int64_t t = i / pieces, from = i % pieces * kPiece, to = std::min(columns, from + kPiece);
                const Row row = row_of(logits, temperature, t, stride);
                const float m = stats[3 * t], base = m == kNegInf ? 0.0f : m, log_sum = ln1(stats[3 * t + 1]);
                const F u = F::set1(base), ls = F::set1(log_sum), scale = F::set1(row.temperature);
                const F g = F::set1(dlogp == nullptr ? 0.0f : dlogp[t]);
                float* out = dlogits + t * columns;
                const int64_t known = std::min(to, vocabulary);
                each_vector(std::max<int64_t>(0, known - from), [&](int64_t j, int width) {
                    const F l = (row.at(from + j, width) - u) - ls, p = exp1(l);
                    F d = g * (F::zero() - p);
                    if (dentropy != nullptr) {
                        const F term = p * (l + F::set1(entropy[t]));
                        d = d - F::set1(dentropy[t]) * select(eq(p, F::zero()), F::zero(), term);
                    }
                    if (row.temperature != 1.0f) d = d / scale;
                    store_upto<f32_t>(out + from + j, d, width);
                });
                for (int64_t j = std::max(from, known); j < to; ++j) out[j] = 0.0f;
                if (dlogp != nullptr && ids[t] >= from && ids[t] < known) {
                    const float l = (row.at(ids[t]) - base) - log_sum, p = exp1(l);
                    float d = dlogp[t] * (1.0f - p);
                    if (dentropy != nullptr) d = d - dentropy[t] * (p == 0.0f ? 0.0f : p * (l + entropy[t]));
                    out[ids[t]] = row.temperature != 1.0f ? d / row.temperature : d;
                }
            }
        });
        return int(kOk);
    });
}

// dlogits [T, columns] contiguous: d_j = (dout_j - exp1(l_j) * R64(dout)) / T, 0 beyond the vocabulary.
LD_API int ld_log_softmax_backward(const float* logits, const float* temperature, const float* stats,
                                   const float* dout, float* dlogits, int64_t tokens, int64_t columns, int64_t stride,
                                   int64_t vocabulary) {
    return guard([&] {
        const int64_t known = std::min(columns, vocabulary);
        parallel_for(tokens, row_grain(columns), [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t) {
                const Row row = row_of(logits, temperature, t, stride);
                const float m = stats[3 * t], base = m == kNegInf ? 0.0f : m;
                const F u = F::set1(base), ls = F::set1(ln1(stats[3 * t + 1])), scale = F::set1(row.temperature);
                const float* g = dout + t * columns;
                float* out = dlogits + t * columns;
                const F sum = F::set1(r64(g, known));
                each_vector(known, [&](int64_t j, int width) {
                    const F p = exp1((row.at(j, width) - u) - ls);
                    F d = load_upto<f32_t>(g + j, width) - p * sum;
                    if (row.temperature != 1.0f) d = d / scale;
                    store_upto<f32_t>(out + j, d, width);
                });
                for (int64_t j = known; j < columns; ++j) out[j] = 0.0f;
            }
        });
        return int(kOk);
    });
}

LD_PACKED(ld_logprob_stats)
LD_PACKED(ld_logprob_merge)
LD_PACKED(ld_logprob_finish)
LD_PACKED(ld_logprob_target)
LD_PACKED(ld_logprob)
LD_PACKED(ld_log_softmax)
LD_PACKED(ld_logprob_backward)
LD_PACKED(ld_log_softmax_backward)
