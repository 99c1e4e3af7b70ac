"""The tool that says what really runs."""

from __future__ import annotations

from typing import Annotated, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from logdiff.actions.dispatch_profile import recorded_alone
from logdiff.errors import InputError
from logdiff.mcp.results import DispatchResult
from logdiff.mcp.tools import Detail, State, call, clear_errors, tool_maker


def add_dispatch_tools(server: MCPServer, state: State) -> None:
    """Register dispatch_inspect."""
    tool = tool_maker(server)

    @tool("dispatch_inspect", "Inspect what really runs", read_only=False, idempotent=True)
    async def dispatch_inspect(
        ctx: Context,
        run_file: Annotated[str, Field(description="run file (logdiff-run/1) whose engines are looked into")] = "",
        side: Annotated[Literal["both", "rollout", "train"], Field(description="which side")] = "both",
        phases: Annotated[
            list[Literal["prefill", "decode", "score", "backward"]], Field(description="default: all")
        ] = [],  # noqa: B006 - pydantic copies it
        toggles: Annotated[
            list[str],
            Field(
                description="switches tried one by one: env:NAME=VALUE, args:NAME=VALUE, align=OPS, modules=FILE; "
                "rollout: or train: in front for one side"
            ),
        ] = [],  # noqa: B006
        profiles: Annotated[
            list[str],
            Field(
                description="instead of a run file: recorded Ascend profiles, read offline; rollout's file or folder, "
                "then train's"
            ),
        ] = [],  # noqa: B006
        case: Annotated[str, Field(description="case folder that keeps the result")] = "",
        detail: Detail = "summary",
    ) -> Annotated[CallToolResult, DispatchResult]:
        """Which operators, kernels, libraries and attention backends each engine executes, by model boundary; functions
        that differ from their installed package; operators of torch with a wrong or shadowed implementation; and for
        each switch what it changes, or that it changes nothing."""
        with clear_errors():
            folder = str(state.workspace.path(case, "case", exists=False)) if case else ""
            if profiles:
                one_side = "" if side == "both" else side
                recorded_alone(run_file=run_file, phases=phases, toggles=toggles, side=one_side)
                found = [str(state.workspace.path(item, "profiles")) for item in profiles]
                recorded = {"profiles": found, "case": folder or None}
                return await call(state, ctx, "dispatch_inspect", "dispatch_profile", recorded, folder, detail)
            if not run_file:
                raise InputError("nothing to look at", hint="give `run_file`, or recorded `profiles`")
            arguments = {
                "run_file": str(state.workspace.path(run_file, "run_file")),
                "side": None if side == "both" else side,
                "phases": list(phases) or None,
                "toggles": toggles,
                "case": folder or None,
            }
            return await call(state, ctx, "dispatch_inspect", "dispatch", arguments, folder, detail)
