"""A model folder and a count of what the fake runner did, for whole runs without an engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def model_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 23, "eos_token_id": 2}))
    (model / "model.safetensors").write_bytes(b"x")
    (tmp_path / "count").mkdir()
    monkeypatch.setenv("FAKE_COUNT", str(tmp_path / "count"))
    return tmp_path
