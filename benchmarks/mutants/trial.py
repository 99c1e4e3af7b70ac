"""One mutant, or the sources as they are, on the ladder in a process of its own: a crash or an endless loop ends that
alone.

The process compiles from a copy of the sources. A library with the bytes of the original's needs no run.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from logdiff_kernels.build import compile
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.plan import library as plans
from logdiff_kernels.twin import build as twin

from benchmarks.mutants import ladder
from benchmarks.mutants.sources import KERNELS, PACKAGE, PLANS, Mutant

_GRACE, _FACTOR = 60, 30
"""Seconds, and times the original's, that a check may take."""

Send = Callable[[dict[str, Any]], None]
Variant = tuple[str, int, bool]
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
        checks: how many were run.
        seconds: all of it.
    """

    status: str = "same object"
    check: str = ""
    rung: str = ""
    detail: str = ""
    kernels: list[str] = field(default_factory=list)
    checks: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Original:
    """What the unchanged sources do on one rung of a kernel's ladder.

    Attributes:
        libraries: path of each variant (kernel, arch, exact).
        plan: path of the plan library.
        checks: those that launch the kernel: the check, instructions of its longest launch, seconds.
    """

    libraries: dict[Variant, Path] = field(default_factory=dict)
    plan: Path = Path()
    checks: list[tuple[ladder.Check, int, float]] = field(default_factory=list)


class Workplace:
    """A folder with a copy of the sources and a cache of libraries.

    Args:
        folder: made if it isn't there.
    """

    def __init__(self, folder: Path) -> None:
        self.tree, self.cache = folder / "tree", folder / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.tree, ignore_errors=True)
        for part in (KERNELS, PLANS):
            shutil.copytree(PACKAGE / part, self.tree / part)

    def enter(self) -> None:
        """From now on this process compiles the copy."""
        os.environ["LOGDIFF_CACHE"] = str(self.cache)
        compile.SOURCES = self.tree / KERNELS
        twin.INCLUDES = (twin.CSRC / "include", self.tree / KERNELS, self.tree)
        twin.FLAGS = tuple("-O1" if flag == "-O2" else flag for flag in twin.FLAGS)  # compilers are most of the time
        plans.SOURCES = self.tree / PLANS

    def forget(self, kept: Iterable[Path]) -> None:
        """Remove the libraries but for `kept`."""
        kept = set(kept)
        for path in (*self.cache.glob("twin/*.so*"), *self.cache.glob("plan/*")):
            if path not in kept and path.is_file():
                path.unlink()


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
        return records, "endless" if os.WTERMSIG(status) == signal.SIGALRM else "crash"
    if os.WEXITSTATUS(status):
        raise RuntimeError(f"the child process of a trial has failed; its last record: {records[-1:]}")
    return records, ""


def survey(place: Workplace, kernel: str, rung: str, want: Want) -> Original:
    """Compile a kernel as it is and run a rung of its ladder.

    Raises:
        CaughtError: a check fails.
    """
    checks = {check.name: check for check in ladder.checks(kernel)[rung]}

    def work(send: Send) -> None:
        place.enter()
        send({"plan": str(plans.ensure())})
        for check in checks.values():
            for name in ladder.case_of(check.case).kernels:
                path = _library(name, check.arch, check.exact)
                send({"variant": (name, check.arch, check.exact), "path": str(path)})
            begin = time.monotonic()
            try:
                launched, most = ladder.perform(check, wanted(want, check))
            except ladder.CaughtError as error:
                send({"caught": error.check, "detail": str(error)})
                return
            if kernel in launched:
                send({"check": check.name, "most": most, "seconds": time.monotonic() - begin})

    records, ended = in_child(work)
    original = Original()
    for record in records:
        if "caught" in record:
            raise ladder.CaughtError(record["caught"], f"without a mutant: {record['detail']}")
        if "plan" in record:
            original.plan = Path(record["plan"])
        elif "path" in record:
            name, arch, exact = record["variant"]
            original.libraries[name, arch, exact] = Path(record["path"])
        else:
            original.checks.append((checks[record["check"]], record["most"], record["seconds"]))
    if ended:
        raise ladder.CaughtError(ended, f"{kernel} without a mutant, after {records[-1]}")
    return original


def attempt(place: Workplace, mutant: Mutant, kernel: str, original: Original, want: Want) -> Outcome:
    """Plant a mutant and let it meet one rung of the ladder of a kernel."""
    file = place.tree / mutant.file
    text = file.read_text(encoding="utf-8")
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
    place.enter()
    differing: dict[Variant, bool] = {}
    name = rung = ""
    try:
        replanned = mutant.file.is_relative_to(PLANS) and plans.ensure().read_bytes() != original.plan.read_bytes()
        _only(kernel, original)
        for check, most, seconds in original.checks:
            name, rung = check.name, check.rung
            variant = (kernel, check.arch, check.exact)
            if variant not in differing:
                differing[variant] = _library(*variant).read_bytes() != original.libraries[variant].read_bytes()
            if not differing[variant] and not replanned:
                continue
            send({"check": name, "rung": rung})
            signal.alarm(_GRACE + int(_FACTOR * seconds))
            ladder.perform(check, wanted(want, check), 100_000 + 30 * most)
            signal.alarm(0)
    except ladder.CaughtError as error:
        send({"outcome": {"status": "caught", "check": error.check, "rung": rung, "detail": str(error)[:600]}})
    except UnsupportedError as error:
        send({"outcome": {"status": "no compile", "detail": str(error)[:300]}})
    except Exception as error:  # a driver stumbles over a plan that is no longer one
        detail = f"{name}: {type(error).__name__}: {error}"[:600]
        send({"outcome": {"status": "caught", "check": "refused", "rung": rung, "detail": detail}})


def _only(kernel: str, original: Original) -> None:
    """From now on this process compiles one kernel; the others of a case are the original's."""
    ensure = twin.ensure_library

    def library(source: Path, arch: int, *, exact_exp: bool = False, sanitize: bool | None = None) -> Path:
        if source.stem == kernel:
            return ensure(source, arch, exact_exp=exact_exp, sanitize=sanitize)
        return original.libraries[source.stem, arch, exact_exp]

    twin.ensure_library = library  # type: ignore[assignment]


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


def _library(kernel: str, arch: int, exact: bool) -> Path:
    return twin.ensure_library(compile.SOURCES / f"{kernel}.asc", arch, exact_exp=exact)


def wanted(want: Want, check: ladder.Check) -> list[torch.Tensor]:
    """The CPU backend's results, kept in `want`."""
    if check.data not in want:
        want[check.data] = ladder.expected(check)
    return want[check.data]
