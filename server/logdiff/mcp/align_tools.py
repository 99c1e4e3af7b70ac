"""The tools that change engines; offered only with `--allow-write`."""

from __future__ import annotations

from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from logdiff.mcp.results import AlignResult
from logdiff.mcp.tools import State, call, clear_errors, tool_maker


def add_align_tools(server: MCPServer, state: State) -> None:
    """Register align_plan, align_apply and align_revert."""
    tool = tool_maker(server)
    folder = str(state.workspace.root / ".logdiff")

    @tool("align_plan", "Plan an alignment", read_only=False, idempotent=True)
    async def align_plan(
        ctx: Context,
        source: Annotated[str, Field(description="run file, or case that one made")],
        ops: Annotated[str, Field(description='"all" or names with commas; default: the run file\'s, else all')] = "",
        sides: Annotated[str, Field(description="rollout, train, or rollout,train (default)")] = "",
    ) -> Annotated[CallToolResult, AlignResult]:
        """Say which operators would run aligned on which side, why, at what cost, and what can't be aligned. Changes
        no engine; keeps the plan under its id."""
        with clear_errors():
            path = state.workspace.path(source, "source")
            arguments = {"source": str(path), "ops": ops or None, "sides": sides or None, "state": folder}
            return await call(state, ctx, "align_plan", "align_plan", arguments, "", "summary")

    @tool("align_apply", "Apply an alignment plan", read_only=False, idempotent=True, destructive=True)
    async def align_apply(
        ctx: Context, plan_id: Annotated[str, Field(description="id that align_plan returned")]
    ) -> Annotated[CallToolResult, AlignResult]:
        """Write the overlay of a plan: engines started with its env.sh run aligned operators. Refused when anything
        changed since the plan. No installed file is edited; align_revert takes it back."""
        with clear_errors():
            return await call(
                state, ctx, "align_apply", "align_apply", {"plan_id": plan_id, "state": folder}, "", "summary"
            )

    @tool("align_revert", "Revert an alignment", read_only=False, idempotent=True, destructive=True)
    async def align_revert(
        ctx: Context,
        case: Annotated[
            str, Field(description="native case whose bits must come back; default: the plan's own case")
        ] = "",
        bits: Annotated[bool, Field(description="also run the engines again and compare bits with the case")] = True,
    ) -> Annotated[CallToolResult, AlignResult]:
        """Remove the overlay, also one that was cut off, and prove that the engines are native again."""
        with clear_errors():
            stock = str(state.workspace.case(case)) if case else None
            arguments = {"case": stock, "bits": bits, "state": folder}
            return await call(state, ctx, "align_revert", "align_revert", arguments, "", "summary")
