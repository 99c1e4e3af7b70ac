"""`logdiff align`: plan, apply, status, revert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output
from logdiff.cli.progress import ProgressView

app = typer.Typer(
    no_args_is_help=True,
    help="Run both engines with operators that give the same bits, and take that back. No installed file is edited.",
)
StateDir = Annotated[
    Path,
    typer.Option("--state", metavar="DIR", help="Where plans and overlays are kept.", show_default="./.logdiff"),
]


@app.command("plan")
def plan(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="RUN.yaml|CASE", help="A run file, or a case that one made.")],
    ops: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="OPS", help="Operators: all, or names with commas (default: the run file's, else all)."),
    ] = None,
    sides: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="SIDES", help="rollout, train, or rollout,train (default: the run file's, else both)."),
    ] = None,
    state: StateDir = Path(".logdiff"),
    as_json: options.Json = False,
) -> None:
    """Say which operators would run aligned on which side, why, at what cost, and what can't be aligned."""
    from logdiff import actions
    from logdiff.cli.tables import plan_table

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.align_plan(source=source, ops=ops, sides=sides, state=state, on_progress=view)
    out.show(done.data, plan_table)
    raise typer.Exit(done.exit_code)


@app.command("apply")
def apply(
    ctx: typer.Context,
    plan_id: Annotated[str, typer.Argument(metavar="PLAN_ID", help="The id that `align plan` gave.")],
    state: StateDir = Path(".logdiff"),
    as_json: options.Json = False,
) -> None:
    """Write the overlay of a plan; refused when anything that the plan stands on has changed."""
    from logdiff import actions
    from logdiff.cli.tables import align_table

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.align_apply(plan_id=plan_id, state=state, on_progress=view)
    out.show(done.data, align_table)
    raise typer.Exit(done.exit_code)


@app.command("status")
def status(ctx: typer.Context, state: StateDir = Path(".logdiff"), as_json: options.Json = False) -> None:
    """Say what is aligned here, from the files alone."""
    from logdiff import actions
    from logdiff.cli.tables import align_table

    out: Output = ctx.obj
    done = actions.align_status(state=state)
    out.show(done.data, align_table)
    raise typer.Exit(done.exit_code)


@app.command("revert")
def revert(
    ctx: typer.Context,
    case: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="CASE", help="Native case whose bits must come back (default: the plan's own case)."),
    ] = None,
    bits: Annotated[
        bool, typer.Option("--bits/--no-bits", help="Also run the engines again and compare bits with the case.")
    ] = True,
    state: StateDir = Path(".logdiff"),
    as_json: options.Json = False,
) -> None:
    """Remove the overlay and prove that the engines are native again."""
    from logdiff import actions
    from logdiff.cli.tables import align_table

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.align_revert(case=case, bits=bits, state=state, on_progress=view)
    out.show(done.data, align_table)
    raise typer.Exit(done.exit_code)
