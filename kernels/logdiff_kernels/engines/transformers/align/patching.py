"""Replaces forwards and attributes of living objects, and puts back exactly what was there."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch

from logdiff_kernels.errors import UnsupportedError

_ABSENT = object()


class Patches:
    """A stack of replacements. `restore` undoes them, last first; after it every object is what it was (`is`)."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []
        self.names: list[str] = []

    def forward(self, name: str, module: torch.nn.Module, function: Callable[..., Any], op: str) -> None:
        """Let `module` run `function(module, ...)` as its forward; hooks around it stay in force.

        Raises:
            UnsupportedError: something else has replaced the forward of this instance already.
        """
        if "forward" in module.__dict__:
            raise UnsupportedError(
                f"the forward of {name} ({type(module).__name__}) is replaced already",
                value=name,
                hint="align before other wrappers, or load without device_map and hooks",
            )
        self.attribute(module, "forward", MethodType(function, module))
        self.names.append(f"{name}.forward -> {op}")

    def attribute(self, owner: Any, key: str, value: Any) -> None:
        """Set an entry of the instance dictionary of `owner`."""
        before = owner.__dict__.get(key, _ABSENT)
        owner.__dict__[key] = value

        def undo() -> None:
            if before is _ABSENT:
                owner.__dict__.pop(key, None)
            else:
                owner.__dict__[key] = before

        self._undo.append(undo)

    def undo_with(self, function: Callable[[], None]) -> None:
        """Call `function` at its turn of `restore`."""
        self._undo.append(function)

    def restore(self) -> None:
        """Undo everything; may be called twice."""
        while self._undo:
            self._undo.pop()()
        self.names.clear()
