"""A part of the self-test: checks, the facts that they collect for comparing hosts, and what a reader should know."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from logdiff_kernels.laws import Check


class Scope(str, enum.Enum):
    """How much is tried: QUICK in about half the time of DEFAULT, FULL in many times as long."""

    QUICK = "quick"
    DEFAULT = "default"
    FULL = "full"


@dataclass(slots=True)
class Section:
    """One part of the report.

    Attributes:
        name: of the part.
        tells: what a reader learns from it.
        matters: what it means when its facts differ between two hosts.
        checks: in order; each fills `facts` and `notes` when it runs.
        facts: by the names of the checks: plain JSON, equal on hosts whose results are equal.
        notes: sentences on what is not as IEEE or the CPU library has it, but breaks no law.
    """

    name: str
    tells: str
    matters: str
    checks: list[Check] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def check(self, kernel: str, law: str, run: Callable[[], str]) -> None:
        """Add a check."""
        self.checks.append(Check(kernel, law, run))

    def record(self, kernel: str, **facts: Any) -> None:
        """Add facts to those of `kernel`."""
        self.facts.setdefault(kernel, {}).update(facts)

    def note(self, sentence: str) -> None:
        """Add a sentence, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the facts: two hosts with the same one have nothing to compare."""
        text = json.dumps(self.facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
