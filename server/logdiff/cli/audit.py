"""`logdiff audit`: effective configuration, environment and versions, judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output


def audit(
    ctx: typer.Context,
    paths: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(
            metavar="[PATH...]",
            help="Launch scripts, YAML, logs, model folders, package lists, Dockerfiles, run files, case folders. "
            "rollout=PATH or train=PATH says whose a file is.",
            show_default=False,
        ),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Also read packages and variables of the interpreter that has the engines.")
    ] = False,
    python: options.Python = None,
    case: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--case", metavar="DIR", help="Keep the result in this case (made where there is none)."),
    ] = None,
    effective: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--effective", metavar="FILE", help="Write every effective setting there as JSON."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Say which settings of rollout and training forbid equal log-probabilities, where they stand, and what to do.

    Nothing that is read is executed. Exit code 1: an error or a warning was found; notes alone give 0.
    """
    from logdiff import actions
    from logdiff.cli.audit_table import audit_table

    out: Output = ctx.obj
    done = actions.audit(
        paths=paths or [], live=live or python is not None, python=python, case=case, effective=effective
    )
    out.show(done.data, audit_table)
    raise typer.Exit(done.exit_code)
