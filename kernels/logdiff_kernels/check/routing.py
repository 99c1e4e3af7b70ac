"""Which experts were chosen, against the choice that the same logits call for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from logdiff_kernels.check.captured import Captured
from logdiff_kernels.check.clean import Operator
from logdiff_kernels.check.experts import choice_values, choose
from logdiff_kernels.check.given import Given, Parameters, cast, roundoff
from logdiff_kernels.check.structure import onset


def check_choice(
    operator: Callable[[str], Operator | None], captured: Captured, name: str, dtype: torch.dtype
) -> dict[str, Any]:
    """Judge `expert_ids`: another choice is rounding where the values in question are a near tie."""
    weights = operator(name.replace("expert_ids", "expert_weights"))
    logits = name.replace("expert_ids", "router_logits")
    if weights is None:
        return {"why": "no formula reproduces the clean model's choice"}
    if logits not in captured:
        return {"why": f"{logits} wasn't captured"}
    index = captured.common([name, logits])
    rows = captured.rows.take(index)
    given = Given((captured.at(logits, index).double(),), rows)
    p = cast(weights.p, torch.float64)
    made = captured.at(name, index).long()
    wanted = choose(given, p)
    different = (made.sort(-1).values != wanted.sort(-1).values).any(-1)
    margin = _margin(given, p, made)
    tie = 16 * roundoff(dtype)
    off = different & (margin > tie)
    ties = int((different & ~off).sum())
    found: dict[str, Any] = {
        "rows": len(index),
        "error": float(different.double().mean()),
        "clean_error": 0.0,
        "ok": not bool(off.any()),
        "rows_off": float(off.double().mean()),
        "near_ties": ties,
        "worst": captured.worst(index[different], margin[different]),
    }
    if bool(off.any()):
        found["onset"] = onset(off, rows, captured.first_pass[index], captured.header.sample_ids)
        found["variants"] = _variants(given, p, made, off)
        best = next((v for v in found["variants"] if v["fits"]), None)
        found["why"] = f"it {best['statement']}" if best else "another choice than its logits call for"
    return found


def _margin(given: Given, p: Parameters, made: torch.Tensor) -> torch.Tensor:
    """How far the worst chosen value lies below the best one left out, relative to their size; [n]."""
    value = choice_values(given, p)
    taken = torch.zeros_like(value, dtype=torch.bool).scatter(-1, made.clamp(0, value.shape[-1] - 1), True)
    if p["groups"] > 1:
        right = torch.zeros_like(taken).scatter(-1, choose(given, p), True)
        low = value.masked_fill(~(taken & ~right), float("inf")).amin(-1)
        high = value.masked_fill(~(right & ~taken), float("-inf")).amax(-1)
    else:
        low = value.masked_fill(~taken, float("inf")).amin(-1)
        high = value.masked_fill(taken, float("-inf")).amax(-1)
    logits = given.x[0].abs().amax(-1)  # an error of a logit moves a score by that share of it
    margin = (high - low) / torch.maximum(high.abs(), low.abs()).clamp(min=1e-300) / logits.clamp(min=1.0)
    repeated = (made.sort(-1).values.diff(dim=-1) == 0).any(-1) | (made < 0).any(-1)
    return torch.where(repeated, float("inf"), margin.nan_to_num(float("inf"), float("inf"), 0.0))


def _variants(given: Given, p: Parameters, made: torch.Tensor, off: torch.Tensor) -> list[dict[str, Any]]:
    options: list[tuple[str, str | None, str, Parameters]] = []
    if p.get("bias") is not None:
        options.append(("choice-bias-missing", "buffer-not-synced", "chooses without the correction", {"bias": None}))
    if p["groups"] > 1:
        options.append(("groups-ignored", "group-limit", "chooses over all groups", {"groups": 1, "topk_groups": 1}))
        for count in range(1, p["groups"] + 1):
            if count != p["topk_groups"] and p["top_k"] <= count * (given.x[0].shape[-1] // p["groups"]):
                options.append(("group-count", "group-limit", f"chooses in {count} groups", {"topk_groups": count}))
        other = "top2" if p["group_score"] == "max" else "max"
        options.append(("group-score", "group-limit", f"scores groups by {other}", {"group_score": other}))
    found = []
    for id, cause, words, change in options:
        ids = choose(given, {**p, **change})
        equal = (ids.sort(-1).values == made.sort(-1).values).all(-1)[off].double().mean()
        found.append(_variant(id, cause, words, float(equal), change))
    shifted = choose(given, p).sort(-1).values
    now = made.sort(-1).values
    for by in (1, -1):
        near = (shifted.roll(by, 0) == now).all(-1)[off].double().mean()
        found.append(_variant("ids-shifted", "replay-misaligned", f"takes the choice of the token {-by:+d}",
                              float(near), {"shift": -by}))  # fmt: skip
    constant = (now == now[:1]).all(-1)[off].double().mean()
    found.append(_variant("ids-constant", "replay-misaligned", "makes one choice for all tokens", float(constant), {}))
    found.sort(key=lambda v: -v["explained"])
    return found[:6]


def _variant(id: str, cause: str | None, words: str, share: float, parameters: Parameters) -> dict[str, Any]:
    return {
        "variant": id, "cause": cause, "parameters": parameters, "beta": share, "z": None, "explained": share,
        "left_over": 1 - share, "fits": share > 0.9, "honest": False, "statement": words,
    }  # fmt: skip
