"""Faults of sampling and of what log-probabilities mean."""

from __future__ import annotations

import numpy as np

from tests.server.verdict.faults.common import SP, Make, facts, into, noise_of, plain
from tests.server.verdict.pair_faults import Case, bf16_of, entropy, kept, log_softmax, topk, world

FAULTS: dict[str, Make] = {}
fault = into(FAULTS)


def _temperature(seed: int, name: str, x_t: float, y_t: float, cause: tuple[str, ...], mode: str | None, side: str):
    t = (0.6, 0.7, 0.8, 1.2)[seed % 4]
    w = world(seed, noise_of(seed), t)
    a, b = w.logits("rollout"), w.logits("train")
    tx, ty = t**x_t, t**y_t
    meta = facts(w, seed)
    if seed % 2 == 0 and mode:
        meta["logprobs_mode"] = mode
    more = {}
    if seed % 4 == 1:
        more = {"rollout_topk": topk([log_softmax(z / tx) for z in a], 5),
                "train_topk": topk([log_softmax(z / ty) for z in b], 5)}  # fmt: skip
    if seed % 4 == 2:
        more = {"train_entropy": entropy([log_softmax(z / ty) for z in b])}
    return Case(name, meta, w.records(w.lp(a, tx), w.lp(b, ty), **more), (SP,), cause, side, honest=seed % 4 == 3)


@fault
def temperature_missing_train(seed):
    causes = ("temperature-missing-train", "temperature-differs")
    return _temperature(seed, "temperature_missing_train", 1, 0, causes, "processed_logprobs", "train")


@fault
def raw_logprobs(seed):
    return _temperature(seed, "raw_logprobs", 0, 1, ("temperature-missing-rollout-raw-logprobs",),
                        "raw_logprobs", "rollout")  # fmt: skip


@fault
def temperature_twice_train(seed):
    return _temperature(
        seed, "temperature_twice_train", 1, 2, ("temperature-twice", "temperature-differs"), None, "train"
    )


@fault
def truncation(seed):
    top_p = (0.8, 0.9, 0.95, 0.7)[seed % 4]
    w = world(seed, noise_of(seed), 1.0, top_p=top_p)
    table = [log_softmax(z) for z in w.logits("rollout")]
    x = []
    for t, r in zip(table, w.responses, strict=True):
        keep = np.isfinite(kept(t, top_p))
        keep[np.arange(len(r)), r] = True  # an engine keeps the token that it draws
        x.append(t[np.arange(len(r)), r] - np.log(np.where(keep, np.exp(t), 0).sum(-1)))
    meta = facts(w, seed)
    if seed % 2 == 0:
        meta["top_p"] = top_p
    more = {"train_topk": topk([log_softmax(z) for z in w.logits("train")], 8)} if seed % 3 == 1 else {}
    return Case(
        "truncation",
        meta,
        w.records(x, w.lp(w.logits("train")), **more),
        (SP,),
        ("truncation-renormalised",),
        "rollout",
    )


@fault
def stored_bf16(seed):
    w = world(seed, noise_of(seed))
    x, y = plain(w)
    side = ("rollout", "train")[seed % 2]
    if side == "rollout":
        x = bf16_of(x)
    else:
        y = bf16_of(y)
    honest = w.noise == "bf16"  # operator noise of the same size stands beside it
    return Case("stored_bf16", facts(w, seed), w.records(x, y), (SP,), ("logprob-rounded",), side, honest)


@fault
def argmax_value(seed):
    w = world(seed, noise_of(seed))
    table = [log_softmax(z) for z in w.logits("rollout")]
    x, y = [t.max(-1) for t in table], w.lp(w.logits("train"))
    more = {"rollout_topk": topk(table, 4)} if seed % 2 else {}
    return Case(
        "argmax_value", facts(w, seed), w.records(x, y, **more), (SP,), ("logprob-of-other-token",), "rollout", True
    )


@fault
def raw_logits(seed):
    w = world(seed, noise_of(seed))
    x = w.of(w.logits("rollout"))
    return Case("raw_logits", facts(w, seed), w.records(x, w.lp(w.logits("train"))), (SP, "invalid-evidence"),
                ("logprob-not-normalised",), "rollout")  # fmt: skip
