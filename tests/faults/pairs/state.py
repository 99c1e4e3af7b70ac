"""Pair-file faults of weights, caches and routes: what changes over the steps of training."""

from __future__ import annotations

import numpy as np

from tests.faults.draw import Draw
from tests.faults.pairs import variants
from tests.faults.pairs.evidence import Evidence, evidence, registry, stepped
from tests.faults.pairs.logits import Change, unchanged

WT, RT = "weights", "routing"
DENSE = ("qwen3", "llama", "qwen2")
STEPS = 4
fault = registry()


def _trained(draw: Draw, relative: float, pattern: str = "") -> list[Change]:
    """The trainer's weights at each step: the noise grows by the same direction."""
    seed = draw.integer(0, 9999)
    return [unchanged, *(variants.moved_weights(relative * step, seed, pattern) for step in range(1, STEPS))]


@fault(
    "pair-qkv-layout",
    WT,
    ("qkv-layout", "weights-changed"),
    ("rollout", "train", "unknown"),
    open=True,
    why="B71: a conversion with permuted heads; bad from step 0 on",
)
def _(draw: Draw) -> Evidence:
    return stepped(draw, draw.choice(DENSE), [(variants.query_heads(2), unchanged)] * 2)


@fault(
    "pair-nothing-synced",
    WT,
    ("weights-stale",),
    ("rollout", "unknown"),
    why="B74, B78: at the floor at step 0, the rollout stays there while the trainer goes on",
)
def _(draw: Draw) -> Evidence:
    trained = _trained(draw, draw.choice([0.015, 0.025]))
    return stepped(draw, draw.choice(DENSE), [(unchanged, train) for train in trained])


@fault(
    "pair-head-stale",
    WT,
    ("head-tied-stale", "cache-of-head-stale", "weights-partial-sync", "weights-stale"),
    ("rollout", "unknown"),
    why="B77: all weights but the head reach the engine",
)
def _(draw: Draw) -> Evidence:
    seed, relative = draw.integer(0, 9999), draw.choice([0.05, 0.08])
    versions: list[tuple[Change, Change]] = [(unchanged, unchanged)]
    for step in range(1, STEPS):
        train = variants.moved_weights(relative * step, seed)
        versions.append((variants.moved_except(relative * step, seed, "lm_head"), train))
    return stepped(draw, draw.choice(DENSE), versions)


@fault(
    "pair-expert-halves-after-sync",
    WT,
    ("expert-weights-swapped", "gate-up-swapped", "weights-partial-sync"),
    ("rollout", "unknown"),
    why="B72: right at step 0, experts in another layout after the first sync",
)
def _(draw: Draw) -> Evidence:
    return stepped(draw, "qwen3-moe", [(unchanged, unchanged), *[(variants.expert_halves(), unchanged)] * 2])


@fault(
    "pair-prefix-stale",
    WT,
    ("kv-cache-stale",),
    ("rollout", "unknown"),
    also=("framework-implementation",),
    open=True,
    why="B80: prompts' keys and values of the first weights; early tokens worst, more with every step",
)
def _(draw: Draw) -> Evidence:
    trained = _trained(draw, draw.choice([0.02, 0.03]))
    return stepped(
        draw,
        draw.choice(DENSE),
        [(train, train) for train in trained],
        prompt=lambda step: unchanged if step else None,
    )


@fault(
    "pair-buffer-drift",
    WT,
    ("expert-bias-stale", "buffer-not-synced", "weights-partial-sync"),
    ("rollout", "unknown"),
    also=("routing",),
    open=True,
    why="B75: routers drift apart step by step, MoE only",
)
def _(draw: Draw) -> Evidence:
    trained = _trained(draw, draw.choice([0.03, 0.05]), "mlp.gate.weight")
    return stepped(draw, "qwen3-moe", [(unchanged, train) for train in trained])


@fault(
    "pair-checksums-differ",
    WT,
    ("weights-stale", "weights-changed"),
    ("rollout", "train", "unknown"),
    open=True,
    why="policy versions of rows that lag the step, with the growth that follows",
)
def _(draw: Draw) -> Evidence:
    trained = _trained(draw, draw.choice([0.015, 0.02]))
    lagging = [trained[max(0, step - 2)] for step in range(STEPS)]
    found = stepped(draw, draw.choice(DENSE), list(zip(lagging, trained, strict=True)))
    for row in found.rows:
        row["policy_version"] = max(0, row["step"] - 2)
    return found


@fault(
    "pair-one-rank",
    WT,
    ("weights-partial-sync", "weights-stale", "weights-changed"),
    ("rollout", "train", "unknown"),
    open=True,
    why="one rank's replica kept older weights; the rows of the others are at the floor",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    ranks, stale = 4, draw.integer(0, 3)
    moved = found.score(change=variants.moved_weights(draw.choice([0.02, 0.03]), draw.integer(0, 9999)))
    own = [moved if i % ranks == stale else found.plain for i in range(len(found.rows))]
    found.set("train_logprobs", found.logprobs([scored.logits[i] for i, scored in enumerate(own)]))
    found.set("rank", [i % ranks for i in range(len(found.rows))])
    return found


@fault(
    "pair-router-ties",
    RT,
    ("router-near-ties", "router-dtype"),
    above=1.2,
    why="B89: the router works in another precision; ids flip at near ties",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, "qwen3-moe", rescore=draw.choice([True, False]))
    found.train(found.score(change=variants.router(wide=True)))
    return found


@fault(
    "pair-not-renormalised",
    RT,
    ("router-not-renormalised", "replay-weights-recomputed"),
    ("train", "rollout", "unknown"),
    also=("framework-config", "framework-implementation"),
    open=True,
    why="B83, B91: the same experts with other weights",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, "qwen3-moe")
    found.train(found.score(change=variants.router(renormalise=False)))
    return found


@fault(
    "pair-routes-shifted",
    RT,
    ("replay-misaligned",),
    ("train", "rollout", "unknown"),
    above=0.0,
    why="B86: the recorded routes are one token late",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, "qwen3-moe")
    assert found.tokens.experts is not None
    found.train(found.score(change=variants.late_routes))
    found.set("train_experts", [np.roll(experts, 1, axis=0) for experts in found.tokens.experts])
    return found


@fault(
    "pair-routes-padded",
    RT,
    ("replay-misaligned", "replay-ineffective"),
    ("train", "rollout", "unknown"),
    above=0.0,
    open=True,
    why="B86: routes of the last tokens are missing and stand as expert 0",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, "qwen3-moe")
    assert found.tokens.experts is not None
    tail = draw.integer(4, 8)
    padded = [experts.copy() for experts in found.tokens.experts]
    for experts in padded:
        experts[-tail:] = np.arange(experts.shape[-1])
    found.train(found.score(change=variants.fixed_tail(tail)))
    found.set("train_experts", padded)
    return found


FAULTS = fault.faults
