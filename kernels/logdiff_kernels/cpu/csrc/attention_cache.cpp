// store_kv: new keys and values into their slots of a paged cache.
#include <cstring>

#include "dtype.h"
#include "parallel.h"

LD_API int ld_store_kv(const void* src, void* cache, const int64_t* slots, int64_t tokens, int64_t heads,
                           int64_t dim, int64_t src_row, int64_t src_head, int64_t block_size, int64_t cache_block,
                           int64_t cache_row, int64_t cache_head, int32_t dtype) {
  if (dtype < 0 || dtype > 2) return ld::kBadDtype;
  const int64_t size = dtype == 0 ? 4 : 2;
  const char* from = static_cast<const char*>(src);
  char* to = static_cast<char*>(cache);
  ld::parallel_for(tokens, 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (slots[t] < 0) continue;
      const int64_t row = slots[t] / block_size * cache_block + slots[t] % block_size * cache_row;
      for (int64_t h = 0; h < heads; ++h)
        std::memcpy(to + (row + h * cache_head) * size, from + (t * src_row + h * src_head) * size, dim * size);
    }
  });
  return ld::kOk;
}
