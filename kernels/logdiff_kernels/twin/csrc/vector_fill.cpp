#include "vector_fill.h"

#include <cstring>

#include "vector_walk.h"

namespace twin {

namespace {

void fill(uint8_t* to, const void* value, uint32_t size, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) std::memcpy(to + i * size, value, size);
}

}  // namespace

void duplicate(const Lanes& dst, const Pattern& pattern, const void* value) {
  if (pattern.parts == 0) return;
  Op op("Duplicate", Pipe::V, pattern.elements());
  check_destination(op, dst);
  uint8_t* out = dst.write(op, pattern);
  walk(pattern, &dst, 1, true, [&](const uint64_t* at, uint64_t n) { fill(out + at[0], value, dst.size, n); });
}

void broadcast_blocks(const Lanes& dst, const Lanes& src, uint32_t repeats) {
  if (repeats == 0) return refuse_zero("repeatTime");
  const uint32_t lanes = lanes_of(dst.size), per_block = lanes / kBlocksPerRepeat;
  const Pattern pattern = Pattern::leading(lanes, lanes, repeats);
  Op op("Brcb", Pipe::V, pattern.elements());
  check_destination(op, dst);
  check_source(op, src);
  const uint64_t bytes = uint64_t{repeats} * kBlocksPerRepeat * src.size;
  if (!apart(dst.operand, hull_of(dst, pattern).end, src.operand, bytes)) {
    fail_operand(Check::overlap, "src", "lies within what dst spans: the API page forbids that");
  }
  const uint8_t* in = op.read(src.operand, 0, bytes);
  uint8_t* out = dst.write(op, pattern);
  each_repeat(pattern, [&](const Part&, uint32_t r) {
    for (uint32_t b = 0; b < kBlocksPerRepeat; ++b, in += src.size) {
      fill(out + dst.offset(r, b * per_block), in, src.size, per_block);
    }
  });
}

}  // namespace twin
