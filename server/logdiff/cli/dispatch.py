"""`logdiff dispatch`: what really runs on each side, and what a switch changes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output
from logdiff.cli.progress import ProgressView
from logdiff.errors import InputError


def dispatch(
    ctx: typer.Context,
    run_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(metavar="[RUN.yaml]", help="Run file (logdiff-run/1); none with --profile."),
    ] = None,
    side: Annotated[
        Optional[Literal["rollout", "train"]],  # noqa: UP045
        typer.Option(help="Only this side."),
    ] = None,
    phases: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAMES", help="Of prefill, decode, score, backward, with commas (default: all)."),
    ] = None,
    toggle: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            metavar="SWITCH",
            help="Run again with env:NAME=VALUE, args:NAME=VALUE, align=OPS or modules=FILE, and show what changed. "
            "rollout: or train: in front sets it on one side. May be given several times; each is tried alone.",
        ),
    ] = None,
    align: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="OPS", help="Run these operators aligned throughout: all, or names with commas."),
    ] = None,
    profile: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option(
            "--profile",
            metavar="PATH",
            help="Read an Ascend profile instead, offline: a folder of torch_npu.profiler or msprof, or one of its "
            "*.db and *.csv files. Given twice: rollout's, then train's, compared.",
        ),
    ] = None,
    case: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--case", metavar="DIR", help="Keep the result in this case (made where there is none)."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Say which operators, kernels, functions and libraries really run on each side; declared is not executed.

    Exit code 1: a patched function, a wrong or shadowed operator, an odd rank, or a switch that changes nothing.
    Differences between the sides alone give 0. With two profiles 1 means that they are not shown to be the same.
    """
    from logdiff import actions
    from logdiff.cli.dispatch_table import dispatch_table

    out: Output = ctx.obj
    if profile:
        from logdiff.actions.dispatch_profile import recorded_alone
        from logdiff.cli.profile_table import profile_table

        recorded_alone(run_file=run_file, side=side, phases=phases, toggle=toggle, align=align)
        done = actions.dispatch_profile(profiles=profile, case=case)
        out.show(done.data, profile_table)
        raise typer.Exit(done.exit_code)
    if run_file is None:
        raise InputError("nothing to look at", hint="name a run file, or a profile with --profile PATH")
    with ProgressView() as view:
        done = actions.dispatch(
            run_file=run_file, side=side, phases=phases, toggles=toggle or [], align=align, case=case, on_progress=view
        )
    out.show(done.data, dispatch_table)
    raise typer.Exit(done.exit_code)
