"""Rounding of operators, which is no fault."""

from __future__ import annotations

from tests.server.verdict.faults.common import FC, OP, Make, facts, into, plain
from tests.server.verdict.faults.steps import drifted, over_steps
from tests.server.verdict.pair_faults import Case, How, log_softmax, replace, topk, world

FAULTS: dict[str, Make] = {}
fault = into(FAULTS)


@fault
def rounding_bf16(seed):
    w = world(seed, "bf16")
    x, y = plain(w)
    return Case("rounding_bf16", facts(w, seed), w.records(x, y), (OP, "undetermined"), ("operator-rounding",))


@fault
def rounding_bf16_with_rescore(seed):
    w = world(seed, "bf16")
    x, y = plain(w)
    r = w.lp(w.logits("rescore"))
    return Case(
        "rounding_bf16_with_rescore", facts(w, seed), w.records(x, y, rescore_logprobs=r), (OP,), (), honest=True
    )


@fault
def rounding_bf16_over_steps(seed):
    def change(w, step):
        w = replace(w, noise="bf16", model=w.model.with_weights(drifted(w, step, 0.02)))
        return w.lp(w.logits("rollout")), w.lp(w.logits("train")), w, {}

    return over_steps(seed, change, "rounding_bf16_over_steps", (OP,), (), honest=True, noise="bf16")


@fault
def rounding_fp32(seed):
    w = world(seed, "fp32")
    x, y = plain(w)
    return Case("rounding_fp32", facts(w, seed), w.records(x, y), (OP,), (), honest=True)


@fault
def batch_variance(seed):
    """Samples of small batches run in another split: whole samples are equal to the bit, others are rounding off."""
    w = world(seed, "bf16")
    x, y = plain(w)
    y = [a if i % 3 else b for i, (a, b) in enumerate(zip(y, x, strict=True))]
    rank = [0 if i % 3 else 1 for i in range(len(x))]
    more = {"rank": rank} if seed % 2 else {}
    causes = ("batch-variance", "operator-rounding")
    return Case("batch_variance", facts(w, seed), w.records(x, y, **more), (OP,), causes, honest=True)


@fault
def head_bf16(seed):
    w = world(seed, "fp32")
    x = w.lp(w.logits("rollout", How(head_dtype="bf16")))
    more = {}
    if seed % 2:
        more = {"rollout_topk": topk([log_softmax(z) for z in w.logits("rollout", How(head_dtype="bf16"))], 5),
                "train_topk": topk([log_softmax(z) for z in w.logits("train")], 5)}  # fmt: skip
    return Case("head_bf16", facts(w, seed), w.records(x, w.lp(w.logits("train")), **more), (OP, FC), ("head-dtype",),
                "rollout", honest=True)  # fmt: skip
