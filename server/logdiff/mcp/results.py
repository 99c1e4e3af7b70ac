"""What the tools return: a summary, a verdict and next steps first, then the facts of the command's JSON result.

Numbers come from a worker as JSON, where non-finite values are already the strings "nan", "inf" and "-inf"; a float
that isn't finite never reaches a schema.
"""

from __future__ import annotations

from typing import Annotated, Any

from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel, ConfigDict, WithJsonSchema


def _lean(schema: dict[str, Any]) -> None:
    """Leave out what a model needn't read; every tool's schema is part of every conversation."""
    for key in ("title", "description"):
        schema.pop(key, None)
    for field in schema.get("properties", {}).values():
        for key in ("title", "default", "additionalProperties"):
            field.pop(key, None)


class _Model(BaseModel):
    model_config = ConfigDict(json_schema_extra=_lean)


class NextStep(_Model):
    """A call worth making now; `arguments` can be sent as they are."""

    tool: str
    arguments: dict[str, Any]
    why: str
    outcomes: list[str]


class JobInfo(_Model):
    """A job that works on, or has worked; ask job_status for it."""

    job_id: str
    tool: str
    state: str  # running, done, failed, cancelled or interrupted
    case: str
    seconds: float
    progress: str = ""


Facts = dict[str, Any]
MaybeFacts = Annotated[Facts | None, WithJsonSchema({"type": ["object", "null"]})]
Text = Annotated[str | None, WithJsonSchema({"type": ["string", "null"]})]
Objects = {"type": "array", "items": {"type": "object"}}
Steps = Annotated[
    list[NextStep], WithJsonSchema({**Objects, "description": "{tool, arguments (ready to send), why, outcomes}"})
]
Job = Annotated[JobInfo | None, WithJsonSchema({"type": ["object", "null"], "description": "{job_id, state, ...}"})]


class Result(_Model):
    """Fields that every tool returns first."""

    summary: str
    verdict: Text = None
    next_steps: Steps
    job: Job = None


class MeasureResult(Result):
    """logdiff-measure/1; absent while the job runs."""

    format: Text = None
    exit_code: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]})] = None
    case: str
    gates: Annotated[list[Facts], WithJsonSchema(Objects)] = []
    measure: Facts = {}
    pairs: Annotated[dict[str, Facts | None], WithJsonSchema({"type": "object"})] = {}
    floor: Facts = {}
    unavailable: Facts = {}
    resources: list[str] = []


class CaseResult(Result):
    """logdiff-case/1."""

    format: Text = None
    case: str
    facts: Facts = {}


class QueryResult(Result):
    """logdiff-query/1."""

    format: Text = None
    case: str
    columns: list[str] = []
    rows: Annotated[list[list[Any]], WithJsonSchema({"type": "array", "items": {"type": "array"}})] = []
    truncated: bool = False


class ReportResult(Result):
    """Where the report lies."""

    case: str
    report: Text = None
    resources: list[str] = []


class EnvResult(Result):
    """logdiff-env/1."""

    format: Text = None
    facts: Facts = {}


class AuditResult(Result):
    """logdiff-audit/1."""

    format: Text = None
    exit_code: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]})] = None
    case: str = ""
    facts: Facts = {}


class AlignResult(Result):
    """logdiff-align-plan/1 or logdiff-align/1."""

    format: Text = None
    exit_code: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]})] = None
    facts: Facts = {}


class ProbeResult(Result):
    """logdiff-probe/1."""

    format: Text = None
    exit_code: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]})] = None
    facts: Facts = {}


class DispatchResult(Result):
    """logdiff-dispatch/1."""

    format: Text = None
    exit_code: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]})] = None
    facts: Facts = {}


Verdict = Annotated[
    Facts | str | None,
    WithJsonSchema(
        {"type": ["object", "string", "null"], "description": "{class, path, side, cause, component, confidence, ...}"}
    ),
]
List = Annotated[list[Facts], WithJsonSchema(Objects)]


class DiagnoseResult(Result):
    """logdiff-verdict/1; while the job runs `verdict` is "running"."""

    verdict: Verdict = None  # type: ignore[assignment]
    format: Text = None
    exit_code: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]})] = None
    case: str
    candidates: List = []
    measure: Facts = {}
    floor: Facts = {}
    evidence: List = []
    excluded: List = []
    budget: List = []
    next_experiments: List = []
    facts: Facts = {}


class LocalizeResult(Result):
    """logdiff-localize/1."""

    format: Text = None
    exit_code: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"]})] = None
    case: str
    facts: Facts = {}


class PlaybookResult(Result):
    """logdiff-playbook/1: `page` is Markdown."""

    format: Text = None
    name: str = ""
    page: str = ""


class JobResult(Result):
    """State of one job, or the list of jobs."""

    result: MaybeFacts = None
    error: MaybeFacts = None
    jobs: Annotated[list[JobInfo], WithJsonSchema(Objects)] = []


def reply(result: Result) -> CallToolResult:
    """The same facts twice, because some clients show a model only the text and others only the structure."""
    text = result.model_dump_json(exclude_none=True)
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=result.model_dump(mode="json")
    )
