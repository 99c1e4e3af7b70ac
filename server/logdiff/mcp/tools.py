"""The tools: each parses its arguments, runs one action in a worker process, and formats the answer."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ToolAnnotations
from pydantic import Field

from logdiff.errors import InputError, LogdiffError
from logdiff.mcp import summaries
from logdiff.mcp.answers import error_text, info, job_result, progress_text, tool_result
from logdiff.mcp.jobs import Job, Jobs, Record
from logdiff.mcp.results import (
    CaseResult,
    EnvResult,
    Facts,
    JobResult,
    MeasureResult,
    QueryResult,
    ReportResult,
    Result,
    reply,
)
from logdiff.mcp.workspace import Workspace

_Tool = TypeVar("_Tool", bound=Callable[..., Awaitable[CallToolResult]])

INLINE_SECONDS = 6.0
"""A call that takes longer answers with a job."""


@dataclass(slots=True)
class State:
    """What every tool of one server shares."""

    workspace: Workspace
    jobs: Jobs
    inline_seconds: float = INLINE_SECONDS
    allow_write: bool = False


_WRITES = frozenset(
    {
        *("logdiff_run", "logdiff_measure", "case_import", "config_audit", "probe_run", "dispatch_inspect"),
        *("case_diagnose", "divergence_localize"),
    }
)
"""Tools that make or extend a case."""
_ENGINES = frozenset(
    {
        *("logdiff_run", "dispatch_inspect", "case_diagnose", "divergence_localize"),
        *("align_plan", "align_apply", "align_revert"),
    }
)
"""Tools that start engines or change them: one such job at a time."""

CHANGING = "align_"
"""How the names of tools begin that are offered only where the server was started so."""

Detail = Annotated[
    Literal["summary", "full"], Field(description="summary (default): under 2,000 tokens; full: every statistic")
]
CasePath = Annotated[str, Field(description="case folder, relative to the workspace root")]
NewCase = Annotated[str, Field(description="case folder to write or resume; default runs/<time>-<name>", default="")]
FailAbove = Annotated[
    str,
    Field(
        description='limits such as "mean_abs=0.01,mismatched=0"; 1 in exit_code means one was passed or a gate failed'
    ),
]


def tool_maker(server: MCPServer) -> Callable[..., Callable[[_Tool], _Tool]]:
    """The decorator that registers a tool with all four hints."""

    def tool(
        name: str,
        title: str,
        *,
        read_only: bool,
        idempotent: bool,
        open_world: bool = False,
        destructive: bool = False,
    ) -> Callable[[_Tool], _Tool]:
        hints = ToolAnnotations(
            title=title,
            read_only_hint=read_only,
            destructive_hint=destructive,
            idempotent_hint=idempotent,
            open_world_hint=open_world,
        )

        def register(function: _Tool) -> _Tool:
            words = " ".join((function.__doc__ or "").split())  # Python before 3.13 keeps a docstring's indentation
            made = server.tool(name=name, title=title, description=words, annotations=hints, structured_output=True)
            return made(function)

        return register

    return tool


def add_tools(server: MCPServer, state: State) -> None:
    """Register every tool of this version; those that change engines only where the server was started so."""
    tool = tool_maker(server)
    from logdiff.mcp.audit_tools import add_audit_tools
    from logdiff.mcp.diagnose_tools import add_diagnose_tools
    from logdiff.mcp.dispatch_tools import add_dispatch_tools
    from logdiff.mcp.playbook_tools import add_playbooks
    from logdiff.mcp.probe_tools import add_probe_tools

    add_audit_tools(server, state)
    add_probe_tools(server, state)
    add_dispatch_tools(server, state)
    add_diagnose_tools(server, state)
    add_playbooks(server, state)
    if state.allow_write:
        from logdiff.mcp.align_tools import add_align_tools

        add_align_tools(server, state)

    @tool("env_inspect", "Inspect environment", read_only=True, idempotent=True)
    async def env_inspect(
        ctx: Context,
        python: Annotated[
            str, Field(description="interpreter with the engines, such as .venv/bin/python; default: the server's own")
        ] = "",
        detail: Detail = "summary",
    ) -> Annotated[CallToolResult, EnvResult]:
        """Versions, devices and environment variables that decide the numbers. Use it first, and in bug reports."""
        with clear_errors():
            arguments = {"python": state.workspace.interpreter(python) if python else None}
            return await call(state, ctx, "env_inspect", "env", arguments, "", detail)

    @tool("logdiff_run", "Run both engines and compare", read_only=False, idempotent=False, open_world=True)
    async def logdiff_run(
        ctx: Context,
        run_file: Annotated[str, Field(description="logdiff-run/1 YAML file, relative to the workspace root")],
        case: NewCase = "",
        floor: Annotated[
            Literal["quick", "full"],
            Field(description="quick (default): rerun, batch sizes, padding; full: axes that restart the engine too"),
        ] = "quick",
        align: Annotated[
            str, Field(description='run aligned operators: "all" or names with commas; default: as the run file says')
        ] = "",
        tokens: Annotated[str, Field(description="earlier case whose tokens are scored again, not sampled anew")] = "",
        fail_above: FailAbove = "",
        detail: Detail = "summary",
    ) -> Annotated[CallToolResult, MeasureResult]:
        """Start the rollout and the training engine of a run file, score the same tokens on both, and measure how far
        the log-probabilities are apart, beside the floor of each engine against itself. Takes minutes: returns a job.
        It executes the Python modules that the run file names."""
        with clear_errors():
            file = state.workspace.path(run_file, "run_file")
            folder = state.workspace.new_case(case, file.stem)
            arguments: Facts = {
                "run_file": str(file), "case": str(folder), "floor": floor, "fail_above": fail_above or None,
                "align": align or None, "tokens": str(state.workspace.case(tokens)) if tokens else None,
            }  # fmt: skip
            return await call(state, ctx, "logdiff_run", "run", arguments, str(folder), detail)

    @tool("logdiff_measure", "Measure recorded log-probabilities", read_only=False, idempotent=True)
    async def logdiff_measure(
        ctx: Context,
        paths: Annotated[
            list[str],
            Field(description="logdiff-pair/1 files (.jsonl, .gz, .zst, .parquet), or one case folder", min_length=1),
        ],
        case: NewCase = "",
        fail_above: FailAbove = "",
        detail: Detail = "summary",
    ) -> Annotated[CallToolResult, MeasureResult]:
        """Compare log-probabilities that were already recorded: identity gates first (ids, lengths, masks, weights,
        finite values), then statistics of d = logp_train - logp_rollout. Starts no engine."""
        with clear_errors():
            files = [state.workspace.path(p, "paths") for p in paths]
            given = files[0] if len(files) == 1 and files[0].is_dir() and not case else None
            folder = given or state.workspace.new_case(case, files[0].stem)
            arguments = {"paths": [str(f) for f in files], "case": str(folder), "fail_above": fail_above or None}
            return await call(state, ctx, "logdiff_measure", "measure", arguments, str(folder), detail)

    @tool("case_import", "Import recorded evidence", read_only=False, idempotent=True)
    async def case_import(
        ctx: Context,
        format: Annotated[Literal["jsonl"], Field(description="format of the files: jsonl")],
        paths: Annotated[list[str], Field(description="files to read", min_length=1)],
        case: NewCase = "",
        map: Annotated[
            dict[str, str] | None,
            Field(description='our field to the name in the file: {"rollout_logprobs": "old_logp"}'),
        ] = None,
    ) -> Annotated[CallToolResult, CaseResult]:
        """Read foreign JSON Lines records of prompt ids, response ids and log-probabilities into a case."""
        with clear_errors():
            files = [state.workspace.path(p, "paths") for p in paths]
            folder = state.workspace.new_case(case, files[0].stem)
            arguments = {
                "format": format, "paths": [str(f) for f in files], "case": str(folder), "mapping": map or {},
            }  # fmt: skip
            return await call(state, ctx, "case_import", "import", arguments, str(folder), "summary")

    @tool("case_query", "Query a case with SQL", read_only=True, idempotent=True)
    async def case_query(
        ctx: Context,
        case: CasePath,
        sql: Annotated[
            str,
            Field(
                description="one read-only DuckDB SELECT; tokens(sample_id, step, rank, side, position, token_id, "
                "logprob, mask), side = rollout|train|rescore; samples(...)"
            ),
        ],
        limit: Annotated[int, Field(description="most rows to return, 1 to 1000; default 50", ge=1, le=1000)] = 50,
    ) -> Annotated[CallToolResult, QueryResult]:
        """Ask the token table of a case: worst tokens, one sample, counts by side or position."""
        with clear_errors():
            folder = state.workspace.case(case)
            arguments = {"case": str(folder), "sql": sql, "limit": limit}
            return await call(state, ctx, "case_query", "query", arguments, str(folder), "summary")

    @tool("report_render", "Render the HTML report", read_only=False, idempotent=True)
    async def report_render(ctx: Context, case: CasePath) -> Annotated[CallToolResult, ReportResult]:
        """Write report.html into a measured case: one self-contained page with every plot, for a person to open."""
        with clear_errors():
            folder = state.workspace.case(case)
            arguments = {"case": str(folder), "output": str(folder / "report.html")}
            return await call(state, ctx, "report_render", "report", arguments, str(folder), "summary")

    @tool("job_status", "Follow, list or cancel jobs", read_only=False, idempotent=True)
    async def job_status(
        ctx: Context,
        job_id: Annotated[str, Field(description="job to ask for; empty: list the latest jobs")] = "",
        case: Annotated[str, Field(description="list only the jobs of this case")] = "",
        wait_s: Annotated[
            float, Field(description="wait up to this many seconds for the end, 0 to 30; default 0", ge=0, le=30)
        ] = 0,
        cancel: Annotated[bool, Field(description="end the job and its engines; evidence stays in the case")] = False,
        detail: Detail = "summary",
    ) -> Annotated[CallToolResult, JobResult]:
        """Progress or result of a job that another tool started."""
        with clear_errors():
            if not job_id:
                if cancel or wait_s:
                    raise InputError("which job?", value=None, hint="give `job_id`; without it the jobs are listed")
                folder = str(state.workspace.path(case, "case")) if case else ""
                infos = [info(state.workspace, r) for r in state.jobs.records(folder)[:10]]
                running = [i for i in infos if i.state == "running"]
                return reply(
                    JobResult(
                        summary=f"{len(infos)} jobs, {len(running)} running",
                        next_steps=summaries.job_steps(running[0].job_id) if running else [],
                        jobs=infos,
                    )
                )
            job = state.jobs.get(job_id)
            if isinstance(job, Record):
                return reply(_offered(state, job_result(state.workspace, job, detail)))
            if cancel:
                await anyio.to_thread.run_sync(job.cancel)
            else:
                await _follow(ctx, job, wait_s)
            return reply(_offered(state, job_result(state.workspace, job.record, detail)))


class clear_errors:  # noqa: N801 - used like a keyword
    """Turn our errors into ToolError: the SDK masks every other exception, and the model must read ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, LogdiffError):
            raise ToolError(error_text(error.as_dict()["error"])) from None


