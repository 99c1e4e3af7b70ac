"""`logdiff kernels`: the aligned kernels of an interpreter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output
from logdiff.cli.progress import ProgressView

app = typer.Typer(no_args_is_help=True, help="List, build, test and time the aligned kernels.")
Provider = Annotated[
    Literal["cpu", "twin", "ascendc"],
    typer.Option(help="The CPU library, the Ascend C kernels in their twin on the CPU, or those on an NPU."),
]
AnyProvider = Annotated[
    Optional[Literal["cpu", "twin", "ascendc"]],  # noqa: UP045
    typer.Option(help="One of them (default: all)."),
]
Arch = Annotated[
    Optional[Literal["dav-2201", "dav-3510"]],  # noqa: UP045
    typer.Option(help="NPU architecture: 910B and A3, or 950; not for cpu."),
]


@app.command("list")
def list_(
    ctx: typer.Context,
    provider: AnyProvider = None,
    arch: Arch = None,
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """List providers: operators, dtypes, limits, contract, and what is missing for those that can't run here."""
    _do(ctx, "list", provider, arch, python)


@app.command("build")
def build(
    ctx: typer.Context,
    provider: Provider = "cpu",
    arch: Arch = None,
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Compile the kernels now, unless they are built already."""
    _do(ctx, "build", provider, arch, python)


@app.command("selftest")
def selftest(
    ctx: typer.Context,
    provider: Provider = "cpu",
    arch: Arch = None,
    quick: Annotated[bool, typer.Option("--quick", help="NPU kernels: fewer operands, lengths and dtypes.")] = False,
    full: Annotated[bool, typer.Option("--full", help="NPU kernels: every m, long sequences, large tables.")] = False,
    compare: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Another host's report: say what differs; exit 1 when anything does."),
    ] = None,
    report: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="A saved report, instead of running the self-test."),
    ] = None,
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Try the laws of the numeric contract on this machine; exit 1 when one fails."""
    if quick and full:
        raise typer.BadParameter("--quick or --full, not both")
    if report is not None:
        for name, option in {"provider": "--provider", "arch": "--arch", "quick": "--quick", "full": "--full"}.items():
            source = ctx.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise typer.BadParameter(f"{option} is for a run, --report shows one that was saved")
    scope = "quick" if quick else "full" if full else None
    _do(ctx, "selftest", provider, arch, python, scope=scope, report=report, compare=compare)


@app.command("bench")
def bench(
    ctx: typer.Context,
    family: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="FAMILY", help="Benchmarks to run: families or cases (default: all)."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="At most about 20 s for each case.")] = False,
    provider: Provider = "cpu",
    arch: Arch = None,
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Time the kernels against what a model runs without them; ratio = peer's time / ours. Twin: the cost model."""
    _do(ctx, "bench", provider, arch, python, families=family or (), quick=quick)


def _do(
    ctx: typer.Context,
    what: Literal["list", "build", "selftest", "bench"],
    provider: str | None,
    arch: str | None,
    python: str | None,
    **fields: Any,
) -> None:
    from logdiff import actions
    from logdiff.cli.tables import bench_table, kernels_table, selftest_table

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.kernels(what=what, provider=provider, arch=arch, python=python, on_progress=view, **fields)
    table = {"list": kernels_table, "build": kernels_table, "selftest": selftest_table, "bench": bench_table}[what]
    out.show(done.data, table)
    raise typer.Exit(done.exit_code)
