"""What stands in for the device layer's names: they can be passed about and annotated with, and refuse to be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

calls: list[str] = []
"""Names that were called, such as `torch_npu.npu_rms_norm`, in order."""


class StandInError(RuntimeError):
    """An operator of the device was called: the stand-in has none and invents no result."""


class StandIn:
    """A name of the device layer."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        refuse(self.__name__)

    def __getattr__(self, name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")

    def __or__(self, other: Any) -> StandIn:
        return self  # an annotation such as `torch.npu.NPUGraph | None`

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<stand-in {self.__name__}>"


def refuse(name: str) -> Any:
    """Record a call and refuse it."""
    calls.append(name)
    raise StandInError(f"{name}: this is a stand-in for an NPU; it computes nothing")


def operator(name: str) -> Callable[..., Any]:
    """A function that records its call and refuses it."""

    def stand_in(*arguments: Any, **keywords: Any) -> Any:
        refuse(name)

    stand_in.__qualname__ = f"stand_in[{name}]"
    return stand_in


def names_of(module: str) -> Callable[[str], StandIn]:
    """A module's `__getattr__` that has every public name."""

    def find(name: str) -> StandIn:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return StandIn(f"{module}.{name}")

    return find
