"""Options that several commands share, so that each has one name and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object; logs and progress go to standard error.")]
CaseDir = Annotated[
    Optional[Path],  # noqa: UP045 - typer evaluates annotations under Python 3.10 too
    typer.Option("--case", metavar="DIR", help="Case folder for the evidence (default: ./runs/<time>-<name>)."),
]
FailAbove = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--fail-above",
        metavar="LIMITS",
        help="Gate for CI, such as mean_abs=0.01,mismatched=0: exit 1 only when a limit is passed or a gate fails.",
    ),
]
Python = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--python", metavar="PATH", help="Interpreter that has the engines (default: this one)."),
]
