"""Faults of ids, of their order, and of values that stand for others."""

from __future__ import annotations

import numpy as np

from tests.server.verdict.faults.common import DA, SP, Make, facts, into, noise_of, plain, rng_of
from tests.server.verdict.pair_faults import Case, How, World, log_softmax, world

FAULTS: dict[str, Make] = {}
fault = into(FAULTS)


@fault
def shifted(seed):
    w = world(seed, noise_of(seed))
    x, y = plain(w)
    k = 1 if seed % 2 else -1
    y = [np.roll(v, k) for v in y] if seed % 4 < 2 else y
    x = [np.roll(v, k) for v in x] if seed % 4 >= 2 else x
    return Case("shifted", facts(w, seed), w.records(x, y), (DA,), ("shifted-by-one", "mask-misaligned"))


@fault
def shifted_and_temperature(seed):
    w = world(seed, noise_of(seed), 0.7)
    x = w.lp(w.logits("rollout"))
    y = [np.roll(v, -1) for v in w.lp(w.logits("train"), 1.0)]
    return Case(
        "shifted_and_temperature", facts(w, seed), w.records(x, y), (DA, SP), ("shifted-by-one", "mask-misaligned")
    )


@fault
def lost_id(seed):
    w = world(seed, noise_of(seed))
    x, y = plain(w)
    rng = rng_of(seed)
    for i in rng.choice(len(x), len(x) // 3, replace=False):
        at = int(rng.integers(3, len(x[i]) - 8))
        y[i] = np.concatenate([y[i][:at], y[i][at + 1 :], [y[i][-1] - 1.0]])
    return Case("lost_id", facts(w, seed), w.records(x, y), (DA,), ("shifted-by-one", "retokenised", "ids-differ"))


def _retokenised(w: World, rng, rows, prompt: bool):
    """Other ids of the same length at one place of the context, and what the trainer then computes."""
    other = w.ids.copy()
    for i in rows:
        n, r = len(w.prompts[i]), len(w.responses[i])
        at = int(rng.integers(0, n - 1)) if prompt else n + int(rng.integers(0, max(r // 2, 1)))
        other[i, at : at + 2] = rng.integers(0, w.shape.vocab, 2)
    z = w.model.logits(other, w.side("train", How()))
    y = []
    for i, (p, r) in enumerate(zip(w.prompts, w.responses, strict=True)):
        full = log_softmax(z[i, len(p) - 1 : len(p) + len(r) - 1])
        y.append(full[np.arange(len(r)), other[i, len(p) : len(p) + len(r)]])
    return y, [other[i, : len(p) + len(r)] for i, (p, r) in enumerate(zip(w.prompts, w.responses, strict=True))]


@fault
def retokenised(seed):
    w = world(seed, noise_of(seed))
    rng = rng_of(seed)
    rows = rng.choice(len(w.prompts), len(w.prompts) // 4, replace=False)
    y, scored = _retokenised(w, rng, rows, prompt=bool(seed % 2))
    more = {"train_token_ids": scored} if seed % 3 else {}
    return Case("retokenised", facts(w, seed), w.records(w.lp(w.logits("rollout")), y, **more), (DA,),
                ("retokenised", "ids-differ"), honest=seed % 3 == 0)  # fmt: skip


@fault
def placeholders(seed):
    w = world(seed, noise_of(seed))
    x, y = plain(w)
    rng = rng_of(seed)
    for i in range(len(x)):
        if seed % 2:
            x[i][-1] = 0.0
        elif i % 2:
            at = int(rng.integers(2, len(x[i]) - 8))
            x[i][at : at + 6] = 0.0
    return Case("placeholders", facts(w, seed), w.records(x, y), (DA,), ("placeholder-logprobs",), "rollout")


@fault
def forced_prefix(seed):
    w = world(seed, noise_of(seed))
    x, y = plain(w)
    k = 2 + seed % 4
    for v in x:
        v[:k] = 0.0
    return Case("forced_prefix", facts(w, seed), w.records(x, y), (DA,), ("prefix-in-response", "placeholder-logprobs"))
