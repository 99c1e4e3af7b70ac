"""Playbooks as a tool, as prompts and as resources: one page each, filled with what is known."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError
from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult
from pydantic import Field

from logdiff.errors import LogdiffError
from logdiff.mcp.answers import error_text
from logdiff.mcp.results import PlaybookResult
from logdiff.mcp.tools import State, call, clear_errors, tool_maker
from logdiff.mcp.workspace import Workspace
from logdiff.playbook import PAGES

CATALOGUE = "causes"
Name = Annotated[
    str, Field(description=f"{', '.join(PAGES)}, causes or causes/ID; default: what the state of the case calls for")
]


def add_playbooks(server: MCPServer, state: State) -> None:
    """Register playbook_get, a prompt and a resource per playbook, and the catalogue of causes."""
    tool = tool_maker(server)

    @tool("playbook_get", "Get the page for here and now", read_only=True, idempotent=True)
    async def playbook_get(
        ctx: Context,
        name: Name = "",
        case: Annotated[str, Field(description="case folder; default: the workspace as a whole")] = "",
    ) -> Annotated[CallToolResult, PlaybookResult]:
        """Start here. What is known, what is excluded, the one next call with its arguments, what each outcome means,
        when to ask a person. Without arguments it looks for run files, pair files and cases."""
        with clear_errors():
            folder = str(state.workspace.case(case)) if case else ""
            arguments = {"name": name, "case": folder or None, "root": str(state.workspace.root)}
            return await call(state, ctx, "playbook_get", "playbook", arguments, folder, "summary")

    for name, page in PAGES.items():
        server.prompt(name=name, title=page.title, description=page.about)(_prompt(state.workspace, name))
        server.resource(
            f"playbook://{name}", name=name, title=page.title, description=page.about, mime_type="text/markdown"
        )(_resource(state.workspace, name))
    server.resource(
        f"playbook://{CATALOGUE}", name=CATALOGUE, title="Causes", description="Every cause that a verdict can name.",
        mime_type="text/markdown",
    )(_resource(state.workspace, CATALOGUE))  # fmt: skip

    @server.resource(
        f"playbook://{CATALOGUE}/{{cause}}", name="cause", mime_type="text/markdown",
        description="What one cause does, how it shows, what splits it off, and its fix by engine and version.",
    )  # fmt: skip
    async def cause_page(cause: str) -> str:
        try:
            return await _page(state.workspace, f"{CATALOGUE}/{cause}", "")
        except LogdiffError as error:
            raise ResourceNotFoundError(error_text(error.as_dict()["error"])) from None


def _prompt(workspace: Workspace, name: str) -> Callable[..., Awaitable[str]]:
    async def prompt(
        case: Annotated[str, Field(description="case folder, relative to the workspace root; may be left out")] = "",
    ) -> str:
        try:
            return await _page(workspace, name, case)
        except LogdiffError as error:
            raise MCPError(INVALID_PARAMS, error_text(error.as_dict()["error"])) from None

    return prompt


def _resource(workspace: Workspace, name: str) -> Callable[[], Awaitable[str]]:
    async def resource() -> str:
        return await _page(workspace, name, "")

    return resource


async def _page(workspace: Workspace, name: str, case: str) -> str:
    from logdiff import actions

    folder: Any = workspace.case(case) if case else None
    done = await anyio.to_thread.run_sync(lambda: actions.playbook(name=name, case=folder, root=workspace.root))
    return str(done.data["page"])
