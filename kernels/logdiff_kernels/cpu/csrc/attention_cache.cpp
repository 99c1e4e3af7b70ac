// store_kv: new keys and values into their slots of a paged cache.
#include <cstring>

#include "attention.h"
#include "parallel.h"

extern "C" {

// Strides are in elements; dim elements of a row are adjacent.
struct ld_store_side {
    const void* from;  // [tokens, heads, dim]
    void* cache;       // [blocks, block_size, heads, dim]
    int64_t dim, row, head, cache_block, cache_row, cache_head;
};

struct ld_store_args {
    ld_store_side side[2];  // keys, values
    const void* slots;      // [tokens] int64_t, or int32_t if narrow; negative ones are skipped
    int64_t tokens, heads, block_size, capacity;
    int32_t bytes, narrow;
};

}  // extern "C"

namespace ld {
namespace {

int64_t slot_of(const ld_store_args& a, int64_t t) {
    return a.narrow ? static_cast<const int32_t*>(a.slots)[t] : static_cast<const int64_t*>(a.slots)[t];
}

void store_row(const ld_store_args& a, const ld_store_side& side, int64_t t, int64_t slot) {
    const int64_t to = slot / a.block_size * side.cache_block + slot % a.block_size * side.cache_row;
    for (int64_t h = 0; h < a.heads; ++h)
        std::memcpy(static_cast<char*>(side.cache) + (to + h * side.cache_head) * a.bytes,
                    static_cast<const char*>(side.from) + (t * side.row + h * side.head) * a.bytes,
                    size_t(side.dim * a.bytes));
}

}  // namespace
}  // namespace ld

LD_API int ld_store_kv(const ld_store_args* args) {
    return ld::guard([&] {
        const ld_store_args& a = *args;
        for (int64_t t = 0; t < a.tokens; ++t)
            if (ld::slot_of(a, t) >= a.capacity) return int(ld::kBadSlot);
        ld::parallel_for(a.tokens, 64, [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t) {
                const int64_t slot = ld::slot_of(a, t);
                if (slot < 0) continue;
                for (const ld_store_side& side : a.side) ld::store_row(a, side, t, slot);
            }
        });
        return int(ld::kOk);
    });
}
