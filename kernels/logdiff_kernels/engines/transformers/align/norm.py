"""`rms_norm` and `add_rms_norm`: norms, told by what they compute.

The residual addition itself stays the model's own: one addition of two values in the residual's dtype is what the
contract asks for. A norm counts as `add_rms_norm` where its input is such a sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.engines.transformers.align.guard import plain_weight
from logdiff_kernels.engines.transformers.align.residual import follows_residual
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse
from logdiff_kernels.engines.transformers.align.stand_in import attempt, close, stand_in


@dataclass(frozen=True)
class Norm:
    """y = x / sqrt(mean(x^2) + eps) * (offset + weight); no weight: 1."""

    eps: float
    offset: float
    weighted: bool


def find(scene: Scene) -> None:
    """Plan the replacement of the norms that are asked for.

    Raises:
        UnsupportedError: a norm that is no RMS norm (LayerNorm, gated norms).
    """
    wanted = {"rms_norm", "add_rms_norm"} & scene.spec.ops
    if not wanted:
        return
    found: dict[str, tuple[torch.nn.Module, Norm]] = {}
    for name, module in scene.modules():
        if _looks_like_norm(module):
            norm = recognise(module, scene)
            if norm is None:
                raise refuse(name, module, "it isn't an RMS norm of its whole last dimension")
            found[name] = (module, norm)
    added = follows_residual(scene) if len(wanted) == 1 else set()
    for name, (module, norm) in found.items():
        op = "add_rms_norm" if name in added else "rms_norm"
        if op in wanted:
            scene.replace(module, _forward(norm), op)
        else:
            scene.cover(module)
    scene.facts["rms_norm"] = {
        "count": len(found),
        "eps": sorted({norm.eps for _, norm in found.values()}),
        "offset": sorted({norm.offset for _, norm in found.values()}),
    }


def _looks_like_norm(module: torch.nn.Module) -> bool:
    if any(True for _ in module.children()) or isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
        return False
    named = "norm" in type(module).__name__.lower()
    parameters = list(module.parameters(recurse=False))
    return named and all(p.ndim <= 1 for p in parameters)


def recognise(module: torch.nn.Module, scene: Scene) -> Norm | None:
    """What RMS norm a module computes, found by running its code on random values; None if it is none."""
    generator = scene.generator()
    shadow = stand_in(module, generator=generator)
    parameters = [p for p in shadow._parameters.values() if p is not None]
    if len(parameters) > 1:
        return None
    weight = parameters[0].double() if parameters else None
    x = torch.randn(3, 64 if weight is None else weight.numel(), generator=generator)
    x = torch.cat([x, 1e-3 * x, x + 3.0])
    y = attempt(shadow.forward, x)
    if y is None:
        return None
    values = {v for v in module.__dict__.values() if isinstance(v, float) and v >= 0}
    if isinstance(module, torch.nn.RMSNorm) and module.eps is None:
        values = {torch.finfo(torch.float32).eps}
        if any(p.dtype != torch.float32 for p in scene.model.parameters()):
            return None  # its eps follows the dtype of the call
    for eps in sorted(values | {0.0}):
        wide = x.double()
        normed = wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps)
        for offset in (0.0, 1.0) if weight is not None else (1.0,):
            expected = normed * (offset + (weight if weight is not None else 0.0))
            if close(y, expected):
                return Norm(eps, offset if weight is not None else 0.0, weight is not None)
    return None


def _forward(norm: Norm) -> Any:
    eps, offset = norm.eps, norm.offset
    if not norm.weighted:

        def bare(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
            return ops.rms_norm(hidden_states, None, eps)

        return bare

    def forward(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        return ops.rms_norm(hidden_states, plain_weight(self, "weight"), eps, offset)

    return forward
