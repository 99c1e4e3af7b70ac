// Tiles of rows: which rows a core has, rows between GM and UB, and instructions on rows that share an operand.
//
// A tile is `rows` rows, `pitch` elements apart in UB. The pitch is a multiple of 64, so every row starts on a block and
// instructions may run over the padding between `length` and the pitch; fill_tail() gives that padding a value.
#pragma once

#include "common/divide.h"
#include "common/dtype.h"
#include "plan/csrc/rows.h"

namespace ld {

using plan::kLanes;

constexpr uint32_t kMostRows = plan::kMostTileRows;  // lanes of a vector with one value per row
constexpr uint32_t kMostRepeats = 255;

// Columns [column, column + length) of rows [first, first + rows).
struct RowTile {
    uint32_t first, rows, column, length, pitch;

    LD_FN uint32_t chunks() const { return (length + kLanes - 1) / kLanes; }
    LD_FN uint32_t width() const { return chunks() * kLanes; }
    // Elements from the first one to the end of the last row's width.
    LD_FN uint32_t flat() const { return (rows - 1) * pitch + width(); }
};

// This core's rows, tile after tile.
class RowTiles {
public:
    LD_FN explicit RowTiles(const LdRows& cut)
        : cut_(cut), walk_(plan::row_walk(cut, uint32_t(GetBlockIdx()))) {}

