"""From a job's record to a tool's answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError

from logdiff.mcp import (
    align_words,
    audit_words,
    dispatch_words,
    probe_words,
    profile_words,
    resources,
    steps,
    summaries,
    verdict_words,
)
from logdiff.mcp.jobs import Record
from logdiff.mcp.results import (
    AlignResult,
    AuditResult,
    CaseResult,
    DiagnoseResult,
    DispatchResult,
    EnvResult,
    Facts,
    JobInfo,
    JobResult,
    LocalizeResult,
    MeasureResult,
    NextStep,
    PlaybookResult,
    ProbeResult,
    QueryResult,
    ReportResult,
    Result,
)
from logdiff.mcp.summaries import clip
from logdiff.mcp.workspace import Workspace

MAX_RESULT_CHARS = 3600
"""Longest columns and rows of a query, in characters; the rest is announced as truncated. Numbers cost a token for
every two or three characters."""


def error_text(error: Facts) -> str:
    """A `logdiff-error/1` error as one text: message, value, way out."""
    value = "" if error.get("value") is None else f" (value: {clip(error['value'], 500)})"
    hint = f". Hint: {clip(error['hint'], 800)}" if error.get("hint") else ""
    return f"{error.get('type')}: {clip(error.get('message'), 1500)}{value}{hint}"


def progress_text(progress: Facts | None) -> str:
    """The last progress event as one short line."""
    if not progress:
        return ""
    of = "" if progress.get("total") is None else f"/{progress['total']}"
    count = f" {progress.get('done')}{of} {progress.get('unit') or ''}".rstrip() if progress.get("done") or of else ""
    return clip(f"{progress['task']}:{count} {progress.get('message') or ''}".rstrip(), 200)


def info(workspace: Workspace, record: Record) -> JobInfo:
    """A job as the tools show it."""
    end = record.ended if record.ended is not None else time.time()
    return JobInfo(
        job_id=record.job_id,
        tool=record.tool,
        state=record.state,
        case=workspace.relative(record.case) if record.case else "",
        seconds=round(max(end - record.started, 0.0), 1) if record.state != "interrupted" else 0.0,
        progress=progress_text(record.progress),
    )


def tool_result(workspace: Workspace, record: Record, detail: str) -> Result:
    """The tool's own result, or the running job in its place. Raises the error that ended the job."""
    if record.error is not None:
        raise ToolError(error_text(record.error))
    case = workspace.relative(record.case) if record.case else ""
    if record.data is None:
        return _pending(record.tool, case, info(workspace, record))
    finished: Result = _FINISHED[record.tool](workspace, record, record.data, case, detail)
    return finished


def _pending(tool: str, case: str, job: JobInfo) -> Result:
    fields: Facts = {
        "summary": f"{tool} is working as job {job.job_id}; its evidence goes to {case or 'the answer'}.",
        "verdict": "running",
        "next_steps": summaries.job_steps(job.job_id),
        "job": job,
    }
    kind = _KINDS[tool]
    pending: Result = kind(**fields) if kind in _WITHOUT_CASE else kind(case=case, **fields)
    return pending


