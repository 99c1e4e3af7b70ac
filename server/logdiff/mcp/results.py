"""What the tools return: a summary, a verdict and next steps first, then the facts of the command's JSON result.

Numbers come from a worker as JSON, where non-finite values are already the strings "nan", "inf" and "-inf"; a float
that isn't finite never reaches a schema.
"""

from __future__ import annotations

from typing import Annotated, Any

from mcp.types import CallToolResult, TextContent
from pydantic import BaseModel, ConfigDict, Field


def _lean(schema: dict[str, Any]) -> None:
    """Leave out what a model doesn't need to read: titles, and defaults that only say that a field may be absent."""
    schema.pop("title", None)
    for field in schema.get("properties", {}).values():
        field.pop("title", None)
        field.pop("default", None)


class _Model(BaseModel):
    model_config = ConfigDict(json_schema_extra=_lean, extra="forbid")


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
    state: Annotated[str, Field(description="running|done|failed|cancelled|interrupted")]
    case: str
    seconds: float
    progress: str = ""


class Result(_Model):
    """Fields that every tool returns first."""

    summary: str
    verdict: str | None = None
    next_steps: list[NextStep]
    job: JobInfo | None = None


Facts = dict[str, Any]


class MeasureResult(Result):
    """logdiff-measure/1; absent while the job runs."""

    format: str | None = None
    exit_code: int | None = None
    case: str
    gates: list[Facts] = []
    measure: Facts = {}
    pairs: dict[str, Facts | None] = {}
    floor: Facts = {}
    unavailable: Facts = {}
    resources: list[str] = []


class CaseResult(Result):
    """logdiff-case/1."""

    format: str | None = None
    case: str
    facts: Facts = {}


class QueryResult(Result):
    """logdiff-query/1."""

    format: str | None = None
    case: str
    columns: list[str] = []
    rows: list[list[Any]] = []
    truncated: bool = False


class ReportResult(Result):
    """Where the report lies."""

    case: str
    report: str | None = None
    resources: list[str] = []


class EnvResult(Result):
    """logdiff-env/1."""

    format: str | None = None
    facts: Facts = {}


class JobResult(Result):
    """State of one job, or the list of jobs."""

    result: Facts | None = None
    error: Facts | None = None
    jobs: list[JobInfo] = []


def reply(result: Result) -> CallToolResult:
    """The same facts twice, because some clients show a model only the text and others only the structure."""
    text = result.model_dump_json(exclude_none=True)
    return CallToolResult(
        content=[TextContent(type="text", text=text)], structured_content=result.model_dump(mode="json")
    )
