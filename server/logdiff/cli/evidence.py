"""Commands over recorded evidence: `measure`, `compare`, `import`, `report`, `query`. None starts an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output
from logdiff.cli.progress import ProgressView
from logdiff.errors import InputError

CaseArgument = Annotated[Path, typer.Argument(metavar="CASE", help="Case folder.")]


def measure(
    ctx: typer.Context,
    pairs: Annotated[
        list[Path],
        typer.Argument(metavar="PAIRS", help="Pair files (.jsonl, also .gz or .zst; .parquet), or one case folder."),
    ],
    case: options.CaseDir = None,
    fail_above: options.FailAbove = None,
    as_json: options.Json = False,
) -> None:
    """Check that both sides are comparable, then measure how far their log-probabilities are apart."""
    from logdiff import actions
    from logdiff.cli.tables import measure_table

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.measure(paths=pairs, case=case, fail_above=fail_above, on_progress=view)
    out.show(done.data, measure_table)
    raise typer.Exit(done.exit_code)


def compare(
    ctx: typer.Context,
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Case folder.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Case folder.")],
    as_json: options.Json = False,
) -> None:
    """Compare two cases, such as before and after an upgrade: what changed in numbers, versions and configuration."""
    from logdiff import actions
    from logdiff.cli.tables import compare_table

    out: Output = ctx.obj
    done = actions.compare(before=before, after=after)
    out.show(done.data, compare_table)
    raise typer.Exit(done.exit_code)


def import_(
    ctx: typer.Context,
    format: Annotated[
        str, typer.Argument(metavar="FORMAT", help="jsonl: JSON Lines under any field names; pair: pair files.")
    ],
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files to read.")],
    case: options.CaseDir = None,
    map: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--map",
            metavar="FIELD=NAME",
            help="Our field and its name in the file, such as rollout_logprobs=old_log_probs; repeat it.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Read recorded log-probabilities of another tool into a case."""
    from logdiff import actions

    out: Output = ctx.obj
    with ProgressView() as view:
        done = actions.import_(format=format, paths=paths, case=case, mapping=_parse_map(map or []), on_progress=view)
    if out.as_json:
        out.json(done.data)
    else:
        out.text(f"case: {done.data['case']}")


def report(
    ctx: typer.Context,
    case: CaseArgument,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", metavar="FILE", help="HTML file to write (default: CASE/report.html)."),
    ] = None,
    png: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--png", metavar="DIR", help="Also write each plot as PNG into this folder."),
    ] = None,
    before: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--before", metavar="CASE", help="An earlier case to set beside this one."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write one self-contained HTML file about a case."""
    from logdiff import actions

    out: Output = ctx.obj
    data = actions.report(case=case, output=output, png=png, before=before).data
    if out.as_json:
        out.json(data)
    else:
        out.text(f"report: {data['report']}", *(f"plot:   {p}" for p in data["plots"]))


def query(
    ctx: typer.Context,
    case: CaseArgument,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One DuckDB select over `tokens` and `samples`.")],
    limit: Annotated[int, typer.Option(min=1, help="Most rows to print.")] = 1000,
    as_json: options.Json = False,
) -> None:
    """Ask the token table of a case with read-only SQL."""
    from logdiff import actions
    from logdiff.cli.tables import query_table

    out: Output = ctx.obj
    data = actions.query(case=case, sql=sql, limit=limit).data
    out.show(data, query_table)


def _parse_map(pairs: list[str]) -> dict[str, str]:
    mapping: dict[str, str] = {}
    for pair in pairs:
        ours, sign, theirs = pair.partition("=")
        if not sign or not ours or not theirs:
            raise InputError("--map takes FIELD=NAME", value=pair, hint="such as --map rollout_logprobs=old_log_probs")
        if ours in mapping:
            raise InputError("--map names a field twice", value=ours, hint="give each field once")
        mapping[ours] = theirs
    return mapping
