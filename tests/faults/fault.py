"""What one fault or control of the corpus is: how it is made, and which answers about it are right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLASSES = (
    "framework-config",
    "framework-implementation",
    "weights",
    "routing",
    "sampling-processing",
    "data",
    "operator",
)


@dataclass(frozen=True, slots=True)
class Made:
    """One fault as made from one seed.

    Args:
        paths: the run file, or the pair files.
        stock: run file of the same comparison without the fault; None for pair files.
        facts: what was drawn (`layer`, `factor`, ...); fills the component patterns.
    """

    paths: list[Path]
    stock: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the corpus.

    Args:
        name: unique; decides the half (`tests.faults.split`).
        label: the class that it stands for; for controls the class that is true.
        classes: every class that is a right answer, `label` first.
        causes: every cause id that is a right answer; empty where the cause is not asked for.
        sides: right answers of `side`; empty where it is not asked for.
        components: patterns (fnmatch) of right components, with `{layer}` and other facts; empty: not asked for.
        kind: "live" or "pairs".
        build: `build(seed, folder)` writes the files.
        control: a case on which nothing may be blamed that is not in `classes`.
        open: the evidence does not carry a cause, so `undetermined` is right too where it names the class among its
            candidates or the experiment that would split them.
        above: times the stock mean |d| that the fault must reach to count as there; 0: not asked.
        why: the kind of report that it stands for.
    """

    name: str
    label: str
    classes: tuple[str, ...]
    causes: tuple[str, ...]
    sides: tuple[str, ...]
    components: tuple[str, ...]
    kind: str
    build: Callable[[int, Path], Made]
    control: bool = False
    open: bool = False
    above: float = 3.0
    why: str = ""

    def patterns(self, facts: dict[str, Any]) -> list[str]:
        """The component patterns with what was drawn put in."""
        return [pattern.format_map(facts) for pattern in self.components]
