"""One mutant, or the sources as they are, on the ladder in a process of its own: a crash or an endless loop ends that
alone.

A library with the bytes of the original's needs no run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from logdiff_kernels import toolchain
from logdiff_kernels.build import compile
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.plan import library as plans
from logdiff_kernels.twin import build as twin

from benchmarks.mutants import ladder
from benchmarks.mutants.build import Workplace
from benchmarks.mutants.sources import KERNELS, PLANS, Mutant

_GRACE, _FACTOR = 60, 30
"""Seconds of CPU time, and times the original's seconds, that a check may take: a busy or stopped machine ends none."""

_LONGEST = 6 * 3600
"""Seconds that a check which waits may take."""

Send = Callable[[dict[str, Any]], None]
Original = list[tuple[ladder.Check, int, float]]
"""What a rung does without a mutant: checks that launch the kernel, instructions of their longest launch, seconds."""

Want = dict[tuple[str, int, torch.dtype], list[torch.Tensor]]


@dataclass(slots=True)
class Outcome:
    """What became of a mutant.

    Attributes:
        status: `caught`, `survived`, `same object` or `no compile`.
        check: what caught it: one of the twin's checks, `bits`, `bound`, `cores`, `refused`, `crash` or `endless`.
        rung: of the ladder.
        detail: the check's words.
        kernels: with which it was tried.
        rungs: of the ladder that it has passed.
        checks: how many were run.
        seconds: all of it.
    """

    status: str = "same object"
    check: str = ""
    rung: str = ""
    detail: str = ""
    kernels: list[str] = field(default_factory=list)
    rungs: int = 0
    checks: int = 0
    seconds: float = 0.0


