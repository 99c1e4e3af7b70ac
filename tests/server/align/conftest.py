"""A workspace with a run file on the fake runner, and one where no interpreter is asked at all."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from logdiff.align import State

from tests.server.target.fakes import fake_model, fake_run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOGDIFF_ALIGN", raising=False)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return tmp_path


@pytest.fixture
def write_run(place: Path) -> Callable[..., Path]:
    """Writes run.yaml; keyword arguments replace its keys."""

    def write(**changes: Any) -> Path:
        file = place / "run.yaml"
        file.write_text(yaml.safe_dump({**fake_run(place), "model": "model", **changes}))
        return file

    return write


@pytest.fixture
def state(place: Path) -> State:
    return State(place / ".logdiff")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Interpreters are not asked: both sides' dispatch has the digest in the answer, and it is native."""
    answer: dict[str, Any] = {"digest": "d0", "native": True, "foreign": [], "entries": 3}

    def check(spec: Any, ops: Any, on_progress: Any = None) -> dict[str, Any]:
        return {
            "engine": {"name": spec.engine, "version": "1"},
            "packages": {},
            "model": {"sha256": "m"},
            "provider": {"source": "s0"},
            "not_covered": [],
            "unchecked": None,
            "dispatch": dict(answer),
        }

    def module(name: str) -> Any:
        return importlib.import_module(f"logdiff.align.{name}")  # the package's functions have the modules' names

    monkeypatch.setattr(module("plan"), "align_check", check)
    monkeypatch.setattr(module("prove"), "dispatch", lambda spec, on_progress=None: dict(answer))
    monkeypatch.setattr(module("apply"), "runner_env", lambda python, env: {})
    return answer
