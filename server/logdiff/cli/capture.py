"""Commands that start engines or look at their environment: `demo`, `run`, `env`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output
from logdiff.cli.progress import ProgressView


def demo(
    ctx: typer.Context,
    model: Annotated[
        Literal["dense", "moe", "smollm2"],
        typer.Option(help="smollm2 has trained weights; dense (Qwen3) and moe (Qwen3-MoE) have random ones."),
    ] = "smollm2",
    rollout: Annotated[
        Literal["vllm", "transformers-generate"], typer.Option(help="Engine that samples the tokens.")
    ] = "vllm",
    report: Annotated[Path, typer.Option(metavar="FILE", help="Where the HTML report goes.")] = Path(
        "logdiff-demo.html"
    ),
    case: options.CaseDir = None,
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """See it on real engines: rollout against Transformers, stock and then aligned on the same tokens."""
    from logdiff import actions
    from logdiff.cli.tables import demo_table

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.demo(
            prompts=Path(str(files("logdiff.cli") / "demo_prompts.txt")),
            model=model,
            rollout=rollout,
            report_file=report,
            case=case,
            python=python,
            say=view.say,
            on_progress=view,
        )
    out.show(done.data, demo_table)
    raise typer.Exit(done.exit_code)


def run(
    ctx: typer.Context,
    run_file: Annotated[Path, typer.Argument(metavar="RUN.yaml", help="Run file (logdiff-run/1).")],
    floor: Annotated[
        Literal["none", "brief", "quick", "full"],
        typer.Option(help="How each side is compared with itself: not, in a few shapes, in all, or restarted too."),
    ] = "quick",
    align: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="OPS", help="Run these operators aligned: all, or names with commas (over align.ops)."),
    ] = None,
    tokens: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="CASE", help="Take the tokens of an earlier case, do not sample (over align.tokens)."),
    ] = None,
    case: options.CaseDir = None,
    fail_above: options.FailAbove = None,
    as_json: options.Json = False,
) -> None:
    """Capture both engines of a run file live, and measure. A case that was cut off is resumed with --case."""
    from logdiff import actions
    from logdiff.cli.tables import measure_table

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.run(
            run_file=run_file,
            case=case,
            floor=None if floor == "none" else floor,
            fail_above=fail_above,
            align=align,
            tokens=tokens,
            on_progress=view,
        )
    out.show(done.data, measure_table)
    raise typer.Exit(done.exit_code)


def env(ctx: typer.Context, python: options.Python = None, as_json: options.Json = False) -> None:
    """Show versions, devices and variables that decide the numbers, of the interpreter that has the engines."""
    from logdiff import actions
    from logdiff.cli.tables import env_table

    out: Output = ctx.obj
    data = actions.env(python=python).data
    out.show(data, env_table)
