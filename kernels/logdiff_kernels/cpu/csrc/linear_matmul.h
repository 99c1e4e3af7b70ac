// Matrix products with the contract's order: work is shared out over column panels (and row chunks), never over k.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "linear_pack.h"
#include "linear_plan.h"
#include "linear_stream.h"
#include "linear_tile.h"
#include "parallel.h"

namespace ld::linear {

constexpr int64_t kDepth = 256;              // k's of a packed panel: stays in the first-level cache
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

// Columns [n0, n0 + NV * W) of the rows whose widened values lie at `a`, row-major with `a_row` floats per row.
template <int NV>
void panel(const Product& p, const Plan& plan, const float* a, int64_t a_row, int64_t m0, int64_t rows, int64_t n0) {
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
        const int64_t begin = plan.begin(p.k, piece), end = plan.end(p.k, piece);
        if (begin == end) std::fill(sum, sum + area, 0.0f);
        int64_t k0 = begin;
        if (rows <= kStreamRows && p.b.s_k == 1) {
            k0 += stream_rows<width>(p.b, n0, columns, begin, end - begin, a, a_row, int(rows), sum);
        }
        for (; k0 < end; k0 += kDepth) {
            const int64_t depth = std::min(kDepth, end - k0);
            dispatch(p.b.dtype, [&](auto t) {
                read_columns<decltype(t), width>(p.b, n0, columns, k0, depth, packed);
                return int(kOk);
            });
            for (int64_t m = 0; m < rows; m += kRows)
                tile_rows<NV>(static_cast<int>(std::min<int64_t>(kRows, rows - m)), depth, a + m * a_row + k0, a_row,
                              1, packed, sum + m * width, k0 == begin);
        }
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

// Several products that share nothing but their plan (one per expert, or just one).
inline void products(const Product* list, int64_t count, const Plan& plan) {
    static thread_local std::vector<float> widened;
    struct Task {
        const Product* p;
        const float* a;
        int64_t a_row, m0, rows, n0;
        bool wide;
    };
    static thread_local std::vector<Task> tasks;
    int64_t index = 0, row = 0;  // next product, and next row of it
    while (index < count) {
        // As many rows as fit, over the products in order.
        tasks.clear();
        struct Chunk {
            const Product* p;
            int64_t m0, rows;
        };
        static thread_local std::vector<Chunk> chunks;
        chunks.clear();
        int64_t floats = 0, work = 0;
        while (index < count) {
            const Product& p = list[index];
            if (p.m == 0 || p.n == 0) {
                ++index;
                continue;
            }
            const int64_t room =
                (kChunkFloats - floats) / std::max<int64_t>(p.k, 1) / kRows * kRows;
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
        int64_t offset = 0;
        const int threads = work < kSerial ? 1 : max_threads();
        for (const Chunk& chunk : chunks) {
            const Product& p = *chunk.p;
            const float* a = base + offset;
            int64_t a_row = p.k;
            if (p.a.dtype == kF32 && p.a.s_k == 1) {
                a = static_cast<const float*>(p.a.data) + chunk.m0 * p.a.s_out;
                a_row = p.a.s_out;
            } else {
                float* target = base + offset;
                parallel_for(chunk.rows, std::max<int64_t>(1, kSerial / std::max<int64_t>(p.k, 1)),
                             [&](int64_t first, int64_t last) {
                                 dispatch(p.a.dtype, [&](auto t) {
                                     read_rows<decltype(t)>(p.a, chunk.m0 + first, last - first, p.k,
                                                            target + first * p.k);
                                     return int(kOk);
                                 });
                             });
                offset += chunk.rows * p.k;
            }
            const bool wide = chunk.rows <= (p.b.s_k == 1 ? kStreamRows : 2);
            const int64_t width = (wide ? kWide : kVectors) * F::W;
            const int64_t panels = (p.n + width - 1) / width;
            int64_t parts = 1;  // row parts: more only when there are too few panels for the threads
            if (threads > 1 && panels < 4 * threads)
                parts = std::min((chunk.rows + 8 * kRows - 1) / (8 * kRows), (4 * threads + panels - 1) / panels);
            const int64_t step = ((chunk.rows + parts - 1) / parts + kRows - 1) / kRows * kRows;
            for (int64_t n0 = 0; n0 < p.n; n0 += width)
                for (int64_t m = 0; m < chunk.rows; m += step)
                    tasks.push_back({&p, a + m * a_row, a_row, chunk.m0 + m, std::min(step, chunk.rows - m), n0, wide});
        }
        const int64_t total = static_cast<int64_t>(tasks.size());
        const Task* task = tasks.data();
        parallel_for(total, threads == 1 ? total : 1, [&](int64_t first, int64_t last) {
            for (int64_t i = first; i < last; ++i) {
                const Task& t = task[i];
                if (kWide != kVectors && t.wide)
                    panel<kWide>(*t.p, plan, t.a, t.a_row, t.m0, t.rows, t.n0);
                else
                    panel<kVectors>(*t.p, plan, t.a, t.a_row, t.m0, t.rows, t.n0);
            }
        });
    }
}

}  // namespace ld::linear
