"""`python -m benchmarks.mutants --seed 1 --count 220 --out FILE.jsonl`: plant faults in the kernels and see what
catches them in the twin. The results are kept as they come; the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.mutants import campaign, ladder, report
from benchmarks.mutants.operators import OPERATORS
from benchmarks.mutants.sources import Mutant


def main() -> int:
    """Run the campaign, then print its tables. Exit 1 when fewer than 95 of 100 were caught."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the choice")
    parser.add_argument("--count", type=int, default=220, help="mutants that compile and change the code")
    parser.add_argument("--out", type=Path, help="results, JSON Lines; needed for a campaign")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "logdiff-mutants", help="scratch")
    parser.add_argument("--only", default="", help="mutate files whose path has this part")
    parser.add_argument("--again", action="store_true", help="try the survivors of --out again")
    parser.add_argument("--names", nargs="+", default=[], metavar="NAME", help="these alone, on all kernels they reach")
    parser.add_argument("--optimise", action="store_true", help="slower to compile, faster to run: for survivors")
    parser.add_argument("--rungs", type=int, default=len(ladder.RUNGS), help="of the ladder, the first so many")
    parser.add_argument("--report", action="store_true", help="tables of --out only")
    parser.add_argument("--list", action="store_true", help="operators and their mutants; with --only by name")
    options = parser.parse_args()
    if options.names and options.again:
        parser.error("--names and --again: one of them")
    if options.list:
        pool, _ = campaign.planned(options.seed, options.only)
        made = Counter(mutant.operator for mutant in pool)
        for name, operator in OPERATORS.items():
            print(f"{made[name]:6} {name:22} {operator.family}: {operator.what}")
        if options.only:
            print("", *map(_line, sorted(pool, key=lambda m: (m.file, m.line))), sep="\n")
        return 0
    if options.out is None:
        parser.error("--out is needed")
    if options.names:
        unknown = set(options.names) - {m.name for m in campaign.planned(options.seed, options.only, options.names)[0]}
        if unknown:
            parser.error(
                f"no mutants {', '.join(sorted(unknown))}: names change with their file, see --list --only FILE"
            )
    if not options.report:
        _run(options)
    records = campaign.read(options.out)
    print(report.table(records), report.rungs(records), report.survivors(records), sep="\n\n")
    counted = [record for record in records if record["status"] in campaign.COUNTED]
    caught = sum(record["status"] == "caught" for record in counted)
    return 0 if counted and caught >= 0.95 * len(counted) else 1


def _line(mutant: Mutant) -> str:
    before, after = (" ".join(text.split())[:60] for text in (mutant.before, mutant.edit.text))
    return f"{mutant.name} {mutant.file.as_posix()}:{mutant.line} {mutant.operator}: `{before}` -> `{after}`"


def _run(options: argparse.Namespace) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("mutants", total=None if options.again or options.names else options.count)

        def show(counted: int, record: dict[str, Any]) -> None:
            progress.update(task, completed=counted)
            words = (record["status"], record["check"], record["operator"], f"{record['file']}:{record['line']}")
            progress.console.print(" ".join(words), f"{record['seconds']} s", highlight=False)

        campaign.run(
            options.seed,
            options.count,
            options.out,
            options.work,
            show,
            only=options.only,
            again=options.again,
            rungs=options.rungs,
            names=options.names,
            optimise=options.optimise,
        )


if __name__ == "__main__":
    sys.exit(main())
