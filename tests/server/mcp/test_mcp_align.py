"""The align tools: what they ask of the worker, and how plans, overlays and proofs are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

pytestmark = pytest.mark.anyio
PLAN: dict[str, Any] = {
    "format": "logdiff-align-plan/1", "id": "abc123", "ops": ["linear"], "sides": ["train"], "overlay": "x",
    "operators": [{"op": "linear", "side": "train", "provider": "aligned-cpu", "why": "w", "cost": "unknown"}],
    "not_covered": [], "unchecked": [], "cost": {"time_ratio": {}, "measured_on": None, "unit": "u"},
}  # fmt: skip
ON: dict[str, Any] = {
    "format": "logdiff-align/1", "native": False, "overlay": "/w/.logdiff/overlay", "plan": "abc123", "problems": [],
    "active": [{"op": "linear", "side": "train", "provider": "aligned-cpu"}], "env": {"LOGDIFF_ALIGN": "/w/a.json"},
}  # fmt: skip
OFF: dict[str, Any] = {
    "format": "logdiff-align/1", "native": True, "overlay": None, "plan": None, "problems": [], "active": [],
    "reverted": [], "proof": {"dispatch": {"train": {"same": True, "native": True}}, "bits": {}, "undetermined": []},
}  # fmt: skip


async def ask(server: Any, monkeypatch: pytest.MonkeyPatch, reply: Path, tool: str, data: Any, **arguments: Any) -> Any:
    reply.write_text(json.dumps({"event": "result", "data": data, "exit_code": 0}))
    monkeypatch.setenv("FAKE_REPLY", str(reply))
    async with Client(server(allow_write=True)) as client:
        answer = await client.call_tool(tool, arguments)
        assert not answer.is_error, answer.content
        return answer.structured_content


async def test_a_plan_leads_to_apply_with_its_id(
    root: Path, fake_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (root / "run.yaml").write_text("")
    found = await ask(fake_server, monkeypatch, tmp_path / "r", "align_plan", PLAN, source="run.yaml")
    assert found["verdict"] == "planned"
    assert found["next_steps"][0]["tool"] == "align_apply"
    assert found["next_steps"][0]["arguments"] == {"plan_id": "abc123"}
    assert found["facts"]["cost_by_operator"] == {"train": {"linear": "unknown"}}


async def test_a_plan_with_a_gap_leads_nowhere(
    root: Path, fake_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (root / "run.yaml").write_text("")
    gap = {**PLAN, "not_covered": [{"side": "train", "module": "norm", "why": "LayerNorm"}]}
    found = await ask(fake_server, monkeypatch, tmp_path / "r", "align_plan", gap, source="run.yaml")
    assert found["verdict"] == "not-covered"
    assert "train: norm: LayerNorm" in found["summary"]
    assert found["next_steps"] == []


@pytest.mark.parametrize(
    ("tool", "data", "verdict", "words"),
    [
        ("align_apply", ON, "aligned", "env.sh"),
        ("align_revert", OFF, "native", "dispatch of train as before"),
        ("align_revert", {**OFF, "native": False}, "not-native", "not as they were before"),
        ("align_revert", {**OFF, "native": None}, "unproven", "could not be proven"),
    ],
)
async def test_a_state_is_told_with_how_it_is_known(
    fake_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tool: str, data: Any,
    verdict: str, words: str,
) -> None:  # fmt: skip
    arguments = {"plan_id": "abc123"} if tool == "align_apply" else {}
    found = await ask(fake_server, monkeypatch, tmp_path / "r", tool, data, **arguments)
    assert found["verdict"] == verdict
    assert words in found["summary"]


async def test_the_worker_is_asked_about_the_workspace_and_no_other_place(
    root: Path, fake_server: Callable[..., Any]
) -> None:
    (root / "run.yaml").write_text("")
    async with Client(fake_server(allow_write=True)) as client:
        outside = await client.call_tool("align_plan", {"source": "../run.yaml"})
        assert outside.is_error
        assert "outside the workspace" in str(outside.content)
        stock = await client.call_tool("align_revert", {"case": "nowhere"})
        assert stock.is_error


async def test_plan_apply_and_revert_work_through_the_real_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake runner stands for both engines."""
    import yaml
    from logdiff.mcp.server import build_server
    from logdiff.mcp.workspace import Workspace

    from tests.server.target.fakes import fake_model, fake_run

    monkeypatch.delenv("LOGDIFF_ALIGN", raising=False)
    fake_model(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(fake_run(tmp_path)))
    async with Client(build_server(Workspace(tmp_path), inline_seconds=60, allow_write=True)) as client:

        async def call(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
            answer = await client.call_tool(tool, arguments)
            assert not answer.is_error, answer.content
            return dict(answer.structured_content or {})

        planned = await call("align_plan", {"source": "run.yaml"})
        applied = await call("align_apply", planned["next_steps"][0]["arguments"])
        assert applied["verdict"] == "aligned"
        assert (tmp_path / ".logdiff" / "overlay" / "align.json").is_file()
        reverted = await call("align_revert", applied["next_steps"][0]["arguments"])
        assert (reverted["verdict"], reverted["facts"]["native"]) == ("native", True)
        assert not (tmp_path / ".logdiff" / "overlay").exists()
