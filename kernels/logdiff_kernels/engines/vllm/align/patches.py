"""Replaced attributes of vLLM's classes, modules and objects, with what stood there before."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Patches:
    """Replacements; `restore` puts every one back exactly, inherited attributes included."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace `owner.name`, an attribute of a class, a module or one object."""
        self._saved.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        """Put `function` in the place of the function `owner.name`, whose name and signature it takes on."""
        self.set(owner, name, functools.wraps(getattr(owner, name))(function))

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """`replace` by `make(function)`, for a replacement that calls the one that stood there."""
        self.replace(owner, name, make(getattr(owner, name)))

    def restore(self) -> None:
        """Put everything back, the last replacement first. May be called twice."""
        while self._saved:
            owner, name, previous = self._saved.pop()
            if previous is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, previous)

    def targets(self) -> list[str]:
        """`module.Class.attribute` of everything that is replaced."""
        found = []
        for owner, name, _ in self._saved:
            whole = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
            found.append(f"{whole}.{name}")
        return sorted(set(found))
