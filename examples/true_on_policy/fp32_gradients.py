"""Gradients of linear layers by fp32 products, for CPUs on which torch's own bf16 ones are very slow.

Without bf16 instructions torch multiplies `grad @ weight` in bf16 some fifty times slower than in fp32. The forward
stays torch's, so no log-probability changes; the gradients are rounded to the layer's dtype as torch's are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        grad = grads[0].float()
        dx = (grad @ weight.float()).to(x.dtype) if ctx.needs_input_grad[0] else None
        rows = grad.flatten(0, -2)
        dw = (rows.T @ x.flatten(0, -2).float()).to(weight.dtype) if ctx.needs_input_grad[1] else None
        db = rows.sum(0).to(weight.dtype) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return dx, dw, db


def apply(model: torch.nn.Module) -> None:
    """Give every `nn.Linear` of a 16-bit `model` fp32 products in its backward."""
    for module in model.modules():
        if type(module) is torch.nn.Linear and module.weight.dtype != torch.float32:
            module.forward = partial(_forward, module)  # type: ignore[method-assign]


def _forward(module: Any, x: torch.Tensor) -> torch.Tensor:
    function: Any = _Linear
    result: torch.Tensor = function.apply(x, module.weight, module.bias)
    return result
