// router: scores, choice and weights of a mixture-of-experts layer, and the gradient of the logits.
#include <limits>

#include "expln.h"
#include "packed.h"
#include "parallel.h"
#include "reduce.h"
#include "rows.h"

namespace {

using namespace ld;

constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// NaN first, then the larger value (-0 = +0), then the lower index; i is looked at after `best`, so it is higher.
bool better(float value, float best) { return isnan(value) ? !isnan(best) : value > best; }

// exp1(x - max) / R64 over n values, in place.
void softmax(float* x, int64_t n) {
    float largest = x[0];
    for (int64_t i = 1; i < n; ++i) largest = max(largest, x[i]);
    const F top = F::set1(largest);
    each_vector(n, [&](int64_t i, int m) { store_upto<f32_t>(x + i, exp1(load_upto<f32_t>(x + i, m) - top), m); });
    const F sum = F::set1(r64(x, n));
    each_vector(n, [&](int64_t i, int m) { store_upto<f32_t>(x + i, load_upto<f32_t>(x + i, m) / sum, m); });
}

void sigmoid(float* x, int64_t n) {
    each_vector(n, [&](int64_t i, int m) { store_upto<f32_t>(x + i, sigmoid1(load_upto<f32_t>(x + i, m)), m); });
}

// The indices of the k best of n values, best first; equal values keep their order.
void choose(const float* value, int64_t n, int64_t* ids, int64_t k) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (count == k && !better(value[i], value[ids[k - 1]])) continue;
        int64_t at = count < k ? count++ : k - 1;
        for (; at > 0 && better(value[i], value[ids[at - 1]]); --at) ids[at] = ids[at - 1];
        ids[at] = i;
    }
}

struct Rule {
    int64_t experts, k, groups, topk_groups;
    bool softmax, on_logits, renormalize, top2;
    float renorm_eps, scaling;

    void score(float* x, int64_t n) const { softmax ? ::softmax(x, n) : sigmoid(x, n); }

    float group_score(const float* value, int64_t size) const {
        int64_t best[2];
        choose(value, size, best, top2 ? 2 : 1);
        return top2 ? value[best[0]] + value[best[1]] : value[best[0]];
    }

    // choice, scores: E floats each; group: E floats; kept: E ids.
    void route(const float* logits, const float* bias, float* weights, int64_t* ids, float* choice, float* scores,
               float* group, int64_t* kept) const {
        std::memcpy(scores, logits, size_t(experts) * sizeof(float));
        if (!on_logits) score(scores, experts);
        for (int64_t e = 0; e < experts; ++e) choice[e] = bias == nullptr ? scores[e] : scores[e] + bias[e];
        if (groups > 1) {
            const int64_t size = experts / groups;
            for (int64_t g = 0; g < groups; ++g) group[g] = group_score(choice + g * size, size);
            choose(group, groups, kept, topk_groups);
            for (int64_t g = 0; g < groups; ++g)
                if (std::find(kept, kept + topk_groups, g) == kept + topk_groups)
                    std::fill_n(choice + g * size, size, kNegInf);
        }
        choose(choice, experts, ids, k);
        for (int64_t j = 0; j < k; ++j) weights[j] = scores[ids[j]];
        if (on_logits) score(weights, k);
        if (renormalize) {
            float sum = weights[0];
            for (int64_t j = 1; j < k; ++j) sum = sum + weights[j];
            if (renorm_eps != 0.0f) sum = sum + renorm_eps;
            for (int64_t j = 0; j < k; ++j) weights[j] = weights[j] / sum;
        }
        if (scaling != 1.0f)
            for (int64_t j = 0; j < k; ++j) weights[j] = weights[j] * scaling;
    }

    // scores: E floats, d: k floats of work.
    void route_backward(const float* logits, const int64_t* ids, const float* dweights, float* dlogits, float* scores,
                        float* chosen, float* d) const {
        if (on_logits) {
            for (int64_t j = 0; j < k; ++j) chosen[j] = logits[ids[j]];
            score(chosen, k);
        } else {
            std::memcpy(scores, logits, size_t(experts) * sizeof(float));
            score(scores, experts);
            for (int64_t j = 0; j < k; ++j) chosen[j] = scores[ids[j]];
        }
        for (int64_t j = 0; j < k; ++j) d[j] = scaling != 1.0f ? dweights[j] * scaling : dweights[j];
        if (renormalize) {
            float sum = chosen[0];
            for (int64_t j = 1; j < k; ++j) sum = sum + chosen[j];
            if (renorm_eps != 0.0f) sum = sum + renorm_eps;
            float mean = 0.0f;
            for (int64_t j = 0; j < k; ++j) mean = mean + d[j] * (chosen[j] / sum);
            for (int64_t j = 0; j < k; ++j) d[j] = (d[j] - mean) / sum;
        }
        std::memset(dlogits, 0, size_t(experts) * sizeof(float));
        if (!softmax) {
            for (int64_t j = 0; j < k; ++j) dlogits[ids[j]] = d[j] * (chosen[j] * (1.0f - chosen[j]));
            return;
        }
        float mean = 0.0f;
        for (int64_t j = 0; j < k; ++j) mean = mean + d[j] * chosen[j];
        if (!on_logits)
            for (int64_t e = 0; e < experts; ++e) dlogits[e] = scores[e] * (0.0f - mean);
        for (int64_t j = 0; j < k; ++j) dlogits[ids[j]] = chosen[j] * (d[j] - mean);
    }
};

Rule rule_of(int64_t experts, int64_t k, int64_t groups, int64_t topk_groups, int32_t flags, float renorm_eps,
             float scaling) {
    return Rule{experts, k, groups, topk_groups, (flags & 1) == 0, (flags & 2) != 0, (flags & 4) != 0,
                (flags & 8) != 0, renorm_eps, scaling};
}

}  // namespace

// logits [T, E] contiguous fp32; bias [E] or null. flags: 1 sigmoid, 2 choose on logits, 4 renormalise, 8 top2 groups.
LD_API int ld_router(const float* logits, const float* bias, float* weights, int64_t* ids, int64_t tokens,
                     int64_t experts, int64_t k, int64_t groups, int64_t topk_groups, int32_t flags, float renorm_eps,
                     float scaling) {
    return guard([&] {
        const Rule rule = rule_of(experts, k, groups, topk_groups, flags, renorm_eps, scaling);
        parallel_for(tokens, row_grain(experts * 8), [&](int64_t begin, int64_t end) {
            float* work = scratch<float>(3 * experts, 0);
            int64_t* kept = scratch<int64_t>(experts, 1);
            for (int64_t t = begin; t < end; ++t)
                rule.route(logits + t * experts, bias, weights + t * k, ids + t * k, work, work + experts,
                           work + 2 * experts, kept);
        });
        return int(kOk);
    });
}

LD_API int ld_router_backward(const float* logits, const int64_t* ids, const float* dweights, float* dlogits,
                              int64_t tokens, int64_t experts, int64_t k, int32_t flags, float renorm_eps,
                              float scaling) {
    return guard([&] {
        const Rule rule = rule_of(experts, k, 1, 1, flags, renorm_eps, scaling);
        parallel_for(tokens, row_grain(experts * 8), [&](int64_t begin, int64_t end) {
            float* work = scratch<float>(experts + 2 * k, 0);
            for (int64_t t = begin; t < end; ++t)
                rule.route_backward(logits + t * experts, ids + t * k, dweights + t * k, dlogits + t * experts, work,
                                    work + experts, work + experts + k);
        });
        return int(kOk);
    });
}

LD_PACKED(ld_router)
LD_PACKED(ld_router_backward)
