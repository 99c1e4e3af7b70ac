// Matrix products with the contract's order: work is shared out over column panels (and row chunks), never over k.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "linear_dot.h"
#include "linear_pack.h"
#include "linear_plan.h"
#include "linear_stream.h"
#include "linear_tile.h"
#include "parallel.h"

namespace ld::linear {

constexpr int64_t kDepth = 256;              // k's of a packed panel: stays in the first-level cache
constexpr int64_t kPairDepth = 192;          // likewise of pairs, which are as wide as two
constexpr int64_t kChunkFloats = 4 << 20;    // widened rows of A held at once
constexpr int64_t kChunkRows = 2048 / kRows * kRows;
constexpr int64_t kSerial = 1 << 16;         // products below which threads cost more than they give

// C[M,N] = A[M,K] B[N,K]^T (+ bias[N]): one product; `bias` may be null.
struct Product {
    int64_t m, n, k;
    Operand a, b;
    const void* bias;
    int32_t bias_dtype;
    void* c;
    int32_t c_dtype;
    int64_t c_row;  // elements from one row of C to the next; columns are adjacent
};

// Memory that a thread keeps between calls.
inline float* grow(std::vector<float>& store, int64_t floats) {
    if (static_cast<int64_t>(store.size()) < floats) store.resize(size_t(floats));
    return store.data();
}

// Rows of A, ready for the tiles: widened, or as pairs of bf16 where dot products may be used.
struct Rows {
    const float* wide;  // row-major, `stride` floats per row; null for pairs
    int64_t stride;
    const uint32_t* pairs;  // `pairs_stride` words per row; null for widened rows
    int64_t pairs_stride;
    int lowest;  // lowest_exponent of the pairs
    bool by_pair;  // pairs are [pairs][rows], for a stream of weights

