"""Conditions over effective settings, in three values: holds, does not hold, can't be told (and why)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from logdiff.audit.effective import Resolved, Table
from logdiff.audit.rule import Condition
from logdiff.audit.settings import SIDES, Unknown
from logdiff.audit.values import same


@dataclass(frozen=True, slots=True)
class Answer:
    """`truth` is None where it can't be told; `seen` are the settings that it rests on, `why` what was missing."""

    truth: bool | None
    seen: tuple[Resolved, ...] = ()
    why: tuple[str, ...] = ()


@dataclass(slots=True)
class Judge:
    """Evaluates conditions over one table. With `assume`, what can't be told counts as holding."""

    table: Table
    terms: dict[str, Condition]
    assume: bool = False
    _terms_done: dict[str, Answer] = field(default_factory=dict)

    def answer(self, condition: Condition) -> Answer:
        """Whether a condition holds."""
        if condition.all is not None:
            return self._all(condition.all)
        if condition.any is not None:
            return self._any(condition.any)
        if condition.none is not None:
            inner = self._any(condition.none)
            return Answer(
                None if inner.truth is None else not inner.truth, inner.seen if inner.truth is None else (), inner.why
            )
        if condition.term is not None:
            if condition.term not in self._terms_done:
                self._terms_done[condition.term] = self.answer(self.terms[condition.term])
            found = self._terms_done[condition.term]
            return Answer(found.truth, (), found.why)
        if condition.framework is not None:
            return Answer(condition.framework in self.table.frameworks)
        if condition.package is not None:
            return self._package(condition)
        if condition.differs_across_sides is not None:
            left, right = (self.table.get(side, condition.differs_across_sides) for side in SIDES)
            return self._differ(left, right)
        if condition.one_side_only is not None:
            return self._one_side(condition.one_side_only)
        return self._key(condition)

    def _all(self, parts: Iterable[Condition]) -> Answer:
        answers = [self.answer(part) for part in parts]
        seen = tuple(s for a in answers for s in a.seen)
        if any(a.truth is False for a in answers):
            return Answer(False)
        why = tuple(dict.fromkeys(w for a in answers if a.truth is None for w in a.why))
        return Answer(None if any(a.truth is None for a in answers) else True, seen, why)

    def _any(self, parts: Iterable[Condition]) -> Answer:
        answers = [self.answer(part) for part in parts]
        for found in answers:
            if found.truth is True:
                return found
        open_ = [a for a in answers if a.truth is None]
        if open_:
            return Answer(None, open_[0].seen, tuple(dict.fromkeys(w for a in open_ for w in a.why)))
        return Answer(False)

    def _package(self, condition: Condition) -> Answer:
        name = condition.package or ""
        found = [r for side in SIDES if (r := self.table.get(side, f"package.{name.lower().replace('_', '-')}"))]
        if condition.version is not None:
            truth = self.table.in_range(name, condition.version)
            why = () if truth is not None else (f"the version of {name} is not known",)
            return Answer(truth, (), why)
        if found:
            return Answer(condition.absent is False, tuple(found[:1]))
        if any(self.table.lists_packages(side) for side in SIDES):
            return Answer(condition.absent is True)
        return Answer(False)

    def _sided(self, key: str) -> list[Resolved]:
        side, _, name = key.partition(".")
        found = [self.table.get(s, name) for s in (SIDES if side == "any" else (side,))]
        return [r for r in found if r is not None]

    def _key(self, condition: Condition) -> Answer:
        key = condition.key or ""
        side = key.partition(".")[0]
        found = self._sided(key)
        if condition.test == "absent":
            sides = SIDES if side == "any" else (side,)
            if found:
                return Answer(condition.absent is False, tuple(found))
            if not any(self.table.complete(s) for s in sides):
                return Answer(False)
            return Answer(condition.absent is True)
        if condition.test == "set":
            given = [r for r in found if not r.is_default]
            return Answer(bool(given) is condition.set, tuple(given))
        if condition.test == "differs_from":
            other = self._sided(condition.differs_from or "")
            return self._differ(found[0] if found else None, other[0] if other else None)
        if condition.test == "matches":
            partly = [r for r in found if isinstance(r.value, Unknown) and r.value.partly]
            for r in partly:
                if re.search(condition.matches or "", r.value.partly):
                    return Answer(True, (r,))
        answers = [_tested(r, lambda v: _holds(condition, v)) for r in found]
        for one in answers:
            if one.truth is True:
                return one
        return next((one for one in answers if one.truth is None), Answer(False))

    def _differ(self, left: Resolved | None, right: Resolved | None) -> Answer:
        if left is None or right is None:
            return Answer(False)
        if left.value is None or right.value is None:
            off, other = (left, right) if left.value is None else (right, left)
            erased = off.key.startswith("model.") and off.settings[-1].origin == "override"
            return Answer(erased and other.value is not None and not isinstance(other.value, Unknown), (left, right))
        answers = [
            _tested(left, lambda one: _tested(right, lambda other: not same(one, other)).truth)
        ]  # fmt: skip
        truth = answers[0].truth
        why = answers[0].why or ("a value is not known",) if truth is None else ()
        return Answer(truth, (left, right), why)

    def _one_side(self, key: str) -> Answer:
        left, right = (self.table.get(side, key) for side in SIDES)
        if (left is None) == (right is None):
            return Answer(False)
        missing = "train" if right is None else "rollout"
        if not self.table.complete(missing):
            return Answer(False)
        found = left or right
        assert found is not None
        return Answer(True, (found,))


def _tested(found: Resolved, holds: Callable[[Any], bool | None]) -> Answer:
    """A test on a value, or on each value that it may have."""
    values = [v for _, v in found.choices] if found.choices else [found.value]
    truths: set[bool | None] = set()
    why: list[str] = []
    for value in values:
        if isinstance(value, Unknown):
            truths.add(None)
            why.append(f"{found.raw_key}: {value.why}")
        else:
            truths.add(holds(value))
    if len(truths) == 1 and None not in truths:
        return Answer(truths.pop(), (found,))
    if found.choices and True in truths:
        where = next((c for c, v in found.choices if not isinstance(v, Unknown) and holds(v)), "")
        why.append(f"{found.raw_key} has this value only if {where or 'no branch changes it'}")
    elif True not in truths and None not in truths:
        return Answer(False)
    return Answer(None, (found,), tuple(why or [f"{found.raw_key} is not known"]))


def _holds(condition: Condition, value: Any) -> bool:
    test = condition.test
    if value in ([], {}) and test in ("not", "not_in", "matches"):
        return False
    if test == "equals":
        return same(value, condition.equals)
    if test == "not":
        return value is not None and not same(value, condition.not_)
    if test == "in":
        return any(same(value, v) for v in condition.in_ or ())
    if test == "not_in":
        return value is not None and not any(same(value, v) for v in condition.not_in or ())
    if test == "matches":
        return re.search(condition.matches or "", str(value)) is not None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return number > condition.greater if condition.greater is not None else number < float(condition.less or 0)
