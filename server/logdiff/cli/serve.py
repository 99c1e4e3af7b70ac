"""`logdiff serve`: the MCP server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from logdiff.cli import options
from logdiff.cli.output import Output


def serve(
    ctx: typer.Context,
    http: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="HOST:PORT", help="Serve over HTTP, with a bearer token (default: standard input/output)."
        ),
    ] = None,
    allow_write: Annotated[
        bool,
        typer.Option("--allow-write", help="Also offer what changes engines: align_plan, align_apply, align_revert."),
    ] = False,
    root: Annotated[
        Path,
        typer.Option(
            metavar="DIR", help="Workspace: the tools touch no path outside it.", show_default="the working directory"
        ),
    ] = Path(),
    as_json: options.Json = False,
) -> None:
    """Serve the tools to coding agents over MCP."""
    from logdiff.mcp.startup import quick_imports

    with quick_imports():
        from logdiff.mcp.http import parse_address
        from logdiff.mcp.server import serve as start
        from logdiff.mcp.workspace import Workspace

    address = parse_address(http) if http else None
    workspace = Workspace(root)
    out: Output = ctx.obj
    out.close()  # with --json errors so far are JSON; from here on standard output is the protocol's
    start(workspace, address, allow_write=allow_write)
