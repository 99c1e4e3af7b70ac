"""`logdiff models`: small local models for experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output
from logdiff.cli.progress import ProgressView

app = typer.Typer(no_args_is_help=True, help="Small local models for experiments.")


@app.command("list")
def list_(ctx: typer.Context, python: options.Python = None, as_json: options.Json = False) -> None:
    """List the models that can be built here."""
    from logdiff import actions
    from logdiff.cli.tables import models_table

    out: Output = ctx.obj
    data = actions.list_models(python=python).data
    if out.as_json:
        out.json(data)
    else:
        out.text(models_table(data))


@app.command("build")
def build(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `logdiff models list`.")],
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder for the model (default: a cache outside the project)."
        ),
    ] = None,
    python: options.Python = None,
    as_json: options.Json = False,
) -> None:
    """Build a model, or find it in the cache, and print where it is."""
    from logdiff import actions

    out: Output = ctx.obj
    with ProgressView() as view:
        data = actions.build_model(name=name, output=output, python=python, on_progress=view).data
    if out.as_json:
        out.json(data)
    else:
        out.text(data["path"])
