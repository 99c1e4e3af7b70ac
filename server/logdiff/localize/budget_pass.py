"""One pass of a budget: both sides' engines on the same tokens, with some operators replaced."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logdiff.errors import EngineError, LogdiffError
from logdiff.live.capture import score_task
from logdiff.live.session import Outcome, Session
from logdiff.localize.budget import Pass
from logdiff.target import EngineSpec, UnsupportedError
from logdiff.target.alignment import BUDGET, OPERATORS, SIDES, VARIABLE, overlay_document

FOLDER = "captures/budget"


@dataclass(slots=True)
class _Side:
    """How one side is asked: `engine` of the session, and whether it is switched in place."""

    name: str
    engine: str
    switched: bool = True


class RefusedError(Exception):
    """A set of operators that a side can't run."""


class LimitError(Exception):
    """No further pass fits into the limits; the message says why."""


class Passes:
    """The engines of a budget, and what they did."""

    def __init__(self, session: Session, step: int, max_starts: int) -> None:
        self._session = session
        self._step = step
        self._starts_at = session.starts
        self._max_starts = max_starts
        self._sides = {side: self._side(side) for side in SIDES}
        self._switched = False

    @property
    def starts(self) -> int:
        """Engines that were started for the budget."""
        return self._session.starts - self._starts_at

    @property
    def in_place(self) -> dict[str, bool]:
        """Whether each side is switched in place, or started for each set of operators."""
        return {name: side.switched for name, side in self._sides.items()}

    def measure(self, source: Path, ops: Sequence[str], again: bool = False) -> tuple[Pass, list[str], float | None]:
        """Both sides with these operators replaced, or what the case holds of it.

        Args:
            source: sequence file with the tokens.
            ops: operators of the contract.
            again: a second pass of the same kind.

        Returns:
            the pass, operators that the models have parts of, seconds of switches and tasks (None where unknown).

        Raises:
            LimitError: an engine would have to be started, and no more may be.
            RefusedError: a side can't run these operators.
            LogdiffError: as the engines raise it.
        """
        name = subset_name(ops) + ("-again" if again else "")
        outcomes = {side: self._ask(self._sides[side], source, list(ops), name) for side in SIDES}
        switches = {side: outcome.data.get("aligned") or {} for side, outcome in outcomes.items()}
        seconds = {side: float(s["task_seconds"]) for side, s in switches.items() if "task_seconds" in s}
        kept = sum(int(s.get("bytes") or 0) for s in switches.values())
        present = {op for s in switches.values() for op in s.get("operators") or ()}
        cost = sum(seconds.values()) + sum(float(s.get("seconds") or 0) for s in switches.values())
        known = len(seconds) == len(SIDES)
        done = replace(compared(outcomes["rollout"].file, outcomes["train"].file), seconds=seconds, bytes=kept)
        return done, [op for op in OPERATORS if op in present], cost if known else None

    def leave(self) -> None:
        """Engines of the session are stock again, engines of the budget are closed."""
        for side in self._sides.values():
            if side.engine != side.name:
                self._session.close(side.engine)
            elif side.switched and self._switched and self._session.is_open(side.engine):
                try:
                    self._session.act(side.engine, {"task": "realign", "ops": []})
                except LogdiffError:  # an engine of unknown state is no engine of the session any more
                    self._session.close(side.engine)

    def _side(self, side: str) -> _Side:
        spec = self._session.spec(side)
        if spec.engine == "vllm" and spec.env.get(BUDGET) != "1":
            return _Side(side, f"budget-{side}")
        if self._session.is_open(side):
            try:
                self._session.act(side, {"task": "realign", "ops": []})
            except UnsupportedError:  # started before the session was made switchable
                self._session.close(side)
        return _Side(side, side)

    def unchanged(self, source: Path) -> list[str]:
        """Sides whose log-probabilities have the same bits with everything replaced and with nothing replaced."""
        from logdiff.case.sequences import read_sequences

        found = []
        for side in SIDES:
            paths = [self._session.case.path / _output(source, name, side) for name in ("none", "all")]
            if all(path.is_file() for path in paths):
                none, everything = (read_sequences(path).columns["logprobs"].tobytes() for path in paths)
                found += [side] if none == everything else []
        return found

    def _ask(self, side: _Side, source: Path, ops: list[str], name: str) -> Outcome:
        session, spec = self._session, self._session.spec(side.name)
        sampling = session.run.sampling.request()
        if side.name == "train":
            task = score_task(source, sampling, spec.score)
        else:
            task = {"task": "force", "input": str(source), "sampling": sampling, "batch": None}
            task |= {"order": "given", "experts": False}
        key = f"budget/{source.stem}/{name}/{side.name}"
        output = _output(source, name, side.name)
        if side.switched:
            if side.engine != side.name and session.is_open(side.name):
                session.close(side.name)  # one engine of a side in memory at a time
            switchable = replace(spec, env={**spec.env, VARIABLE: "", BUDGET: "1"})
            outcome = self._do(key, side.engine, switchable, {**task, "align": ops}, output, source)
            if outcome.path is not None:
                self._switched = True
                said = (outcome.data.get("aligned") or {}).get("ops")
                if not isinstance(said, list) or set(said) != set(ops):
                    raise EngineError(
                        f"the {side.name} engine was to replace operators and does not say that it did",
                        value=said,
                        hint="is a logdiff_kernels of another version in that environment?",
                    )
                return outcome
            if "compiled" not in (outcome.reason or ""):
                raise RefusedError(outcome.reason)
            side.switched = False
            session.close(side.engine)
            session.tell("budget", f"{side.name}: {outcome.reason}; an engine is started for each set of operators")
        environment = {**spec.env, VARIABLE: self._overlay(ops, side.name) if ops else ""}
        engine = f"budget-{side.name}-{name}"
        try:
            outcome = self._do(key, engine, replace(spec, env=environment), task, output, source)
        finally:
            session.close(engine)
        if outcome.path is None:
            raise RefusedError(outcome.reason)
        return outcome

    def _do(self, key: str, engine: str, spec: EngineSpec, task: dict[str, Any], output: str, source: Path) -> Outcome:
        """`Session.do` where no further engine is needed, or one may be started."""
        session = self._session
        needed = not session.is_open(engine) and session.case.recorded_outputs(key) is None
        if needed and self.starts >= self._max_starts:
            raise LimitError(f"{self._max_starts} engines were started, and no more may be")
        return session.do(key, engine, spec, task, output=output, inputs=[source], step=self._step)

    def _overlay(self, ops: list[str], side: str) -> str:
        name = f"{FOLDER}/align-{subset_name(ops)}-{side}.json"
        path = self._session.case.path / name
        if not path.is_file():
            self._session.case.write_json(name, overlay_document(ops, [side], "budget"))
        return str(path)