async def call(
    state: State, ctx: Context, tool: str, action: str, arguments: Facts, case: str, detail: str
) -> CallToolResult:
    """Run an action as a job and answer with its result, or with the job when it takes longer."""
    engines = tool in _ENGINES and not _recorded(action, arguments)
    start = partial(
        state.jobs.start, tool, action, arguments, case, writes=tool in _WRITES and bool(case), engines=engines
    )
    job = await anyio.to_thread.run_sync(start)
    try:
        await _follow(ctx, job, state.inline_seconds)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(job.cancel)
        raise
    return reply(_offered(state, tool_result(state.workspace, job.record, detail)))


def _recorded(action: str, arguments: Facts) -> bool:
    """Whether what an action works on was recorded: it is read, and no engine is started."""
    if action == "diagnose":
        return not any(str(target).endswith((".yaml", ".yml")) for target in arguments["targets"])
    return action == "dispatch_profile"


def _offered(state: State, result: Result) -> Result:
    """The result without next steps that this server does not offer."""
    if not state.allow_write:
        result.next_steps = [step for step in result.next_steps if not step.tool.startswith(CHANGING)]
    return result


async def _follow(ctx: Context, job: Job, seconds: float) -> None:
    """Wait for a job and pass its progress on to the client."""
    deadline = time.monotonic() + seconds
    seen: Facts | None = None
    while job.running and (left := deadline - time.monotonic()) > 0:
        progress = await anyio.to_thread.run_sync(job.wait_change, seen, min(left, 0.5))
        if progress is not None and progress is not seen:
            seen = progress
            await ctx.report_progress(progress["done"] or 0, progress["total"], progress_text(progress))
