"""Runs the code of a module on small made-up parts, to find out what it computes whatever it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def own_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class of a module, seen through the class that FSDP2 puts in front of it."""
    order = type(module).__mro__
    return order[2] if len(order) > 2 and order[1].__name__ == "FSDPModule" else order[0]


def stand_in(
    module: torch.nn.Module,
    *,
    generator: torch.Generator,
    children: Mapping[str, torch.nn.Module | None] | None = None,
) -> Any:
    """A copy of `module` with random fp32 parameters and float buffers of the same (global) shapes.

    Args:
        module: left alone; may be sharded or on the meta device.
        generator: of the random values, which have unit variance.
        children: replacements by name; the other children are shared.

    Only `stand_in(...).forward(...)` is to be called: it has no hooks of its own.
    """
    kind_of = own_class(module)
    copied: Any = kind_of.__new__(kind_of)
    state: dict[str, Any] = {key: value for key, value in module.__dict__.items() if key != "forward"}
    copied.__dict__.update(state)
    state = copied.__dict__
    for kind in ("_parameters", "_buffers"):
        state[kind] = {name: _random(value, generator) for name, value in getattr(module, kind).items()}
    state["_modules"] = {**module._modules, **(children or {})}
    state["training"] = False
    return copied


def _random(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return value
    return torch.randn(tuple(value.shape), generator=generator)


class Stub(torch.nn.Module):
    """Returns what it was given at construction, and keeps the arguments of its last call."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.__dict__["output"] = output
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Give the output."""
        self.args, self.kwargs = args, kwargs
        return self.__dict__["output"]


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result, or None where the code can't be run on what it was given."""
    try:
        with torch.no_grad():
            return function(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError, NotImplementedError):
        return None


def close(found: Any, expected: torch.Tensor, tolerance: float = 2e-5) -> bool:
    """Whether a tensor is `expected` up to fp32 rounding; False for anything that is not such a tensor."""
    if not isinstance(found, torch.Tensor) or found.shape != expected.shape:
        return False
    return bool(torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance))
