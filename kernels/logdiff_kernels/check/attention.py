"""Attention of captured queries over the captured keys and values of the same sample, with every choice a parameter.

Parameters: `heads`, `kv_heads`, `scale`, `window` (None; the token itself counts), `softcap` (0: none), `sinks`
[heads] or None, `chunk` (None; attention within blocks of positions), `kv_map` (key head of each query head; None:
consecutive groups), `causal` (True). Faults that variants plant: `delay` (keys younger than that many tokens unseen),
`unseen_below` (keys of earlier positions unseen), `leak` (keys of the sample before are seen), `key_shift` (keys and
values stand for the position that many places on).

Latent attention has `up` [heads * (nope + v), rank], `nope` and `rope` besides: inputs are then the queries and their
rotated parts, keys the normed latents, values the rotated parts that all heads share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from logdiff_kernels.check.formulas import capped
from logdiff_kernels.check.given import SINGLE, Given, Parameters, blocks, distinct, grouped, wide

BLOCK = 1 << 24
"""Scores at a time."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Queries of one sample: rows of the output and of the keys, q [Hq, n, D], k and v [Hq, m, D], seen bool [n, m]."""

    index: torch.Tensor
    keys: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    seen: torch.Tensor


def attention(given: Given, p: Parameters) -> torch.Tensor:
    """The context [n, Hq * Dv], eager: scores in the dtype of the inputs, softmax in `wide`, weights rounded back."""
    out: torch.Tensor | None = None
    given = expanded(given, p)
    for piece in pieces(given, p):
        weights, _ = softmax(scores(piece, p), piece.seen, p)
        context = (weights.to(piece.v.dtype) @ piece.v).transpose(0, 1).flatten(1)
        if out is None:
            out = context.new_zeros(len(given.rows), context.shape[1])
        out[piece.index] = context
    assert out is not None
    return out


def attention_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """Scores, the maximum taken off, weights and output rounded; sums in fp32."""
    out = torch.zeros_like(ref)
    latents = given.key
    given = expanded(given, p)
    for piece in pieces(given, p):
        s = scores(piece, p)
        weights, top = softmax(s, piece.seen, p)
        finite = torch.where(piece.seen, s, 0.0)
        shift = torch.where(piece.seen, s - top, 0.0)
        noise = weights.square() * (2 * finite.square() + shift.square() + 1)  # of a score, as a factor of its weight
        context = weights @ piece.v
        v2 = piece.v.square()
        plain = weights.square() @ v2
        dot = (piece.q.square() @ piece.k.square().transpose(1, 2)).sqrt() * abs(p["scale"])
        single = weights.square() * torch.where(piece.seen, dot, 0.0).square()
        fine = (single * p["size"]) @ v2 + plain
        coarse = context.square() + plain + _moved(noise, piece.v, context)
        if latents is not None and p.get("up") is not None:
            coarse = coarse + _absorbed(piece, weights, latents, dot, p)
        part = (u * u * coarse + SINGLE * SINGLE * fine).sqrt()
        out[piece.index] = part.transpose(0, 1).flatten(1)
    return out + 1e-3 * u * ref.square().mean(-1, keepdim=True).sqrt()


def _absorbed(
    piece: Piece, weights: torch.Tensor, latents: torch.Tensor, dot: torch.Tensor, p: Parameters
) -> torch.Tensor:
    """What rounding adds where the up-projection is taken into the query and the output, or keys are rounded once made.

    In units of u squared, [Hq, n, Dv].
    """
    latent = latents[piece.keys].to(weights.dtype)
    up = grouped(p["up"].T, p["heads"], -1).permute(1, 2, 0).to(weights.dtype)  # [Hq, nope + v, rank]
    turned = piece.q[..., : p["nope"]] @ up[:, : p["nope"]]
    scored = (turned.square() @ latent.square().T) * p["scale"] ** 2 + dot.square()
    noise = weights.square() * torch.where(piece.seen, scored, 0.0)
    inside = (weights @ latent).square() + weights.square() @ latent.square()
    outside = inside @ up[:, p["nope"] :].square().transpose(1, 2)
    return _moved(noise, piece.v, weights @ piece.v) + outside


