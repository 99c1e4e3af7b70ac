"""The router of a mixture of experts: which experts a token goes to, and with which weights.

Backward, in fp32, with p the scores, w the chosen ones, slots in choice order: d = dweights * scaling; if renormalised,
with S = ((w0 + w1) + ...) + eps: d = (d - (((+0 + d0*(w0/S)) + d1*(w1/S)) + ...)) / S. Softmax, with
m = ((+0 + d0*w0) + ...): dlogits = w*(d - m) where chosen, p*(0 - m) elsewhere (0 where only the chosen logits are
scored); sigmoid: d*(w*(1 - w)) where chosen, 0 elsewhere. The choice itself, and the bias, have no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.cpu import router as cpu
from logdiff_kernels.ops.definition import define
from logdiff_kernels.ops.devices import Kernels
from logdiff_kernels.ops.direct import check_fp32, check_shapes, direct

_kernels = Kernels(cpu)


def router(logits: Tensor, spec: RouterSpec, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights and ids of the chosen experts.

    Args:
        logits: fp32 [T, E], any strides.
        spec: the model's rule.
        bias: fp32 [E], added for the choice only.

    Returns:
        (weights fp32 [T, k], ids int64 [T, k]), in choice order: NaN first, then by value descending, then by index.

    Raises:
        UnsupportedError: another dtype or device.
        InputError: shapes or a number of experts that don't fit the rule.
    """
    rule = (spec.top_k, spec.groups, spec.topk_groups, _flags(spec), spec.renorm_eps, spec.scaling)
    spec.check(logits.shape[-1])
    if direct(logits, bias):
        return _choose(logits, bias, *rule)
    return torch.ops.logdiff.router(logits, bias, *rule)  # type: ignore[no-any-return]


def _flags(spec: RouterSpec) -> int:
    return (
        cpu.SIGMOID * (spec.scoring == "sigmoid")
        | cpu.ON_LOGITS * (spec.choose_on == "logits")
        | cpu.RENORMALIZE * spec.renormalize
        | cpu.TOP2 * (spec.group_score == "top2")
    )


def _check(logits: Tensor, bias: Tensor | None) -> None:
    check_fp32("router", logits, bias)
    fits = logits.dim() == 2 and (bias is None or bias.shape == logits.shape[1:])
    check_shapes("router", fits, "logits [T, E], bias [E]", logits, bias)


def _choose(logits: Tensor, bias: Tensor | None, *rule: Any) -> tuple[Tensor, Tensor]:
    _check(logits, bias)
    return _kernels.of(logits).router(logits, bias, *rule)  # type: ignore[no-any-return]


def _fake_choose(logits: Tensor, bias: Tensor | None, k: int, *rule: Any) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], k)
    return logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int64)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, _bias, _k, _groups, _topk_groups, *ctx.rule = inputs
    ctx.save_for_backward(logits, output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, dweights: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    logits, ids = ctx.saved_tensors
    return torch.ops.logdiff.router_backward(dweights, logits, ids, *ctx.rule), *[None] * 7


define(
    "router(Tensor logits, Tensor? bias, SymInt k, SymInt groups, SymInt topk_groups, SymInt flags, float renorm_eps,"
    " float scaling) -> (Tensor, Tensor)",
    _choose,
    _fake_choose,
    _setup,
    _backward,
)
define(
    "router_backward(Tensor dweights, Tensor logits, Tensor ids, SymInt flags, float renorm_eps, float scaling)"
    " -> Tensor",
    lambda dweights, *rest: _kernels.of(dweights).router_backward(dweights, *rest),
    lambda dweights, logits, ids, flags, renorm_eps, scaling: logits.new_empty(logits.shape),
)
