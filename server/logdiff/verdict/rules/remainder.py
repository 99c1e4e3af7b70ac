"""What no structure explains: rounding, wrong maths or other weights, by size, shape and the triangle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from logdiff.verdict import values
from logdiff.verdict.features import Features
from logdiff.verdict.findings import Board, Finding, evidence
from logdiff.verdict.records import Evidence

FEWEST = 200
"""Compared tokens below which the absence of structure proves nothing."""


def triangle(f: Features, board: Board) -> None:
    """Decode, rescore and trainer on the same tokens: the pair that agrees clears two of three."""
    pair = f.pair_abs
    if not {"decode_train", "decode_rescore", "rescore_train"} <= pair.keys() or not f.whole:
        return
    dt, dr, rt = pair["decode_train"], pair["decode_rescore"], pair["rescore_train"]
    said = (
        evidence(f, "mean abs difference decode to train", dt, None),
        evidence(f, "decode to rescore (the same engine, prefill)", dr, None),
        evidence(f, "rescore to train", rt, None),
    )
    tiny = max(1e-7, 1e-3 * max(dt, dr, rt))
    if dr > 4 * max(rt, tiny) and dt > 4 * max(rt, tiny):
        names = ("kv-cache-stale", "decode-state", "kv-cache-corrupt")
        stale = next((x for x in board.findings if x.cause == "kv-cache-stale" and x.belief > 0.6), None)
        plain = _plain_noise(f.measurement.pairs.get("decode_rescore"))
        if stale is None and not plain:
            board.add(Finding("decode-state", 0.9, 1.0, said, side="rollout"))
            board.add(Finding("kv-cache-corrupt", 0.75, 1.0, said, side="rollout"))
        board.rule_out(
            "the rollout engine's own prefill agrees with the trainer", *(n for n in _BOTH if n not in names)
        )
    elif dr > 4 * max(dt, tiny) and rt > 4 * max(dt, tiny):
        board.add(Finding("rescore-wrong", 0.85, 1.0, said, side="rollout"))
        board.add(Finding("adapter-head-only", 0.4, 1.0, said, side="rollout"))
    elif rt > 4 * max(dr, tiny) and dt > 4 * max(dr, tiny):
        board.rule_out(
            "decode and prefill of the rollout engine agree",
            "decode-state",
            "kv-cache-corrupt",
            "kv-cache-stale",
            "kv-cache-dtype",
        )


def _plain_noise(block: dict[str, Any] | None) -> bool:
    """Whether decode parts from prefill as two kernels do in bf16: small, without a direction, on all tokens alike."""
    if block is None:
        return False
    return bool(
        block["mean_abs"] < 0.06
        and block["bias_ratio"] < 0.15
        and block["top1_share"] < 0.12
        and block["pearson_logprob"] > 0.99
    )


_BOTH = (
    "weights-stale", "weights-changed", "qkv-layout", "temperature-missing-train", "attention-scale", "rope-theta",
    "gate-up-swapped", "sinks-dropped", "packing-leak", "left-padding-wrong", "prompt-mask-wrong",
)  # fmt: skip


def head_precision(f: Features, board: Board) -> None:
    """Top-k lists of one side step in multiples of 2^-6: logits rounded to bf16 before the softmax."""
    step = {side: values.topk_facts(f.table, side) for side in f.table.topk}
    coarse = {side: s["step"] for side, s in step.items() if not math.isnan(s["step"]) and s["step"] > 0.9}
    if not coarse or values.grid(f.table.rollout, 16) > 0.9 or values.grid(f.table.train, 16) > 0.9:
        return
    if len(coarse) == 2:
        return
    ((side, share),) = coarse.items()
    said = (
        evidence(f, f"differences inside top-k lists of the {side} side that are multiples of 2^-6: share", share, 0.9),
    )
    other = "train" if side == "rollout" else "rollout"
    alone = other in step
    if f.mean_abs < 2 * f.rounding:
        board.add(Finding("head-dtype", 0.85 if alone else 0.65, 0.8, said, side=side))


def rounding_or_not(f: Features, board: Board) -> None:
    """The last rule: what is left has no structure, or too few tokens to tell."""
    if board.explained > 0.55 or f.table.tokens < 2 or f.mean_abs == 0:
        return
    left = 1.0 - board.explained
    if f.table.tokens < FEWEST or f.table.samples < 4:
        said = (evidence(f, "tokens compared, too few for the tests of structure", f.table.tokens, FEWEST),)
        board.add(Finding(None, 0.4, left, said, class_="operator", component="layers"))
        board.add(Finding(None, 0.3, left, said, class_="framework-implementation"))
        board.add(Finding(None, 0.25, left, said, class_="weights"))
        return
    shape = (
        evidence(f, "mean abs d", f.mean_abs, f.rounding),
        evidence(f, "abs(mean d) / mean abs d", f.bias_ratio, 0.1),
        evidence(f, "share of the sum of abs d in the largest 1 % of tokens", f.top1_share, 0.1),
        evidence(
            f, "no structure over " + ", ".join(sorted({t.split(" ")[0] for t in f.places.tried})), len(f.places.tried)
        ),
    )
    if f.mean_abs <= f.rounding:
        _small(f, board, shape, left)
    elif f.mean_abs <= 2.5 * f.rounding:
        _add(board, shape, left, operator=0.4, weights=0.25, implementation=0.25)
    else:
        _large(f, board, shape, left)


def _small(f: Features, board: Board, shape: tuple[Evidence, ...], left: float) -> None:
    light = f.top1_share < 0.12
    noise_like = light and f.bias_ratio < max(0.1, 3 * f.bias.se / f.mean_abs, 0.8 * f.mean_abs)
    cleared = _weights_cleared(f, board)
    if f.mean_abs < 2e-5 and light:
        said = (
            *shape,
            evidence(f, "mean abs d is as small as fp32 rounding, below any training step", f.mean_abs, 2e-5),
        )
        board.add(Finding("operator-rounding", 0.85, left, said, side="both", component="layers"))
        return
    if noise_like and cleared:
        board.add(Finding("operator-rounding", 0.78, left, (*shape, *cleared), side="both", component="layers"))
        _add(board, shape, left, operator=0.0, weights=0.08, implementation=0.1)
    elif noise_like:
        board.add(Finding("operator-rounding", 0.5, left, shape, side="both", component="layers"))
        board.add(Finding("weights-stale", 0.3, left, shape, side="rollout"))
        _add(board, shape, left, operator=0.0, weights=0.0, implementation=0.12)
    else:
        _add(board, shape, left, operator=0.4, weights=0.25, implementation=0.25)


def _weights_cleared(f: Features, board: Board) -> tuple[Evidence, ...]:
    """Facts that speak against other weights: checksums, no trend over steps, the engine's own noise, equal tokens."""
    out: tuple[Evidence, ...] = ()
    gate = f.gate("weights")
    if gate is not None and gate.ok:
        out += (evidence(f, f"weights are equal by checksum: {gate.detail}"),)
    if any(e.cause == "weights-stale" and "does not change" in e.by for e in board.excluded):
        out += (evidence(f, "no trend over steps", f.steps[-1][1], f.steps[0][1]),)
    pair = f.pair_abs
    own = pair.get("decode_rescore")
    if own is not None and own > 0 and f.mean_abs < 2.5 * own:
        out += (
            evidence(f, "the rollout engine differs from itself by as much (decode against prefill)", own, f.mean_abs),
        )
    if f.equal_share > 0.1:
        out += (
            evidence(
                f,
                "share of open tokens that are equal to the bit, as other weights would not leave them",
                f.equal_share,
                0.1,
            ),
        )
    said = _stated_equal(f)
    if said:
        out += (evidence(f, f"the header says that the weights are equal ({said})"),)
    return out


