"""Diagnoses, localisations and playbooks through a client: what is asked of the worker, and what an agent reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logdiff.actions.diagnose_live import localized
from logdiff.playbook import PAGES
from logdiff.verdict.records import Candidate, Diagnosis, Evidence, Excluded, NextExperiment, Verdict
from mcp import Client

pytestmark = pytest.mark.anyio
MEASURE = {
    "tokens": 200,
    "mismatched_tokens": 190,
    "mean_abs": 0.01,
    "p99": 0.1,
    "max_abs": 0.2,
    "by_position": [1] * 999,
}
LONG = "w" * 3000
OPERATORS: dict[str, Any] = {
    "format": "logdiff-operators/1",
    "coverage": {"rollout/decode": {"mapped": 9, "unmapped": ["x"], "judged": 8}},
    "checks": [
        {"side": "train", "phase": "score", "boundary": f"layers.{i}.mlp.act", "operator": "act", "ok": i != 3,
         "ratio": 9.5, "rows_off": 1.0, "variants": [{"cause": "activation-kind", "fits": True, "statement": LONG}]}
        for i in range(500)
    ],
    "inputs": [{"side": "train", "phase": "score", "what": "positions", "ok": True, "detail": ""}],
    "divergence": [
        {"pair": "decode-score", "boundary": "embed_tokens", "bits_differ": 0.0, "relative": 0.0},
        {"pair": "decode-score", "boundary": "layers.0.input_layernorm", "bits_differ": 0.5, "relative": 1e-3},
    ],
}  # fmt: skip


def diagnosis(class_: str, cause: str | None = None) -> dict[str, Any]:
    return Diagnosis(
        Verdict(class_, "train", cause, LONG, 0.9, LONG),
        candidates=tuple(Candidate(cause, class_, 0.5, (LONG, LONG)) for _ in range(30)) if class_ != "none" else (),
        measure=MEASURE,
        floor={"mean_abs": 0.001, "p99": 0.01, "max_abs": 0.02, "axes": [{"side": "train"}] * 50},
        evidence=tuple(Evidence(LONG, float("nan"), LONG, LONG, LONG) for _ in range(30)),
        excluded=tuple(Excluded("norm-eps", LONG) for _ in range(60)),
        next_experiments=tuple(NextExperiment(LONG, f"logdiff run {LONG}", ("a",) * 40) for _ in range(9)),
        case="x",
        extra={"toggles": [{"side": "train", "removed": LONG, "share": 0.5}] * 9,
               "skipped": [{"what": LONG, "why": LONG}],
               "operators": {"judged": 3, "off": [LONG] * 40}},
    ).as_dict()  # fmt: skip


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Any]], None]:
    def replies(data: dict[str, Any]) -> None:
        (tmp_path / "reply").write_text(json.dumps({"event": "result", "data": data, "exit_code": 1}))
        monkeypatch.setenv("FAKE_REPLY", str(tmp_path / "reply"))

    return replies


def case(root: Path, kind: str = "measure", **run: Any) -> None:
    folder = root / "runs" / "x"
    folder.mkdir(parents=True)
    inputs = {"run": run} if kind == "run" else {}
    manifest = {"format": "logdiff-case/1", "kind": kind, "state": "complete", "inputs": inputs}
    (folder / "manifest.json").write_text(json.dumps(manifest))


async def ask(server: Any, tool: str, **arguments: Any) -> tuple[dict[str, Any], str]:
    async with Client(server) as client:
        await client.list_tools()  # the client validates against the schema that it was given
        answer = await client.call_tool(tool, arguments)
        assert not answer.is_error, answer.content
        text = str(answer.content[0].text)  # type: ignore[union-attr]
        return dict(answer.structured_content or {}), text


async def test_a_verdict_comes_first_whole_and_short(root: Path, fake_server: Any, say: Any) -> None:
    (root / "run.yaml").write_text("")
    say(diagnosis("weights", "weights-stale"))
    found, text = await ask(fake_server(), "case_diagnose", run_file="run.yaml", case="runs/x")
    assert list(found)[:3] == ["summary", "verdict", "next_steps"]
    assert found["format"] == "logdiff-verdict/1"
    assert (found["verdict"]["class"], found["verdict"]["path"]) == ("weights", "framework")
    assert (found["verdict"]["side"], found["verdict"]["cause"]) == ("train", "weights-stale")
    assert "weights-stale" in found["summary"]
    assert "190 of 200 tokens" in found["summary"]
    for field in ("candidates", "evidence", "excluded", "next_experiments"):
        assert found[field]
    assert found["evidence"][0]["value"] == "nan"
    assert len(text) / 4 < 2000


async def test_full_detail_has_everything(root: Path, fake_server: Any, say: Any) -> None:
    (root / "run.yaml").write_text("")
    say(diagnosis("weights", "weights-stale"))
    full, _ = await ask(fake_server(), "case_diagnose", run_file="run.yaml", case="runs/x", detail="full")
    assert len(full["candidates"]) == 30
    assert full["measure"]["by_position"] == [1] * 999


@pytest.mark.parametrize(
    ("class_", "tool", "arguments"),
    [
        ("operator", "logdiff_run", {"run_file": "run.yaml", "align": "all", "tokens": "runs/x"}),
        ("routing", "logdiff_run", {"run_file": "run.yaml", "align": "all", "tokens": "runs/x"}),
        ("weights", "playbook_get", {"name": "apply-and-prove", "case": "runs/x"}),
        ("framework-config", "playbook_get", {"name": "apply-and-prove", "case": "runs/x"}),
        (
            "undetermined",
            "case_diagnose",
            {"run_file": "run.yaml", "case": "runs/x", "max_seconds": 600, "max_starts": 12},
        ),
        ("none", "report_render", {"case": "runs/x"}),
    ],
)
async def test_each_class_leads_to_its_own_next_call(
    root: Path, fake_server: Any, say: Any, class_: str, tool: str, arguments: dict[str, Any]
) -> None:
    (root / "run.yaml").write_text("")
    say(diagnosis(class_))
    found, _ = await ask(fake_server(), "case_diagnose", run_file="run.yaml", case="runs/x")
    assert (found["next_steps"][0]["tool"], found["next_steps"][0]["arguments"]) == (tool, arguments)


async def test_a_job_gives_its_verdict_as_one_word_and_whole_in_its_result(
    root: Path, fake_server: Any, say: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "run.yaml").write_text("")
    monkeypatch.setenv("FAKE_SLEEP", "0.6")
    say(diagnosis("operator", "norm-rounding"))
    async with Client(fake_server(inline_seconds=0.2)) as client:
        started = (await client.call_tool("case_diagnose", {"run_file": "run.yaml"})).structured_content or {}
        assert started["verdict"] == "running"
        step = started["next_steps"][0]
        ended = (await client.call_tool(step["tool"], step["arguments"])).structured_content or {}
    assert ended["verdict"] == "operator"
    assert ended["result"]["verdict"]["cause"] == "norm-rounding"
    assert ended["next_steps"][0]["tool"] == "logdiff_run"


@pytest.mark.parametrize(
    ("arguments", "targets"),
    [
        ({"run_file": "run.yaml", "case": "runs/x"}, ["run.yaml"]),
        ({"pairs": ["a.jsonl", "b.jsonl"]}, ["a.jsonl", "b.jsonl"]),
        ({"case": "runs/x"}, ["runs/x"]),
    ],
)
async def test_the_worker_gets_one_target_and_the_limits(
    root: Path, fake_server: Any, fake_jobs: Any, arguments: dict[str, Any], targets: list[str]
) -> None:
    case(root)
    for name in ("run.yaml", "a.jsonl", "b.jsonl"):
        (root / name).write_text("")
    async with Client(fake_server()) as client:
        await client.call_tool("case_diagnose", {**arguments, "max_seconds": 60, "max_starts": 2})
    (record,) = fake_jobs.records()
    assert record.arguments["targets"] == [str(root / target) for target in targets]
    assert (record.arguments["max_seconds"], record.arguments["max_starts"]) == (60, 2)
    assert record.case == record.arguments["case"]
    assert record.engines == ("run_file" in arguments)


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("case_diagnose", {}, "nothing to look at"),
        ("case_diagnose", {"run_file": "r.yaml", "pairs": ["p.jsonl"]}, "two questions"),
        ("case_diagnose", {"pairs": ["../p.jsonl"]}, "outside the workspace"),
        ("case_diagnose", {"case": "p.jsonl"}, "not a case folder"),
        ("case_diagnose", {"run_file": "r.yaml", "max_seconds": 1}, "max_seconds"),
        ("divergence_localize", {"case": "../x"}, "outside the workspace"),
        ("playbook_get", {"case": "../x"}, "outside the workspace"),
    ],
)
async def test_what_can_not_be_looked_at_is_refused_before_any_work(
    root: Path, fake_server: Any, fake_jobs: Any, tool: str, arguments: dict[str, Any], says: str
) -> None:
    (root / "r.yaml").write_text("")
    (root / "p.jsonl").write_text("")
    async with Client(fake_server()) as client:
        answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    assert says in str(answer.content)
    assert fake_jobs.records() == []


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "operators-off"),
        ({"checks": [{"ok": True}]}, "rounding"),
        ({"checks": [{"ok": True}], "divergence": []}, "equal"),
        ({"checks": [{"ok": True}], "inputs": [{"ok": False, "what": "positions"}]}, "inputs-off"),
        ({"checks": [{"ok": None}]}, "nothing-judged"),
    ],
)
async def test_a_localisation_says_what_is_off_and_where_the_sides_part(
    root: Path, fake_server: Any, say: Any, change: dict[str, Any], verdict: str
) -> None:
    case(root, "run")
    say(localized({**OPERATORS, **change}, "x"))
    found, text = await ask(fake_server(), "divergence_localize", case="runs/x")
    assert found["verdict"] == verdict
    assert ("layers.0.input_layernorm" in found["summary"]) == (verdict != "equal")
    assert len(text) / 4 < 2000
    if verdict == "operators-off":
        assert found["facts"]["off"][0]["boundary"] == "layers.3.mlp.act"
        assert found["facts"]["off"][0]["why"].startswith("www")


@pytest.mark.parametrize(("allow_write", "tool"), [(False, "playbook_get"), (True, "align_plan")])
async def test_align_tools_are_proposed_only_by_a_server_that_has_them(
    root: Path, fake_server: Any, say: Any, allow_write: bool, tool: str
) -> None:
    (root / "run.yaml").write_text("")
    case(root)
    zero = {"format": "logdiff-measure/1", "gates": [], "measure": {"tokens": 5, "mismatched_tokens": 0}, "pairs": {}}
    say(zero)
    arguments = {"run_file": "run.yaml", "align": "all", "tokens": "runs/x", "case": "runs/y"}
    found, _ = await ask(fake_server(allow_write=allow_write), "logdiff_run", **arguments)
    assert found["next_steps"][0]["tool"] == tool


async def test_a_server_starts_an_agent_on_the_evidence_that_lies_in_its_workspace(root: Path) -> None:
    """The real worker: from an empty workspace, and from one with a pair file."""
    from logdiff.mcp.server import build_server
    from logdiff.mcp.workspace import Workspace

    server = build_server(Workspace(root), inline_seconds=60)
    empty, _ = await ask(server, "playbook_get")
    assert (empty["name"], empty["verdict"], empty["next_steps"]) == ("triage", "nothing", [])
    header = {"format": "logdiff-pair/1", "meta": {}}
    row = {"sample_id": "a", "prompt_token_ids": [1], "response_token_ids": [2], "rollout_logprobs": [-1.0],
           "train_logprobs": [-1.5]}  # fmt: skip
    (root / "p.jsonl").write_text(json.dumps(header) + "\n" + json.dumps(row) + "\n")
    server = build_server(Workspace(root), inline_seconds=60)
    found, text = await ask(server, "playbook_get")
    assert found["next_steps"][0]["tool"] == "case_diagnose"
    assert found["next_steps"][0]["arguments"] == {"pairs": ["p.jsonl"]}
    assert "One next call" in found["page"] or "one next call" in found["page"]
    assert len(text) / 4 < 2000


async def test_every_page_fits_into_an_answer(root: Path) -> None:
    from logdiff.mcp.server import build_server
    from logdiff.mcp.workspace import Workspace

    case(root, "run", align={})
    results = root / "runs" / "x" / "results"
    results.mkdir()
    (results / "verdict.json").write_text(json.dumps(diagnosis("undetermined", "weights-stale")))
    (results / "operators.json").write_text(json.dumps(OPERATORS))
    async with Client(build_server(Workspace(root), inline_seconds=60)) as client:
        for name in (*PAGES, "causes", "causes/weights-stale"):
            answer = await client.call_tool("playbook_get", {"name": name, "case": "runs/x"})
            assert (answer.structured_content or {})["name"] == name
            assert len(str(answer.content[0].text)) / 4 < 2000, name  # type: ignore[union-attr]


async def test_playbooks_are_prompts_and_resources_too(root: Path, fake_server: Callable[..., Any]) -> None:
    case(root)
    async with Client(fake_server()) as client:
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert set(prompts) == set(PAGES)
        assert all(prompt.title and prompt.description for prompt in prompts.values())
        shown = await client.get_prompt("triangle", {"case": "runs/x"})
        assert "`runs/x`" in shown.messages[0].content.text  # type: ignore[union-attr]
        uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert {f"playbook://{name}" for name in (*PAGES, "causes")} <= uris
        page = await client.read_resource("playbook://weights-first")
        assert page.contents[0].text.startswith("# Weights first")  # type: ignore[union-attr]
        cause = await client.read_resource("playbook://causes/norm-eps")
        assert cause.contents[0].text.startswith("# norm-eps")  # type: ignore[union-attr]
        with pytest.raises(Exception, match="no such cause"):
            await client.read_resource("playbook://causes/nope")
        with pytest.raises(Exception, match="outside the workspace"):
            await client.get_prompt("triangle", {"case": "../x"})
