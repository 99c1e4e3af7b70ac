"""dispatch_inspect with recorded profiles: what it asks of the worker, that answers stay small, and what it refuses."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logdiff.dispatch.ascend_profile import profile_result
from logdiff.errors import InputError
from logdiff.mcp import dispatch_tools
from mcp import Client

pytestmark = pytest.mark.anyio


def maker() -> Any:
    file = Path(__file__).parents[1] / "dispatch" / "make_profile.py"
    spec = importlib.util.spec_from_file_location("make_profile_for_tools", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def profiles(folder: Path, count: int) -> list[Path]:
    """Two sides with `count` operators each, every one in another memory format."""
    made = maker()
    ops = [made.Op(f"MatMul{'V' * 60}{i}", times=3, torch_op="aten::mm", module="m" * 200) for i in range(count)]
    one = made.database(folder / "a.db", ops)
    return [Path(one), Path(made.database(folder / "b.db", [op.but(formats="ND;FRACTAL_NZ") for op in ops]))]


async def ask(server: Any, **arguments: Any) -> Any:
    async with Client(server()) as client:
        return await client.call_tool("dispatch_inspect", arguments)


async def test_the_profiles_of_both_sides_are_passed_on_in_their_order(
    root: Path, fake_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def record(_state: Any, _ctx: Any, _tool: str, action: str, arguments: Any, *rest: Any) -> Any:
        asked.append((action, arguments, rest))
        raise InputError("enough")

    monkeypatch.setattr(dispatch_tools, "call", record)
    profiles(root, 1)
    assert (await ask(fake_server, profiles=["b.db", "a.db"], case="new", detail="full")).is_error
    given = [str(root.resolve() / name) for name in ("b.db", "a.db")]
    case = str(root.resolve() / "new")
    assert asked == [("dispatch_profile", {"profiles": given, "case": case}, (case, "full"))]


@pytest.mark.parametrize("count", [1, 60])
async def test_the_answer_of_two_profiles_is_short_whatever_they_hold(
    root: Path, fake_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int
) -> None:
    data = profile_result(profiles(root, count))
    (tmp_path / "r").write_text(json.dumps({"event": "result", "data": data, "exit_code": 1}))
    monkeypatch.setenv("FAKE_REPLY", str(tmp_path / "r"))
    answer = await ask(fake_server, profiles=["a.db", "b.db"])
    assert not answer.is_error, answer.content
    found = answer.structured_content
    assert found["verdict"] == data["profile"]["verdict"] == "different"
    assert len(answer.content[0].text) / 4 < 2000
    shown = found["facts"]
    assert len(shown["differences"]) + shown["more_differences"] == data["profile"]["difference_count"]
    assert any(row["kind"] == "format" and "FRACTAL_NZ" in row["what"] for row in shown["differences"])
    assert found["next_steps"][0]["tool"] == "probe_run"


async def test_one_profile_tells_what_ran(
    root: Path, fake_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = profile_result(profiles(root, 2)[:1])
    (tmp_path / "r").write_text(json.dumps({"event": "result", "data": data, "exit_code": 0}))
    monkeypatch.setenv("FAKE_REPLY", str(tmp_path / "r"))
    found = (await ask(fake_server, profiles=["a.db"])).structured_content
    assert found["verdict"] == "one-side"
    assert f"{data['profile']['sides'][0]['tasks']} device tasks" in found["summary"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "run_file"),
        ({"profiles": ["../a.db"]}, "outside the workspace"),
        ({"profiles": ["absent.db"]}, "absent.db"),
        ({"profiles": ["a.db"], "run_file": "a.db"}, "run_file"),
        ({"profiles": ["a.db"], "toggles": ["env:A=1"]}, "toggles"),
        ({"profiles": ["a.db"], "side": "train"}, "side"),
    ],
)
async def test_what_does_not_go_together_is_refused_by_name(
    root: Path, fake_server: Callable[..., Any], arguments: dict[str, Any], words: str
) -> None:
    profiles(root, 1)
    answer = await ask(fake_server, **arguments)
    assert answer.is_error
    assert words in answer.content[0].text
