// Which pieces of which output tiles a block of `linear` has; its cube core and its vector cores walk the same list.
#pragma once

#include "common/reset.h"
#include "plan/csrc/linear.h"

namespace ld {

// One piece of k of one output tile.
struct LinearPiece {
    uint32_t group;
    uint32_t row, column;     // of C: first row in the call, first column
    uint32_t rows, columns;   // that exist, 1 to 128 and 1 to tile_n
    uint32_t begin, length;   // of k in the call; length 0 only for a group without k
    uint32_t index, pieces;   // which of the tile's pieces

    // Tiles of 128 columns, one or two, and the columns of each that exist.
    LD_FN uint32_t sides() const { return columns > plan::kTileN ? 2 : 1; }
    LD_FN uint32_t columns_of(uint32_t side) const {
        return uint32_t(plan::least(plan::kTileN, columns - side * plan::kTileN));
    }
};

class LinearWalk {
public:
    // offsets: int64 [groups + 1] where the plan has groups.
    LD_FN LinearWalk(const LdLinearPlan& plan, GM_ADDR offsets, uint32_t block) : plan_(plan), tile_(block) {
        offsets_.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(offsets));
        if (plan.grouping == plan::kGroupedRows) enter(0);
    }

    LD_FN bool next(LinearPiece& piece) {
        if (now_.index + 1 < now_.pieces) {
            ++now_.index;
        } else if (!next_tile()) {
            return false;
        }
        const plan::Range k = plan::linear_piece(plan_, length_, now_.index);
        now_.begin = k_ + k.begin;
        now_.length = k.end - k.begin;
        piece = now_;
        return true;
    }

private:
    LD_FN bool next_tile() {
        uint32_t index = tile_, tiles_m = plan_.tiles_m, first = 0, rows = plan_.m;
        k_ = 0;
        length_ = plan_.k;
        now_.group = 0;
        if (plan_.grouping == plan::kGroupedRows) {
            while (group_ < plan_.groups && tile_ >= before_ + tiles_) enter_next();
            if (group_ >= plan_.groups) return false;
            now_.group = group_;
            index = tile_ - before_;
            first = first_;
            rows = rows_;
            tiles_m = tiles_ / plan_.tiles_n;
        } else {
            const uint32_t tiles = tiles_m * plan_.tiles_n;
            if (tile_ >= tiles * (plan_.grouping == plan::kGroupedK ? plan_.groups : 1)) return false;
            if (plan_.grouping == plan::kGroupedK) {
                now_.group = tile_ / tiles;
                index = tile_ % tiles;
                k_ = offset(now_.group);
                length_ = offset(now_.group + 1) - k_;
            }
        }
        const plan::TilePlace place = plan::linear_place(index, tiles_m, plan_.tiles_n);
        now_.row = first + place.m * plan::kTileM;
        now_.rows = uint32_t(plan::least(plan::kTileM, rows - place.m * plan::kTileM));
        now_.column = place.n * plan_.tile_n;
        now_.columns = uint32_t(plan::least(plan_.tile_n, plan_.n - now_.column));
        now_.index = 0;
        now_.pieces = plan::linear_pieces(plan_, length_);
        tile_ += plan_.blocks;
        return true;
    }

    LD_FN uint32_t offset(uint32_t group) { return uint32_t(offsets_.GetValue(group)); }

    LD_FN void enter(uint32_t group) {
        group_ = group;
        first_ = offset(group);
        rows_ = offset(group + 1) - first_;
        tiles_ = plan::linear_tiles(plan_, rows_);
    }
    LD_FN void enter_next() {
        before_ += tiles_;
        if (group_ + 1 < plan_.groups) {
            enter(group_ + 1);
        } else {
            group_ = plan_.groups;
            tiles_ = 0;
        }
    }

    const LdLinearPlan& plan_;
    GlobalTensor<int64_t> offsets_;
    LinearPiece now_{};
    uint32_t tile_;                                             // the next one
    uint32_t k_ = 0, length_ = 0;                               // k of the tile's group
    uint32_t group_ = 0, before_ = 0, first_ = 0, rows_ = 0, tiles_ = 0;  // group of rows, tiles before it and in it
};

}  // namespace ld
