// rope: pairs of elements turned by the table's angle (numeric contract, table of operators).
#include "packed.h"
#include "parallel.h"
#include "rows.h"

namespace {

using namespace ld;

template <class T> using Stored = typename T::type;

// Elements i and i + R/2 are a pair.
template <class T, bool kBack>
void turn_halves(const Stored<T>* x, const float* cos, const float* sin, Stored<T>* y, int64_t half) {
    each_vector(half, [&](int64_t i, int m) {
        const F a = load_upto<T>(x + i, m), b = load_upto<T>(x + half + i, m);
        const F c = load_upto<f32_t>(cos + i, m), s = load_upto<f32_t>(sin + i, m);
        const F first = kBack ? a * c + b * s : a * c - b * s;
        const F second = kBack ? b * c - a * s : b * c + a * s;
        store_upto<T>(y + i, first, m);
        store_upto<T>(y + half + i, second, m);
    });
}

// Elements 2i and 2i + 1 are a pair.
template <class T, bool kBack>
void turn_neighbours(const Stored<T>* x, const float* cos, const float* sin, Stored<T>* y, int64_t half) {
    constexpr int64_t kPairs = 64;
    for (int64_t from = 0; from < half; from += kPairs) {
        const int64_t pairs = std::min(kPairs, half - from);
        float wide[2 * kPairs];
        each_vector(2 * pairs, [&](int64_t i, int m) { store_upto<f32_t>(wide + i, load_upto<T>(x + 2 * from + i, m), m); });
        for (int64_t i = 0; i < pairs; ++i) {
            const float a = wide[2 * i], b = wide[2 * i + 1], c = cos[from + i], s = sin[from + i];
            const float ac = a * c, bs = b * s, bc = b * c, as = a * s;
            wide[2 * i] = kBack ? ac + bs : ac - bs;
            wide[2 * i + 1] = kBack ? bc - as : bc + as;
        }
        each_vector(2 * pairs, [&](int64_t i, int m) { store_upto<T>(y + 2 * from + i, load_upto<f32_t>(wide + i, m), m); });
    }
}

template <class T, bool kBack>
void turn(const void* x, const float* cos, const float* sin, void* y, int64_t tokens, int64_t heads, int64_t dim,
          int64_t rotary, int64_t xs0, int64_t xs1, int64_t ys0, int64_t ys1, bool interleaved) {
    const int64_t half = rotary / 2;
    parallel_for(tokens, row_grain(heads * dim, 32768), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const float *c = cos + t * half, *s = sin + t * half;
            for (int64_t h = 0; h < heads; ++h) {
                const Stored<T>* in = static_cast<const Stored<T>*>(x) + t * xs0 + h * xs1;
                Stored<T>* out = static_cast<Stored<T>*>(y) + t * ys0 + h * ys1;
                if (interleaved)
                    turn_neighbours<T, kBack>(in, c, s, out, half);
                else
                    turn_halves<T, kBack>(in, c, s, out, half);
                if (rotary < dim && in != out) std::memcpy(out + rotary, in + rotary, size_t(dim - rotary) * sizeof *in);
            }
        }
    });
}

}  // namespace

// y [T, H, D] may be x itself. cos and sin are contiguous [T, R/2] fp32. backward: the transposed rotation.
LD_API int ld_rope(const void* x, const float* cos, const float* sin, void* y, int64_t tokens, int64_t heads,
                   int64_t dim, int64_t rotary, int64_t xs0, int64_t xs1, int64_t ys0, int64_t ys1, int32_t dtype,
                   int32_t interleaved, int32_t backward) {
    return guard([&] {
        return dispatch(dtype, [&](auto tag) {
            using T = decltype(tag);
            if (rotary % 2 != 0 || rotary > dim) return int(kBadShape);
            if (backward)
                turn<T, true>(x, cos, sin, y, tokens, heads, dim, rotary, xs0, xs1, ys0, ys1, interleaved != 0);
            else
                turn<T, false>(x, cos, sin, y, tokens, heads, dim, rotary, xs0, xs1, ys0, ys1, interleaved != 0);
            return int(kOk);
        });
    });
}

LD_PACKED(ld_rope)
