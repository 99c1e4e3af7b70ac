"""`logdiff probe`: is each operator invariant, and is it accurate?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output
from logdiff.cli.progress import ProgressView

app = typer.Typer(no_args_is_help=True, help="Probe operators: batch invariance, accuracy, provider against provider.")
Names = Optional[list[str]]  # noqa: UP045 - typer evaluates annotations under Python 3.10 too


@app.command("list")
def list_(ctx: typer.Context, python: options.Python = None, as_json: options.Json = False) -> None:
    """List operators, providers and relations."""
    from logdiff import actions
    from logdiff.cli.probe_table import list_table

    out: Output = ctx.obj
    out.show(actions.probe_list(python=python).data, list_table)


@app.command("run")
def run(
    ctx: typer.Context,
    ops: Annotated[list[str], typer.Argument(metavar="OP...", help="Operators, or all.")],
    provider: Annotated[
        Names, typer.Option("--provider", metavar="P", help="Only this one; may be repeated (default: all found).")
    ] = None,
    device: Annotated[Literal["cpu", "npu", "cuda"], typer.Option(help="Where the operators run.")] = "cpu",
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="MODEL", help="Shapes of this model: folder, run file or builtin:NAME."),
    ] = None,
    relations: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="LIST", help="With commas, such as I:batch,I:padding,A,P (default: all but I:compile)."),
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="bfloat16, float16 or float32.")] = "bfloat16",
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    shape: Annotated[
        Names, typer.Option("--shape", metavar="DIMS", help="rows=2,k=64,n=32 of one operator; may be repeated.")
    ] = None,
    max_seconds: Annotated[float, typer.Option("--max-seconds", help="Time for all checks.")] = 120.0,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again what the cache knows.")] = False,
    case: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--case", metavar="DIR", help="Keep the result in this case (made where there is none)."),
    ] = None,
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Ask each operator of each provider whether a row's bits depend on batch, padding, chunks, threads, ...; whether
    it is within rounding of fp64; and whether providers agree. Exit code 1: a relation fails."""
    from logdiff import actions
    from logdiff.cli.probe_table import probe_table

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.probe_run(
            ops=ops, providers=provider or [], device=device, model=model,
            relations=[name.strip() for name in (relations or "").split(",") if name.strip()], dtype=dtype, seed=seed,
            shapes=shape or [], max_seconds=max_seconds, fresh=fresh, case=case, python=python, on_progress=view,
        )  # fmt: skip
    out.show(done.data, probe_table)
    raise typer.Exit(done.exit_code)
