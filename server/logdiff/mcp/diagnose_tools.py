"""The tools that find a cause: diagnose, localise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult
from pydantic import Field

from logdiff.errors import InputError
from logdiff.mcp.results import DiagnoseResult, Facts, LocalizeResult
from logdiff.mcp.tools import Detail, State, call, clear_errors, tool_maker

RunFile = Annotated[str, Field(description="run file (logdiff-run/1); its modules are executed")]
Seconds = Annotated[
    float, Field(description="time for all experiments, 10 to 86400; default 180", ge=10, le=86_400)
]  # fmt: skip
Starts = Annotated[int, Field(description="engines that may be started, 0 to 100; default 6", ge=0, le=100)]


def add_diagnose_tools(server: MCPServer, state: State) -> None:
    """Register case_diagnose and divergence_localize."""
    tool = tool_maker(server)

    @tool("case_diagnose", "Find the cause", read_only=False, idempotent=False, open_world=True)
    async def case_diagnose(
        ctx: Context,
        run_file: RunFile = "",
        pairs: Annotated[list[str], Field(description="or recorded log-probabilities: logdiff-pair/1 files")] = [],  # noqa: B006 - pydantic copies it
        case: Annotated[
            str, Field(description="or a measured case; beside run_file or pairs: the folder to write or to go on in")
        ] = "",
        max_seconds: Seconds = 180.0,
        max_starts: Starts = 6,
        detail: Detail = "summary",
    ) -> Annotated[CallToolResult, DiagnoseResult]:
        """From a mismatch to its cause: class, side, component, evidence, what is excluded. A run file is measured,
        looked into and changed one thing at a time; recorded numbers are judged as far as they carry. Returns a job."""
        with clear_errors():
            targets, folder = _targets(state, run_file, list(pairs), case)
            arguments: Facts = {
                "targets": targets, "case": str(folder), "max_seconds": max_seconds, "max_starts": max_starts,
            }  # fmt: skip
            return await call(state, ctx, "case_diagnose", "diagnose", arguments, str(folder), detail)

    @tool("divergence_localize", "Find where the sides part", read_only=False, idempotent=True, open_world=True)
    async def divergence_localize(
        ctx: Context,
        case: Annotated[str, Field(description="case of a live run that was diagnosed; or with run_file: folder")] = "",
        run_file: RunFile = "",
        detail: Detail = "summary",
    ) -> Annotated[CallToolResult, LocalizeResult]:
        """First boundary whose bits differ, growth by layer, and each operator against fp64 on its own captured input:
        rounding, another function, or other inputs."""
        with clear_errors():
            (target,), folder = _targets(state, run_file, [], case)
            arguments: Facts = {"target": target}
            if run_file:
                arguments["case"] = str(folder)
            return await call(state, ctx, "divergence_localize", "localize", arguments, str(folder), detail)


def _targets(state: State, run_file: str, pairs: list[str], case: str) -> tuple[list[str], Path]:
    """What to look at, and the case that keeps what is found."""
    workspace = state.workspace
    if run_file and pairs:
        raise InputError("a run file and pair files are two questions", value=run_file, hint="give one of them")
    if run_file:
        file = workspace.path(run_file, "run_file")
        return [str(file)], workspace.new_case(case, file.stem)
    if pairs:
        files = [workspace.path(entry, "pairs") for entry in pairs]
        return [str(file) for file in files], workspace.new_case(case, files[0].stem)
    if not case:
        raise InputError("nothing to look at", hint="give `run_file`, `pairs` or `case`; playbook_get says which")
    found = workspace.case(case)
    return [str(found)], found
