"""Probes of the self-test: their plans are the C++ structs, their numbers those of the enumerations."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
import torch
from logdiff_kernels.ascendc import probes
from logdiff_kernels.build import compile
from logdiff_kernels.build.twin import TwinLauncher
from logdiff_kernels.cpu.build import find_compiler
from logdiff_kernels.errors import InputError

HEADER = compile.SOURCES / "probe_plan.h"


def test_plans_are_the_structs_of_the_header(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    lines = ["#include <cstddef>", "#include <cstdio>", f'#include "{HEADER}"', "int main() {"]
    expected = []
    for plan in probes.PLANS:
        name = plan.__name__
        lines.append(f'std::printf("%zu\\n", sizeof({name}));')
        expected.append(str(ctypes.sizeof(plan)))
        for field in plan._fields_:
            lines.append(f'std::printf("%zu %zu\\n", offsetof({name}, {field[0]}), sizeof({name}::{field[0]}));')
            member = getattr(plan, field[0])
            expected.append(f"{member.offset} {member.size}")
        assert sum(getattr(plan, field[0]).size for field in plan._fields_) == ctypes.sizeof(plan)
    source, program = tmp_path / "layout.cpp", tmp_path / "layout"
    source.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")
    argv = [*compiler.command, "-std=c++17", f"-I{compile.PACKAGE}", str(source), "-o", str(program)]
    subprocess.run(argv, check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == expected


@pytest.mark.parametrize("mirror", [probes.VectorOp, probes.ReduceOp])
def test_operations_have_the_numbers_of_the_header(mirror: type[probes.VectorOp]) -> None:
    found = re.search(rf"enum {mirror.__name__} : uint32_t \{{(.*?)\}};", HEADER.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    names = [name.lower() for name in re.findall(r"^\s*k(\w+)", found.group(1), re.MULTILINE)]
    assert names == [one.name.replace("_", "").lower() for one in mirror]
    assert [one.value for one in mirror] == list(range(len(names)))


def test_tile_and_pitch_are_those_of_the_header() -> None:
    text = HEADER.read_text(encoding="utf-8")
    assert f"kTileElements = {probes.TILE};" in text
    assert f"kReducePitch = {probes.PITCH};" in text


def test_shapes_that_a_probe_does_not_take_are_refused() -> None:
    launcher = TwinLauncher()
    with pytest.raises(InputError, match="length of a row"):
        probes.reduce(launcher, probes.ReduceOp.R64, torch.zeros(2, 65))
    for a, b in (
        ((1, 1, 16), (1, 16, 16)),
        ((1, 2, 16), (1, 8, 16)),
        ((1, 2, 8), (1, 16, 8)),
        ((1, 2, 16), (2, 16, 16)),
    ):
        with pytest.raises(InputError, match="shapes"):
            probes.mmad(launcher, torch.zeros(a), torch.zeros(b))
