"""What a client sees before it calls: the tools' schemas (snapshots), hints, and size.

`UPDATE_SNAPSHOTS=1` writes the snapshots anew; read the difference before you commit it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

pytestmark = pytest.mark.anyio
SNAPSHOTS = Path(__file__).with_name("snapshots")
TOOLS = {
    "case_diagnose", "case_import", "case_query", "config_audit", "dispatch_inspect", "divergence_localize",
    "env_inspect", "job_status", "logdiff_measure", "logdiff_run", "playbook_get", "probe_run", "report_render",
}  # fmt: skip
WRITING = {"align_apply", "align_plan", "align_revert"}


async def listed(server: Any) -> dict[str, Any]:
    async with Client(server) as client:
        return {
            t.name: t.model_dump(mode="json", by_alias=True, exclude_none=True)
            for t in (await client.list_tools()).tools
        }


async def test_the_tools_are_those_of_this_version(fake_server: Callable[..., Any]) -> None:
    assert set(await listed(fake_server())) == TOOLS


async def test_tools_that_change_engines_are_there_only_when_the_server_was_started_so(
    fake_server: Callable[..., Any],
) -> None:
    assert set(await listed(fake_server(allow_write=True))) == TOOLS | WRITING


@pytest.mark.parametrize("name", sorted(TOOLS | WRITING))
async def test_a_tools_schema_changes_only_on_purpose(fake_server: Callable[..., Any], name: str) -> None:
    shown = json.dumps((await listed(fake_server(allow_write=True)))[name], indent=1, sort_keys=True) + "\n"
    file = SNAPSHOTS / f"{name}.json"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8"), "UPDATE_SNAPSHOTS=1 writes the snapshot anew"


async def test_every_tool_sets_all_four_hints(fake_server: Callable[..., Any]) -> None:
    hints = {name: tool["annotations"] for name, tool in (await listed(fake_server(allow_write=True))).items()}
    for name, found in hints.items():
        for hint in ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"):
            assert isinstance(found.get(hint), bool), f"{name} leaves {hint} open"
    assert {name for name, h in hints.items() if h["readOnlyHint"]} == {"case_query", "env_inspect", "playbook_get"}
    assert {name for name, h in hints.items() if h["openWorldHint"]} == {
        "case_diagnose", "divergence_localize", "logdiff_run",
    }  # fmt: skip
    assert {name for name, h in hints.items() if h["destructiveHint"]} == {"align_apply", "align_revert"}
    assert {name for name in WRITING if hints[name]["idempotentHint"]} == WRITING


async def test_the_tool_list_costs_under_5500_tokens(fake_server: Callable[..., Any]) -> None:
    text = json.dumps(list((await listed(fake_server())).values()), separators=(",", ":"))
    assert len(text) / 4 < 5500
    text = json.dumps(list((await listed(fake_server(allow_write=True))).values()), separators=(",", ":"))
    assert len(text) / 4 < 6500


async def test_every_argument_is_described_with_its_range(fake_server: Callable[..., Any]) -> None:
    for name, tool in (await listed(fake_server(allow_write=True))).items():
        for key, schema in tool["inputSchema"]["properties"].items():
            assert schema.get("description"), f"{name}.{key} has no description"
            for bound in ("minimum", "maximum"):
                if bound in schema:
                    assert f"{schema[bound]:g}" in schema["description"], f"{name}.{key} hides its {bound}"


def every_call() -> list[Any]:
    """Calls of the playbooks in every situation that a case, live or recorded, or a workspace can be in."""
    from logdiff.playbook import PAGES, Known, Survey, calls_for, case_state
    from logdiff.verdict.records import CLASSES

    block = {"measure": {"tokens": 9, "mismatched_tokens": 3}, "gates": []}
    zero = {"measure": {"tokens": 9, "mismatched_tokens": 0}, "gates": []}
    left_out = [{"what": "train started plain", "why": "no starts left"}]
    looked: list[dict[str, Any]] = [{}, {"distances": {"train": {}}}]
    verdicts = [{}, *({"verdict": {"class": name}, "skipped": left_out, **live} for name in CLASSES for live in looked)]
    runs = [{}, {"align": {"ops": "all", "tokens": "runs/stock"}}]
    manifests = [{"kind": "measure"}, *({"kind": "run", "inputs": {"run": run}} for run in runs)]
    states = [
        case_state("runs/x", manifest=manifest, measure=measure, verdict=verdict)
        for manifest in manifests
        for measure in ({}, block, zero)
        for verdict in verdicts
    ]
    found = Survey(run_files=("run.yaml",), pairs=("p.jsonl",), cases=("runs/x",))
    newer = Survey(cases=("runs/x",), case_is_newer=True)
    known = [Known(), Known(workspace=found), Known(workspace=newer)]
    known += [Known(state, run_file=file) for state in states for file in (None, "run.yaml")]
    return [call for k in known for page in ("", *PAGES) for call in calls_for(k, page)]


async def test_every_next_step_names_a_tool_with_arguments_that_it_takes(fake_server: Callable[..., Any]) -> None:
    from jsonschema import validate
    from logdiff.mcp import align_words, summaries
    from logdiff.mcp.steps import step

    tools = await listed(fake_server(allow_write=True))
    aligned = {"run_file": "/w/run.yaml", "align": "all", "tokens": "/w/c"}
    calls = {json.dumps(call.as_dict(), sort_keys=True): call for call in every_call()}
    steps = [
        *(step(call) for call in calls.values()),
        *summaries.case_steps("runs/x"),
        *summaries.job_steps("run-1"),
        *summaries.resume_steps("logdiff_run", "runs/x", {"run_file": "/w/run.yaml"}, lambda p: "run.yaml"),
        *summaries.resume_steps("logdiff_run", "runs/x", aligned, lambda p: "run.yaml"),
        *summaries.resume_steps(
            "case_diagnose", "runs/x", {"targets": ["/w/run.yaml"], "max_starts": 3}, lambda p: "r.yaml"
        ),
        *summaries.resume_steps("case_diagnose", "runs/x", {"targets": ["/w/p.jsonl"]}, lambda p: "p.jsonl"),
        *align_words.plan_steps({"id": "0123", "not_covered": []}),
        *align_words.state_steps({}, "align_apply"),
    ]
    assert {s.tool for s in steps} >= {
        *("case_diagnose", "logdiff_run", "playbook_get", "divergence_localize", "align_plan", "align_apply"),
        *("align_revert", "config_audit", "dispatch_inspect", "case_query", "report_render", "job_status"),
    }
    for step_ in steps:
        validate(step_.arguments, tools[step_.tool]["inputSchema"])
        assert set(step_.arguments) <= set(tools[step_.tool]["inputSchema"]["properties"])
        assert not re.search(r"[{}]|CASE|RUN\.yaml|PAIRS", json.dumps(list(step_.arguments.values())))
        assert step_.why
        assert step_.outcomes