    LD_FN uint32_t count() const { return uint32_t(plan::ceil_div(walk_.count, cut_.tile_rows)); }
    LD_FN uint32_t pieces() const { return cut_.pieces; }
    LD_FN RowTile at(uint32_t tile, uint32_t piece = 0) const {
        const uint32_t done = tile * cut_.tile_rows, column = piece * cut_.tile;
        return {walk_.first + done * walk_.stride, uint32_t(plan::least(cut_.tile_rows, walk_.count - done)), column,
                uint32_t(plan::least(cut_.tile, cut_.length - column)), cut_.tile};
    }
    // Elements of a whole tile.
    LD_FN uint32_t elements() const { return cut_.tile_rows * cut_.tile; }

private:
    const LdRows& cut_;
    plan::RowWalk walk_;
};

// Rows of GM, `stride` elements apart, into a tile. Up to 32 bytes behind each row are filled with `fill`.
template <class T>
LD_FN void load_rows(const LocalTensor<T>& to, const GlobalTensor<T>& from, uint32_t rows, uint32_t length,
                     int64_t stride, uint32_t pitch, T fill = T(0.0f)) {
    const uint32_t bytes = length * uint32_t(sizeof(T)), whole = (bytes + 31) / 32 * 32;
    const int64_t gap = (stride - int64_t(length)) * int64_t(sizeof(T));
    const DataCopyPadExtParams<T> pad{whole != bytes, 0, uint8_t((whole - bytes) / sizeof(T)), fill};
    if (rows == 1 || gap < 0 || gap > int64_t(UINT32_MAX)) {
        const DataCopyExtParams one{1, bytes, 0, 0, 0};
        for (uint32_t r = 0; r < rows; ++r) DataCopyPad(to[r * pitch], from[uint64_t(int64_t(r) * stride)], one, pad);
        return;
    }
    const DataCopyExtParams all{uint16_t(rows), bytes, uint32_t(gap), uint32_t((pitch * sizeof(T) - whole) / 32), 0};
    DataCopyPad(to, from, all, pad);
}

template <class T>
LD_FN void store_rows(const GlobalTensor<T>& to, const LocalTensor<T>& from, uint32_t rows, uint32_t length,
                      int64_t stride, uint32_t pitch) {
    const uint32_t bytes = length * uint32_t(sizeof(T)), whole = (bytes + 31) / 32 * 32;
    const int64_t gap = (stride - int64_t(length)) * int64_t(sizeof(T));
    if (rows == 1 || gap < 0 || gap > int64_t(UINT32_MAX)) {
        const DataCopyExtParams one{1, bytes, 0, 0, 0};
        for (uint32_t r = 0; r < rows; ++r) DataCopyPad(to[uint64_t(int64_t(r) * stride)], from[r * pitch], one);
        return;
    }
    const DataCopyExtParams all{uint16_t(rows), bytes, uint32_t((pitch * sizeof(T) - whole) / 32), uint32_t(gap), 0};
    DataCopyPad(to, from, all);
}

// Gives the padding behind a tile's rows, from where load_rows ends to the width, a value: AllocTensor leaves none.
template <class T> LD_FN void fill_tail(const LocalTensor<T>& x, const RowTile& tile, T value) {
    constexpr uint32_t block = 32 / sizeof(T);
    const uint32_t used = uint32_t(plan::round_up(tile.length % kLanes, block));
    if (used == 0 || used == kLanes) return;
    const uint64_t mask[2] = {~((uint64_t(1) << used) - 1), 0};
    const uint32_t last = tile.width() - kLanes, stride = tile.pitch / block;
    if (stride <= 255) {
        Duplicate(x[last], value, mask, uint8_t(tile.rows), 1, uint8_t(stride));
        return;
    }
    for (uint32_t r = 0; r < tile.rows; ++r) Duplicate(x[r * tile.pitch + last], value, mask, 1, 1, 8);
}

struct AddRows {
    static LD_FN void run(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                          uint32_t repeats, const BinaryRepeatParams& params) {
        Add(dst, a, b, uint64_t(kLanes), uint8_t(repeats), params);
    }
};
struct SubRows {
    static LD_FN void run(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                          uint32_t repeats, const BinaryRepeatParams& params) {
        Sub(dst, a, b, uint64_t(kLanes), uint8_t(repeats), params);
    }
};
struct MulRows {
    static LD_FN void run(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                          uint32_t repeats, const BinaryRepeatParams& params) {
        Mul(dst, a, b, uint64_t(kLanes), uint8_t(repeats), params);
    }
};
struct DivRows {
    static LD_FN void run(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                          uint32_t repeats, const BinaryRepeatParams& params) {
        divide_rows(dst, a, b, repeats, params);
    }
};

// What the second operand of each_row is: one row for all rows, or one block of equal values per row (from Brcb).
enum class Beside { kColumns, kScalars };

// dst = a op b on a tile. One instruction per row or per chunk of 64 columns, whichever are fewer.
template <class Instruction, Beside kBeside>
LD_FN void each_row(const LocalTensor<float>& dst, const LocalTensor<float>& a, const LocalTensor<float>& b,
                    const RowTile& tile) {
    constexpr bool columns = kBeside == Beside::kColumns;
    const uint32_t pitch = tile.pitch / 8, chunks = tile.chunks();
    if (pitch <= 255 && tile.rows > chunks) {
        const BinaryRepeatParams params(1, 1, columns ? 1 : 0, uint8_t(pitch), uint8_t(pitch), columns ? 0 : 1);
        for (uint32_t c = 0; c < chunks; ++c)
            Instruction::run(dst[c * kLanes], a[c * kLanes], columns ? b[c * kLanes] : b, tile.rows, params);
        return;
    }
    const BinaryRepeatParams params(1, 1, columns ? 1 : 0, 8, 8, columns ? 8 : 0);
    for (uint32_t r = 0; r < tile.rows; ++r)
        Instruction::run(dst[r * tile.pitch], a[r * tile.pitch], columns ? b : b[r * 8], chunks, params);
}

// One value per row (kMostRows lanes) as one block of 8 equal values per row: [kMostRows * 8].
LD_FN void row_blocks(const LocalTensor<float>& blocks, const LocalTensor<float>& values) {
    Brcb(blocks, values, uint8_t(kMostRows / 8), BrcbRepeatParams(1, 8));
}

}  // namespace ld
