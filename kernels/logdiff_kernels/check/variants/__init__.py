"""Hypotheses about what an operator does instead of its formula, by kind of operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from logdiff_kernels.check.variants import attention, linear, logprob, moe, positions, rowwise
from logdiff_kernels.check.variants.base import Scene, Variant
from logdiff_kernels.check.variants.generic import generic

NAMED: dict[str, Callable[[Scene], Iterator[Variant]]] = {
    "norm": rowwise.norm,
    "activation": rowwise.activation,
    "add": rowwise.add,
    "embedding": rowwise.embedding,
    "linear": linear.linear,
    "lm_head": linear.lm_head,
    "rope": positions.rope,
    "attention": attention.attention,
    "router": moe.router,
    "experts": moe.experts,
    "logprob": logprob.logprob,
}

__all__ = ["NAMED", "Scene", "Variant", "generic"]
