"""The budget on live engines: the same tokens on both sides with operators switched on and off, within limits.

Each pass is a task of the case's journal that names its own alignment, so a budget that was stopped goes on where it
was, on engines that start stock. Engines that can't be switched in place (compiled ones) are started once for each set
of operators, as far as starts are allowed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from logdiff.errors import CancelledError, EngineError, LogdiffError
from logdiff.live.layout import generated
from logdiff.live.session import Session
from logdiff.localize.budget import Pass, Share, Subset, smallest, split, within
from logdiff.localize.budget_pass import FOLDER, LimitError, Passes, RefusedError
from logdiff.localize.budget_plan import WHY, next_design
from logdiff.target.alignment import OPERATORS, SIDES, VARIABLE
from logdiff.verdict.records import BudgetShare

FORMAT = "logdiff-budget/1"
RESULT = "budget"

FEW = (4, 8)
"""Samples, and response tokens of each, of a first look, and of all passes when time is short."""
ENOUGH, MANY = (4, 24), (16, 48)
"""What is measured when there is time, and when there is plenty."""
DESIGNS = 16
"""Passes that a budget takes as a rule."""
_RESERVE = 0.75
"""Part of the time that larger passes may fill."""


@dataclass(slots=True)
class Budget:
    """What a mismatch is made of, by replaced operators.

    Args:
        shares: see `logdiff.localize.budget.Share`; empty where nothing differs or nothing could be measured.
        smallest: the smallest set that is enough: `ops`, what it `reaches` ("zero", "the floor", "what all leave") on
            `tokens` (`all_tokens`: those of the whole run) with `mismatched_tokens` and `max_abs`, and what it costs:
            `time` (seconds of a pass over those of stock, by side) and `bytes` (raw weights kept for the switch);
            None where no set was measured to be enough.
        details: passes and what else `results/budget.json` holds.
        complete: False where passes are missing: shares are then bounds.
        reason: why there are no shares, or why passes are missing; None where neither.
    """

    shares: list[Share] = field(default_factory=list)
    smallest: dict[str, Any] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    reason: str | None = None

    def records(self) -> list[BudgetShare]:
        """The `budget` of a `logdiff-verdict/1`."""
        return [BudgetShare(s.component, s.share, s.low, s.high) for s in self.shares]

    def as_dict(self) -> dict[str, Any]:
        """`logdiff-budget/1`."""
        return {
            "format": FORMAT,
            "of": "mean of d squared over the tokens, operators replaced on both sides",
            "shares": [share.as_dict() for share in self.shares],
            "smallest": self.smallest,
            "complete": self.complete,
            "reason": self.reason,
            **self.details,
        }


def budget(
    session: Session,
    *,
    seconds: float,
    max_starts: int = 4,
    step: int = 0,
    floor: Mapping[str, Any] | None = None,
) -> Budget:
    """Measure the budget of a live run's first mismatch, or go on with it, and write `results/budget.json`.

    Args:
        session: of the run; `captures/stepN/generate.safetensors` must be there. Engines that run in budget mode
            (`session.switchable`) are used as they stand and are stock afterwards; else engines of its own are started
            and closed, and one of the session that holds the same side is closed first.
        seconds: for all of it, starts included; passes are as large as fits.
        max_starts: engines that may be started.
        step: whose tokens and weights.
        floor: `max_abs` and `mean_abs` of a side against itself, where known: what is "enough".

    Returns:
        the budget. What can't be measured is a `reason`, not an error.

    Raises:
        CancelledError: the run was cancelled.
    """
    work = _Work(session, time.monotonic() + seconds, max_starts, step, dict(floor or {}))
    try:
        result = work.measure()
    except CancelledError:
        raise
    except LogdiffError as error:
        result = Budget(reason=f"{error.message}; {error.hint}".rstrip("; "))
    finally:
        work.leave()
    session.case.write_result(RESULT, result.as_dict())
    return result


class _Work:
    """One budget at work."""

    def __init__(self, session: Session, deadline: float, max_starts: int, step: int, floor: dict[str, Any]) -> None:
        self._session = session
        self._deadline = deadline
        self._step = step
        self._floor = floor
        self._engines = Passes(session, step, max_starts)
        self._passes: list[dict[str, Any]] = []
        self._seconds: list[float] = []
        self._excluded: dict[str, str] = {}
        self._operators: list[str] = []
        self._present: list[str] = []
        self._restored: bool | None = None
        self._complete = False
        self._tokens = 0

    def measure(self) -> Budget:
        """All passes that the limits allow, and what follows from them."""
        why = self._impossible()
        if why is not None:
            return Budget(reason=why)
        source = self._cut("few", FEW)
        seen: dict[Subset, Pass] = {}
        whole: dict[Subset, Pass] = {}
        reason: str | None = None
        try:
            seen[frozenset()] = self._pass(source, [], "none")
            if seen[frozenset()].mismatched:
                self._operators = self._find_operators(source)
                source = self._more()
                self._run(source, seen)
                self._complete = True
        except LimitError as error:
            reason = str(error)
        chosen = smallest(self._operators, seen, self._floor) if self._complete else None
        if chosen:
            try:
                whole = self._prove(source, chosen)
            except LimitError as error:
                reason = f"the smallest set was not tried on all tokens of the run: {error}"
        if self._complete:
            try:
                self._repeat(source, seen, chosen)
            except LimitError as error:
                reason = reason or f"passes were not repeated, so their times hold the first one's warm-up: {error}"
        return self._result(seen, whole, reason)

    def _run(self, source: Path, seen: dict[Subset, Pass]) -> None:
        seen.clear()
        self._passes.clear()
        while (design := next_design(self._operators, seen, self._floor)) is not None:
            kind, subset = design
            ordered = self._ordered(subset)
            words = ", ".join(ordered) if len(ordered) <= 5 else f"{len(ordered)} operators"
            self._session.tell("budget", f"pass {len(seen) + 1}, {WHY[kind]}: {words or 'all stock'}")
            seen[subset] = self._pass(source, ordered, kind)

    def _repeat(self, source: Path, seen: dict[Subset, Pass], chosen: Subset | None) -> None:
        """Stock and the smallest set once more: times without warm-up, and whether stock has its bits again."""
        if chosen:
            seen[chosen] = _faster(seen[chosen], self._pass(source, self._ordered(chosen), "again", again=True))
        stock, again = seen[frozenset()], self._pass(source, [], "again", again=True)
        self._restored = bool((again.squares == stock.squares).all())
        seen[frozenset()] = _faster(stock, again)

    def _prove(self, source: Path, chosen: Subset) -> dict[Subset, Pass]:
        """The smallest set on all tokens of the run and, where it isn't enough there, passes until one is.

        A kernel may choose another way for other shapes, so a few tokens don't speak for all.
        """
        whole = self._session.case.path / generated(self._step)
        seen: dict[Subset, Pass] = {}
        times = _work_of(whole) / _work_of(source)
        if times <= 1:
            return seen
        estimate = self._seconds[-1] * times
        seen[chosen] = self._pass(whole, self._ordered(chosen), "enough", estimate=estimate)
        while seen[chosen].mismatched and not within(seen[chosen], self._floor):
            design = next_design(self._operators, seen, self._floor)
            if design is None or design[0] not in ("none", "all", "leave out", "enough"):
                break
            seen[design[1]] = self._pass(whole, self._ordered(design[1]), design[0], estimate=estimate)
        return seen

    def _ordered(self, ops: Subset) -> list[str]:
        return [op for op in OPERATORS if op in ops]

    def _impossible(self) -> str | None:
        session = self._session
        if session.run.align.ops is not None:
            return "the run is aligned already: a budget is of stock engines"
        for side in SIDES:
            spec = session.spec(side)
            if spec.engine == "vllm-http":
                return f"the {side} side is a running server, whose operators can't be replaced from here"
            if spec.env.get(VARIABLE):
                return f"the {side} side's own env sets {VARIABLE}"
        if not (session.case.path / generated(self._step)).is_file():
            return "the run has no tokens yet"
        return None

    def _more(self) -> Path:
        """More tokens, where the time that the first passes took leaves room for them; decided once per case."""
        case = self._session.case
        for record in case.journal.read():
            if record["event"] == "budget_tokens":
                return self._cut(str(record["name"]), (int(record["samples"]), int(record["tokens"])))
        left = self._deadline - time.monotonic()
        size = _size(_RESERVE * left / (DESIGNS * self._seconds[-1])) if self._seconds else FEW
        name = "few" if size == FEW else "many"
        case.journal.append("budget_tokens", name=name, samples=size[0], tokens=size[1])
        return self._cut(name, size)

    def _cut(self, name: str, size: tuple[int, int]) -> Path:
        from logdiff.case.sequences import build_sequences, read_sequences, write_sequences

        case, key = self._session.case, f"budget/{name}"
        path = case.path / FOLDER / f"{name}.safetensors"
        whole = read_sequences(case.path / generated(self._step))
        self._tokens = whole.tokens
        if case.recorded_outputs(key) is not None:
            return path
        rows = [i for i in range(len(whole.sample_ids)) if len(whole.response(i))][: size[0]]
        path.parent.mkdir(parents=True, exist_ok=True)
        cut = build_sequences(
            [whole.sample_ids[i] for i in rows],
            [whole.prompt(i).tolist() for i in rows],
            [whole.response(i)[: size[1]].tolist() for i in rows],
        )
        write_sequences(path, cut)
        case.record_outputs(key, [path])
        return path

    def _find_operators(self, source: Path) -> list[str]:
        """Operators that either side has parts of, without those that a side can't replace."""
        try:
            self._pass(source, list(OPERATORS), "all")
            for side in self._engines.unchanged(source):
                raise EngineError(f"replacing every operator changed no bit of the {side} side", value=side)
            return self._present or [op for op in OPERATORS if "reduce" not in op]
        except RefusedError as refused:
            self._session.tell("budget", f"not every operator can be replaced: {refused}")
        found: set[str] = set()
        for op in OPERATORS:
            try:
                self._pass(source, [op], "alone")
                found.update(self._present or [op])
            except RefusedError as refused:
                self._excluded[op] = str(refused)
        return [op for op in OPERATORS if op in found and op not in self._excluded]

    def _pass(
        self, source: Path, ops: list[str], kind: str, *, again: bool = False, estimate: float | None = None
    ) -> Pass:
        """Both sides with these operators replaced.

        Raises:
            LimitError, RefusedError, LogdiffError: as `Passes.measure`; `LimitError` too when the time is up, which is
                judged by `estimate` (seconds) or else by the last pass.
        """
        everything = bool(self._operators) and ops == self._operators and not self._excluded
        likely = estimate if estimate is not None else self._seconds[-1] if self._seconds else 0.0
        if time.monotonic() + likely > self._deadline:
            raise LimitError(f"a further pass takes about {likely:.1f} s, and the time is up")
        begin = time.monotonic()
        one, self._present, seconds = self._engines.measure(source, OPERATORS if everything else ops, again)
        if estimate is None:  # a pass over other tokens says nothing of the next
            self._seconds.append(time.monotonic() - begin if seconds is None else seconds)
        self._passes.append({"ops": ops, "kind": kind, "tokens": source.stem, **one.as_dict()})
        return one

    def _result(self, seen: dict[Subset, Pass], whole: dict[Subset, Pass], reason: str | None) -> Budget:
        details: dict[str, Any] = {
            "operators": self._operators,
            "not_covered": self._excluded,
            "passes": self._passes,
            "switched_in_place": self._engines.in_place,
            "stock_again": self._restored,
            "starts": self._engines.starts,
        }
        if frozenset() not in seen:
            return Budget(details=details, reason=reason or "no pass was measured")
        stock = seen[frozenset()]
        details["whole"] = {**stock.as_dict(), "samples": len(stock.tokens), "tokens": int(stock.tokens.sum())}
        if not stock.mismatched:
            return Budget(details=details, complete=True, reason="no token differs: there is nothing to explain")
        if not self._operators:
            return Budget(details=details, reason=reason or "no operator could be replaced")
        shares = split(self._operators, seen, self._floor)
        return Budget(shares, self._smallest(seen, whole), details, self._complete, reason)

    def leave(self) -> None:
        """The session's engines are stock again, the budget's own are closed."""
        self._engines.leave()

    def _smallest(self, seen: dict[Subset, Pass], whole: dict[Subset, Pass]) -> dict[str, Any] | None:
        chosen = smallest(self._operators, seen, self._floor)
        if chosen is None:
            return None
        one, stock = seen[chosen], seen[frozenset()]
        ratios = {side: one.seconds[side] / stock.seconds[side] for side in one.seconds if stock.seconds.get(side)}
        if whole:  # all tokens decide which set it is; times stay those of the set that was timed
            chosen = smallest(self._operators, whole, self._floor) or chosen
            one = whole[chosen]
        reaches = "what all leave"
        if not one.mismatched or within(one, self._floor):
            reaches = "the floor" if one.mismatched else "zero"
        return {
            "ops": self._ordered(chosen),
            "reaches": reaches,
            "tokens": int(one.tokens.sum()),
            "all_tokens": int(one.tokens.sum()) == self._tokens,
            "mismatched_tokens": one.mismatched,
            "max_abs": one.max_abs,
            "time": ratios,
            "bytes": one.bytes,
        }


def _size(factor: float) -> tuple[int, int]:
    """Samples and tokens for passes of `factor` times the time of one over `FEW`: tokens first, then samples."""
    if factor < 1.5:
        return FEW
    tokens = min(ENOUGH[1], int(FEW[1] * factor))
    samples = max(FEW[0], min(MANY[0], int(FEW[0] * (factor * FEW[1] / tokens) ** 2)))
    rest = factor * FEW[1] / tokens * (FEW[0] / samples) ** 0.5
    return samples, max(tokens, min(MANY[1], int(tokens * rest)))


def _faster(one: Pass, again: Pass) -> Pass:
    """A pass with the smaller times of two."""
    seconds = {side: min(value, again.seconds.get(side, value)) for side, value in one.seconds.items()}
    return replace(one, seconds=seconds)


def _work_of(source: Path) -> float:
    """How much a pass over a sequence file takes, in no unit: decode steps, times a little more for more samples."""
    from logdiff.case.sequences import read_sequences

    found = read_sequences(source)
    lengths = [len(found.response(i)) for i in range(len(found.sample_ids))]
    return float(max(lengths, default=0) * len(lengths) ** 0.5)
