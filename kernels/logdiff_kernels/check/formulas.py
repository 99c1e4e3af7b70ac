"""Operators that look at one row at a time, as formulas with every choice a parameter.

Each formula computes in the dtype of its inputs: in fp64 it is the reference, in the run's dtype it rounds where a
stock implementation rounds (norms and the like go through fp32). `spread` is the size of the rounding error, per
element, of the coarsest honest implementation: every intermediate rounded to the run's dtype, partial sums of a
reduction too, sums of inputs taken before or after rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.nn import functional

from logdiff_kernels.check.given import SINGLE, Given, Parameters, grouped, wide

Up = TypeVar("Up", torch.Tensor, "torch.Tensor | None")

GATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


def cut(x: torch.Tensor, p: Parameters) -> torch.Tensor:
    """The features that an operator takes of its input: `part` = (groups, start, stop) within each; all without it."""
    part = p.get("part")
    if part is None or x.shape[-1] == part[0] * (part[2] - part[1]):
        return x
    return grouped(x, part[0], -1)[..., part[1] : part[2]].flatten(-2)


def linear(given: Given, p: Parameters) -> torch.Tensor:
    """y = (x W^T + b) * scale. Parameters: `weight` [F, K], `bias` [F] or None, `scale` (1)."""
    x = given.x[0].to(p["weight"].dtype)
    y = functional.linear(x, p["weight"], p.get("bias"))
    return y if p.get("scale", 1.0) == 1.0 else y * p["scale"]


def linear_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """Output and partial sums of a split reduction rounded; fp32 accumulation over K terms.

    A scale and a soft cap round at each of their steps.
    """
    terms = partial_sums(given.x[0], p) * float(p.get("scale", 1.0)) ** 2
    steps = 1 + 3 * bool(p.get("softcap")) + int(p.get("scale", 1.0) != 1.0)
    count = int(p["weight"].shape[-1])
    return (u * u * (steps * ref.square() + terms) + (SINGLE * SINGLE * count) * terms).sqrt()


def partial_sums(x: torch.Tensor, p: Parameters) -> torch.Tensor:
    """Mean square of a partial sum of x W^T whose terms have random signs: [n, F] fp64.

    With the parameter `rough`, as if large inputs and large weights fell together by chance alone: no second product.
    """
    weight = p["weight"]
    if p.get("rough"):
        rough: torch.Tensor = x.square().sum(-1, keepdim=True).double() * weight.square().mean(-1).double()
        return rough
    return functional.linear(x.float().square(), weight.float().square()).double()


def norm(given: Given, p: Parameters) -> torch.Tensor:
    """Root-mean-square or layer norm over groups of `size` features.

    Parameters: `weight` [size or F] or None, `bias`, `eps`, `offset` (added to the weight), `center` (subtract the
    mean), `size`, `missing` (identity), `part` (see `cut`).
    """
    x = cut(given.x[0], p)
    if p.get("missing"):
        return x
    h = grouped(x.to(wide(x.dtype)), -1, p["size"])
    if p.get("center"):
        h = h - h.mean(-1, keepdim=True)
    n = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + p["eps"])
    weight, bias = p.get("weight"), p.get("bias")
    if weight is not None:
        weight = weight.reshape(-1, p["size"])
        n = n * (weight.to(n.dtype) + p["offset"])
    out = n.flatten(-2).to(x.dtype)
    return out if bias is None else out + bias


def norm_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """Two roundings of the output, and the input's own, which an implementation that adds a residual may skip."""
    x = grouped(cut(given.x[0], p).double(), -1, p["size"])
    size = x.square().mean(-1, keepdim=True)
    centered = x - x.mean(-1, keepdim=True) if p.get("center") else x
    scale = torch.rsqrt(centered.square().mean(-1, keepdim=True) + p["eps"])
    weight = p.get("weight")
    gain = 1.0 if weight is None else weight.double().reshape(-1, p["size"]) + p["offset"]
    moved = ((x.square() + (size if p.get("center") else 0.0)).sqrt() * scale * gain).flatten(-2)
    bias = p.get("bias")
    own = 2 * ref.square() + (0.0 if bias is None else (ref - bias.double()).square())
    return (u * u * (own + moved.square()) + (4 * SINGLE) ** 2 * (own + moved.square())).sqrt()


def activation(given: Given, p: Parameters) -> torch.Tensor:
    """act(gate) * up, or act(gate) without an `up`.

    Parameters: `kind` (of `GATES`, or `swiglu_oai`: (up + 1) * gate * sigmoid(alpha * gate) with both clamped),
    `limit`, `alpha`, `up_offset`, `swapped` (gate and up exchanged).
    """
    return gated(*arms(given.x[0], given.x[1] if len(given.x) > 1 else None, p), p)


def arms(gate: torch.Tensor, up: Up, p: Parameters) -> tuple[torch.Tensor, Up]:
    """Gate and up as the activation takes them: exchanged and clamped as the parameters say."""
    if p.get("swapped") and up is not None:
        gate, up = up, gate
    limit = p.get("limit")
    if limit:
        gate = gate.clamp(max=limit)
        up = up.clamp(-limit, limit) if up is not None else up
    return gate, up


def gated(gate: torch.Tensor, up: torch.Tensor | None, p: Parameters) -> torch.Tensor:
    """The activation of what `arms` gave."""
    out = gate * torch.sigmoid(gate * p["alpha"]) if p["kind"] == "swiglu_oai" else GATES[p["kind"]](gate)
    if up is None:
        return out
    offset = p.get("up_offset", 0.0)
    return out * (up + offset if offset else up)