def in_child(work: Callable[[Send], None]) -> tuple[list[dict[str, Any]], str]:
    """Run `work` in a child process; it is given a function that sends records. The records, and how a child that did
    not end by itself was ended: `crash`, `endless` or nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:

                def send(record: dict[str, Any]) -> None:
                    pipe.write(json.dumps(record) + "\n")
                    pipe.flush()

                work(send)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        records = [json.loads(line) for line in pipe if line.endswith("\n")]
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return records, "endless" if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM) else "crash"
    if os.WEXITSTATUS(status):
        raise RuntimeError(f"the child process of a trial has failed; its last record: {records[-1:]}")
    return records, ""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End this process, as `endless`, after that much CPU time inside of the block."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(_LONGEST)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)


def survey(place: Workplace, kernel: str, rung: str, want: Want) -> Original:
    """Compile a kernel as it is and run a rung of its ladder; kept beside the libraries.

    Raises:
        CaughtError: a check fails.
    """
    checks = {check.name: check for check in ladder.checks(kernel)[rung]}
    kept = place.originals / f"{kernel}-{rung}-{toolchain.content_key(checks)}.json"
    if not kept.is_file():
        records, ended = in_child(lambda send: _look(place, kernel, list(checks.values()), want, send))
        wrong = next((record for record in records if "caught" in record), None)
        if wrong is not None or ended:
            raise ladder.CaughtError(ended, f"{kernel} without a mutant: {wrong or records[-1:]}")
        kept.write_text(json.dumps(records), encoding="utf-8")
    records = json.loads(kept.read_text(encoding="utf-8"))
    return [(checks[record["check"]], record["most"], record["seconds"]) for record in records]


def _look(place: Workplace, kernel: str, checks: list[ladder.Check], want: Want, send: Send) -> None:
    _use(place, lambda name, arch, exact: place.kernel(name, arch, exact, place.originals))
    for check in checks:
        for name in ladder.case_of(check.case).kernels:
            place.kernel(name, check.arch, check.exact, place.originals)
        begin = time.monotonic()
        try:
            launched, most = ladder.perform(check, wanted(want, check))
        except ladder.CaughtError as error:
            send({"caught": error.check, "detail": str(error)})
            return
        if kernel in launched:
            send({"check": check.name, "most": most, "seconds": time.monotonic() - begin})


def attempt(place: Workplace, mutant: Mutant, kernel: str, original: Original, want: Want) -> Outcome:
    """Plant a mutant and let it meet one rung of the ladder of a kernel."""
    file = place.tree / mutant.file
    text = file.read_text(encoding="utf-8")
    if mutant.file.is_relative_to(PLANS):
        place.plan(place.originals)
    place.clear()
    file.write_text(mutant.edit.applied(text), encoding="utf-8")
    try:
        records, ended = in_child(lambda send: _climb(place, mutant, kernel, original, want, send))
    finally:
        file.write_text(text, encoding="utf-8")
    checks = [record for record in records if "check" in record]
    outcome = Outcome(checks=len(checks))
    final = next((record["outcome"] for record in records if "outcome" in record), None)
    if checks:
        outcome.status, outcome.kernels = "survived", [kernel]
    if ended:
        outcome.status, outcome.check = "caught", ended
        outcome.rung, outcome.detail = checks[-1]["rung"], checks[-1]["check"]
    elif final is not None:
        for name, value in final.items():
            setattr(outcome, name, value)
    return outcome


def _climb(place: Workplace, mutant: Mutant, kernel: str, original: Original, want: Want, send: Send) -> None:
    def library(name: str, arch: int, exact: bool) -> Path:
        """The mutant's for the kernel under trial; the others of a case are the original's."""
        return place.kernel(name, arch, exact, place.mutants if name == kernel else place.originals)

    differing: dict[tuple[int, bool], bool] = {}
    name = rung = ""
    try:
        replanned = False
        if mutant.file.is_relative_to(PLANS):
            path = place.plan(place.mutants)
            replanned = path.read_bytes() != place.plan(place.originals).read_bytes()
            plans.ensure = lambda: path
        _use(place, library)
        for check, most, seconds in original:
            name, rung = check.name, check.rung
            variant = (check.arch, check.exact)
            if variant not in differing:
                new, old = library(kernel, *variant), place.kernel(kernel, *variant, place.originals)
                differing[variant] = new.read_bytes() != old.read_bytes()
            if not differing[variant] and not replanned:
                continue
            send({"check": name, "rung": rung})
            expected = wanted(want, check)
            with limited(_GRACE + _FACTOR * seconds):
                ladder.perform(check, expected, 100_000 + 30 * most)
    except ladder.CaughtError as error:
        send({"outcome": {"status": "caught", "check": error.check, "rung": rung, "detail": str(error)[:600]}})
    except UnsupportedError as error:
        send({"outcome": {"status": "no compile", "detail": str(error)[:300]}})
    except Exception as error:  # a driver stumbles over a plan that is no longer one
        detail = f"{name}: {type(error).__name__}: {error}"[:600]
        send({"outcome": {"status": "caught", "check": "refused", "rung": rung, "detail": detail}})


def same_code(place: Workplace, mutant: Mutant, kernels: Sequence[str]) -> bool:
    """Whether a mutant's kernels, optimised as for use, are the original's."""
    file = place.tree / mutant.file
    text = file.read_text(encoding="utf-8")
    variants = [(kernel, arch, exact) for kernel in kernels for arch in ladder.ARCHS for exact in (True, False)]
    try:
        for variant in variants:
            before = place.optimised(*variant, place.originals)
            file.write_text(mutant.edit.applied(text), encoding="utf-8")
            after = place.optimised(*variant, place.mutants)
            file.write_text(text, encoding="utf-8")
            if before != after:
                return False
    finally:
        file.write_text(text, encoding="utf-8")
    return True


def _use(place: Workplace, library: Callable[[str, int, bool], Path]) -> None:
    """From now on this process launches the libraries that `library` gives."""

    def ensure(source: Path, arch: int, *, exact_exp: bool = False, sanitize: bool | None = None) -> Path:
        return library(source.stem, arch, exact_exp)

    compile.SOURCES = place.tree / KERNELS
    twin.ensure_library = ensure  # type: ignore[assignment]


def record_of(mutant: Mutant, outcome: Outcome) -> dict[str, Any]:
    """A line of the result's file."""
    return {
        "name": mutant.name,
        "operator": mutant.operator,
        "file": mutant.file.as_posix(),
        "line": mutant.line,
        "before": mutant.before[:300],
        "after": mutant.edit.text[:300],
        **asdict(outcome),
    }


def wanted(want: Want, check: ladder.Check) -> list[torch.Tensor]:
    """The CPU backend's results, kept in `want`."""
    if check.data not in want:
        want[check.data] = ladder.expected(check)
    return want[check.data]
