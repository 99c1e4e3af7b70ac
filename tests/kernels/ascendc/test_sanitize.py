"""Every kernel under AddressSanitizer and UBSan: what the twin does not see, such as scalar arithmetic and arrays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from logdiff_kernels.ascendc.cases import CASES
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.twin import build

from tests.kernels.ascendc import covering

ARCHS = (2201, 3510)
PARTS = tuple(dict.fromkeys(case.part for case in CASES))
ROOT = Path(__file__).parents[3]
FEW, MANY = 3, 24
"""Cores: with few a core has several tiles, with many chunks and rows are taken apart."""

_RUN = """
import sys
from logdiff_kernels.ascendc.cases import CASES
from logdiff_kernels.build.twin import TwinLauncher
arch, cores, lengths, names = sys.argv[1:]
for launcher in [TwinLauncher(int(arch), cores=int(count), seed=1) for count in cores.split(",")]:
    for case in CASES:
        for length in map(int, lengths.split(",") if case.name in names.split(",") else ()):
            print(case.name, length, launcher.cores, flush=True)
            case.on_launcher(launcher, case.arguments(length, case.dtypes[length % len(case.dtypes)], length))
"""


def _clean(arch: int, cores: Sequence[int], lengths: Sequence[int], names: Sequence[str]) -> None:
    try:
        environment = build.sanitizer_environment()
    except UnsupportedError as error:
        pytest.skip(error.message)
    words = [str(arch), *(",".join(map(str, values)) for values in (cores, lengths, names))]
    command = [sys.executable, "-c", _RUN, *words]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-4000:]
    assert done.stdout.splitlines() == [f"{name} {length} {n}" for n in cores for name in names for length in lengths]


@pytest.mark.slow(seconds=60, alone=True)
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("part", PARTS)
def test_every_case_is_clean_under_the_sanitizers(part: str, arch: int) -> None:
    _clean(arch, (FEW,), (1, 77, 520), [case.name for case in CASES if case.part == part])


def _at_the_edge() -> Iterator[ParameterSet]:
    """Cases whose time grows with the square of the length one by one, the others of a part together."""
    for case in CASES:
        if covering.quadratic(case.name):
            yield pytest.param((MANY,), [case.name], marks=pytest.mark.slow(seconds=60, alone=True), id=case.name)
    for part in PARTS:
        names = [case.name for case in CASES if case.part == part and not covering.quadratic(case.name)]
        yield pytest.param((FEW, MANY), names, marks=pytest.mark.slow(seconds=60, alone=True), id=f"{part}-others")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(("cores", "names"), list(_at_the_edge()))
def test_every_case_is_clean_at_the_edge(cores: tuple[int, ...], names: list[str], arch: int) -> None:
    _clean(arch, cores, (4097,), names)


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
