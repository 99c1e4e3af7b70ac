"""The tool that audits configurations."""

from __future__ import annotations

import re
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from logdiff.mcp.results import AuditResult
from logdiff.mcp.tools import Detail, State, call, clear_errors, tool_maker


def add_audit_tools(server: MCPServer, state: State) -> None:
    """Register config_audit."""
    tool = tool_maker(server)

    @tool("config_audit", "Audit configurations", read_only=False, idempotent=True)
    async def config_audit(
        ctx: Context,
        paths: Annotated[
            list[str],
            Field(
                description="launch scripts, YAML, logs, model folders, package lists, run files, cases; "
                "rollout=PATH or train=PATH says whose a file is"
            ),
        ] = [],  # noqa: B006 - pydantic copies it
        live: Annotated[bool, Field(description="also packages and variables of the interpreter")] = False,
        python: Annotated[str, Field(description="interpreter with the engines; default: the server's own")] = "",
        case: Annotated[str, Field(description="case folder that keeps the result")] = "",
        detail: Detail = "summary",
    ) -> Annotated[CallToolResult, AuditResult]:
        """Which effective settings of rollout and training forbid equal log-probabilities: precedence, defaults of the
        version, switches that it ignores, values set on one side only, model configurations that differ. Executes
        nothing; what can't be read is listed."""
        with clear_errors():
            folder = str(state.workspace.path(case, "case", exists=False)) if case else ""
            arguments = {
                "paths": [_path(state, item) for item in paths], "live": live or bool(python),
                "python": state.workspace.interpreter(python) if python else None, "case": folder or None,
            }  # fmt: skip
            return await call(state, ctx, "config_audit", "audit", arguments, folder, detail)


def _path(state: State, item: str) -> str:
    match = re.match(r"^(rollout|train)=(.+)$", item, re.S)
    side, name = (f"{match[1]}=", match[2]) if match else ("", item)
    return side + str(state.workspace.path(name, "paths"))
