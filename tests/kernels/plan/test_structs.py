"""The ctypes mirrors are the C++ structs: every field at the same place, none missing."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from logdiff_kernels.cpu.build import find_compiler
from logdiff_kernels.plan import library, plans, structs

HEADERS = ("rows.h", "linear.h", "attention.h", "attention_backward.h")


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, ...]]:
    """`Struct` -> (size,) and `Struct.field` -> (offset, size), printed by a C++ program over the mirrors' names."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    lines = ["#include <cstddef>", "#include <cstdio>", *[f'#include "{name}"' for name in HEADERS], "int main() {"]
    for kind in structs.STRUCTS:
        name = kind.__name__
        lines.append(f'std::printf("{name} %zu\\n", sizeof({name}));')
        for field in kind._fields_:
            member = f"{name}.{field[0]}"
            value = f"offsetof({name}, {field[0]}), sizeof({name}::{field[0]})"
            lines.append(f'std::printf("{member} %zu %zu\\n", {value});')
    folder = tmp_path_factory.mktemp("layout")
    source, program = folder / "layout.cpp", folder / "layout"
    source.write_text("\n".join([*lines, "}", ""]), encoding="utf-8")
    argv = [*compiler.command, "-std=c++17", f"-I{library.SOURCES}", str(source), "-o", str(program)]
    subprocess.run(argv, check=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {name: tuple(map(int, rest)) for name, *rest in (line.split() for line in printed.splitlines())}


def _names() -> Iterator[str]:
    for header in HEADERS:
        text = (library.SOURCES / header).read_text(encoding="utf-8")
        yield from re.findall(r"^struct (Ld\w+) \{", text, re.MULTILINE)


def test_every_struct_of_the_headers_has_a_mirror() -> None:
    assert sorted(_names()) == sorted(kind.__name__ for kind in structs.STRUCTS)


@pytest.mark.parametrize("kind", structs.STRUCTS, ids=lambda kind: kind.__name__)
def test_fields_lie_where_cpp_has_them(kind: type[ctypes.Structure], in_cpp: dict[str, tuple[int, ...]]) -> None:
    assert in_cpp[kind.__name__] == (ctypes.sizeof(kind),)
    for field in kind._fields_:
        member = getattr(kind, field[0])
        assert in_cpp[f"{kind.__name__}.{field[0]}"] == (member.offset, member.size), field[0]


@pytest.mark.parametrize("kind", structs.STRUCTS, ids=lambda kind: kind.__name__)
def test_structs_have_no_padding_so_that_no_field_can_be_missing(kind: type[ctypes.Structure]) -> None:
    assert sum(getattr(kind, field[0]).size for field in kind._fields_) == ctypes.sizeof(kind)


@pytest.mark.parametrize(
    ("mirror", "in_header"),
    [(plans.RowKernel, "RowKernel"), (plans.Pieces, "LinearPieces"), (plans.Grouping, "LinearGroups")],
)
def test_enumerations_have_the_order_of_the_headers(mirror: type[plans.RowKernel], in_header: str) -> None:
    text = "\n".join((library.SOURCES / header).read_text(encoding="utf-8") for header in HEADERS)
    found = re.search(rf"enum {in_header} : uint32_t \{{(.*?)\}};", text, re.DOTALL)
    assert found is not None
    names = re.findall(r"^\s*k(\w+)", found.group(1), re.MULTILINE)
    if in_header == "RowKernel":
        assert names.pop() == "RowKernels"
        wanted = [one.name.replace("_", "").lower() for one in mirror]
        assert [name.lower() for name in names] == wanted
    assert [one.value for one in mirror] == list(range(len(names)))


def test_a_field_that_is_not_there_or_overflows_is_refused() -> None:
    from logdiff_kernels.errors import InputError

    with pytest.raises(InputError, match="heds"):
        plans.attention(heds=3)
    with pytest.raises(InputError, match="can't hold"):
        plans.linear(m=2**32 + 1)


def test_the_sources_are_plain_and_compile_without_a_warning(tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    argv = [*compiler.command, *library.FLAGS, "-Werror", "-Wconversion", "-Wno-sign-conversion", "-fsyntax-only"]
    done = subprocess.run([*argv, str(library.SOURCES / "plan.cpp")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