def activation_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """Activation, product and the argument of the exponential rounded."""
    gate = given.x[0].double()
    up = given.x[1].double() if len(given.x) > 1 else torch.ones_like(gate)
    share = torch.sigmoid(-gate.abs())  # how far an error of the argument still moves a saturated gate
    argument = (gate * share).square()
    tail = (4 * SINGLE) ** 2 * (gate * up).square()
    return (u * u * ref.square() * (3 + argument) + tail).sqrt()


def add(given: Given, p: Parameters) -> torch.Tensor:
    """Sum of the inputs, each times its scale. Parameters: `scales`, a list (1 each); `rest` (1), on the whole sum."""
    scales = p.get("scales") or [1.0] * len(given.x)
    total: torch.Tensor | None = None
    for x, scale in zip(given.x, scales, strict=True):
        term = x if scale == 1.0 else x * scale
        total = term if total is None else total + term
    assert total is not None
    return total if p.get("rest", 1.0) == 1.0 else total * p["rest"]


def add_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """Terms and sums rounded; a fused kernel has its terms before rounding."""
    scales = p.get("scales") or [1.0] * len(given.x)
    terms = torch.zeros_like(ref)
    for x, scale in zip(given.x, scales, strict=True):
        terms = terms + (x.double() * scale).square()
    return u * (ref.square() + terms * float(p.get("rest", 1.0)) ** 2).sqrt()


def embedding(given: Given, p: Parameters) -> torch.Tensor:
    """Rows of a table. Parameters: `weight` [V, F], `scale` (1)."""
    found: torch.Tensor = p["weight"][given.rows.token]
    return found if p.get("scale", 1.0) == 1.0 else found * p["scale"]


def embedding_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """A copy has no error; a scale is rounded, and so is the product."""
    return ref.abs() * (0.0 if p.get("scale", 1.0) == 1.0 else 1.5 * u) + 1e-3 * u * ref.abs().mean()


def lm_head(given: Given, p: Parameters) -> torch.Tensor:
    """Logits. Parameters: `weight` [V, K], `bias`, `scale` (1, a factor), `softcap` (0: none)."""
    return capped(linear(given, p), p)


def capped(y: torch.Tensor, p: Parameters) -> torch.Tensor:
    """Under the soft cap `softcap` (0 or absent: none)."""
    cap = p.get("softcap") or 0.0
    return torch.tanh(y / cap) * cap if cap else y


def rope(given: Given, p: Parameters) -> torch.Tensor:
    """Rotation of heads by their positions.

    Parameters: `inv_freq` [R/2] fp32, `factor` (on cosine and sine), `head` (features of a head), `start` (first
    rotated feature of a head, 0), `interleaved` (pairs 2i, 2i+1 instead of i, i + R/2), `deinterleaved` (pairs are
    neighbours in the input and halves apart in the output), `missing`, `part` (see `cut`), `angle` [n, R/2] or None,
    `table` (dtype that cosine and sine are kept in, where it is a narrower one).
    """
    x = cut(given.x[0], p)
    if p.get("missing"):
        return x
    inv_freq = p["inv_freq"]
    half, start = len(inv_freq), p.get("start", 0)
    h = grouped(x, -1, p["head"])
    before, turned, after = h[..., :start], h[..., start : start + 2 * half], h[..., start + 2 * half :]
    cos, sin = (t[:, None, :] for t in tables(given.rows.position_id, p, x.dtype))
    if p.get("interleaved") or p.get("deinterleaved"):
        a, b = turned[..., 0::2], turned[..., 1::2]
    else:
        a, b = turned[..., :half], turned[..., half:]
    first, second = a * cos - b * sin, b * cos + a * sin
    if p.get("interleaved"):
        done = torch.stack((first, second), dim=-1).flatten(-2)
    else:
        done = torch.cat((first, second), dim=-1)
    return torch.cat((before, done, after), dim=-1).flatten(-2)


def tables(positions: torch.Tensor, p: Parameters, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [n, R/2] of positions; angles in fp32 unless the call is in fp64."""
    angle = p.get("angle")
    if angle is None:
        angle = positions.to(wide(dtype))[:, None] * p["inv_freq"].to(wide(dtype))
    factor, table = p.get("factor", 1.0), p.get("table") or dtype
    return (angle.cos() * factor).to(table).to(dtype), (angle.sin() * factor).to(table).to(dtype)


def rope_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """Cosine, sine, products and sum rounded; the angle in fp32 (its error grows with the position)."""
    head, start, half = p["head"], p.get("start", 0), len(p["inv_freq"])
    h = grouped(ref, -1, head)
    size = torch.zeros_like(h)
    turned = h[..., start : start + 2 * half]
    if p.get("interleaved"):
        pair = grouped(turned, -1, 2).square().sum(-1, keepdim=True).expand(-1, -1, -1, 2).flatten(-2)
        step = p["inv_freq"].double().repeat_interleave(2)
    else:
        pair = grouped(turned, 2, -1).square().sum(-2, keepdim=True).expand(-1, -1, 2, -1).flatten(-2)
        step = p["inv_freq"].double().repeat(2)
    angle = given.rows.position_id.double().abs()[:, None] * step
    error = 2 * u * u + (4 * SINGLE * (angle + 1)).square()
    size[..., start : start + 2 * half] = pair * error[:, None, :]
    return (size + (1e-3 * u * h).square() + (1e-4 * u) ** 2 * h.square().mean()).sqrt().flatten(-2)
