"""config_audit: what it asks of the worker, and that a result with many findings stays small."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logdiff.mcp.audit_tools import _path as argument
from logdiff.mcp.tools import State
from logdiff.mcp.workspace import Workspace
from mcp import Client


def finding(number: int, severity: str) -> dict[str, Any]:
    return {
        "rule": f"rule-{number}", "severity": severity, "side": "rollout", "key": "k" * 300, "value": "v" * 500,
        "where": "run.sh:" + "1" * 300, "consequence": "c" * 900, "fix": "f" * 700, "title": f"title {number}",
        "evidence": "e",
    }  # fmt: skip


def result(errors: int, warnings: int, notes: int) -> dict[str, Any]:
    found = [finding(i, s) for s, n in (("error", errors), ("warning", warnings), ("info", notes)) for i in range(n)]
    return {
        "format": "logdiff-audit/1", "findings": found, "frameworks": ["verl"], "rules": 9, "settings": 99, "read": [],
        "unread": [{"file": "x.sh", "line": 3, "why": "w" * 500}] * 40, "versions": {}, "effective": None,
        "counts": {"error": errors, "warning": warnings, "info": notes},
    }  # fmt: skip


async def ask(server: Any, monkeypatch: pytest.MonkeyPatch, reply: Path, data: Any, **arguments: Any) -> Any:
    reply.write_text(json.dumps({"event": "result", "data": data, "exit_code": 1}))
    monkeypatch.setenv("FAKE_REPLY", str(reply))
    async with Client(server()) as client:
        return await client.call_tool("config_audit", arguments)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("counts", "verdict"), [((90, 90, 90), "errors"), ((0, 2, 0), "warnings"), ((0, 0, 3), "clean")]
)
async def test_a_result_stays_small_and_says_the_worst_first(
    root: Path, fake_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    counts: tuple[int, int, int], verdict: str,
) -> None:  # fmt: skip
    (root / "run.sh").write_text("")
    answer = await ask(fake_server, monkeypatch, tmp_path / "r", result(*counts), paths=["run.sh"])
    assert not answer.is_error, answer.content
    found = answer.structured_content
    assert found["verdict"] == verdict
    assert len(answer.content[0].text) / 4 < 2000
    shown = len(found["facts"]["findings"])
    assert shown + found["facts"]["left_out"] == sum(counts)
    if verdict != "clean":
        assert "title 0" in found["summary"]


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["../outside.sh", "rollout=../outside.sh", "/etc/passwd"])
async def test_paths_stay_inside_the_workspace(
    fake_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    answer = await ask(fake_server, monkeypatch, tmp_path / "r", result(0, 0, 0), paths=[path])
    assert answer.is_error
    assert "outside the workspace" in answer.content[0].text


def test_a_side_is_passed_on(root: Path) -> None:
    (root / "freeze.txt").write_text("torch==2.10.0")
    state = State(Workspace(root), jobs=None)  # type: ignore[arg-type]
    assert argument(state, "train=freeze.txt") == f"train={root.resolve() / 'freeze.txt'}"
    assert argument(state, "freeze.txt") == str(root.resolve() / "freeze.txt")
