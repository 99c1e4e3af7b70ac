"""The twin itself under AddressSanitizer and UBSan: its checks fire as before, and nothing else does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.twin import build

HERE = Path(__file__).parent


def _environment() -> dict[str, str]:
    try:
        return build.sanitizer_environment()
    except UnsupportedError as error:
        pytest.skip(error.message)


@pytest.mark.slow
def test_the_core_tests_pass_under_the_sanitizers() -> None:
    files = [str(path) for path in sorted(HERE.glob("test_core_[cmqr]*.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "2201", *files]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
def test_a_write_that_the_twin_is_not_told_of_is_found_by_the_sanitizer() -> None:
    """The positive control: an instruction that writes past the 32 bytes it has announced, at the end of a tensor."""
    script = (
        "import torch, pathlib\n"
        "from logdiff_kernels.twin import build\n"
        "from logdiff_kernels.twin.library import Library\n"
        "from tests.kernels.twin.kernels_of import Plan\n"
        f"path = build.ensure_library(pathlib.Path({str(HERE / 'core_kernels.cpp')!r}), 2201)\n"
        "Library(path).launch('overrun', [None, torch.zeros(8)], Plan(0, 0), 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=_environment(), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
