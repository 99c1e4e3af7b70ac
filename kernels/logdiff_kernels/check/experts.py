"""Routers and routed experts, with every choice a parameter."""

from __future__ import annotations

import torch
from torch.nn import functional

from logdiff_kernels.check.formulas import arms, gated
from logdiff_kernels.check.given import SINGLE, Given, Parameters, distinct, grouped, wide


def choose(given: Given, p: Parameters) -> torch.Tensor:
    """Ids [n, k] that logits [n, E] call for, in no order that means anything.

    Parameters: `top_k`, `scoring` (softmax, sigmoid), `choose_on` (scores, logits), `groups`, `topk_groups`,
    `group_score` (max, top2), `bias` [E] for the choice alone or None.
    """
    choice = choice_values(given, p)
    if p["groups"] > 1:
        choice = choice.masked_fill(~_open(choice, p), float("-inf"))
    return choice.topk(p["top_k"], dim=-1).indices


def choice_values(given: Given, p: Parameters) -> torch.Tensor:
    """What experts are chosen by, [n, E], before a limit to groups."""
    value = _values(given, p)
    return value if p.get("bias") is None else value + p["bias"].to(value.dtype)


def _values(given: Given, p: Parameters) -> torch.Tensor:
    logits = given.x[0].to(wide(given.x[0].dtype))
    return logits if p["choose_on"] == "logits" else score(logits, p["scoring"])


def score(logits: torch.Tensor, kind: str) -> torch.Tensor:
    """Softmax or sigmoid."""
    return torch.softmax(logits, -1) if kind == "softmax" else torch.sigmoid(logits)


def _open(choice: torch.Tensor, p: Parameters) -> torch.Tensor:
    groups = grouped(choice, p["groups"], -1)
    best = groups.amax(-1) if p["group_score"] == "max" else groups.topk(2, dim=-1).values.sum(-1)
    chosen = torch.zeros_like(best, dtype=torch.bool).scatter(-1, best.topk(p["topk_groups"], dim=-1).indices, True)
    return chosen[..., None].expand_as(groups).flatten(-2)


def expert_weights(given: Given, p: Parameters) -> torch.Tensor:
    """Weights [n, k] of the experts that were chosen (`x[1]`, ids in captured order) from logits `x[0]`.

    Parameters: those of `choose`, `renormalize`, `renorm_eps`, `scaling`, `biased` (the bias counts in weights too).
    """
    value = choice_values(given, p) if p.get("biased") else _values(given, p)
    weights = value.gather(-1, given.x[1].long())
    if p["choose_on"] == "logits":
        weights = score(weights, p["scoring"])
    if p["renormalize"]:
        weights = weights / (weights.sum(-1, keepdim=True) + p["renorm_eps"])
    return (weights * float(p["scaling"])).to(given.x[0].dtype)


def expert_weights_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """Logits, scores and quotient rounded."""
    logits = given.x[0].double()
    near = logits.gather(-1, given.x[1].long())
    top = logits.amax(-1, keepdim=True)
    moved = 2 * near.square() + (near - top).square()
    return ref.abs() * u * (3 + moved).sqrt() + 8 * SINGLE * ref.abs()


def experts(given: Given, p: Parameters) -> torch.Tensor:
    """Sum over chosen experts of weight * down(act(gate, up)): x = (rows [n, K], ids [n, k], weights [n, k]).

    Parameters: `gate` and `up` [E, I, K], `down` [E, F, I], their biases `gate_bias`, `up_bias` [E, I], `down_bias`
    [E, F] or None; `kind`, `limit`, `alpha`, `up_offset` of the activation; `swapped`; `map` (expert that stands for
    each id) or None; `dropped` ids that give nothing.
    """
    return _walk(given, p, None)


def experts_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """Gate, up, activation, product, each expert's output and its weighted sums rounded."""
    terms = _walk(given, p, u)
    count = int(p["down"].shape[-1] + p["gate"].shape[-1])
    return (u * u * (ref.square() + terms) + SINGLE * SINGLE * count * terms).sqrt()


def _walk(given: Given, p: Parameters, u: float | None) -> torch.Tensor:
    """The sum, or with `u` the squares that its rounding is made of."""
    x, ids, weights = given.x[0], given.x[1].long(), given.x[2].to(given.x[0].dtype)
    out = x.new_zeros(len(x), p["down"].shape[1])
    for number in distinct(ids):
        if number in p.get("dropped", ()):
            continue
        row, slot = (ids == number).nonzero(as_tuple=True)
        e = number if p.get("map") is None else p["map"][number]
        rows = x[row]
        gate = _affine(rows, p["gate"][e], p.get("gate_bias"), e)
        up = _affine(rows, p["up"][e], p.get("up_bias"), e)
        gate, up = arms(gate, up, p)
        h = gated(gate, up, p)
        share = weights[row, slot, None]
        y = _affine(h, p["down"][e], p.get("down_bias"), e)
        if u is not None:
            through = _spread_inside(rows, gate, up, h, p, e)
            y = y.square() + functional.linear(through, p["down"][e].to(x.dtype).square())
            share = share.square()
        out.index_add_(0, row, (y * share).to(out.dtype))
    return out


def _spread_inside(
    rows: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, h: torch.Tensor, p: Parameters, e: int
) -> torch.Tensor:
    """Variance of the hidden values in units of u^2: own roundings, and those of gate and up passed on."""
    x2 = rows.square()
    gate_terms = gate.square() + functional.linear(x2, p["gate"][e].to(rows.dtype).square())
    up_terms = up.square() + functional.linear(x2, p["up"][e].to(rows.dtype).square())
    up_full = (up + float(p.get("up_offset", 0.0))).abs()
    slope = 1.13  # the steepest of the usual gates
    act = h / torch.where(up_full > 1e-12, up_full, 1e-12)
    return 4 * h.square() + gate_terms * (slope * up_full).square() + up_terms * act.square()


def _affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, e: int) -> torch.Tensor:
    return functional.linear(x, weight.to(x.dtype), None if bias is None else bias[e].to(x.dtype))
