"""Controls: nothing is wrong, or the evidence is none."""

from __future__ import annotations

import numpy as np

from tests.server.verdict.faults.common import OP, RT, Make, experts, facts, into, noise_of, plain
from tests.server.verdict.pair_faults import Case, How, world

FAULTS: dict[str, Make] = {}
fault = into(FAULTS)


@fault
def bit_equal(seed):
    w = world(seed, "none")
    x, _ = plain(w)
    return Case("bit_equal", facts(w, seed), w.records(x, x), ("none",))


@fault
def constant_position_offset(seed):
    w = world(seed, noise_of(seed))
    y = w.lp(w.logits("train", How(positions=np.arange(w.ids.shape[1])[None].repeat(len(w.prompts), 0) + 7)))
    return Case(
        "constant_position_offset", facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (OP, "undetermined")
    )


@fault
def masked_observations(seed):
    w = world(seed, noise_of(seed))
    x, y = plain(w)
    masks = []
    for v in x:
        mask = np.ones(len(v), int)
        mask[2:7] = 0
        v[2:7] = 0.0
        masks.append(mask)
    right = ("none",) if w.noise == "none" else (OP, "undetermined")
    return Case("masked_observations", facts(w, seed), w.records(x, y, response_mask=masks), right)


@fault
def moe_rounding(seed):
    w = world(seed, "bf16", experts=8)
    a, b = {}, {}
    x, y = w.lp(w.logits("rollout", record=a)), w.lp(w.logits("train", record=b))
    more = experts(w, a, b) if seed % 2 else {}
    return Case("moe_rounding", {**facts(w, seed), "moe": True}, w.records(x, y, **more), (OP, RT, "undetermined"))


@fault
def all_masked(seed):
    w = world(seed, "bf16", samples=12)
    x, y = plain(w)
    return Case(
        "all_masked", {}, w.records(x, y, response_mask=[np.zeros(len(v), int) for v in x]), ("invalid-evidence",)
    )


@fault
def all_nan(seed):
    w = world(seed, "bf16", samples=12)
    x, _ = plain(w)
    y = [np.full(len(v), np.nan) for v in x]
    return Case("all_nan", {}, w.records(x, y), ("invalid-evidence",))


@fault
def few_nan(seed):
    w = world(seed, noise_of(seed))
    x, y = plain(w)
    for i in range(0, len(y), 7):
        y[i][3] = np.nan
    return Case("few_nan", facts(w, seed), w.records(x, y), ("invalid-evidence", OP), ("nan-kernel",))


@fault
def one_column(seed):
    w = world(seed, "bf16", samples=12)
    x, _ = plain(w)
    rows = w.records(x, x)
    for row in rows:
        del row["train_logprobs"]
    return Case("one_column", {}, rows, ("invalid-evidence", "undetermined"))


@fault
def three_tokens(seed):
    w = world(seed, "bf16", samples=12)
    x, y = plain(w)
    rows = w.records(x, y)[:1]
    for key in ("response_token_ids", "rollout_logprobs", "train_logprobs"):
        rows[0][key] = rows[0][key][:3]
    return Case("three_tokens", {}, rows, ("undetermined",))
