"""A model folder and a count of what the fake runner did, for budgets without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.target.fakes import fake_model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake_model(tmp_path)
    (tmp_path / "count").mkdir()
    monkeypatch.setenv("FAKE_COUNT", str(tmp_path / "count"))
    return tmp_path
