"""Runs `drive.py` in the environments of `make setup-ascend`; without them the tests are skipped."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERSIONS = ("0.18", "0.23")


@functools.cache
def drive(version: str, asked: str) -> dict[str, Any]:
    """What `drive.py` says in one environment, with VLLM_BATCH_INVARIANT set."""
    python = ROOT / f".venv-ascend-{version}" / "bin" / "python"
    if not (python.parent.parent / ".ready").is_file():
        pytest.skip(f"no {python.parent.parent.name}: `make setup-ascend` makes it")
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "VLLM_PLUGINS": "ascend",
        "VLLM_BATCH_INVARIANT": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "SOC_VERSION": "ascend910b1",
    }
    done = subprocess.run(
        [str(python), str(HERE / "drive.py"), asked], env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture
def driven() -> Any:
    """`driven(version, **asked)`: equal questions are asked once."""
    return lambda version, **asked: drive(version, json.dumps(asked, sort_keys=True))
