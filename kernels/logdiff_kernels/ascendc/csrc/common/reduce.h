// R64 of the rows of a tile, and of one row that comes in pieces; T(L) (numeric contract).
#pragma once

#include "common/row_tiles.h"

namespace ld {

// 64 running lanes for each row. Chunks of 64 columns are added in ascending order, then lanes are halved to 8 and
// neighbours added three times: only single IEEE adds, in the order written here.
//
// Per tile: one Add per chunk over all rows, or one long Add per row; 3 Adds and 3 PairReduceSum for all rows together.
class RowSums {
public:
    // For tiles of up to `tile_rows` rows; with halve() the sums of `together` rows, at least as many, end together.
    LD_FN void init(TPipe& pipe, uint32_t tile_rows, uint32_t together = 0) {
        repeats_ = (uint32_t(plan::most(tile_rows, together)) + 7) / 8;
        const uint32_t fours = (repeats_ + 1) / 2, twos = (fours + 1) / 2, all = (repeats_ + fours + twos) * kLanes;
        pipe.InitBuffer(buffer_, uint32_t((all + tile_rows * kLanes) * sizeof(float)));
        eights_ = buffer_.Get<float>();
        fours_ = eights_[repeats_ * kLanes];
        twos_ = fours_[fours * kLanes];
        lanes_ = twos_[twos * kLanes];
        // whole repeats are summed, also where a tile has fewer rows
        Duplicate(eights_, 0.0f, int32_t(all));
    }

    // Starts the sums of a tile's rows. Columns behind the rows' length are +0.
    LD_FN void first(const LocalTensor<float>& x, const RowTile& tile) {
        const uint32_t pitch = tile.pitch / 8, chunks = tile.chunks();
        DataCopy(lanes_, x, DataCopyParams(uint16_t(tile.rows), 8, uint16_t(pitch - 8), 0));
        if (pitch <= 255 && tile.rows >= chunks) {
            const BinaryRepeatParams params(1, 1, 1, 8, uint8_t(pitch), 8);
            for (uint32_t c = 1; c < chunks; ++c) {
                v_barrier();
                Add(lanes_, x[c * kLanes], lanes_, uint64_t(kLanes), uint8_t(tile.rows), params);
            }
            return;
        }
        v_barrier();
        for (uint32_t r = 0; r < tile.rows; ++r) add_chunks(lanes_[r * kLanes], x[r * tile.pitch + kLanes], chunks - 1);
    }

    // Starts the sums of rows whose chunks lie in planes: [planes][rows][64].
    LD_FN void first_planes(const LocalTensor<float>& x, uint32_t planes, uint32_t rows) {
        const int32_t count = int32_t(rows * kLanes);
        copy_floats(lanes_, x, uint32_t(count));
        for (uint32_t p = 1; p < planes; ++p) {
            v_barrier();
            Add(lanes_, x[uint32_t(count) * p], lanes_, count);
        }
    }

    // Continues the sum of a single row.
    LD_FN void more(const LocalTensor<float>& x, const RowTile& tile) {
        v_barrier();
        add_chunks(lanes_, x, tile.chunks());
    }

    // out: one lane for each row; whole halves of 64 lanes are written.
    LD_FN void finish(const LocalTensor<float>& out, uint32_t rows) {
        halve(0, rows);
        pairs(out);
    }

    // finish() in two: 64 lanes to 8 for the rows of a tile, which become rows [first, first + rows) of out; then the
    // neighbours of the rows of several tiles together.
    LD_FN void halve(uint32_t first, uint32_t rows) {
        const BinaryRepeatParams in_place(1, 1, 1, 8, 8, 8), compact(1, 1, 1, 1, 8, 8);
        v_barrier();
        Add(lanes_, lanes_, lanes_[32], uint64_t(32), uint8_t(rows), in_place);
        v_barrier();
        Add(lanes_, lanes_, lanes_[16], uint64_t(16), uint8_t(rows), in_place);
        v_barrier();
        Add(eights_[first * 8], lanes_, lanes_[8], uint64_t(8), uint8_t(rows), compact);
    }

    LD_FN void pairs(const LocalTensor<float>& out) {
        v_barrier();
        PairReduceSum(fours_, eights_, uint8_t(repeats_), int32_t(kLanes), 1, 1, 8);
        v_barrier();
        PairReduceSum(twos_, fours_, uint8_t((repeats_ + 1) / 2), int32_t(kLanes), 1, 1, 8);
        v_barrier();
        PairReduceSum(out, twos_, uint8_t((repeats_ + 3) / 4), int32_t(kLanes), 1, 1, 8);
    }

private:
    // The destination is the second source with stride 0: repeats add into the same lanes, one after the other.
    static LD_FN void add_chunks(const LocalTensor<float>& lanes, const LocalTensor<float>& x, uint32_t chunks) {
        const BinaryRepeatParams params(1, 1, 1, 0, 8, 0);
        for (uint32_t c = 0; c < chunks; c += kMostRepeats) {
            if (c != 0) v_barrier();
            const uint32_t now = uint32_t(plan::least(kMostRepeats, chunks - c));
            Add(lanes, x[c * kLanes], lanes, uint64_t(kLanes), uint8_t(now), params);
        }
    }

    uint32_t repeats_ = 0;
    TBuf<TPosition::VECCALC> buffer_;
    LocalTensor<float> eights_, fours_, twos_, lanes_;
};

// T(count) over tensors of `elements` fp32 that lie one behind the other; the result is in the first. count is a power
// of two.
LD_FN void tree_add(const LocalTensor<float>& parts, uint32_t count, uint32_t elements) {
    for (uint32_t step = 1; step < count; step *= 2) {
        v_barrier();
        for (uint32_t i = 0; i < count; i += 2 * step)
            Add(parts[i * elements], parts[i * elements], parts[(i + step) * elements], int32_t(elements));
    }
}

}  // namespace ld