def _stated_equal(f: Features) -> str | None:
    for key, value in f.meta.facts.items():
        name = str(key).lower()
        if "weight" in name and ("equal" in name or "match" in name or "same" in name) and value is True:
            return str(key)
    sums: list[Any] = [f.config(side).get(k) for side in ("rollout", "train") for k in ("weights_checksum", "checksum")]
    left, right = sums[0] or sums[1], sums[2] or sums[3]
    return "checksums" if left is not None and left == right else None


def _large(f: Features, board: Board, shape: tuple[Evidence, ...], left: float) -> None:
    law = f.law["rollout"]
    said = (
        *shape,
        evidence(f, "correlation of the two columns", f.correlation, 0.99),
        evidence(f, "mean exp(d) - 1, in standard errors", law.z if np.isfinite(law.z) else 0.0, 4.0),
    )
    board.exclude(
        f"mean abs d {f.mean_abs:.3g} is far above rounding", "operator-rounding", "batch-variance", "compiled-numerics"
    )
    _add(board, said, left, operator=0.03, weights=0.33, implementation=0.42, config=0.18)


def _add(
    board: Board, said: tuple[Evidence, ...], left: float, operator: float, weights: float, implementation: float,
    config: float = 0.0,
) -> None:  # fmt: skip
    for class_, belief, component in (
        ("operator", operator, "layers"),
        ("weights", weights, "weights"),
        ("framework-implementation", implementation, "layers"),
        ("framework-config", config, "model configuration"),
    ):
        if belief > 0:
            board.add(Finding(None, belief, left, said, class_=class_, component=component))
