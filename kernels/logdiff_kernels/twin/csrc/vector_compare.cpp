#include "vector_compare.h"

#include <vector>

#include "vector_walk.h"

namespace twin {

namespace {

void check_bits(const Op& op, const Operand& bits) {
  if (bits.memory != Memory::UB) fail_operand(Check::overload, bits.label, "is in %s, not in UB", name_of(bits.memory));
  op.align(bits);
}

// IEEE: a NaN operand makes all comparisons false but NE.
template <typename Holds>
void set_bits(std::vector<uint8_t>& bits, const Pattern& pattern, const Lanes& a, const uint8_t* in0, const Lanes* b,
              const uint8_t* in1, double scalar, Widen widen, Holds holds) {
  const Lanes both[2] = {a, b ? *b : a};
  std::vector<double> left, right;
  uint64_t bit = 0;
  // Runs come lane by lane, so their bits are found from the lane of the first operand.
  const uint32_t lanes = pattern.lanes, per_block = lanes / kBlocksPerRepeat;
  each_repeat(pattern, [&](const Part& part, uint32_t r) {
    lane_runs(part, lanes, [&](uint32_t lane, uint32_t n) {
      while (n) {
        const uint32_t take = std::min(n, per_block - lane % per_block);
        left.resize(take);
        right.assign(take, scalar);
        widen(left.data(), in0 + both[0].offset(r, lane), take);
        if (b) widen(right.data(), in1 + both[1].offset(r, lane), take);
        bit = uint64_t{r} * lanes + lane;
        for (uint32_t i = 0; i < take; ++i, ++bit) {
          if (holds(left[i], right[i])) bits[bit / 8] |= static_cast<uint8_t>(1u << (bit % 8));
        }
        lane += take;
        n -= take;
      }
    });
  });
}

// n elements by their bits; second_step: 1, or 0 for a scalar.
template <typename Bits>
void choose(uint8_t* to, const uint8_t* first, const uint8_t* second, uint32_t second_step, const uint8_t* bits,
            uint64_t bit, uint32_t n) {
  auto* out = reinterpret_cast<Bits*>(to);
  const auto* a = reinterpret_cast<const Bits*>(first);
  const auto* b = reinterpret_cast<const Bits*>(second);
  for (uint32_t i = 0; i < n; ++i) {
    const bool one = ((bits[(bit + i) / 8] >> ((bit + i) % 8)) & 1u) != 0;
    out[i] = one ? a[i] : b[i * second_step];
  }
}

}  // namespace

void compare(const char* name, const Operand& dst, const Lanes& src0, const Lanes* src1, double scalar,
             AscendC::CMPMODE mode, const Pattern& called, bool equal_only, Widen widen) {
  using M = AscendC::CMPMODE;
  if (called.parts == 0) return;
  if (equal_only && mode != M::EQ) fail(Check::overload, "int32_t compares only with CMPMODE::EQ on dav-2201");
  const uint32_t lanes = called.lanes, repeats = called.repeats();
  const Pattern pattern = k3510 ? called : Pattern::leading(lanes, lanes, repeats);
  Op op(name, Pipe::V, pattern.elements());
  check_bits(op, dst);
  check_source(op, src0);
  if (src1) check_source(op, *src1);
  const uint8_t* a = src0.read(op, pattern);
  const uint8_t* b = src1 ? src1->read(op, pattern) : nullptr;
  std::vector<uint8_t> bits(uint64_t{repeats} * lanes / 8, 0);
  const auto by = [&](auto holds) { set_bits(bits, pattern, src0, a, src1, b, scalar, widen, holds); };
  switch (mode) {
    case M::LT: by([](double x, double y) { return x < y; }); break;
    case M::GT: by([](double x, double y) { return x > y; }); break;
    case M::EQ: by([](double x, double y) { return x == y; }); break;
    case M::LE: by([](double x, double y) { return x <= y; }); break;
    case M::GE: by([](double x, double y) { return x >= y; }); break;
    case M::NE: by([](double x, double y) { return x != y; }); break;
  }
  std::memcpy(op.write(dst, 0, bits.size()), bits.data(), bits.size());
}

Pattern compare_count(uint64_t size, uint64_t count) {
  if (count * size % kRepeatBytes != 0) {
    fail(Check::repeat, "%llu elements of %d bytes aren't a multiple of 256 bytes: the rest would not be compared",
         static_cast<unsigned long long>(count), int(size));
  }
  return count_form(lanes_of(size), int64_t(count));
}

void select(const Lanes& dst, const Operand& bits_operand, const Lanes& src0, const Lanes* src1, const void* scalar,
            AscendC::SELMODE mode, const Pattern& pattern) {
  if (pattern.parts == 0) return;
  const bool with_scalar = mode == AscendC::SELMODE::VSEL_TENSOR_SCALAR_MODE;
  if (with_scalar != (src1 == nullptr)) {
    fail(Check::overload, "mode %d doesn't go with a %s as second source", int(mode), src1 ? "tensor" : "scalar");
  }
  Op op("Select", Pipe::V, pattern.elements());
  check_destination(op, dst);
  check_source(op, src0);
  check_overlap(dst, src0, pattern, false);
  if (src1) {
    check_source(op, *src1);
    check_overlap(dst, *src1, pattern, false);
  }
  check_bits(op, bits_operand);
  const bool repeated = mode == AscendC::SELMODE::VSEL_CMPMASK_SPR;
  const uint32_t lanes = pattern.lanes, per_block = lanes / kBlocksPerRepeat;
  const Part& last = pattern.part[pattern.parts - 1];
  const uint64_t span = uint64_t{pattern.repeats() - 1} * lanes + (last.is_prefix ? last.prefix : lanes);
  const uint64_t used = repeated ? std::min<uint64_t>(span, lanes) : span;
  const uint8_t* bits = op.read(bits_operand, 0, (used + 7) / 8);
  const uint8_t* a = src0.read(op, pattern);
  const uint8_t* b = src1 ? src1->read(op, pattern) : nullptr;
  uint8_t* out = dst.write(op, pattern);
  each_repeat(pattern, [&](const Part& part, uint32_t r) {
    lane_runs(part, lanes, [&](uint32_t lane, uint32_t n) {
      while (n) {
        const uint32_t take = std::min(n, per_block - lane % per_block);
        uint8_t* to = out + dst.offset(r, lane);
        const uint8_t* first = a + src0.offset(r, lane);
        const uint8_t* second = src1 ? b + src1->offset(r, lane) : static_cast<const uint8_t*>(scalar);
        const uint64_t bit = repeated ? lane : uint64_t{r} * lanes + lane;
        const auto run = dst.size == 2 ? choose<uint16_t> : choose<uint32_t>;
        run(to, first, second, src1 ? 1 : 0, bits, bit, take);
        lane += take;
        n -= take;
      }
    });
  });
}

}  // namespace twin
