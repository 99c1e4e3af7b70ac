"""Every kernel under AddressSanitizer and UBSan: what the twin does not see, such as scalar arithmetic and arrays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from logdiff_kernels.ascendc.cases import CASES
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.twin import build

ARCHS = (2201, 3510)
PARTS = tuple(dict.fromkeys(case.part for case in CASES))
ROOT = Path(__file__).parents[3]

_RUN = """
import sys
from logdiff_kernels.ascendc.cases import CASES
from logdiff_kernels.build.twin import TwinLauncher
arch, part = int(sys.argv[1]), sys.argv[2]
launcher = TwinLauncher(arch, cores=3, seed=1)
for case in CASES:
    if case.part == part:
        for length in (1, 77, 520, 4097):
            if length < 4097 or part not in ("attention", "linear", "rope"):
                print(case.name, length, flush=True)
                case.on_launcher(launcher, case.arguments(length, case.dtypes[length % len(case.dtypes)], length))
"""


@pytest.mark.slow(seconds=60, alone=True)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("part", PARTS)
def test_every_case_is_clean_under_the_sanitizers(part: str, arch: int) -> None:
    try:
        environment = build.sanitizer_environment()
    except UnsupportedError as error:
        pytest.skip(error.message)
    command = [sys.executable, "-c", _RUN, str(arch), part]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-4000:]
    assert {line.split()[0] for line in done.stdout.splitlines()} == {c.name for c in CASES if c.part == part}


_TOO_MANY = """
import torch
from logdiff_kernels.ascendc import moe
from logdiff_kernels.build.twin import TwinLauncher
moe.MOST_SLOTS = 80
moe.combine(TwinLauncher(cores=1), torch.ones(80, 8), None, torch.arange(80)[None], torch.arange(80), None, None)
"""


@pytest.mark.slow(seconds=60, alone=True)
def test_an_array_of_a_kernel_that_overflows_is_found() -> None:
    """The positive control: without its driver's limit the combine orders more slots than its arrays have."""
    try:
        environment = build.sanitizer_environment()
    except UnsupportedError as error:
        pytest.skip(error.message)
    command = [sys.executable, "-c", _TOO_MANY]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode != 0
    assert "stack-buffer-overflow" in done.stderr or "out of bounds" in done.stderr
