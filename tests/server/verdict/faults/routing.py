"""Faults of routers and of replayed routes."""

from __future__ import annotations

import numpy as np

from tests.server.verdict.faults.common import RT, Make, experts, facts, into, noise_of
from tests.server.verdict.pair_faults import Case, How, world

FAULTS: dict[str, Make] = {}
fault = into(FAULTS)


@fault
def router_precision(seed):
    w = world(seed, noise_of(seed), experts=8)
    a, b = {}, {}
    x = w.lp(w.logits("rollout", How(), record=a))
    y = w.lp(w.logits("train", How(router_dtype="bf16"), record=b))
    more = experts(w, a, b) if seed % 2 else {}
    return Case("router_precision", {**facts(w, seed), "moe": True}, w.records(x, y, **more), (RT,),
                ("router-dtype", "router-near-ties"), honest=True)  # fmt: skip


@fault
def replay_misaligned(seed):
    w = world(seed, noise_of(seed), experts=8)
    a, b = {}, {}
    x = w.lp(w.logits("rollout", How(), record=a))
    replayed = np.roll(a["experts"], 1, axis=1)
    y = w.lp(w.logits("train", How(experts=replayed), record=b))
    more = experts(w, a, b) if seed % 3 else {}
    return Case("replay_misaligned", {**facts(w, seed), "moe": True}, w.records(x, y, **more), (RT,),
                ("replay-misaligned",), honest=seed % 3 == 0)  # fmt: skip


@fault
def replay_weights_recomputed(seed):
    w = world(seed, noise_of(seed), experts=8)
    a, b = {}, {}
    x = w.lp(w.logits("rollout", How(), record=a))
    y = w.lp(w.logits("train", How(experts=a["experts"], renormalise=False), record=b))
    more = experts(w, a, b) if seed % 3 else {}
    return Case("replay_weights_recomputed", {**facts(w, seed), "moe": True}, w.records(x, y, **more), (RT,),
                ("replay-weights-recomputed", "router-not-renormalised", "router-scoring"), honest=True)  # fmt: skip
