// attention: online softmax over steps of 512 keys in chunks of 4096 (numeric contract, section `attention`).
//
// Work is cut into items of one sequence, one key head and a block of query rows (GQA group rows of a position next to
// each other); long sequences of few rows are also cut into chunks, which the contract makes independent. A query row
// reads exactly the keys and values that it sees.
#include "attention.h"

#include <vector>

#include "attention_pack.h"
#include "attention_softmax.h"
#include "attention_tile.h"
#include "parallel.h"

namespace ld::attn {
namespace {

constexpr int64_t kItemRows = 192;
constexpr int64_t kWidenRows = 24;         // rows from which values are widened once rather than in every tile
constexpr int64_t kWidenFloats = 80 << 10;  // ... if a step's keys and values stay in the second-level cache
constexpr int64_t kSerialWork = 1 << 16;  // multiply-adds below which threads cost more than they give

// Group rows [row0, row1) of key head `kv_head` of sequence b: row = position in the call * group + head in the group.
struct Item {
    int64_t b, kv_head, row0, row1;
    Visible seen;    // by any of its rows
    int64_t chunk0, chunk1;
    float* partial;  // per row: m, l, O[columns]; null if the item finishes its rows itself
    int64_t cost() const { return (row1 - row0) * (std::min(seen.end, chunk1 * kChunk) - std::max(seen.begin, chunk0 * kChunk)); }
};

inline int64_t columns_of(const ld_attention_args& a) { return (a.dim_v + F::W - 1) / F::W * F::W; }

template <class T> class Worker {
public:
    Worker(const ld_attention_args& a, const Item& item)
        : a_(a), item_(item), group_(a.heads / a.kv_heads), rows_(item.row1 - item.row0), columns_(columns_of(a)),
          packed_v_(columns_ != a.dim_v || (!std::is_same_v<T, f32_t> && rows_ >= kWidenRows &&
                                            kStep * (a.dim + columns_) <= kWidenFloats)) {
        const int64_t tiles = (rows_ + kRows - 1) / kRows;
        tile_ = (rows_ + tiles - 1) / tiles;
        float* memory = scratch<float>(rows_ * a.dim + kStep * a.dim + kRows * (kStep + columns_) +
                                           (packed_v_ ? kStep * columns_ : 0) + 2 * rows_ * columns_,
                                       0);
        const auto take = [&memory](int64_t floats) {
            float* taken = memory;
            memory += floats;
            return taken;
        };
        keys_ = take(kStep * a.dim);
        scores_ = take(kRows * kStep);
        step_out_ = take(kRows * columns_);
        values_ = take(packed_v_ ? kStep * columns_ : 0);
        chunk_out_ = take(rows_ * columns_);
        total_out_ = take(rows_ * columns_);
        queries_ = take(rows_ * a.dim);
        chunk_ = scratch<RowState>(2 * rows_, 1);
        total_ = chunk_ + rows_;
        key_row_ = scratch<const Stored<T>*>(3 * kStep, 2);
        value_row_ = key_row_ + kStep;
        wide_row_ = reinterpret_cast<const float**>(value_row_ + kStep);
        zero_row_ = scratch<Stored<T>>(a.dim, 3);
        std::fill_n(zero_row_, a.dim, Stored<T>(0));
    }

    void run() {
        pack_queries();
        start_total();
        for (int64_t chunk = item_.chunk0; chunk < item_.chunk1; ++chunk) {
            std::fill_n(chunk_, rows_, RowState());
            std::fill_n(chunk_out_, rows_ * columns_, 0.0f);
            for (int64_t step = chunk * kChunk; step < (chunk + 1) * kChunk; step += kStep) do_step(step);
            if (item_.partial)
                write_partial();
            else
                for (int64_t r = 0; r < rows_; ++r) combine(r, chunk_[r], chunk_out_ + r * columns_);
        }
        if (!item_.partial)
            for (int64_t r = 0; r < rows_; ++r) write_row(r);
    }

    // The rows of an item whose chunks were computed apart.
    void gather(const float* partial, int64_t chunks) {
        start_total();
        for (int64_t c = 0; c < chunks; ++c)
            for (int64_t r = 0; r < rows_; ++r) {
                const float* p = partial + (c * rows_ + r) * (columns_ + 2);
                combine(r, {p[0], p[1]}, p + 2);
            }
        for (int64_t r = 0; r < rows_; ++r) write_row(r);
    }

private:
    int64_t token(int64_t r) const { return a_.q_start[item_.b] + (item_.row0 + r) / group_; }
    int64_t head(int64_t r) const { return item_.kv_head * group_ + (item_.row0 + r) % group_; }
    Visible seen_by(int64_t r) const {
        const int64_t rows = a_.q_start[item_.b + 1] - a_.q_start[item_.b], keys = a_.k_len[item_.b];
        return visible_keys(a_, keys - rows + (item_.row0 + r) / group_, keys);
    }

    void pack_queries() {
        for (int64_t t = 0; t < rows_; t += tile_) {
            const int64_t n = std::min(tile_, rows_ - t);
            for (int64_t r = 0; r < n; ++r) {
                const Stored<T>* q =
                    static_cast<const Stored<T>*>(a_.q) + token(t + r) * a_.q_row + head(t + r) * a_.q_head;
                for (int64_t d = 0; d < a_.dim; ++d) queries_[t * a_.dim + d * n + r] = load_scalar<T>(q + d);
            }
        }
    }

    void start_total() {
        for (int64_t r = 0; r < rows_; ++r)
            total_[r] = a_.sinks ? RowState{a_.sinks[head(r)], 1.0f} : RowState();
        std::fill_n(total_out_, rows_ * columns_, 0.0f);
    }

    // Addresses of keys [begin, end) of a step, and the packed panels that hold them.
    void load_step(int64_t step, int64_t begin, int64_t end) {
        const Stored<T>* k = static_cast<const Stored<T>*>(a_.k) + item_.kv_head * a_.k_head;
        const Stored<T>* v = static_cast<const Stored<T>*>(a_.v) + item_.kv_head * a_.v_head;
        for (int64_t j = begin; j < end;) {
            const int64_t left = a_.block_table ? a_.block_size - j % a_.block_size : end - j;
            const int64_t stop = std::min(end, j + left);
            const Stored<T>* key = k + key_offset(a_, item_.b, j, a_.k_row, a_.k_block);
            const Stored<T>* value = v + key_offset(a_, item_.b, j, a_.v_row, a_.v_block);
            for (; j < stop; ++j, key += a_.k_row, value += a_.v_row) {
                key_row_[j - step] = key;
                value_row_[j - step] = value;
                if (packed_v_) prefetch_row<T>(value, a_.dim_v);
            }
        }
        const int64_t first = (begin - step) / kPanel * kPanel, last = (end - step + kPanel - 1) / kPanel * kPanel;
        for (int64_t i = first; i < begin - step; ++i) key_row_[i] = zero_row_;
        for (int64_t i = end - step; i < last; ++i) key_row_[i] = zero_row_;
        for (int64_t i = first; i < last; i += kPanel) {
            if (i + 2 * kPanel <= last)
                for (int64_t next = i + kPanel; next < i + 2 * kPanel; ++next) prefetch_row<T>(key_row_[next], a_.dim);
            pack_panel<T>(key_row_ + i, a_.dim, keys_ + i * a_.dim);
        }
        if (!packed_v_) return;
        for (int64_t i = begin - step; i < end - step; ++i) {
            widen_row<T>(value_row_[i], a_.dim_v, columns_, values_ + i * columns_);
            wide_row_[i] = values_ + i * columns_;
        }
    }

    void do_step(int64_t step) {
        const int64_t begin = std::max(item_.seen.begin, step), end = std::min(item_.seen.end, step + kStep);
        if (begin >= end) return;
        load_step(step, begin, end);
        for (int64_t t = 0; t < rows_; t += tile_) do_tile(step, t, int(std::min(tile_, rows_ - t)));
    }

    void do_tile(int64_t step, int64_t t, int n) {
        int64_t begin[kRows], end[kRows], low = kStep, high = 0;
        for (int r = 0; r < n; ++r) {
            const Visible seen = seen_by(t + r);
            begin[r] = std::max<int64_t>(seen.begin - step, 0);
            end[r] = std::min(seen.end - step, kStep);
            if (begin[r] >= end[r]) {
                begin[r] = end[r] = 0;
                continue;
            }
            low = std::min(low, begin[r]);
            high = std::max(high, end[r]);
        }
        if (low >= high) return;
        const int64_t first = low / kPanel * kPanel, panels = (high - first + kPanel - 1) / kPanel;
        scores(n, queries_ + t * a_.dim, keys_ + first * a_.dim, panels, a_.dim, scores_ + first, kStep);
        float factor[kRows];
        for (int r = 0; r < n; ++r)
            if (begin[r] < end[r])
                factor[r] = softmax_step<T>(a_, scores_ + r * kStep, begin[r], end[r], chunk_[t + r]);
        const Weights weights{scores_, kStep, 1};
        if (packed_v_)
            ragged_sums<f32_t>(n, weights, wide_row_, begin, end, columns_, step_out_, columns_, true);
        else
            ragged_sums<T>(n, weights, value_row_, begin, end, columns_, step_out_, columns_, true);
        for (int r = 0; r < n; ++r) {
            if (begin[r] >= end[r]) continue;
            float* out = chunk_out_ + (t + r) * columns_;
            const float* add = step_out_ + r * columns_;
            const F c = F::set1(factor[r]);
            for (int64_t d = 0; d < columns_; d += F::W) (F::load(out + d) * c + F::load(add + d)).store(out + d);
        }
    }

    void write_partial() {
        for (int64_t r = 0; r < rows_; ++r) {
            float* p = item_.partial + r * (columns_ + 2);
            p[0] = chunk_[r].m;
            p[1] = chunk_[r].l;
            std::copy_n(chunk_out_ + r * columns_, columns_, p + 2);
        }
    }

    void combine(int64_t r, RowState b, const float* b_out) {
        RowState& a = total_[r];
        float* out = total_out_ + r * columns_;
        const float m = max(a.m, b.m), u = m == kNegInf ? 0.0f : m;
        const float ea = exp1(a.m - u), eb = exp1(b.m - u);
        a.l = a.l * ea + b.l * eb;
        a.m = m;
        const F va = F::set1(ea), vb = F::set1(eb);
        for (int64_t d = 0; d < columns_; d += F::W)
            (F::load(out + d) * va + F::load(b_out + d) * vb).store(out + d);
    }

    void write_row(int64_t r) {
        const float l = total_[r].l;
        const F denominator = F::set1(l == 0.0f ? 1.0f : l);
        const float* from = total_out_ + r * columns_;
        Stored<T>* out = static_cast<Stored<T>*>(a_.out) + token(r) * a_.out_row + head(r) * a_.out_head;
        for (int64_t d = 0; d < a_.dim_v; d += F::W)
            store_upto<T>(out + d, F::load(from + d) / denominator + F::zero(), int(std::min<int64_t>(F::W, a_.dim_v - d)));
        if (!a_.lse) return;
        const Visible seen = seen_by(r);
        a_.lse[token(r) * a_.heads + head(r)] = seen.begin == seen.end ? kNegInf : total_[r].m + ln1(l);
    }

    const ld_attention_args& a_;
    const Item& item_;
    const int64_t group_, rows_, columns_;
    const bool packed_v_;
    int64_t tile_;
    float *keys_, *scores_, *step_out_, *values_, *chunk_out_, *total_out_, *queries_;
    RowState *chunk_, *total_;
    const Stored<T>**key_row_, **value_row_;
    const float** wide_row_;
    Stored<T>* zero_row_;
};

std::vector<Item> items_of(const ld_attention_args& a) {
    const int64_t group = a.heads / a.kv_heads, wanted = 4 * max_threads();
    std::vector<Item> items;
    for (int64_t b = 0; b < a.batch; ++b) {
        const int64_t queries = a.q_start[b + 1] - a.q_start[b], keys = a.k_len[b];
        const int64_t pieces = (wanted + a.batch * a.kv_heads - 1) / (a.batch * a.kv_heads);
        int64_t block = std::max<int64_t>(1, kItemRows / group);
        block = std::min(block, std::max((queries + pieces - 1) / pieces, std::max<int64_t>(1, 2 * kRows / group)));
        for (int64_t q = 0; q < queries; q += block) {
            const int64_t stop = std::min(queries, q + block), shift = keys - queries;
            const Visible first = visible_keys(a, shift + q, keys), last = visible_keys(a, shift + stop - 1, keys);
            Visible seen{first.begin, std::max(first.end, last.end)};
            for (int64_t g = 0; g < a.kv_heads; ++g)
                items.push_back({b, g, q * group, stop * group, seen, seen.begin / kChunk,
                                 seen.begin == seen.end ? seen.begin / kChunk : (seen.end - 1) / kChunk + 1, nullptr});
        }
    }
    return items;
}

template <class Fn> void share_out(std::vector<Item>& items, int64_t width, Fn fn) {
    int64_t work = 0;
    for (const Item& item : items) work += item.cost() * width;
    std::stable_sort(items.begin(), items.end(), [](const Item& x, const Item& y) { return x.cost() > y.cost(); });
    const int64_t count = int64_t(items.size());
    parallel_dynamic(count, work < kSerialWork ? count : 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) fn(items[i]);
    });
}