def _measured(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> MeasureResult:
    verdict = summaries.measure_verdict(data)
    return MeasureResult(
        summary=summaries.measure_summary(data, verdict),
        verdict=verdict,
        next_steps=steps.after_measure(workspace, record, data),
        format=data.get("format"),
        exit_code=record.exit_code,
        case=case,
        resources=resources.uris(workspace, Path(record.case)),
        **summaries.measure_facts(data, detail),
    )


def _imported(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> CaseResult:
    facts = {k: v for k, v in data.items() if k not in ("format", "case", "files")}
    return CaseResult(
        summary=f"Imported into {case}.",
        verdict="imported",
        next_steps=summaries.case_steps(case),
        format=data.get("format"),
        case=case,
        facts=facts,
    )


def _queried(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> QueryResult:
    given, columns = data.get("rows", []), [clip(name, 100) for name in data.get("columns", [])]
    size = len(str(columns))
    if size > MAX_RESULT_CHARS // 2:
        raise ToolError(f"InputError: {len(columns)} columns are too many to show. Hint: select fewer, by name")
    rows: list[list[Any]] = []
    for row in given:
        cells = [_shown_cell(value) for value in row]
        size += len(str(cells)) + 1
        if size > MAX_RESULT_CHARS:
            break
        rows.append(cells)
    if given and not rows:
        raise ToolError(f"InputError: a row of {len(str(given[0]))} characters. Hint: select fewer or shorter columns")
    truncated = bool(data.get("truncated")) or len(rows) < len(given)
    more = "; more exist, or a cell was cut: aggregate, or add a where or limit clause" if truncated else ""
    return QueryResult(
        summary=f"{len(rows)} rows{more}.",
        next_steps=[],
        format=data.get("format"),
        case=case,
        columns=columns,
        rows=rows,
        truncated=truncated,
    )


def _shown_cell(value: Any) -> Any:
    if isinstance(value, str):
        return clip(value, 300)
    return clip(value, 300) if isinstance(value, (list, dict)) and len(str(value)) > 300 else value


def _rendered(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> ReportResult:
    report = workspace.relative(str(data["report"]))
    return ReportResult(
        summary=f"Wrote {report}; open it in a browser.",
        next_steps=[],
        case=case,
        report=report,
        resources=resources.uris(workspace, Path(record.case)),
    )


def _inspected(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> EnvResult:
    facts = {k: v for k, v in data.items() if k != "format"}
    return EnvResult(
        summary=summaries.env_summary(data),
        next_steps=[],
        format=data.get("format"),
        facts=facts if detail == "full" else summaries.env_facts(facts),
    )


def _planned(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> AlignResult:
    verdict = "not-covered" if data.get("not_covered") else "planned"
    return AlignResult(
        summary=align_words.plan_summary(data),
        verdict=verdict,
        next_steps=align_words.plan_steps(data),
        format=data.get("format"),
        exit_code=record.exit_code,
        facts=align_words.plan_facts(data, workspace.relative),
    )


def _dispatched(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> DispatchResult:
    words: Any = profile_words if data.get("source") == profile_words.SOURCE else dispatch_words
    return DispatchResult(
        summary=words.summary(data),
        verdict=words.verdict(data),
        next_steps=words.steps(data, case),
        format=data.get("format"),
        exit_code=record.exit_code,
        facts=words.facts(data, detail),
    )


def _audited(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> AuditResult:
    return AuditResult(
        summary=audit_words.summary(data),
        verdict=audit_words.verdict(data),
        next_steps=audit_words.steps(data),
        format=data.get("format"),
        exit_code=record.exit_code,
        case=case,
        facts=audit_words.facts(data, detail, workspace.relative),
    )


def _probed(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> ProbeResult:
    return ProbeResult(
        summary=data["summary"],
        verdict=probe_words.verdict(data),
        next_steps=probe_words.steps(data, case),
        format=data.get("format"),
        exit_code=record.exit_code,
        facts=probe_words.facts(data, detail),
    )


def _diagnosed(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> DiagnoseResult:
    return DiagnoseResult(
        summary=verdict_words.summary(data),
        verdict=verdict_words.verdict(data),
        next_steps=steps.after_verdict(workspace, record, data),
        format=data.get("format"),
        exit_code=record.exit_code,
        case=case,
        **verdict_words.fields(data, detail),
    )


def _localized(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> LocalizeResult:
    found = verdict_words.localize_verdict(data)
    return LocalizeResult(
        summary=verdict_words.localize_summary(data, found),
        verdict=found,
        next_steps=steps.after_localize(workspace, record),
        format=data.get("format"),
        exit_code=record.exit_code,
        case=case,
        facts=verdict_words.localize_facts(data, detail),
    )


def _paged(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> PlaybookResult:
    found = [steps.step(call) for call in data["next_steps"][: steps.MOST - 1]]
    say = (
        f"next: {found[0].tool}, arguments in next_steps"
        if found
        else "no call can be made yet: the page says what to ask for"
    )
    return PlaybookResult(
        summary=f"Playbook {data['name']}; {say}.",
        verdict=data["situation"] or None,
        next_steps=found,
        format=data.get("format"),
        name=data["name"],
        page=data["page"],
    )


def _aligned(workspace: Workspace, record: Record, data: Facts, case: str, detail: str) -> AlignResult:
    return AlignResult(
        summary=align_words.state_summary(data),
        verdict=align_words.state_verdict(data),
        next_steps=align_words.state_steps(data, record.tool),
        format=data.get("format"),
        exit_code=record.exit_code,
        facts=align_words.state_facts(data, workspace.relative),
    )


_WITHOUT_CASE = (EnvResult, AlignResult, ProbeResult, DispatchResult, PlaybookResult)
_KINDS: dict[str, Any] = {
    "align_plan": AlignResult,
    "align_apply": AlignResult,
    "align_revert": AlignResult,
    "logdiff_run": MeasureResult,
    "logdiff_measure": MeasureResult,
    "case_diagnose": DiagnoseResult,
    "case_import": CaseResult,
    "case_query": QueryResult,
    "report_render": ReportResult,
    "env_inspect": EnvResult,
    "config_audit": AuditResult,
    "playbook_get": PlaybookResult,
    "probe_run": ProbeResult,
    "dispatch_inspect": DispatchResult,
    "divergence_localize": LocalizeResult,
}
_FINISHED: dict[str, Any] = {
    "align_plan": _planned,
    "align_apply": _aligned,
    "align_revert": _aligned,
    "logdiff_run": _measured,
    "logdiff_measure": _measured,
    "case_diagnose": _diagnosed,
    "case_import": _imported,
    "case_query": _queried,
    "report_render": _rendered,
    "env_inspect": _inspected,
    "config_audit": _audited,
    "playbook_get": _paged,
    "probe_run": _probed,
    "dispatch_inspect": _dispatched,
    "divergence_localize": _localized,
}


def job_result(workspace: Workspace, record: Record, detail: str) -> JobResult:
    """State of a job; with its tool's result when it is done."""
    about = info(workspace, record)
    following: list[NextStep] = []
    result: Facts | None = None
    verdict: str | None = record.state
    summary = f"Job {record.job_id} ({record.tool}) is {record.state}"
    if record.state == "running":
        summary += f" since {about.seconds:.0f} s. {about.progress}".rstrip()
        following = summaries.job_steps(record.job_id)
    elif record.data is not None:
        inner = tool_result(workspace, record, detail)
        summary, following = inner.summary, inner.next_steps
        left_out = {"summary", "next_steps", "job"}
        if isinstance(inner.verdict, dict):
            verdict = str(inner.verdict["class"])  # one word here; the whole of it in the result
        else:
            verdict = inner.verdict or record.state
            left_out.add("verdict")
        result = inner.model_dump(mode="json", exclude=left_out, exclude_none=True)
    elif record.state == "interrupted":
        summary += ": the server ended while it ran. Call the tool again with the same case to resume."
        following = summaries.resume_steps(record.tool, about.case, record.arguments, workspace.relative)
    elif record.error is not None:
        summary += f": {error_text(record.error)}"
    return JobResult(
        summary=summary, verdict=verdict, next_steps=following, job=about, result=result, error=record.error
    )
