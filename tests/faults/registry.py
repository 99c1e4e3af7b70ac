"""Collects the faults of one module of the corpus, live or as pair files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from tests.faults.draw import Draw
from tests.faults.fault import Fault, Made

T = TypeVar("T")


class Registry(Generic[T]):
    """Each registered function makes, from a draw, what is then written as the files of its fault.

    Args:
        kind: of its faults.
        write: `write(made, draw, folder, ...)` writes what a function made; further arguments are those of `build`.
    """

    def __init__(self, kind: str, write: Callable[..., Made]) -> None:
        self.faults: list[Fault] = []
        self._kind, self._write = kind, write

    def __call__(
        self,
        name: str,
        label: str,
        causes: tuple[str, ...],
        sides: tuple[str, ...] = (),
        components: tuple[str, ...] = (),
        *,
        also: tuple[str, ...] = (),
        **more: Any,
    ) -> Callable[[Callable[[Draw], T]], Callable[[Draw], T]]:
        """Register a function as a fault; `also` are further right classes."""

        def register(make: Callable[[Draw], T]) -> Callable[[Draw], T]:
            def build(seed: int, folder: Path, **options: Any) -> Made:
                draw = Draw(seed, name)
                return self._write(make(draw), draw, folder, **options)

            classes = (label, *also)
            self.faults.append(Fault(name, label, classes, causes, sides, components, self._kind, build, **more))
            return make

        return register
