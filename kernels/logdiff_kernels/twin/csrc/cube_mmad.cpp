#include "cube_mmad.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "op.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

namespace twin {

namespace {

constexpr uint64_t kFractal = 512;
constexpr uint32_t kPanel = 16;

uint32_t up(uint32_t n, uint32_t unit) { return (n + unit - 1) / unit * unit; }

// acc = fma(a, b, acc), k ascending, for `rows` rows of one panel.
template <int rows> void ascending_rows(float* c, uint32_t pitch, const float* a, const float* b, uint32_t k) {
#if defined(__AVX2__) && defined(__FMA__)
  __m256 acc[rows][2];
  for (int r = 0; r < rows; ++r) {
    acc[r][0] = _mm256_loadu_ps(c + r * pitch);
    acc[r][1] = _mm256_loadu_ps(c + r * pitch + 8);
  }
  for (uint32_t i = 0; i < k; ++i) {
    const __m256 left = _mm256_loadu_ps(b + i * kPanel), right = _mm256_loadu_ps(b + i * kPanel + 8);
    for (int r = 0; r < rows; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * uint64_t{k} + i);
      acc[r][0] = _mm256_fmadd_ps(x, left, acc[r][0]);
      acc[r][1] = _mm256_fmadd_ps(x, right, acc[r][1]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    _mm256_storeu_ps(c + r * pitch, acc[r][0]);
    _mm256_storeu_ps(c + r * pitch + 8, acc[r][1]);
  }
#else
  for (uint32_t i = 0; i < k; ++i) {
    for (int r = 0; r < rows; ++r) {
      const float x = a[r * uint64_t{k} + i];
      for (uint32_t j = 0; j < kPanel; ++j) c[r * pitch + j] = std::fma(x, b[i * kPanel + j], c[r * pitch + j]);
    }
  }
#endif
}

void ascending(float* c, uint32_t pitch, const float* a, const float* b, uint32_t m, uint32_t k) {
  constexpr int kRows = 6;
  uint32_t r = 0;
  for (; r + kRows <= m; r += kRows) ascending_rows<kRows>(c + r * pitch, pitch, a + r * uint64_t{k}, b, k);
  for (; r < m; ++r) ascending_rows<1>(c + r * pitch, pitch, a + r * uint64_t{k}, b, k);
}

// Products of 16 neighbouring k as a binary tree of fp32 sums, the trees' results added in order.
void pairwise16(float* c, uint32_t pitch, const float* a, const float* b, uint32_t m, uint32_t k) {
  for (uint32_t r = 0; r < m; ++r) {
    for (uint32_t first = 0; first < k; first += 16) {
      float product[16][kPanel] = {};
      for (uint32_t i = 0; i < std::min(16u, k - first); ++i) {
        const float x = a[r * uint64_t{k} + first + i];
        for (uint32_t j = 0; j < kPanel; ++j) product[i][j] = x * b[(first + i) * kPanel + j];
      }
      for (uint32_t width = 8; width > 0; width /= 2) {
        for (uint32_t i = 0; i < width; ++i) {
          for (uint32_t j = 0; j < kPanel; ++j) product[i][j] = product[2 * i][j] + product[2 * i + 1][j];
        }
      }
      for (uint32_t j = 0; j < kPanel; ++j) c[r * pitch + j] += product[0][j];
    }
  }
}

// The instruction's sum in fp64, rounded once.
void wide(float* c, uint32_t pitch, const float* a, const float* b, uint32_t m, uint32_t k) {
  for (uint32_t r = 0; r < m; ++r) {
    double sum[kPanel];
    for (uint32_t j = 0; j < kPanel; ++j) sum[j] = c[r * pitch + j];
    for (uint32_t i = 0; i < k; ++i) {
      const double x = a[r * uint64_t{k} + i];
      for (uint32_t j = 0; j < kPanel; ++j) sum[j] += x * double(b[i * kPanel + j]);
    }
    for (uint32_t j = 0; j < kPanel; ++j) c[r * pitch + j] = float(sum[j]);
  }
}

// HF32: 11 fraction bits on 2201, 10 on 3510, nearest even.
float round_hf32(float x) {
#if __NPU_ARCH__ == 3510
  constexpr uint32_t kDrop = 13;
#else
  constexpr uint32_t kDrop = 12;
#endif
  uint32_t bits = float_bits(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  bits += (1u << (kDrop - 1)) - 1u + ((bits >> kDrop) & 1u);
  return bits_float(bits & ~((1u << kDrop) - 1u));
}

// Reads the valid part of a matrix of fractals: `rows` x `bytes`, fractal (i, j) at place(i, j).
template <typename Place>
const uint8_t* read_fractals(Op& op, const Operand& x, uint32_t rows, uint32_t bytes, Place place) {
  const uint32_t row_count = (rows + 15) / 16, col_count = (bytes + 31) / 32;
  if (rows % 16 == 0 && bytes % 32 == 0 && place(row_count - 1, col_count - 1) + 1 == row_count * col_count) {
    return op.read(x, 0, uint64_t{row_count} * col_count * kFractal);
  }
  const uint8_t* base = nullptr;
  for (uint32_t i = 0; i < row_count; ++i) {
    for (uint32_t j = 0; j < col_count; ++j) {
      const uint64_t at = uint64_t{place(i, j)} * kFractal;
      const uint32_t r = std::min(16u, rows - 16 * i), b = std::min(32u, bytes - 32 * j);
      base = (b == 32 ? op.read(x, at, r * 32) : op.read_strided(x, at, b, 32, r)) - at;
    }
  }
  return base;
}

void check_params(const AscendC::MmadParams& p, bool is_float) {
  if (p.m > 4095 || p.n > 4095 || p.k > 4095) {
    fail(Check::range, "m, n, k are %u, %u, %u: at most 4095", unsigned(p.m), unsigned(p.n), unsigned(p.k));
  }
#if __NPU_ARCH__ == 3510
  const bool gemv = p.m == 1 && !p.disableGemv;
  if (p.kDirectionAlign) fail(Check::overload, "kDirectionAlign doesn't exist on dav-3510");
#else
  const bool gemv = p.m == 1;
#endif
  if (gemv) fail(Check::overload, "m = 1 switches to matrix-vector mode: pad m (numeric contract, G6)");
  if (p.unitFlag != 0) fail(Check::overload, "unitFlag is not modelled: order Mmad and Fixpipe by M_FIX events");
  if (p.cmatrixSource) fail(Check::overload, "the bias buffer is not modelled: add the bias on the vector unit");
  if (p.kDirectionAlign && !is_float) fail(Check::overload, "kDirectionAlign is for float");
}

}  // namespace

void multiply_add(Mmad model, float* c, const float* a, const float* b, uint32_t m, uint32_t columns, uint32_t k) {
  for (uint32_t first = 0; first < columns; first += kPanel) {
    const float* panel = b + uint64_t{first} * k;
    switch (model) {
      case Mmad::ascending: ascending(c + first, columns, a, panel, m, k); break;
      case Mmad::pairwise16: pairwise16(c + first, columns, a, panel, m, k); break;
      case Mmad::fp64: wide(c + first, columns, a, panel, m, k); break;
    }
  }
}

void run_mmad(const Operand& c, const Operand& a, const Operand& b, const AscendC::MmadParams& p, uint32_t element,
              bool is_float, void (*widen)(float* to, const uint8_t* from, uint32_t count)) {
  check_params(p, is_float);
  const uint32_t m = p.m, n = p.n, k = p.k;
  if (m == 0 || n == 0 || k == 0) return;
  if (a.memory != Memory::L0A || b.memory != Memory::L0B || c.memory != Memory::L0C) {
    fail(Check::overload, "Mmad takes L0A, L0B and L0C, not %s, %s and %s", name_of(a.memory), name_of(b.memory),
         name_of(c.memory));
  }
  Op op("Mmad", Pipe::M, uint64_t{m} * n * k);
  op.align(a, 512);
  op.align(b, 512);
  op.align(c, 1024);
  // Into one tile of at least 10 fractals successive Mmads are in order by themselves (Mmad page, synchronisation).
  if ((m / 16) * (n / 16) >= 10) op.in_order(Memory::L0C);
  const bool saturate = state().saturate.get();
  const bool hf32 = is_float && state().hf32.get();

  const uint32_t k0 = 32 / element, row_fractals = (m + 15) / 16, col_fractals = (n + 15) / 16;
  [[maybe_unused]] const uint32_t k_fractals = up(k, p.kDirectionAlign ? 16 : k0) / k0;  // of a row of A in memory
#if __NPU_ARCH__ == 3510
  const auto a_place = [&](uint32_t i, uint32_t j) { return j * row_fractals + i; };
#else
  const auto a_place = [&](uint32_t i, uint32_t j) { return i * k_fractals + j; };
#endif
  const auto b_place = [&](uint32_t i, uint32_t j) { return j * col_fractals + i; };  // i: n, j: k
  const uint8_t* a_data = read_fractals(op, a, m, k * element, a_place);
  const uint8_t* b_data = read_fractals(op, b, n, k * element, b_place);

  static thread_local std::vector<float> left, right, sum;
  const uint32_t columns = col_fractals * kPanel, depth = up(k, k0);
  left.assign(uint64_t{row_fractals} * 16 * k + k0, 0.0f);
  for (uint32_t r = 0; r < m; ++r) {
    for (uint32_t j = 0; j * k0 < k; ++j) {
      float row[16];
      const uint32_t count = std::min(k0, k - j * k0);
      widen(row, a_data + a_place(r / 16, j) * kFractal + (r % 16) * 32, count);
      std::copy(row, row + count, left.data() + uint64_t{r} * k + j * k0);
    }
  }
  right.assign(uint64_t{columns} * depth, 0.0f);
  for (uint32_t i = 0; i < col_fractals; ++i) {
    float* panel = right.data() + uint64_t{i} * kPanel * k;
    for (uint32_t j = 0; j * k0 < k; ++j) {
      const uint32_t count = std::min(k0, k - j * k0);
      for (uint32_t column = 0; column < std::min(16u, n - 16 * i); ++column) {
        float row[16];
        widen(row, b_data + b_place(i, j) * kFractal + column * 32, count);
        for (uint32_t x = 0; x < count; ++x) panel[(j * k0 + x) * kPanel + column] = row[x];
      }
    }
  }
  if (hf32) {
    std::transform(left.begin(), left.end(), left.begin(), round_hf32);
    std::transform(right.begin(), right.end(), right.begin(), round_hf32);
  }

  // L0C: column blocks of 16 floats, each row_fractals * 16 rows long.
  const uint64_t block = uint64_t{row_fractals} * 1024;
  sum.assign(uint64_t{m} * columns, 0.0f);
  if (!p.cmatrixInitVal) {
    for (uint32_t j = 0; j < col_fractals; ++j) {
      const uint32_t bytes = std::min(16u, n - 16 * j) * 4;
      const uint8_t* from = bytes == 64 ? op.read(c, j * block, m * 64) : op.read_strided(c, j * block, bytes, 64, m);
      for (uint32_t r = 0; r < m; ++r) std::memcpy(sum.data() + r * columns + 16 * j, from + r * 64, bytes);
    }
  }
  multiply_add(options().mmad, sum.data(), left.data(), right.data(), m, columns, k);
  if (saturate) {
    constexpr float kMost = std::numeric_limits<float>::max();
    for (float& x : sum) x = x != x ? 0.0f : std::clamp(x, -kMost, kMost);
  }
  for (uint32_t j = 0; j < col_fractals; ++j) {
    const uint32_t bytes = std::min(16u, n - 16 * j) * 4;
    uint8_t* to = bytes == 64 ? op.write(c, j * block, m * 64) : op.write_strided(c, j * block, bytes, 64, m);
    for (uint32_t r = 0; r < m; ++r) {
      std::memcpy(to + r * 64, sum.data() + r * columns + 16 * j, bytes);
      if (bytes < 64) op.write_unspecified(c, j * block + r * 64 + bytes, 64 - bytes);
    }
    if (m % 16 != 0) op.write_unspecified(c, j * block + m * 64, block - m * 64);
  }
}

}  // namespace twin
