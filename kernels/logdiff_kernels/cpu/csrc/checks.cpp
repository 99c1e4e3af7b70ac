// Checks of the scalar functions over whole ranges of fp32, and the quick check that the library makes when it is loaded.
#include "expln.h"
#include "parallel.h"
#include "reduce.h"

#include <mutex>

namespace {

using namespace ld;

// Every float in ascending order, from the most negative NaN to the most positive one.
float ordered(uint32_t key) { return float_of(key >= 0x80000000u ? key - 0x80000000u : ~key); }

// Distance from the exact value in units of the last place of the fp32 numbers around it.
double ulps(float got, double exact) {
    if (double(got) == exact) return 0.0;
    int exponent;
    std::frexp(exact, &exponent);
    return std::fabs(double(got) - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

struct Scan {
    double worst = 0.0, at = 0.0;
    int64_t descents = 0, broken = 0, apart = 0, seen = 0;
    void take(const Scan& other) {
        if (other.worst > worst) {
            worst = other.worst;
            at = other.at;
        }
        descents += other.descents;
        broken += other.broken;
        apart += other.apart;
        seen += other.seen;
    }
};

bool same(float a, float b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

bool exp_rule(float x, float y) {
    if (x != x) return y != y;
    if (x > 88.72283f) return y == __builtin_inff();
    if (x < -87.33654f) return bits_of(y) == 0;
    if (x == 0.0f) return y == 1.0f;
    return y > 0.0f && y < __builtin_inff();
}

bool ln_rule(float x, float y) {
    if (x != x || x < 0.0f) return y != y;
    if (x == 0.0f) return y == -__builtin_inff();
    if (x == 1.0f) return bits_of(y) == 0;
    if (x > 3.4028235e38f) return y == x;
    return x > 1.0f ? y >= 0.0f : y <= 0.0f;
}

class Random {
public:
    explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
    uint32_t bits() {
        state_ = state_ * 6364136223846793005ull + 1442695040888963407ull;
        return uint32_t(state_ >> 32);
    }
    float any() { return float_of(bits()); }
    float near_one() { return float(int32_t(bits())) * 0x1p-30f; }

private:
    uint64_t state_;
};

// A product that needs all its bits before the sum.
bool fma_is_fused() {
    volatile float operand = 1.0f + 0x1p-12f;  // not folded by the compiler
    const float a = operand, exact = 0x1p-24f;
    float lane[F::W];
    ld::fma(F::set1(a), F::set1(a), F::set1(-(1.0f + 0x1p-11f))).store(lane);
    for (float value : lane)
        if (value != exact) return false;
    return ld::fma(a, a, -(1.0f + 0x1p-11f)) == exact;
}

template <class Vector, class Scalar> bool agree(Random& random, Vector vector, Scalar scalar) {
    for (int round = 0; round < 64; ++round) {
        float a[F::W], b[F::W], c[F::W], got[F::W];
        for (int i = 0; i < F::W; ++i) {
            a[i] = round & 1 ? random.any() : random.near_one();
            b[i] = round & 2 ? random.any() : random.near_one();
            c[i] = round & 4 ? random.any() : random.near_one();
        }
        vector(F::load(a), F::load(b), F::load(c)).store(got);
        for (int i = 0; i < F::W; ++i)
            if (!same(got[i], scalar(a[i], b[i], c[i]))) return false;
    }
    return true;
}

#define LD_AGREE(expr)                                     \
    agree(                                                 \
        random, [](F a, F b, F c) { (void)b, (void)c; return expr; }, \
        [](float a, float b, float c) { (void)b, (void)c; return expr; })

template <class T> bool casts_agree(Random& random) {
    using S = typename T::type;
    for (int round = 0; round < 64; ++round) {
        float x[F::W], wide[F::W];
        S narrow[F::W];
        for (float& value : x) value = round & 1 ? random.any() : random.near_one() * 0x1p-14f;
        const int n = 1 + round % F::W;
        store_partial<T>(narrow, F::load(x), n);
        if (n == F::W) store_from_f32<T>(narrow, F::load(x));
        load_upto<T>(narrow, n).store(wide);
        for (int i = 0; i < F::W; ++i)
            if (!same(wide[i], i < n ? round_to<T>(x[i]) : 0.0f)) return false;
    }
    return true;
}

bool sums_agree(Random& random) {
    float x[200];
    for (int n = 0; n <= 200; ++n) {
        for (int i = 0; i < n; ++i) x[i] = random.near_one() * (i % 7 ? 1.0f : 1000.0f);
        if (!same(r64(x, n), r64_scalar(x, n))) return false;
    }
    return true;
}

}  // namespace

// Scan of exp1 (which = 0) or ln1 (1) over the ordered floats begin, begin + stride, ... below end, each compared with
// its upper neighbour too. out: worst error in ulp against fp64, its x, descents (x < y but f(x) > f(y)), values
// outside the rules, values where vector and scalar differ, values seen. The error is scored where the result is normal.
LD_API int ld_scan(int32_t which, int64_t begin, int64_t end, int64_t stride, void* out_) {
    if (which < 0 || which > 1 || begin < 0 || end > (int64_t(1) << 32) || stride < 1) return kBadArgument;
    double* out = static_cast<double*>(out_);
    return guard([&] {
        Scan total;
        std::mutex mutex;
        const int64_t count = (end - begin + stride - 1) / stride;
        parallel_dynamic(count, 1 << 16, [&](int64_t first_item, int64_t last_item) {
            Scan scan;
            for (int64_t item = first_item; item < last_item; item += F::W) {
                const int lanes = int(std::min<int64_t>(F::W, last_item - item));
                float x[F::W] = {}, y[F::W];
                for (int i = 0; i < lanes; ++i) x[i] = ordered(uint32_t(begin + (item + i) * stride));
                if (which == 0) exp1(F::load(x)).store(y);
                for (int i = 0; i < lanes; ++i) {
                    const float scalar = which == 0 ? exp1(x[i]) : ln1(x[i]);
                    if (which == 1) y[i] = scalar;
                    ++scan.seen;
                    scan.apart += !same(y[i], scalar);
                    scan.broken += !(which == 0 ? exp_rule(x[i], y[i]) : ln_rule(x[i], y[i]));
                    const int64_t key = begin + (item + i) * stride;
                    const float upper_x = ordered(uint32_t(std::min<int64_t>(key + 1, 0xffffffffll)));
                    const float upper = which == 0 ? exp1(upper_x) : ln1(upper_x);
                    scan.descents += upper < y[i];
                    const bool scored = which == 0 ? x[i] >= -87.33654f && x[i] <= 88.72283f
                                                   : x[i] >= 0x1p-126f && x[i] < __builtin_inff() && x[i] != 1.0f;
                    if (!scored) continue;
                    const double error = ulps(y[i], which == 0 ? std::exp(double(x[i])) : std::log(double(x[i])));
                    if (error > scan.worst) {
                        scan.worst = error;
                        scan.at = double(x[i]);
                    }
                }
            }
            std::lock_guard<std::mutex> lock(mutex);
            total.take(scan);
        });
        const double values[] = {total.worst, total.at, double(total.descents), double(total.broken), double(total.apart),
                                 double(total.seen)};
        std::memcpy(out, values, sizeof values);
        return int(kOk);
    });
}

// 0, or the number of the first check in which the vector code differs from the scalar definition.
LD_API int ld_self_probe() {
    return guard([] {
        Random random(2024);
        if (!fma_is_fused()) return 1;
        if (!LD_AGREE(ld::fma(a, b, c))) return 2;
        if (!LD_AGREE(a + b)) return 3;
        if (!LD_AGREE(a - b)) return 4;
        if (!LD_AGREE(a * b)) return 5;
        if (!LD_AGREE(a / b)) return 6;
        if (!LD_AGREE(ld::sqrt(a))) return 7;
        if (!LD_AGREE(max(a, b))) return 8;
        if (!LD_AGREE(min(a, b))) return 9;
        if (!LD_AGREE(ld::rint(a * b))) return 10;
        if (!LD_AGREE(ld::abs(a))) return 11;
        if (!LD_AGREE(neg(a))) return 12;
        if (!LD_AGREE(ld::copysign(a, b))) return 13;
        if (!LD_AGREE(select(lt(a, b), a, c))) return 14;
        if (!LD_AGREE(select(ge(a, b), a, c))) return 15;
        if (!LD_AGREE(select(ld::isnan(a), b, c))) return 16;
        if (!LD_AGREE(exp1(a))) return 17;
        if (!LD_AGREE(exp1(a * b))) return 18;
        if (!LD_AGREE(sigmoid1(a))) return 19;
        if (!LD_AGREE(tanh1(a))) return 20;
        if (!casts_agree<f32_t>(random)) return 21;
        if (!casts_agree<bf16_t>(random)) return 22;
        if (!casts_agree<f16_t>(random)) return 23;
        if (!sums_agree(random)) return 24;
        return 0;
    });
}

// Number of workers (of at most max_threads()) on which a subnormal result or operand is lost; 0 is right.
LD_API int ld_flushing_workers() {
    return guard([] {
        std::atomic<int> flushing{0};
        parallel_for(1024, 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
                volatile float tiny = 0x1p-126f, half = 0.5f;
                volatile float made = tiny * half;
                volatile float kept = made * 4.0f;
                if (made == 0.0f || kept != 0x1p-125f) ++flushing;
            }
        });
        return int(flushing);
    });
}
