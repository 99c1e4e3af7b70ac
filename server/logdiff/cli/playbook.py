"""`logdiff playbook`: what is known, what is excluded, the one next step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output

CATALOGUE = "causes"


def playbook(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="A playbook, or `causes`; without one: the page that the case, or the folder here, calls for.",
            show_default=False,
        ),
    ] = "",
    case: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[CASE]", help="Case folder; after `causes`: the id of a cause.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show a guided playbook: what is known, what is excluded, the one next call, and what its outcomes mean."""
    from logdiff import actions

    out: Output = ctx.obj
    if name == CATALOGUE:
        done = actions.playbook(name=f"{CATALOGUE}/{case}" if case else CATALOGUE)
    elif case is None and (Path(name) / "manifest.json").is_file() and name:
        done = actions.playbook(case=name)
    else:
        done = actions.playbook(name=name, case=case)
    out.show(done.data, _page)
    raise typer.Exit(done.exit_code)


def _page(data: dict[str, Any]) -> list[str]:
    return [str(data["page"]).rstrip("\n")]
