"""One set of bits on every instruction set: recorded calls of every operator, repeated with each build."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from logdiff_kernels.cpu import build, library

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
INTROSPECTION = {  # what takes part in no operator; test_functions.py and test_threads.py check these
    "ld_bf16_dot_probe", "ld_cast", "ld_elementwise", "ld_flushing_workers", "ld_isa", "ld_max_threads", "ld_pool",
    "ld_r64", "ld_scan", "ld_self_probe",
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """The trace of this CPU's best library, and the names of the functions called."""
    trace = tmp_path_factory.mktemp("calls") / "trace"
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.cpu.recorded_calls", str(trace)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return trace, set(done.stdout.split())


def _driver(compiler: str, folder: Path) -> Path:
    path = folder / f"replay-{Path(compiler).name}"
    subprocess.run([compiler, "-std=c++17", "-O1", str(HERE / "replay.cpp"), "-o", str(path), "-ldl"], check=True)
    return path


def _replay(
    library_path: Path, trace: Path, folder: Path, compiler: str = "g++", run: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*run, str(_driver(compiler, folder)), str(library_path), str(trace)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def _variant(isa: str, folder: Path, compiler: build.Compiler, extra: tuple[str, ...] = ()) -> Path:
    target = folder / f"{isa}.so"
    build.compile_library(build.isa_named(isa), target, compiler, objects=build.cache_folder() / "objects", extra=extra)
    return target


def test_every_function_of_the_library_is_among_the_recorded_calls(recorded: tuple[Path, set[str]]) -> None:
    text = subprocess.run(
        ["nm", "-D", "--defined-only", str(library.loaded().path)], capture_output=True, text=True, check=True
    ).stdout
    exported = set(re.findall(r" T (ld_\w+)", text))
    assert exported - INTROSPECTION == recorded[1]


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512", "avx512_bf16"])
def test_native_variants_give_the_same_bits(isa: str, recorded: tuple[Path, set[str]], tmp_path: Path) -> None:
    if not build.usable(build.isa_named(isa)):
        pytest.skip(f"this CPU has no {isa}")
    done = _replay(build.ensure_library(build.isa_named(isa)), recorded[0], tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stdout.endswith(" 0 elements differ\n")


def test_a_changed_bit_is_seen(recorded: tuple[Path, set[str]], tmp_path: Path) -> None:
    """The byte before the trailing count of the trace belongs to the last buffer as the call left it."""
    data = bytearray(recorded[0].read_bytes())
    data[-5] ^= 1
    (tmp_path / "changed").write_bytes(data)
    done = _replay(library.loaded().path, tmp_path / "changed", tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith(", 1 elements differ")


@pytest.mark.slow(seconds=150)
@pytest.mark.parametrize("isa", ["avx512", "avx512_bf16"])
def test_avx512_source_gives_the_same_bits_through_simde(
    isa: str, recorded: tuple[Path, set[str]], tmp_path: Path
) -> None:
    """The AVX-512 source with its intrinsics emulated on AVX2; GCC 12's pass `sra` crashes on that."""
    if not Path("/usr/include/simde/x86/avx512.h").exists():
        pytest.skip("SIMDe is not installed (libsimde-dev)")
    if not build.usable(build.isa_named("avx2")):
        pytest.skip("this CPU has no AVX2, FMA and F16C")
    compiler = build.find_compiler()
    assert compiler is not None
    off = ("-mno-avx512f", "-mavx2", "-mfma", "-mf16c", "-DLD_SIMDE", "-O1", "-fno-tree-sra")
    done = _replay(_variant(isa, tmp_path, compiler, off), recorded[0], tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


@pytest.mark.slow(seconds=150)
def test_neon_gives_the_same_bits_in_user_mode_emulation(recorded: tuple[Path, set[str]], tmp_path: Path) -> None:
    cross, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if cross is None or emulator is None:
        pytest.skip("no aarch64 cross compiler or emulator (g++-aarch64-linux-gnu, qemu-user)")
    version = subprocess.run([cross, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    path = _variant("neon", tmp_path, build.Compiler((cross,), version))
    root = os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")
    done = _replay(path, recorded[0], tmp_path, cross, (emulator, "-L", root))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
