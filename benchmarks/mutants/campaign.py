"""A campaign: mutants in their order until enough have been counted, each result a line of a file to resume from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.mutants import ladder, sources, trial
from benchmarks.mutants.build import Workplace
from benchmarks.mutants.sources import Mutant

COUNTED = ("caught", "survived")
"""Statuses of mutants that compile and whose code differs."""

MOST_TRIED, MOST_KERNELS = 6, 2
"""Kernels that are compiled with a mutant of a shared header, and those that are run of them; survivors meet all."""

_FIRST = ("bits", "bits, 950", "other chip")
"""Rungs that have libraries of their own; where those don't differ the other rungs have nothing to run."""

_ENDED = ("caught", "no compile")

OnResult = Callable[[int, dict[str, Any]], None]


def planned(
    seed: int, only: str = "", names: Sequence[str] | None = None
) -> tuple[list[Mutant], dict[Path, list[str]]]:
    """The mutants in their order, and the kernels by which each file's are tried.

    Args:
        seed: of the order.
        only: part of the path of the files that are mutated.
        names: mutants to take alone, by name; None: all.
    """
    known = ladder.kernels()
    reach = {file: [k for k in kernels if k in known] for file, kernels in sources.reaching().items()}
    reach = {file: kernels for file, kernels in reach.items() if kernels and only in file.as_posix()}
    device = sources.device_functions()
    pool = [mutant for file in sorted(reach) for mutant in sources.mutants(file, device)]
    chosen = sources.in_order(pool, seed) if names is None else [m for m in pool if m.name in names]
    return chosen, reach


def read(path: Path) -> list[dict[str, Any]]:
    """The results so far; of a mutant that was tried again the last one."""
    if not path.is_file():
        return []
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return list({record["name"]: record for record in records}.values())


def run(
    seed: int,
    count: int,
    out: Path,
    work: Path,
    on_result: OnResult,
    only: str = "",
    again: bool = False,
    rungs: int = len(ladder.RUNGS),
    names: Sequence[str] = (),
    optimise: bool = False,
) -> None:
    """Try mutants until `count` of `out` are counted.

    Args:
        seed: of the choice.
        count: how many mutants that compile and change the code.
        out: the results, a JSON object a line; those that it has are not tried again.
        work: folder for the copy of the sources and the libraries.
        on_result: called with the number of counted mutants and the record of each.
        only: part of the path of the files that are mutated.
        again: try the survivors of `out` again, nothing else: on the rungs that they haven't met, or if there are none
            on all of them, with every kernel that they reach.
        rungs: how many of the ladder.
        names: try these mutants, nothing else and whatever the count, with every kernel that they reach.
        optimise: as in `Workplace`.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fresh tensors are NaN: nothing is right by chance
    done = {record["name"]: record for record in read(out)}
    survivors = [name for name, record in done.items() if record["status"] == "survived"] if again else None
    chosen, reach = planned(seed, only, list(names) if names else survivors)
    trials = _Trials(Workplace(work, optimise), rungs)
    counted = sum(record["status"] in COUNTED for record in done.values())
    for mutant in chosen:
        if not again and (mutant.name in done or (not names and counted >= count)):
            continue
        kernels, passed = sources.users(mutant, reach[mutant.file]), done.get(mutant.name, {}).get("rungs", 0)
        if not again:
            tried = (kernels, len(kernels)) if names else (kernels[:MOST_TRIED], MOST_KERNELS)
            outcome = trials.of(mutant, *tried)
            counted += outcome.status in COUNTED
        elif passed < rungs:
            outcome = trials.of(mutant, done[mutant.name]["kernels"], MOST_KERNELS, passed)
        else:
            outcome = trials.of(mutant, kernels, len(kernels))
        record = trial.record_of(mutant, outcome)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        on_result(counted, record)


class _Trials:
    """Mutants on the ladders of kernels; what the sources do without a mutant is looked at once."""

    def __init__(self, place: Workplace, rungs: int) -> None:
        self.place = place
        self.rungs = rungs
        self.want: trial.Want = {}
        self.surveyed: dict[tuple[str, str], trial.Original] = {}

    def of(self, mutant: Mutant, kernels: Sequence[str], most: int, passed: int = 0) -> trial.Outcome:
        """Rung by rung, on each kernel by kernel, until a check catches it.

        Args:
            mutant: to plant.
            kernels: with which it is compiled; after `passed` rungs those whose code differs.
            most: kernels to run, of those whose code differs.
            passed: rungs that it has passed before.
        """
        begin, differing = time.monotonic(), list(kernels) if passed else []
        total = trial.Outcome("survived" if passed else "same object", kernels=differing)
        for rung in ladder.RUNGS[passed : self.rungs]:
            for kernel in differing or (kernels if rung in _FIRST else []):
                if total.status in _ENDED or (len(differing) == most and kernel not in differing):
                    break
                found = trial.attempt(self.place, mutant, kernel, self.original(kernel, rung), self.want)
                total = self._together(total, found)
                if found.status != "same object" and kernel not in differing:
                    differing = [*differing, kernel]
        if total.status == "survived" and trial.same_code(self.place, mutant, total.kernels):
            total.status = "same object"
        total.rungs = self.rungs
        total.seconds = round(time.monotonic() - begin, 1)
        return total

    def original(self, kernel: str, rung: str) -> trial.Original:
        if (kernel, rung) not in self.surveyed:
            self.surveyed[kernel, rung] = trial.survey(self.place, kernel, rung, self.want)
        found = self.surveyed[kernel, rung]
        for check, _, _ in found:
            trial.wanted(self.want, check)  # here, so that children needn't
        return found

    @staticmethod
    def _together(total: trial.Outcome, found: trial.Outcome) -> trial.Outcome:
        kernels = [*total.kernels, *(k for k in found.kernels if k not in total.kernels)]
        status = found.status if found.status in _ENDED or total.status == "same object" else total.status
        checks = total.checks + found.checks
        return trial.Outcome(status, found.check, found.rung, found.detail, kernels, checks=checks)
