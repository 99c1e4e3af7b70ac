// attention backward: every output has one owner, sums in the order of the numeric contract.
//
// A sweep visits keys ascending in blocks, and for each block the heads of one group and their query rows ascending.
// One sweep over a whole (sequence, key head) gives all three gradients; when there are too few of those for the
// threads, dK and dV are swept by key step and dQ by query rows, which computes the weights twice but no other bits.
#include "attention.h"

#include <vector>

#include "attention_pack.h"
#include "attention_softmax.h"
#include "attention_tile.h"
#include "parallel.h"

namespace ld::attn {
namespace {

constexpr int64_t kQueryBlock = 512;        // absolute positions of one dK/dV partial sum
constexpr int64_t kDepth = 24;              // query rows whose weights are held at once
constexpr int64_t kSweepFloats = 16 << 20;  // sums of dQ that one sweep may hold

struct Sweep {
    int64_t b, kv_head, key0, key1, row0, row1;
    bool dkv, dq;
    int64_t cost;
};

inline int64_t padded(int64_t n) { return (n + F::W - 1) / F::W * F::W; }

inline int64_t key_block(const ld_attention_args& a) { return a.dim + a.dim_v <= 160 ? 256 : 128; }

template <class T> class Sweeper {
public:
    Sweeper(const ld_attention_args& a, const ld_attention_grad_args& g, const float* dots, const Sweep& sweep)
        : a_(a), g_(g), dots_(dots), w_(sweep), group_(a.heads / a.kv_heads), keys_(a.k_len[sweep.b]),
          shift_(keys_ - (a.q_start[sweep.b + 1] - a.q_start[sweep.b])), block_(key_block(a)), ck_(padded(a.dim)),
          cv_(padded(a.dim_v)), rows_(sweep.row1 - sweep.row0) {
        const int64_t dq = w_.dq ? 2 * group_ * rows_ * ck_ : 0, dkv = w_.dkv ? 2 * block_ * (ck_ + cv_) : 0;
        float* memory = scratch<float>(block_ * (a.dim + a.dim_v + ck_) + kRows * (a.dim + a.dim_v) +
                                           kDepth * (2 * block_ + ck_ + cv_) + dkv + dq,
                                       0);
        const auto take = [&memory](int64_t floats) {
            float* taken = memory;
            memory += floats;
            return taken;
        };
        key_panels_ = take(block_ * a.dim);
        value_panels_ = take(block_ * a.dim_v);
        key_wide_ = take(block_ * ck_);
        q_tile_ = take(kRows * a.dim);
        dout_tile_ = take(kRows * a.dim_v);
        p_ = take(kDepth * block_);
        ds_ = take(kDepth * block_);
        q_wide_ = take(kDepth * ck_);
        dout_wide_ = take(kDepth * cv_);
        dk_ = take(w_.dkv ? block_ * ck_ : 0);
        dv_ = take(w_.dkv ? block_ * cv_ : 0);
        dk_part_ = take(w_.dkv ? block_ * ck_ : 0);
        dv_part_ = take(w_.dkv ? block_ * cv_ : 0);
        dq_ = take(dq / 2);
        dq_part_ = take(dq / 2);
        source_ = scratch<const Stored<T>*>(2 * block_, 2);
        key_at_ = scratch<const float*>(block_ + 2 * kDepth, 4);
        q_at_ = key_at_ + block_;
        dout_at_ = q_at_ + kDepth;
        zero_row_ = scratch<Stored<T>>(std::max(a.dim, a.dim_v), 3);
        std::fill_n(zero_row_, std::max(a.dim, a.dim_v), Stored<T>(0));
        for (int64_t i = 0; i < block_; ++i) key_at_[i] = key_wide_ + i * ck_;
        for (int64_t i = 0; i < kDepth; ++i) {
            q_at_[i] = q_wide_ + i * ck_;
            dout_at_[i] = dout_wide_ + i * cv_;
        }
    }

    void run() {
        const int64_t dq_floats = w_.dq ? group_ * rows_ * ck_ : 0;
        std::fill_n(dq_, dq_floats, 0.0f);
        for (int64_t key = w_.key0; key < w_.key1; key += block_) {
            if (w_.dq && key % kStep == 0) std::fill_n(dq_part_, dq_floats, 0.0f);
            do_keys(key, std::min(block_, w_.key1 - key));
            if (w_.dq && ((key + block_) % kStep == 0 || key + block_ >= w_.key1)) add(dq_, dq_part_, dq_floats);
        }
        if (w_.dq) write_dq();
    }

private:
    static void add(float* sum, const float* part, int64_t floats) {
        for (int64_t i = 0; i < floats; i += F::W) (F::load(sum + i) + F::load(part + i)).store(sum + i);
    }

    const Stored<T>* key_at(int64_t j) const {
        return static_cast<const Stored<T>*>(a_.k) + w_.kv_head * a_.k_head +
               key_offset(a_, w_.b, j, a_.k_row, a_.k_block);
    }
    const Stored<T>* value_at(int64_t j) const {
        return static_cast<const Stored<T>*>(a_.v) + w_.kv_head * a_.v_head +
               key_offset(a_, w_.b, j, a_.v_row, a_.v_block);
    }

    void do_keys(int64_t key, int64_t n) {
        key_ = key;
        n_ = n;
        const int64_t filled = (n + kPanel - 1) / kPanel * kPanel;
        for (int64_t i = 0; i < filled; ++i) {
            source_[i] = i < n ? key_at(key + i) : zero_row_;
            source_[block_ + i] = i < n ? value_at(key + i) : zero_row_;
        }
        for (int64_t i = 0; i < filled; i += kPanel) {
            pack_panel<T>(source_ + i, a_.dim, key_panels_ + i * a_.dim);
            pack_panel<T>(source_ + block_ + i, a_.dim_v, value_panels_ + i * a_.dim_v);
        }
        if (w_.dq)
            for (int64_t i = 0; i < n; ++i) widen_row<T>(source_[i], a_.dim, ck_, key_wide_ + i * ck_);
        if (w_.dkv) {
            std::fill_n(dk_, n * ck_, 0.0f);
            std::fill_n(dv_, n * cv_, 0.0f);
        }
        for (int64_t h = 0; h < group_; ++h)
            for (int64_t row = w_.row0; row < w_.row1;) {
                const int64_t position = shift_ + row;
                const int64_t stop = position < 0 ? 0 : (position / kQueryBlock + 1) * kQueryBlock;
                const int64_t end = std::min(w_.row1, stop - shift_);
                do_query_block(h, row, end);
                row = end;
            }
        if (w_.dkv) write_dkv();
    }

    void do_query_block(int64_t h, int64_t row, int64_t end) {
        bool any = false;
        for (; row < end; row += kDepth) {
            const int64_t n = std::min(kDepth, end - row);
            if (!sees(row, n)) continue;
            if (!any && w_.dkv) {
                std::fill_n(dk_part_, n_ * ck_, 0.0f);
                std::fill_n(dv_part_, n_ * cv_, 0.0f);
            }
            any = true;
            do_rows(h, row, n);
        }
        if (any && w_.dkv) {
            add(dk_, dk_part_, n_ * ck_);
            add(dv_, dv_part_, n_ * cv_);
        }
    }

    // Whether any of n rows sees any of the keys at hand.
    bool sees(int64_t row, int64_t n) const {
        const Visible first = visible_keys(a_, shift_ + row, keys_), last = visible_keys(a_, shift_ + row + n - 1, keys_);
        return last.end > key_ && first.begin < key_ + n_ && last.end > last.begin;
    }

    void do_rows(int64_t h, int64_t row, int64_t n) {
        const int64_t head = w_.kv_head * group_ + h, token = a_.q_start[w_.b] + row;
        for (int64_t r = 0; r < n; ++r) {
            widen_row<T>(q_at(token + r, head), a_.dim, ck_, q_wide_ + r * ck_);
            widen_row<T>(dout_at(token + r, head), a_.dim_v, cv_, dout_wide_ + r * cv_);
        }
        int64_t begin[kDepth], end[kDepth];
        for (int64_t r = 0; r < n; ++r) {
            const Visible seen = visible_keys(a_, shift_ + row + r, keys_);
            begin[r] = std::clamp<int64_t>(seen.begin - key_, 0, n_);
            end[r] = std::clamp<int64_t>(seen.end - key_, begin[r], n_);
            if (begin[r] == end[r]) begin[r] = end[r] = 0;
        }
        for (int64_t r = 0; r < n; r += kRows) {
            const int count = int(std::min<int64_t>(kRows, n - r));
            weights(r, count, token + r, head, begin + r, end + r);
            if (w_.dq)
                ragged_sums<f32_t>(count, {ds_ + r * block_, block_, 1}, key_at_, begin + r, end + r, ck_,
                                   dq_part_ + (h * rows_ + row - w_.row0 + r) * ck_, ck_, false);
        }
        if (!w_.dkv) return;
        for (int64_t j = 0; j < n_; j += kRows) {
            const int count = int(std::min<int64_t>(kRows, n_ - j));
            int64_t from[kRows], to[kRows], low = n, high = 0;
            for (int i = 0; i < count; ++i) {
                const int64_t key = key_ + j + i - shift_ - row;  // relative to the first row's position
                from[i] = a_.causal ? std::clamp<int64_t>(key, 0, n) : 0;
                to[i] = a_.window > 0 ? std::clamp<int64_t>(key + a_.window, 0, n) : n;
                if (from[i] >= to[i]) from[i] = to[i] = 0;
                low = std::min(low, from[i] < to[i] ? from[i] : n);
                high = std::max(high, to[i]);
            }
            if (low >= high) continue;
            ragged_sums<f32_t>(count, {p_ + j, 1, block_}, dout_at_, from, to, cv_, dv_part_ + j * cv_, cv_, false);
            ragged_sums<f32_t>(count, {ds_ + j, 1, block_}, q_at_, from, to, ck_, dk_part_ + j * ck_, ck_, false);
        }
    }

    const Stored<T>* q_at(int64_t token, int64_t head) const {
        return static_cast<const Stored<T>*>(a_.q) + token * a_.q_row + head * a_.q_head;
    }
    const Stored<T>* dout_at(int64_t token, int64_t head) const {
        return static_cast<const Stored<T>*>(g_.dout) + token * g_.dout_row + head * g_.dout_head;
    }

    // RINT(p) and RINT(dS) of rows r .. r + n - 1 of the block in their visible ranges, into p_ and ds_.
    void weights(int64_t r, int n, int64_t token, int64_t head, const int64_t* begin, const int64_t* end) {
        int64_t low = n_, high = 0;
        for (int i = 0; i < n; ++i)
            if (begin[i] < end[i]) {
                low = std::min(low, begin[i]);
                high = std::max(high, end[i]);
            }
        if (low >= high) return;
        for (int i = 0; i < n; ++i) {
            const float *q = q_wide_ + (r + i) * ck_, *dout = dout_wide_ + (r + i) * cv_;
            for (int64_t d = 0; d < a_.dim; ++d) q_tile_[d * n + i] = q[d];
            for (int64_t d = 0; d < a_.dim_v; ++d) dout_tile_[d * n + i] = dout[d];
        }
        const int64_t first = low / kPanel * kPanel, panels = (high - first + kPanel - 1) / kPanel;
        float *p = p_ + r * block_, *ds = ds_ + r * block_;
        scores(n, q_tile_, key_panels_ + first * a_.dim, panels, a_.dim, p + first, block_);
        scores(n, dout_tile_, value_panels_ + first * a_.dim_v, panels, a_.dim_v, ds + first, block_);
        for (int i = 0; i < n; ++i) {
            const int64_t index = (token + i) * a_.heads + head;
            finish_row(p + i * block_, ds + i * block_, begin[i], end[i], a_.lse[index], dots_[index]);
        }
    }

    // p holds q.k and ds holds dO.v of keys [begin, end).
    void finish_row(float* p, float* ds, int64_t begin, int64_t end, float lse, float dot) {
        if (lse == kNegInf) {
            std::fill(p + begin, p + end, 0.0f);
            std::fill(ds + begin, ds + end, 0.0f);
            return;
        }
        const int64_t last = (end + F::W - 1) / F::W * F::W;
        int64_t i = begin / F::W * F::W;
        for (; i + 4 * F::W <= last; i += 4 * F::W) finish_vectors<4>(p + i, ds + i, lse, dot);
        for (; i < last; i += F::W) finish_vectors<1>(p + i, ds + i, lse, dot);
    }

    template <int N> void finish_vectors(float* p, float* ds, float lse, float dot) {
        const F scale = F::set1(a_.scale), cap = F::set1(a_.softcap), top = F::set1(lse), d = F::set1(dot);
        F x[N], slope[N];
        for (int i = 0; i < N; ++i) {
            x[i] = F::load(p + i * F::W) * scale;
            if (a_.softcap > 0.0f) {
                const F t = tanh1(x[i] / cap);
                x[i] = cap * t;
                slope[i] = F::set1(1.0f) - t * t;
            }
            x[i] = x[i] - top;
        }
        exp1_below(x);
        for (int i = 0; i < N; ++i) {
            F y = x[i] * (F::load(ds + i * F::W) - d);
            if (a_.softcap > 0.0f) y = y * slope[i];
            round_to<T>(y).store(ds + i * F::W);
            round_to<T>(x[i]).store(p + i * F::W);
        }
    }

    static void write(const float* from, int64_t n, Stored<T>* to) {
        for (int64_t d = 0; d < n; d += F::W) store_upto<T>(to + d, F::load(from + d), int(std::min<int64_t>(F::W, n - d)));
    }
    static void write_scaled(const float* from, float scale, int64_t n, Stored<T>* to) {
        for (int64_t d = 0; d < n; d += F::W)
            store_upto<T>(to + d, F::load(from + d) * F::set1(scale), int(std::min<int64_t>(F::W, n - d)));
    }

    void write_dkv() {
        for (int64_t i = 0; i < n_; ++i) {
            const int64_t row = (a_.k_start[w_.b] + key_ + i) * a_.kv_heads + w_.kv_head;
            write_scaled(dk_ + i * ck_, a_.scale, a_.dim, static_cast<Stored<T>*>(g_.dk) + row * a_.dim);
            write(dv_ + i * cv_, a_.dim_v, static_cast<Stored<T>*>(g_.dv) + row * a_.dim_v);
        }
    }

    void write_dq() {
        for (int64_t h = 0; h < group_; ++h)
            for (int64_t r = 0; r < rows_; ++r) {
                const int64_t row = (a_.q_start[w_.b] + w_.row0 + r) * a_.heads + w_.kv_head * group_ + h;
                write_scaled(dq_ + (h * rows_ + r) * ck_, a_.scale, a_.dim, static_cast<Stored<T>*>(g_.dq) + row * a_.dim);
            }
    }

    const ld_attention_args& a_;
    const ld_attention_grad_args& g_;
    const float* dots_;
    const Sweep& w_;
    const int64_t group_, keys_, shift_, block_, ck_, cv_, rows_;
    int64_t key_ = 0, n_ = 0;  // the block of keys at hand
    float *key_panels_, *value_panels_, *key_wide_, *q_tile_, *dout_tile_, *p_, *ds_, *q_wide_, *dout_wide_;
    float *dk_, *dv_, *dk_part_, *dv_part_, *dq_, *dq_part_;
    const Stored<T>** source_;
    const float **key_at_, **q_at_, **dout_at_;
    Stored<T>* zero_row_;
};

std::vector<Sweep> sweeps_of(const ld_attention_args& a) {
    std::vector<Sweep> whole, apart;
    int64_t total = 0, longest = 0, held = 0;
    for (int64_t b = 0; b < a.batch; ++b) {
        const int64_t rows = a.q_start[b + 1] - a.q_start[b], keys = a.k_len[b];
        const int64_t group = a.heads / a.kv_heads, cost = std::max<int64_t>(1, rows) * keys * group;
        for (int64_t g = 0; g < a.kv_heads; ++g) {
            whole.push_back({b, g, 0, keys, 0, rows, true, true, 5 * cost});
            total += cost;
            longest = std::max(longest, cost);
            held = std::max(held, 2 * group * rows * padded(a.dim));
            for (int64_t j = 0; j < keys; j += kStep)
                apart.push_back({b, g, j, std::min(keys, j + kStep), 0, rows, true, false,
                                 4 * std::max<int64_t>(1, rows) * group * (keys - j)});
            const int64_t block = std::max<int64_t>(kDepth, 480 / group / kDepth * kDepth);
            for (int64_t r = 0; r < rows; r += block) {
                const int64_t stop = std::min(rows, r + block);
                const int64_t end = a.causal ? std::clamp<int64_t>(keys - rows + stop, 0, keys) : keys;
                apart.push_back({b, g, 0, end, r, stop, false, true, 3 * (stop - r) * group * end});
            }
        }
    }
    const int64_t threads = max_threads();
    const bool one_pass = held <= kSweepFloats && 5 * std::max(longest, total / threads) <= 7 * total / threads;
    return one_pass ? whole : apart;
}

template <class T> void backward(const ld_attention_args& a, const ld_attention_grad_args& g) {
    const int64_t tokens = a.q_start[a.batch];
    std::vector<float> dots(tokens * a.heads);
    parallel_for(tokens * a.heads, 256, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const Stored<T>* o = static_cast<const Stored<T>*>(a.out) + i / a.heads * a.out_row + i % a.heads * a.out_head;
            const Stored<T>* d = static_cast<const Stored<T>*>(g.dout) + i / a.heads * g.dout_row + i % a.heads * g.dout_head;
            dots[i] = r64(a.dim_v, [&](int64_t c, int m) { return load_upto<T>(d + c, m) * load_upto<T>(o + c, m); });
        }
    });
    std::vector<Sweep> sweeps = sweeps_of(a);
    std::stable_sort(sweeps.begin(), sweeps.end(), [](const Sweep& x, const Sweep& y) { return x.cost > y.cost; });
    parallel_dynamic(int64_t(sweeps.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) Sweeper<T>(a, g, dots.data(), sweeps[i]).run();
    });
    if (!g.dsinks) return;
    parallel_for(a.heads, 1, [&](int64_t begin, int64_t end) {
        std::vector<float> terms(tokens);
        for (int64_t h = begin; h < end; ++h) {
            for (int64_t t = 0; t < tokens; ++t) {
                const float lse = a.lse[t * a.heads + h];
                terms[t] = lse == kNegInf ? 0.0f : neg(exp1(a.sinks[h] - lse) * dots[t * a.heads + h]);
            }
            g.dsinks[h] = r64(terms.data(), tokens);
        }
    });
}

}  // namespace
}  // namespace ld::attn

LD_API int ld_attention_backward(const ld_attention_args* forward, const ld_attention_grad_args* grad) {
    return ld::guard([&] {
        if (const int status = ld::check_arguments(*forward); status != ld::kOk) return status;
        return ld::dispatch(forward->dtype, [&](auto type) {
            ld::attn::backward<decltype(type)>(*forward, *grad);
            return int(ld::kOk);
        });
    });
}
