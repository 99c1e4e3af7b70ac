"""A model's own code run in true fp64, whatever dtype its weights have and wherever it asks for fp32."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Wide(TorchFunctionMode):
    """fp32 means fp64: `.float()`, `.to(torch.float32)`, `dtype=torch.float32`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        if func is torch.Tensor.view:  # of bits, where it names a dtype
            return func(*args, **(kwargs or {}))
        args = tuple(torch.float64 if a is torch.float32 else a for a in args)
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return func(*args, **kwargs)


@contextlib.contextmanager
def widened(model: Any) -> Iterator[None]:
    """Inside, forwards of `model` compute in fp64; each module's weights are widened for its own call alone."""
    handles: list[Any] = []
    for module in model.modules():
        if any(_floats(module)):
            keeper = _Keeper()
            handles.append(module.register_forward_pre_hook(keeper.widen, prepend=True))
            handles.append(module.register_forward_hook(keeper.restore, always_call=True))
    try:
        with torch.no_grad(), _Wide():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _floats(module: torch.nn.Module) -> Iterator[tuple[str, str]]:
    for kind in ("_parameters", "_buffers"):
        for name, value in getattr(module, kind).items():
            if value is not None and value.dtype.is_floating_point and value.dtype != torch.float64:
                yield kind, name


class _Keeper:
    """Holds a module's own tensors while their wide copies stand in."""

    def __init__(self) -> None:
        self._held: list[tuple[str, str, Any]] = []

    def widen(self, module: torch.nn.Module, _args: Any) -> None:
        if self._held:
            return
        for kind, name in list(_floats(module)):
            value = getattr(module, kind)[name]
            self._held.append((kind, name, value))
            wide = value.detach().double()
            getattr(module, kind)[name] = torch.nn.Parameter(wide, False) if kind == "_parameters" else wide

    def restore(self, module: torch.nn.Module, _args: Any, _output: Any) -> None:
        for kind, name, value in self._held:
            getattr(module, kind)[name] = value
        self._held = []
