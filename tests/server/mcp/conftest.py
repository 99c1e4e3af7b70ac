"""Servers over a temporary workspace: with a fake worker, or with the real one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logdiff.mcp.jobs import Jobs
from logdiff.mcp.server import build_server
from logdiff.mcp.workspace import Workspace

FAKE = Path(__file__).with_name("fake_worker.py")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def fake_jobs(root: Path) -> Any:
    jobs = Jobs(root, root / "runs" / ".logdiff-mcp" / "logs", command=[sys.executable, str(FAKE)])
    yield jobs
    jobs.close(grace=1.0)


@pytest.fixture
def fake_server(root: Path, fake_jobs: Jobs) -> Callable[..., Any]:
    def make(inline_seconds: float = 5.0, allow_write: bool = False) -> Any:
        return build_server(Workspace(root), jobs=fake_jobs, inline_seconds=inline_seconds, allow_write=allow_write)

    return make
