"""The router in fp64, by torch's own functions."""

from __future__ import annotations

import torch
from torch import Tensor

from logdiff_kernels.contract.router import RouterSpec


def router(
    logits: Tensor, spec: RouterSpec, bias: Tensor | None = None, ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`ops.router` in fp64; differentiable. `ids`: weigh these experts instead of choosing.

    Ties are broken by index; rows with NaN aren't covered.
    """
    logits = logits.double()
    scores = logits if spec.choose_on == "logits" else _score(logits, spec)
    if ids is None:
        choice = scores.detach() if bias is None else scores.detach() + bias.double()
        if spec.groups > 1:
            grouped = choice.reshape(choice.shape[0], spec.groups, -1)
            best = grouped.topk(2, dim=-1).values.sum(-1) if spec.group_score == "top2" else grouped.amax(-1)
            kept = best.argsort(dim=-1, descending=True, stable=True)[:, : spec.topk_groups]
            mask = torch.zeros_like(best, dtype=torch.bool).scatter(1, kept, True)
            choice = grouped.masked_fill(~mask[..., None], -torch.inf).flatten(1)
        ids = choice.argsort(dim=-1, descending=True, stable=True)[:, : spec.top_k]
    weights = scores.gather(1, ids)
    if spec.choose_on == "logits":
        weights = _score(weights, spec)
    if spec.renormalize:
        weights = weights / (weights.sum(-1, keepdim=True) + spec.renorm_eps)
    return weights * spec.scaling, ids


def _score(x: Tensor, spec: RouterSpec) -> Tensor:
    return torch.softmax(x, dim=-1) if spec.scoring == "softmax" else torch.sigmoid(x)
