"""Kinds of operators that have a formula, and the rounding that each may show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from logdiff_kernels.check import attention, experts, formulas, logprob
from logdiff_kernels.check.given import Given, Parameters, roundoff

Formula = Callable[[Given, Parameters], torch.Tensor]
Spread = Callable[[Given, Parameters, torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Kind:
    """A formula and the size of its rounding error, per element, at a unit roundoff."""

    formula: Formula
    spread: Spread


KINDS: dict[str, Kind] = {
    "linear": Kind(formulas.linear, formulas.linear_spread),
    "norm": Kind(formulas.norm, formulas.norm_spread),
    "rope": Kind(formulas.rope, formulas.rope_spread),
    "activation": Kind(formulas.activation, formulas.activation_spread),
    "add": Kind(formulas.add, formulas.add_spread),
    "embedding": Kind(formulas.embedding, formulas.embedding_spread),
    "lm_head": Kind(formulas.lm_head, formulas.linear_spread),
    "attention": Kind(attention.attention, attention.attention_spread),
    "router": Kind(experts.expert_weights, experts.expert_weights_spread),
    "experts": Kind(experts.experts, experts.experts_spread),
    "logprob": Kind(logprob.logprob, logprob.logprob_spread),
}


FLOOR = 0.02
"""Part of a row's size that counts for its smallest elements: what is zero by cancellation was rounded too."""

_ROWS = ("linear", "norm", "rope", "activation", "add", "attention", "experts", "lm_head")


def tolerance(kind: str, given: Given, p: Parameters, ref: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounding error per element that an honest implementation in `dtype` may show (about one to two sigma).

    Args:
        kind: of `KINDS`.
        given: inputs in fp64.
        p: parameters in fp64.
        ref: fp64 [n, F].
        dtype: the run's.
    """
    info = torch.finfo(dtype)
    smallest = float(info.smallest_normal) * float(info.eps)
    u = roundoff(dtype)
    spread = KINDS[kind].spread(given, p, ref, u)
    floor = (FLOOR * u) ** 2 * ref.square().mean(-1, keepdim=True) if kind in _ROWS else 0.0
    return (spread.square() + smallest * smallest + floor).sqrt()
