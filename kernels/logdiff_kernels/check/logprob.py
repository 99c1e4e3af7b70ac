"""Log-probability of the token that follows a row, from the row's logits.

Parameters: `temperature` (1), `lag` (0: the next token; -1: the row's own; 1: the one after), `top_k` (-1), `top_p`
(1), `wide_scale` (False: logits are divided by the temperature in their own dtype, as trainers do), `argmax` (score
the most likely token), `unnormalised`, `rounded` (dtype name of the result), `targets` int64 [n] (other tokens).
"""

from __future__ import annotations

import torch

from logdiff_kernels.check.given import SINGLE, Given, Parameters, wide

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def logprob(given: Given, p: Parameters) -> torch.Tensor:
    """[n, 1] in nats; rows without a target are 0."""
    logits = given.x[0]
    z = logits.to(wide(logits.dtype)) if p.get("wide_scale") or logits.dtype == torch.float64 else logits
    z = (z / p["temperature"] if p.get("temperature", 1.0) != 1.0 else z).to(wide(logits.dtype))
    z = truncated(z, p.get("top_k", -1), p.get("top_p", 1.0))
    targets = z.argmax(-1) if p.get("argmax") else p.get("targets", given.rows.target)
    picked = z.gather(-1, targets.clamp(min=0)[:, None])
    out = picked if p.get("unnormalised") else picked - torch.logsumexp(z, -1, keepdim=True)
    out = torch.where(targets[:, None] >= 0, out, 0.0)
    return out.to(_DTYPES[p["rounded"]]).to(out.dtype) if p.get("rounded") else out


def logprob_spread(given: Given, p: Parameters, ref: torch.Tensor, u: float) -> torch.Tensor:
    """fp32 sums over the vocabulary; with a temperature, logits divided in their own dtype (`u`)."""
    temperature = float(p.get("temperature", 1.0))
    z = given.x[0].double() / temperature
    top = z.amax(-1, keepdim=True)
    size = (top.abs() + ref.abs() + 8) * SINGLE * 8
    if temperature == 1.0:
        return size
    picked = z.gather(-1, given.rows.target.clamp(min=0)[:, None])
    weights = torch.softmax(z, -1)
    moved: torch.Tensor = picked.square() + (weights * z).square().sum(-1, keepdim=True)
    return (size.square() + u * u * moved).sqrt()


def truncated(z: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Logits with what top-k and top-p cut set to -inf."""
    if 0 < top_k < z.shape[-1]:
        z = z.masked_fill(z < z.topk(top_k, dim=-1).values[:, -1:], float("-inf"))
    if top_p < 1.0:
        values, order = z.sort(-1, descending=True)
        weights = torch.softmax(values, -1)
        cut = weights.cumsum(-1) - weights >= top_p
        z = z.masked_fill(torch.zeros_like(cut).scatter(-1, order, cut), float("-inf"))
    return z
