"""Calls without an overload, or without one that the twin models, don't compile; their legal neighbours do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from logdiff_kernels.twin import build

SOURCE = Path(__file__).parent / "refused_calls.cpp"
MARK = re.compile(r"// refused(?: on (\d+))?$")
BLAMED = re.compile(
    rf"{re.escape(SOURCE.name)}:(\d+):\d+:(?: error:|\s+required from here| note: in instantiation of)", re.MULTILINE
)


@pytest.mark.parametrize("arch", build.ARCHS)
def test_exactly_the_calls_without_an_overload_are_refused(arch: int) -> None:
    lines = SOURCE.read_text().splitlines()
    marks = {number: mark for number, line in enumerate(lines, 1) if (mark := MARK.search(line))}
    expected = {number for number, mark in marks.items() if mark[1] in (None, str(arch))}
    includes = [f"-I{folder}" for folder in build.INCLUDES]
    argv = [*build.find_compiler().command, *build.FLAGS, f"-D__NPU_ARCH__={arch}", *includes, "-fsyntax-only", SOURCE]
    done = subprocess.run([*map(str, argv)], capture_output=True, text=True, errors="replace", check=False)
    found = {int(number) for number in BLAMED.findall(done.stderr)}
    shown = {number: lines[number - 1].strip() for number in expected ^ found}
    assert not shown, done.stderr[-4000:]
    assert len(expected) > 40