def _moved(noise: torch.Tensor, v: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
    """How far errors of weights, of variance `noise`, move the context: the sum of noise * (v - context)^2."""
    moved = noise @ v.square() - 2 * context * (noise @ v) + context.square() * noise.sum(-1, keepdim=True)
    return moved.clamp(min=0)


def expanded(given: Given, p: Parameters) -> Given:
    """Latents as keys and values of every head; other attention as it is."""
    if p.get("up") is None:
        return given
    assert given.key is not None
    assert given.value is not None
    heads, nope, rope = p["heads"], p["nope"], p["rope"]
    each = grouped(functional.linear(given.key.to(p["up"].dtype), p["up"]), heads, -1)
    shared = given.value.to(each.dtype)[:, None, :].expand(-1, heads, -1)
    key = torch.cat((each[..., :nope], shared), dim=-1)
    q = grouped(given.x[0], heads, -1)[..., :nope]
    turned = grouped(given.x[1], heads, rope)
    query = torch.cat((q, turned), dim=-1)
    value = each[..., nope:]
    return replace(given, x=(query.flatten(1),), key=key.flatten(1), value=value.flatten(1))


def pieces(given: Given, p: Parameters) -> Iterator[Piece]:
    """The queries sample by sample, a bounded number of scores at a time."""
    assert given.keys is not None
    assert given.key is not None
    assert given.value is not None
    heads, kv_heads = p["heads"], p["kv_heads"]
    kv_map = p.get("kv_map")
    for sample in distinct(given.rows.sample):
        rows = (given.rows.sample == sample).nonzero()[:, 0]
        visible = given.keys.sample == sample
        if p.get("leak"):
            visible = visible | (given.keys.sample == sample - 1)
        found = visible.nonzero()[:, 0]
        where = given.keys.position[found] + int(p.get("key_shift", 0))
        own = given.keys.sample[found] == sample
        k = grouped(given.key[found], kv_heads, -1).transpose(0, 1)
        v = grouped(given.value[found], kv_heads, -1).transpose(0, 1)
        if kv_map is not None:
            k, v = k[kv_map], v[kv_map]
        elif kv_heads != heads:
            k, v = k.repeat_interleave(heads // kv_heads, 0), v.repeat_interleave(heads // kv_heads, 0)
        step = max(1, BLOCK // max(1, heads * len(found)))
        for part in blocks(rows, step):
            at = given.rows.position[part][:, None]
            seen = mask(at, where[None, :], p)
            if p.get("leak"):
                seen = torch.where(own[None, :], seen, True)
            q = grouped(given.x[0][part], heads, -1).transpose(0, 1)
            yield Piece(part, found, q, k, v, seen)


def mask(at: torch.Tensor, key: torch.Tensor, p: Parameters) -> torch.Tensor:
    """Which keys a query sees: bool over the broadcast of query and key positions."""
    seen = key <= at if p.get("causal", True) else torch.ones_like(key <= at)
    if p.get("window"):
        seen = seen & (at - key < p["window"])
    if p.get("chunk"):
        seen = seen & (at // p["chunk"] == key // p["chunk"])
    if p.get("delay"):
        seen = seen & ((at - key >= p["delay"]) | (at == key))
    if p.get("unseen_below"):
        seen = seen & ((key >= p["unseen_below"]) | (at == key))
    return seen


def scores(piece: Piece, p: Parameters) -> torch.Tensor:
    """[Hq, n, m], scaled and capped, masked keys still in."""
    return capped(piece.q @ piece.k.transpose(1, 2) * p["scale"], p)


def softmax(s: torch.Tensor, seen: torch.Tensor, p: Parameters) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, maximum [Hq, n, 1]) in `wide`, sinks in the denominator."""
    s = s.to(wide(s.dtype)).masked_fill(~seen, float("-inf"))
    sinks = p.get("sinks")
    if sinks is not None:
        column = sinks.to(s.dtype).reshape(-1, 1, 1).expand(-1, s.shape[1], 1)
        full = torch.cat((s, column), dim=-1)
        return torch.softmax(full, dim=-1)[..., :-1], full.amax(-1, keepdim=True)
    return torch.softmax(s, dim=-1), s.amax(-1, keepdim=True)
