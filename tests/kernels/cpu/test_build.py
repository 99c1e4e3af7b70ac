"""Building on first use: cached by content, once, whole or not at all; and which library is loaded."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logdiff_kernels.actions import EngineFree
from logdiff_kernels.cpu import build, library
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.ops import registry

GENERIC = build.isa_named("generic")
UNIT = '#include "answer.h"\nextern "C" __attribute__((visibility("default"))) int ld_self_probe() { return ANSWER; }\n'


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two tiny sources instead of the kernels, a cache of their own, and a compiler that logs its calls."""
    real = build.find_compiler()
    assert real is not None
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "answer.h").write_text("#pragma once\n#define ANSWER 0\n")
    (sources / "probe.cpp").write_text(UNIT)
    (sources / "other.cpp").write_text('extern "C" int ld_other() { return 5; }\n')
    log = tmp_path / "log"
    log.write_text("")
    compiler = tmp_path / "cxx"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {shutil.which(real.command[0])} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setenv("LOGDIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.delenv(library.VARIABLE, raising=False)
    caches = (build.find_compiler, library._load, library._load_best, registry._cpu)
    for cached in caches:
        cached.cache_clear()
    yield log
    monkeypatch.undo()
    for cached in caches:
        cached.cache_clear()


def _compiled(log: Path) -> list[str]:
    """Names of the sources that were compiled, in alphabetical order."""
    lines = [line.split() for line in log.read_text().splitlines()]
    return sorted(Path(line[line.index("-c") + 1]).name for line in lines if "-c" in line)


def test_library_is_built_once_and_then_found(log: Path) -> None:
    path = build.ensure_library(GENERIC)
    assert _compiled(log) == ["other.cpp", "probe.cpp"]
    assert path.is_relative_to(build.cache_folder())
    log.write_text("")
    assert build.ensure_library(GENERIC) == path
    assert _compiled(log) == []
    assert [p.name for p in path.parent.iterdir() if p.suffix not in (".so", ".lock")] == []


def test_sources_are_told_before_the_first_and_after_each_and_not_again(log: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    assert build.built_library(GENERIC) is None
    path = build.ensure_library(GENERIC, lambda *step: steps.append(step))
    assert [(done, total) for done, total, _ in steps] == [(0, 2), (1, 2), (2, 2)]
    assert [steps[0][2], *sorted(step[2] for step in steps[1:])] == ["", "other", "probe"]
    assert build.built_library(GENERIC) == path
    build.ensure_library(GENERIC, lambda *step: steps.append(step))
    assert len(steps) == 3


def test_changed_header_recompiles_what_includes_it_into_another_library(log: Path) -> None:
    first = build.ensure_library(GENERIC)
    log.write_text("")
    (build.SOURCES / "answer.h").write_text("#pragma once\n#define ANSWER 1\n")
    assert build.ensure_library(GENERIC) != first
    assert _compiled(log) == ["probe.cpp"]


def test_concurrent_first_uses_build_once(log: Path) -> None:
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(build.ensure_library(GENERIC))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4
    assert len(set(paths)) == 1
    assert _compiled(log) == ["other.cpp", "probe.cpp"]


def test_compile_error_is_shown_and_leaves_nothing(log: Path) -> None:
    (build.SOURCES / "other.cpp").write_text("int broken(\n")
    with pytest.raises(UnsupportedError, match=r"other\.cpp.*error"):
        build.ensure_library(GENERIC)
    assert not list(build.cache_folder().rglob("*.so"))


def test_missing_compiler_is_named(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    build.find_compiler.cache_clear()
    with pytest.raises(UnsupportedError, match=r"no C\+\+ compiler") as caught:
        build.ensure_library(GENERIC)
    assert caught.value.value == "/no/such/compiler"


def test_prebuilt_library_is_used_only_for_exactly_these_sources(log: Path) -> None:
    compiler = build.find_compiler()
    assert compiler is not None
    assert build.build_prebuilt(build.PREBUILT, compiler, only=["generic"]) == ["generic"]
    log.write_text("")
    assert build.ensure_library(GENERIC) == build.PREBUILT / "liblogdiff_cpu_generic.so"
    assert _compiled(log) == []
    manifest = json.loads((build.PREBUILT / build.MANIFEST).read_text())
    assert manifest["source"] == build.source_hash()
    (build.SOURCES / "answer.h").write_text("#pragma once\n#define ANSWER 2\n")
    assert build.ensure_library(GENERIC).is_relative_to(build.cache_folder())


def test_instruction_set_that_fails_its_check_is_passed_over_and_recorded(log: Path) -> None:
    best = next(isa for isa in build.ISAS if build.usable(isa))
    if best is GENERIC:
        pytest.skip("this CPU has the generic instruction set alone")
    (build.SOURCES / "answer.h").write_text(
        "#pragma once\n#ifdef LD_ISA_GENERIC\n#define ANSWER 0\n#else\n#define ANSWER 17\n#endif\n"
    )
    found = library.loaded()
    assert found.isa == "generic"
    assert found.refused[0] == (best.name, f"{best.name}: ld_self_probe failed at check 17")


def test_forced_instruction_set(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.VARIABLE, "generic")
    assert library.loaded().isa == "generic"
    library._load_best.cache_clear()
    monkeypatch.setenv(library.VARIABLE, "sse9")
    with pytest.raises(UnsupportedError, match="unknown instruction set 'sse9'"):
        library.loaded()
    foreign = "neon" if build.machine() == "x86_64" else "avx2"
    monkeypatch.setenv(library.VARIABLE, foreign)
    with pytest.raises(UnsupportedError, match=f"can't run {foreign}"):
        library.loaded()


def test_what_a_compiler_does_not_know_is_passed_over(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = build.Isa("future", "", ("-mno-such-extension-at-all",), frozenset())
    monkeypatch.setattr(build, "ISAS", (unknown, GENERIC))
    found = library.loaded()
    assert found.isa == "generic"
    assert found.refused == (("future", "the compiler can't build it"),)


def _do(what: str, steps: list[tuple[int, int | None, str, str]]) -> dict[str, Any]:
    task = {"task": f"kernels_{what}", "provider": "cpu"}
    return EngineFree().run(task, lambda *step: steps.append(step)).data


def test_a_list_compiles_nothing_and_a_build_tells_each_source(log: Path) -> None:
    steps: list[tuple[int, int | None, str, str]] = []
    (cold,) = _do("list", steps)["providers"]
    best = next(isa for isa in build.ISAS if build.usable(isa))
    assert (cold["available"], cold["missing"], cold["binary_hash"]) == (True, [], None)
    assert cold["isa"] == best.name
    assert (_compiled(log), steps) == ([], [])
    made = _do("build", steps)
    assert _compiled(log) == ["other.cpp", "probe.cpp"]
    assert steps[0] == (0, 2, "source", "compiling the CPU kernels")
    assert [step[:3] for step in steps[1:]] == [(1, 2, "source"), (2, 2, "source")]
    (warm,) = _do("list", steps)["providers"]
    assert len(steps) == 3
    assert {**cold, "binary_hash": made["sha256"]} == warm


def test_a_list_without_a_library_and_a_compiler_says_so(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/no/such/compiler")
    build.find_compiler.cache_clear()
    (row,) = _do("list", [])["providers"]
    assert not row["available"]
    assert "no C++ compiler" in row["missing"][0]


def test_cache_that_cannot_be_written_is_named(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOGDIFF_CACHE", str(tmp_path / "file"))
    with pytest.raises(UnsupportedError, match="can't be built") as caught:
        build.ensure_library(GENERIC)
    assert str(tmp_path / "file") in str(caught.value.value)


def test_library_that_does_not_load_is_named(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = build.ensure_library(GENERIC)
    broken.write_bytes(b"no library")
    monkeypatch.setenv(library.VARIABLE, "generic")
    with pytest.raises(UnsupportedError, match="doesn't load"):
        library.loaded()
