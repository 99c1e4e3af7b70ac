"""The gated activations of the contract, told apart by numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from logdiff_kernels import ops
from logdiff_kernels.engines.transformers.align.stand_in import close


@dataclass(frozen=True)
class Activation:
    """`swiglu`, `geglu_tanh`, or `swiglu_clamped` with alpha and limit. Called with gate and up of one shape."""

    name: str
    alpha: float = 1.0
    limit: float = 0.0

    def __call__(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """The operator's result for gate and up [..., I]."""
        if self.name == "swiglu":
            return ops.swiglu(gate, up)
        if self.name == "geglu_tanh":
            return ops.geglu_tanh(gate, up)
        return ops.swiglu_clamped(gate, up, self.alpha, self.limit)

    @property
    def argument(self) -> Any:
        """As `ops.moe` takes it."""
        return (self.name, self.alpha, self.limit) if self.name == "swiglu_clamped" else self.name


def gate_of(found: Any, gate: torch.Tensor, up: torch.Tensor, numbers: tuple[float, ...] = ()) -> Activation | None:
    """Which activation gives `found` from `gate` and `up`; `numbers` are candidates for alpha and limit."""
    g, u = gate.double(), up.double()
    if close(found, g * torch.sigmoid(g) * u):
        return Activation("swiglu")
    if close(found, torch.nn.functional.gelu(g, approximate="tanh") * u):
        return Activation("geglu_tanh")
    for limit in numbers:
        for alpha in numbers:
            low = g.clamp(max=limit)
            if limit > 0 and close(found, (u.clamp(-limit, limit) + 1) * low * torch.sigmoid(alpha * low)):
                return Activation("swiglu_clamped", alpha, limit)
    return None


def activation_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Direct children that are activations."""
    return [child for child in module.children() if is_activation(child)]


def is_activation(module: torch.nn.Module) -> bool:
    """Whether a module is one of torch's or transformers' activation functions."""
    where = type(module).__module__
    return where == "transformers.activations" or where == "torch.nn.modules.activation"