def _output(source: Path, name: str, side: str) -> str:
    return f"{FOLDER}/{source.stem}-{name}-{side}.safetensors"


def subset_name(ops: Sequence[str]) -> str:
    """Name of a set of operators in keys and files."""
    if not ops:
        return "none"
    if len(ops) == len(OPERATORS):
        return "all"
    text = "+".join(ops)
    return text if len(text) <= 60 else hashlib.sha256(text.encode()).hexdigest()[:12]


def compared(rollout_file: Path, train_file: Path) -> Pass:
    """d of the two sides' files, by sample; samples without a value on both sides are left out."""
    import numpy as np

    from logdiff.case.sequences import read_sequences

    rollout, train = (read_sequences(path) for path in (rollout_file, train_file))
    first, second = rollout.values(), train.values()
    usable = np.isfinite(first) & np.isfinite(second)
    d = np.where(usable, second - first, 0.0)
    one, other = (file.columns["logprobs"].view(np.uint32) for file in (rollout, train))
    bits = usable & (one != other)
    offsets = rollout.response_offsets
    assert offsets is not None
    bounds = list(itertools.pairwise(offsets.tolist()))
    squares = np.array([float((d[a:b] ** 2).sum()) for a, b in bounds])
    tokens = np.array([float(usable[a:b].sum()) for a, b in bounds])
    held = tokens > 0
    count = float(tokens.sum())
    size = np.abs(d)
    return Pass(
        squares[held],
        tokens[held],
        int(bits.sum()),
        float(size.sum() / count) if count else 0.0,
        float(size.max(initial=0.0)),
        {},
    )