template <class T> void forward(const ld_attention_args& a) {
    std::vector<Item> items = items_of(a);
    const int64_t width = a.dim + a.dim_v;
    const auto finish = [&](const Item& item) { Worker<T>(a, item).run(); };
    int64_t chunks = 0;
    for (const Item& item : items) chunks = std::max(chunks, item.chunk1 - item.chunk0);
    if (chunks <= 1 || int64_t(items.size()) >= 4 * max_threads()) return share_out(items, width, finish);

    // Few rows over many keys: one item per chunk, then the rows gather their chunks in order.
    const int64_t stride = columns_of(a) + 2;
    std::vector<int64_t> offset;
    int64_t floats = 0;
    for (const Item& item : items) {
        offset.push_back(floats);
        floats += (item.chunk1 - item.chunk0) * (item.row1 - item.row0) * stride;
    }
    std::vector<float> partial(floats);
    std::vector<Item> pieces;
    for (size_t i = 0; i < items.size(); ++i)
        for (int64_t c = items[i].chunk0; c < items[i].chunk1; ++c) {
            Item piece = items[i];
            piece.chunk0 = c;
            piece.chunk1 = c + 1;
            piece.partial = partial.data() + offset[i] + (c - items[i].chunk0) * (piece.row1 - piece.row0) * stride;
            pieces.push_back(piece);
        }
    share_out(pieces, width, finish);
    for (size_t i = 0; i < items.size(); ++i)
        Worker<T>(a, items[i]).gather(partial.data() + offset[i], items[i].chunk1 - items[i].chunk0);
}

}  // namespace
}  // namespace ld::attn

LD_API int ld_attention(const ld_attention_args* args) {
    return ld::guard([&] {
        ld_attention_args a = *args;
        std::vector<int64_t> wide;
        if (a.narrow) {
            const auto *starts = reinterpret_cast<const int32_t*>(a.q_start), *lengths = reinterpret_cast<const int32_t*>(a.k_len);
            wide.assign(starts, starts + a.batch + 1);
            wide.insert(wide.end(), lengths, lengths + a.batch);
            a.q_start = wide.data();
            a.k_len = wide.data() + a.batch + 1;
        }
        if (const int status = ld::check_arguments(a); status != ld::kOk) return status;
        return ld::dispatch(a.dtype, [&](auto type) {
            ld::attn::forward<decltype(type)>(a);
            return int(ld::kOk);
        });
    });
}
