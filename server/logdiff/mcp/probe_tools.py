"""The tool that probes operators."""

from __future__ import annotations

from typing import Annotated, Literal

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from logdiff.mcp.results import ProbeResult
from logdiff.mcp.tools import Detail, State, call, clear_errors, tool_maker


def add_probe_tools(server: MCPServer, state: State) -> None:
    """Register probe_run."""
    tool = tool_maker(server)

    @tool("probe_run", "Probe operators", read_only=False, idempotent=True)
    async def probe_run(
        ctx: Context,
        ops: Annotated[
            list[str],
            Field(description='operators such as linear, rms_norm, attention, logprob; ["all"]', min_length=1),
        ],
        providers: Annotated[
            list[str], Field(description="implementations such as torch, sdpa, vllm, aligned; default: all found")
        ] = [],  # noqa: B006 - pydantic copies it
        relations: Annotated[
            list[str], Field(description="such as I:batch, I:padding, I:decode, A, P, grad-A; default: all")
        ] = [],  # noqa: B006
        device: Annotated[Literal["cpu", "npu", "cuda"], Field(description="where the operators run")] = "cpu",
        model: Annotated[str, Field(description="model folder or run file whose sizes decide the shapes")] = "",
        dtype: Annotated[
            Literal["bfloat16", "float16", "float32"], Field(description="of activations and weights")
        ] = "bfloat16",
        seed: Annotated[int, Field(description="seed of the inputs, 0 or more", ge=0)] = 0,
        max_seconds: Annotated[float, Field(description="time for all checks, 0 to 3600", ge=0, le=3600)] = 120,
        case: Annotated[str, Field(description="case folder that keeps the result")] = "",
        python: Annotated[str, Field(description="interpreter with the engines; default: the server's own")] = "",
        detail: Detail = "summary",
    ) -> Annotated[CallToolResult, ProbeResult]:
        """Does an operator's row change with batch, order, padding, chunks, pages, threads or ranks (I), is it within
        rounding of fp64 (A), do providers agree bit by bit (P)? Gives the smallest failing shape; every check has a
        planted fault as its control, without which it says not proven."""
        with clear_errors():
            folder = str(state.workspace.path(case, "case", exists=False)) if case else ""
            arguments = {
                "ops": ops, "providers": providers, "relations": relations, "device": device, "dtype": dtype,
                "model": _model(state, model), "seed": seed, "max_seconds": max_seconds, "case": folder or None,
                "python": state.workspace.interpreter(python) if python else None,
            }  # fmt: skip
            return await call(state, ctx, "probe_run", "probe_run", arguments, folder, detail)


def _model(state: State, model: str) -> str | None:
    if not model or model.startswith("builtin:"):
        return model or None
    return str(state.workspace.path(model, "model"))
