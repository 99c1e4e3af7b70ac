"""`logdiff diagnose`: why the two sides differ, and what to do next."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logdiff.cli import options
from logdiff.cli.output import Output
from logdiff.cli.progress import ProgressView


def diagnose(
    ctx: typer.Context,
    targets: Annotated[
        list[Path],
        typer.Argument(
            metavar="TARGET...",
            help="A run file (.yaml), pair files (.jsonl, also .gz or .zst; .parquet), or one case folder.",
        ),
    ],
    case: options.CaseDir = None,
    max_seconds: Annotated[
        float, typer.Option("--max-seconds", min=0, help="Run file: seconds that experiments may take.")
    ] = 180.0,
    max_starts: Annotated[int, typer.Option("--max-starts", min=0, help="Run file: engines that may be started.")] = 6,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Run file: go on with what the case already holds.")
    ] = True,
    as_json: options.Json = False,
) -> None:
    """Say why rollout and trainer differ: cause, side, component, evidence, what is ruled out, what to do next.

    Pair files and cases start no engine and are judged as far as they carry. Exit code 0: no difference; 1: a verdict;
    2: the evidence proves nothing.
    """
    from logdiff import actions
    from logdiff.cli.verdict_table import verdict_table

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.diagnose(
            targets=targets,
            case=case,
            max_seconds=max_seconds,
            max_starts=max_starts,
            resume=resume,
            on_progress=view,
        )
    out.show(done.data, verdict_table)
    raise typer.Exit(done.exit_code)