    Rows from(int64_t m) const {
        return {wide ? wide + m * stride : nullptr, stride, pairs ? pairs + m * pairs_stride : nullptr, pairs_stride, lowest, by_pair};
    }
};

// Rows of a tile: at most kRows, as even as can be.
inline int tile_height(int64_t rows) {
    const int64_t tiles = (rows + kRows - 1) / kRows;
    return int((rows + tiles - 1) / tiles);
}

// The k's [begin, end) of one piece: sum[rows][NV * W] = their fused sums from +0.
template <int NV>
void sum_piece(const Product& p, const Rows& a, int64_t m0, int64_t rows, int64_t n0, int columns, int64_t begin, int64_t end,
               float* packed, float* sum) {
    constexpr int width = NV * F::W;
    const int height = tile_height(rows);
    int64_t k0 = begin;
    if (begin == end) std::fill(sum, sum + rows * width, 0.0f);
#if defined(LD_HAS_BF16DOT)
    if (a.pairs && a.by_pair && begin % 2 == 0)
        k0 += dot_stream_rows<width>(p.b, n0, columns, begin, end - begin, a.pairs, int(rows), a.lowest, sum);
    else
#endif
    if (a.wide && rows <= kStreamRows && p.b.s_k == 1)
        k0 += stream_rows<width>(p.b, n0, columns, begin, end - begin, a.wide, a.stride, int(rows), sum);
#if defined(LD_HAS_BF16DOT)
    else if (a.pairs && !a.by_pair && begin % 2 == 0)
        for (; k0 + 1 < end; k0 += 2 * (std::min(kPairDepth, end - k0) / 2)) {
            const int64_t pairs = std::min(kPairDepth, end - k0) / 2;
            uint32_t* words = reinterpret_cast<uint32_t*>(packed);
            read_column_pairs<width>(p.b, n0, columns, k0, pairs, words);
            if (!dot_is_exact(a.lowest, lowest_exponent(words, pairs * width))) break;  // and never again in this piece
            for (int64_t m = 0; m < rows; m += height)
                dot_rows<NV>(int(std::min<int64_t>(height, rows - m)), pairs, a.pairs + m * a.pairs_stride + k0 / 2,
                             a.pairs_stride, words, sum + m * width, k0 == begin);
        }
#endif
    for (; k0 < end; k0 += kDepth) {
        const int64_t depth = std::min(kDepth, end - k0);
        const float* wide = a.wide + k0;
        int64_t stride = a.stride;
        if (!a.wide) {  // what the instruction can't take, at the end of a piece or all of it
            static thread_local std::vector<float> some;
            wide = grow(some, rows * depth);
            stride = depth;
            const Operand from{at<bf16_t>(p.a, 0, k0), kBF16, p.a.s_out, p.a.s_k};
            read_rows<bf16_t>(from, m0, rows, depth, some.data());
        }
        dispatch(p.b.dtype, [&](auto t) {
            read_columns<decltype(t), width>(p.b, n0, columns, k0, depth, p.k - k0 - depth, packed);
            return int(kOk);
        });
        for (int64_t m = 0; m < rows; m += height)
            tile_rows<NV>(int(std::min<int64_t>(height, rows - m)), depth, wide + m * stride, stride, 1,
                          packed, sum + m * width, k0 == begin);
    }
}

// Columns [n0, n0 + NV * W) of rows m0, m0 + 1, ... of C.
template <int NV>
void panel(const Product& p, const Plan& plan, const Rows& a, int64_t m0, int64_t rows, int64_t n0) {
    constexpr int width = NV * F::W;
    static thread_local std::vector<float> store;
    const int levels = plan.levels(p.k);
    const int64_t area = rows * width;
    float* packed = grow(store, kDepth * width + (levels + 1) * area);
    float* slot[8];  // slot[0 .. levels - 1]: finished partial results; slot[levels]: the piece being summed
    for (int i = 0; i <= levels; ++i) slot[i] = packed + kDepth * width + i * area;
    const int columns = static_cast<int>(std::min<int64_t>(width, p.n - n0));
    const int64_t pieces = plan.pieces(p.k);
    for (int64_t piece = 0; piece < pieces; ++piece) {
        float* sum = slot[levels];
        sum_piece<NV>(p, a, m0, rows, n0, columns, plan.begin(p.k, piece), plan.end(p.k, piece), packed, sum);
        if (levels == 0) break;
        int level = 0;
        if (plan.kind == kTree) {
            for (int64_t i = piece; i & 1; i >>= 1, ++level) add(slot[level], sum, area);
        } else if (piece > 0) {
            add(slot[0], sum, area);
        }
        std::swap(slot[level], slot[levels]);
    }
    const float* result = slot[plan.kind == kTree && levels > 0 ? levels : 0];
    dispatch(p.c_dtype, [&](auto to) {
        return dispatch(p.bias_dtype, [&](auto from) {
            using T = decltype(to);
            using B = decltype(from);
            const auto* bias = p.bias ? static_cast<const typename B::type*>(p.bias) + n0 : nullptr;
            auto* c = static_cast<typename T::type*>(p.c) + m0 * p.c_row + n0;
            for (int64_t m = 0; m < rows; ++m) write_row<T, B>(result + m * width, columns, bias, c + m * p.c_row);
            return int(kOk);
        });
    });
}

// Rows [m0, m0 + rows) of a product's A, widened into `wide` (rows * k floats; unused when A serves as it is).
inline Rows prepare(const Product& p, int64_t m0, int64_t rows, float* wide) {
    Rows a{wide, p.k, nullptr, 0, 0, false};
    if (p.a.dtype == kF32 && p.a.s_k == 1) {
        a.wide = static_cast<const float*>(p.a.data) + m0 * p.a.s_out;
        a.stride = p.a.s_out;
        return a;
    }
    const int64_t grain = std::max<int64_t>(1, kSerial / std::max<int64_t>(p.k, 1));
    parallel_for(rows, grain, [&](int64_t first, int64_t last) {
        dispatch(p.a.dtype, [&](auto t) {
            read_rows<decltype(t)>(p.a, m0 + first, last - first, p.k, wide + first * p.k);
            return int(kOk);
        });
    });
    return a;
}

#if defined(LD_HAS_BF16DOT)
// Rows [m0, m0 + rows) of a product's A as pairs of bf16; `words` has room for rows * (k / 2). False where dot products
// can't be used.
inline bool prepare_pairs(const Product& p, int64_t m0, int64_t rows, uint32_t* words, Rows& a) {
    const int64_t pairs = p.k / 2;
    const bool by_pair = rows <= kDotRows && p.b.s_k == 1;
    const int64_t grain = std::max<int64_t>(1, kSerial / std::max<int64_t>(p.k, 1));
    parallel_for(rows, grain, [&](int64_t first, int64_t last) {
        if (by_pair)
            read_row_pairs(p.a, m0 + first, last - first, pairs, words + first, 1, rows);
        else
            read_row_pairs(p.a, m0 + first, last - first, pairs, words + first * pairs, pairs, 1);
    });
    a = {nullptr, 0, words, pairs, lowest_exponent(words, rows * pairs), by_pair};
    return a.lowest > 0;
}
#endif

// Row parts of a product: more than one, each with panels packed anew, only where whole panels would leave threads idle.
inline int64_t row_parts(int64_t panels, int64_t rows, int threads) {
    const int64_t most = std::min((rows + 8 * kRows - 1) / (8 * kRows), (4 * threads + panels - 1) / panels + 1);
    int64_t best = 1;
    const auto rounds = [&](int64_t parts) { return double((panels * parts + threads - 1) / threads) / double(parts); };
    for (int64_t parts = 2; threads > 1 && parts <= most; ++parts)
        if (rounds(parts) < 0.96 * rounds(best)) best = parts;
    return best;
}

// Several products that share nothing but their plan (one per expert, or just one).
inline void products(const Product* list, int64_t count, const Plan& plan) {
    struct Chunk {
        const Product* p;
        int64_t m0, rows;
    };
    struct Task {
        const Product* p;
        Rows a;
        int64_t m0, rows, n0;
        bool wide;
    };
    static thread_local std::vector<float> widened;
    static thread_local std::vector<Task> tasks;
    static thread_local std::vector<Chunk> chunks;
    int64_t index = 0, row = 0;  // next product, and next row of it
    while (index < count) {
        // As many rows as fit, over the products in order.
        tasks.clear();
        chunks.clear();
        int64_t floats = 0, work = 0;
        while (index < count) {
            const Product& p = list[index];
            if (p.m == 0 || p.n == 0) {
                ++index;
                continue;
            }
            const int64_t room = (kChunkFloats - floats) / std::max<int64_t>(p.k, 1) / kRows * kRows;
            const int64_t rows =
                std::min({p.m - row, kChunkRows, floats == 0 ? std::max<int64_t>(room, 8 * kRows) : room});
            if (rows <= 0) break;
            chunks.push_back({&p, row, rows});
            floats += rows * p.k;
            work += rows * p.k * p.n;
            row += rows;
            if (row == p.m) {
                ++index;
                row = 0;
            }
        }
        float* base = grow(widened, floats);
#if defined(LD_HAS_BF16DOT)
        static thread_local std::vector<float> paired;
        uint32_t* words = reinterpret_cast<uint32_t*>(grow(paired, floats / 2));
#endif
        const int threads = work < kSerial ? 1 : max_threads();
        for (const Chunk& chunk : chunks) {
            const Product& p = *chunk.p;
            Rows a{nullptr, 0, nullptr, 0, 0, false};
#if defined(LD_HAS_BF16DOT)
            const bool bf16 = p.a.dtype == kBF16 && p.b.dtype == kBF16;
            if (!bf16 || (chunk.rows <= kStreamRows && p.b.s_k == 1) || !prepare_pairs(p, chunk.m0, chunk.rows, words, a))
#endif
                a = prepare(p, chunk.m0, chunk.rows, base);
            base += chunk.rows * p.k;
#if defined(LD_HAS_BF16DOT)
            words += chunk.rows * (p.k / 2);
#endif
            const bool wide = chunk.rows <= (p.b.s_k == 1 ? kStreamRows : 2);
            const int64_t width = (wide ? kWide : kVectors) * F::W;
            const int64_t panels = (p.n + width - 1) / width;
            const int64_t parts = row_parts(panels, chunk.rows, threads);
            const int64_t step = ((chunk.rows + parts - 1) / parts + kRows - 1) / kRows * kRows;
            for (int64_t n0 = 0; n0 < p.n; n0 += width)
                for (int64_t m = 0; m < chunk.rows; m += step)
                    tasks.push_back({&p, a.from(m), chunk.m0 + m, std::min(step, chunk.rows - m), n0, wide});
        }
        const int64_t total = static_cast<int64_t>(tasks.size());
        const Task* task = tasks.data();
        const int64_t grain = threads == 1 ? total : std::max<int64_t>(1, total / (8 * threads));
        parallel_dynamic(total, grain, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                const Task& t = task[i];
                if (kWide != kVectors && t.wide)
                    panel<kWide>(*t.p, plan, t.a, t.m0, t.rows, t.n0);
                else
                    panel<kVectors>(*t.p, plan, t.a, t.m0, t.rows, t.n0);
            }
        });
    }
}

}  // namespace ld::linear
