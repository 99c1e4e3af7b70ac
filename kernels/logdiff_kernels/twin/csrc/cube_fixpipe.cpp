#include "cube_fixpipe.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cast_rounding.h"

namespace twin {

namespace {

void check_tile(const FixpipeTile& t) {
  if (t.unit_flag != 0) fail(Check::overload, "unitFlag is not modelled: order Mmad and Fixpipe by M_FIX events");
  if (t.channel_split) fail(Check::overload, "channel split doesn't go with row-major output");
  if (t.n > 4095) fail(Check::range, "nSize %u exceeds 4095", t.n);
  if (!k3510 && t.m > 8192) fail(Check::range, "mSize %u exceeds 8192", t.m);
  if (t.n == 0 || t.m == 0 || t.count == 0) return;
  if (t.row_step == 0) fail(Check::stride, "dstStride is 0");
  if (t.row_step < t.n && t.m > 1) {
    fail_operand(Check::overlap, "dst", "rows of %u elements lie %llu apart", t.n,
                 static_cast<unsigned long long>(t.row_step));
  }
  if (t.column_step % 1024 != 0 || (t.n > 16 && t.column_step < t.m * uint64_t{64})) {
    fail(Check::stride, "srcStride %llu: the rows of the tile, rounded up to 16, are needed",
         static_cast<unsigned long long>(t.column_step / 64));
  }
}

uint16_t round_to(QuantMode_t quant, float x, bool saturate) {
  if (quant == QuantMode_t::F322F16) {
    return saturate ? narrow_float<HalfFormat, RoundMode::CAST_RINT>(x, true) : nearest_half(x);
  }
  return saturate ? narrow_float<Bf16Format, RoundMode::CAST_RINT>(x, true) : nearest_bf16(x);
}

}  // namespace

void store_tile(const Operand& dst, const Operand& src, Element element, QuantMode_t wanted, const FixpipeTile& t) {
  if (t.quant != wanted) fail(Check::overload, "quantPre %d doesn't go with the element type of dst", int(t.quant));
  check_tile(t);
  if (t.n == 0 || t.m == 0 || t.count == 0) return;
  if (src.memory != Memory::L0C) fail(Check::overload, "Fixpipe reads L0C, not %s", name_of(src.memory));
  Op op("Fixpipe", Pipe::FIX, uint64_t{t.n} * t.m * t.count);
  op.align(src);
  const bool saturate = wanted != QuantMode_t::NoQuant && state().saturate.get();
  const uint32_t blocks = (t.n + 15) / 16;
  std::vector<float> row(blocks * 16);
  std::vector<uint16_t> narrowed(t.n);
  for (uint32_t i = 0; i < t.count; ++i) {
    const uint8_t* base = nullptr;
    for (uint32_t j = 0; j < blocks; ++j) {
      const uint64_t at = i * t.src_tile_step + j * t.column_step;
      const uint32_t bytes = std::min(16u, t.n - 16 * j) * 4;
      base = bytes == 64 ? op.read(src, at, t.m * uint64_t{64}) : op.read_strided(src, at, bytes, 64, t.m);
      base -= j * t.column_step;
    }
    for (uint32_t r = 0; r < t.m; ++r) {
      for (uint32_t j = 0; j < blocks; ++j) {
        std::memcpy(&row[16 * j], base + j * t.column_step + r * 64, std::min(16u, t.n - 16 * j) * 4);
      }
      for (uint32_t c = 0; t.relu && c < t.n; ++c) row[c] = row[c] > 0.0f || row[c] != row[c] ? row[c] : 0.0f;
      const uint8_t* from = reinterpret_cast<const uint8_t*>(row.data());
      if (wanted != QuantMode_t::NoQuant) {
        for (uint32_t c = 0; c < t.n; ++c) narrowed[c] = round_to(wanted, row[c], saturate);
        from = reinterpret_cast<const uint8_t*>(narrowed.data());
      }
      write_gm(op, dst, (i * t.dst_tile_step + r * t.row_step) * element.size, element, from, t.n * element.size);
    }
  }
}

}  // namespace twin
