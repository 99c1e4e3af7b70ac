"""Faults of weights: stale, partly synced, in another layout, or outlived by a cache."""

from __future__ import annotations

import numpy as np

from tests.server.verdict.faults.common import WT, Make, experts, facts, into, noise_of
from tests.server.verdict.faults.steps import drifted, over_steps
from tests.server.verdict.pair_faults import Case, How, draw, redrawn, replace, world

FAULTS: dict[str, Make] = {}
fault = into(FAULTS)


@fault
def weights_stale_over_steps(seed):
    def change(w, step):
        new = drifted(w, step, 0.02)
        return w.lp(w.logits("rollout")), w.lp(w.logits("train", w=new)), w, {}

    return over_steps(seed, change, "weights_stale_over_steps", (WT,), ("weights-stale", "weights-partial-sync"))


@fault
def head_stale_over_steps(seed):
    def change(w, step):
        new = drifted(w, step, 0.05)
        old = {**new, "head": w.model.w["head"]}
        now = replace(w, model=w.model.with_weights(old))
        now = redrawn(now, How())
        return now.lp(now.logits("rollout")), now.lp(now.logits("train", w=new)), now, {}

    return over_steps(seed, change, "head_stale_over_steps", (WT,), ())


@fault
def experts_swapped_after_sync(seed):
    def change(w, step):
        bad = How(swap_gate=step > 0)
        now = redrawn(w, bad) if step else w
        return now.lp(now.logits("rollout")), now.lp(now.logits("train", How())), now, {}

    return over_steps(
        seed, change, "experts_swapped_after_sync", (WT,), ("expert-weights-swapped", "weights-changed"), experts=8
    )


@fault
def expert_bias_stale(seed):
    def change(w, step):
        rng = np.random.default_rng(seed)
        new = dict(w.model.w)
        for i in range(w.shape.layers):
            new[f"{i}.bias"] = (rng.normal(0, 0.08, w.shape.experts) * step).astype(np.float32)
        a, b = {}, {}
        za, zb = w.logits("rollout", record=a), w.logits("train", w=new, record=b)
        return w.lp(za), w.lp(zb), w, experts(w, a, b) if seed % 2 else {}

    return over_steps(seed, change, "expert_bias_stale", (WT,), ("expert-bias-stale", "weights-stale"), experts=8)


@fault
def weights_slightly_stale(seed):
    """Undetermined by design: one step, drift as small as rounding."""
    w = world(seed, "bf16")
    y = w.lp(w.logits("train", w=drifted(w, 1, 0.006)))
    return Case("weights_slightly_stale", facts(w, seed), w.records(w.lp(w.logits("rollout")), y), ("undetermined",))


@fault
def weights_very_stale_one_step(seed):
    w = world(seed, noise_of(seed))
    y = w.lp(w.logits("train", w=drifted(w, 4, 0.12)))
    return Case("weights_very_stale_one_step", facts(w, seed), w.records(w.lp(w.logits("rollout")), y),
                (WT, "undetermined"))  # fmt: skip


@fault
def qkv_layout(seed):
    w = world(seed, noise_of(seed))
    new = dict(w.model.w)
    for i in range(w.shape.layers):
        columns = new[f"{i}.qkv"].shape[1]
        new[f"{i}.qkv"] = new[f"{i}.qkv"].reshape(-1, 4, columns // 4).transpose(0, 2, 1).reshape(-1, columns)
    y = w.lp(w.logits("train", w=new))
    return Case(
        "qkv_layout", facts(w, seed), w.records(w.lp(w.logits("rollout")), y), (WT, "undetermined"), ("qkv-layout",)
    )


@fault
def stale_prefix_cache(seed):
    """Prompt K/V of older weights; half of the samples share their prompt with an earlier one, the rest do not."""

    def change(w, step):
        base = world(seed, noise_of(seed), samples=12, shared=2)
        extra_rows = world(seed + 1000 + step, noise_of(seed), samples=6)
        prompts = base.prompts[:8] + [p % base.shape.vocab for p in extra_rows.prompts[:4]]
        lengths = [len(r) for r in base.responses]
        new = drifted(base, 1 + step, 0.1)
        model = base.model.with_weights(new)
        now = replace(base, model=model, prompts=prompts)
        width = max(len(p) + n for p, n in zip(prompts, lengths, strict=True))
        ids = np.zeros((12, width), np.int64)
        at = np.zeros((12, width), bool)
        for i, p in enumerate(prompts):
            ids[i, : len(p)] = p
            if i < 8:
                at[i, : len(p)] = True
        record: dict = {}
        base.model.logits(ids, How(), record)
        stale = How(kv=(record["kv"], at))
        responses = draw(model, prompts, lengths, stale, seed + step)
        now = replace(now, responses=responses, rollout=stale)
        return now.lp(now.logits("rollout")), now.lp(now.logits("train", How())), now, {}

    steps = 1 + 2 * (seed % 2)
    causes = ("kv-cache-stale",)
    return over_steps(seed, change, "stale_prefix_cache", (WT,), causes, steps=steps, side="rollout", honest=True)
