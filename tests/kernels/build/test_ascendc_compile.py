"""Compiling the Ascend C sources: exact commands, cache, side by side, locks, failures; with a stand-in bisheng."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_cann import FakeCann
from logdiff_kernels import toolchain
from logdiff_kernels.build import compile, typecheck
from logdiff_kernels.build.cann import find_cann
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.plan.plans import ARCHES


def test_command_is_one_call_per_source_with_the_contracts_flags(fake: FakeCann) -> None:
    built = compile.build("dav-2201")
    calls = {call["argv"][-3]: call for call in fake.calls()}
    assert sorted(calls) == ["ascendc/csrc/alpha.asc", "ascendc/csrc/beta.asc"]
    call = calls["ascendc/csrc/alpha.asc"]
    assert call["folder"] == str(compile.PACKAGE)
    words = "-x asc --npu-arch=dav-2201 -O2 -std=c++17 -fPIC -ffp-contract=off -I. -Iascendc/csrc"
    assert call["argv"][:-1] == [
        *words.split(),
        f"-I{fake.home}/compiler/tikcpp/include",
        "-shared",
        "ascendc/csrc/alpha.asc",
        "-o",
    ]
    binary = built.of("alpha")
    assert binary.sha256 == hashlib.sha256(binary.path.read_bytes()).hexdigest()
    expected = "".join(f"{b.kernel} {hashlib.sha256(b.path.read_bytes()).hexdigest()}\n" for b in built.binaries)
    assert built.sha256 == hashlib.sha256(expected.encode()).hexdigest()


def test_exact_exp_adds_its_macro_and_a_newer_cann_nothing(fake: FakeCann) -> None:
    compile.build("dav-3510", exact_exp=True, kernels=["beta"])
    (fake.home / "version.info").write_text("Version=9.0.0\n")
    compile.build("dav-3510", kernels=["beta"])
    old, new = ([word for word in call["argv"] if not word.startswith("/")] for call in fake.calls())
    assert [word for word in old if word != "-DLD_EXACT_EXP"] == new
    assert "-DLD_EXACT_EXP" in old
    assert "--npu-arch=dav-3510" in new


def test_second_build_runs_nothing_and_gives_the_same_files(fake: FakeCann) -> None:
    first = compile.build("dav-2201")
    fake.forget()
    second = compile.build("dav-2201")
    assert fake.calls() == []
    assert [b.path for b in second.binaries] == [b.path for b in first.binaries]
    assert second.sha256 == first.sha256
    assert [b.cached for b in first.binaries + second.binaries] == [False, False, True, True]


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ("ascendc/csrc/common/shared.h", ["alpha"]),  # two includes away from alpha
        ("ascendc/csrc/alpha.asc", ["alpha"]),
        ("plan/csrc/arch.h", ["alpha", "beta"]),  # reached by an include path, then beside the header
    ],
)
def test_changed_source_or_header_compiles_what_reaches_it(change: str, again: list[str], fake: FakeCann) -> None:
    compile.build("dav-2201")
    fake.forget()
    path = compile.PACKAGE / change
    path.write_text(path.read_text() + "// changed\n")
    compile.build("dav-2201")
    assert fake.compiled() == again


@pytest.mark.parametrize("change", ["flag", "compiler", "CANN", "architecture", "exp"])
def test_other_flags_compiler_cann_architecture_or_exp_is_another_build(
    change: str, fake: FakeCann, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile.build("dav-2201")
    fake.forget()
    if change == "flag":
        monkeypatch.setattr(compile, "FLAGS", (*compile.FLAGS, "-g"))
    elif change == "compiler":
        (fake.home / "compiler-version").write_text("bisheng 15.0.6")
    elif change == "CANN":
        (fake.home / "version.info").write_text("Version=8.5.1\n")
    second = compile.build("dav-3510" if change == "architecture" else "dav-2201", exact_exp=change == "exp")
    assert fake.compiled() == ["alpha", "beta"]
    assert {b.path for b in second.binaries}.isdisjoint(b.path for b in first.binaries)


def test_the_same_cann_in_another_folder_is_the_same_build(fake: FakeCann, monkeypatch: pytest.MonkeyPatch) -> None:
    compile.build("dav-2201")
    fake.forget()
    moved = fake.home.rename(fake.home.parent / "elsewhere")
    script = moved / "bin" / "bisheng"
    script.write_text(script.read_text().replace(str(fake.home), str(moved)))
    monkeypatch.setenv("ASCEND_HOME_PATH", str(moved))
    assert all(binary.cached for binary in compile.build("dav-2201").binaries)


def test_damaged_library_is_built_again(fake: FakeCann) -> None:
    path = compile.build("dav-2201").of("alpha").path
    whole = path.read_bytes()
    path.write_bytes(whole[:5])
    fake.forget()
    assert compile.build("dav-2201").of("alpha").path.read_bytes() == whole
    assert fake.compiled() == ["alpha"]


def test_sources_are_compiled_side_by_side(fake: FakeCann) -> None:
    """Both wait for each other, so one after the other would fail."""
    for kernel in ("alpha", "beta"):
        fake.order(kernel, "meet 2")
    assert len(compile.build("dav-2201", jobs=2).binaries) == 2


def test_progress_counts_every_source(fake: FakeCann) -> None:
    seen: list[tuple[int, int, str]] = []
    compile.build("dav-2201", on_done=lambda *step: seen.append(step))
    assert [(done, total) for done, total, _ in seen] == [(1, 2), (2, 2)]
    assert {kernel for _, _, kernel in seen} == {"alpha", "beta"}


_SCRIPT = """
import sys
from pathlib import Path
from logdiff_kernels.build import compile
from logdiff_kernels.plan.plans import ARCHES
compile.PACKAGE = Path(sys.argv[1])
compile.SOURCES = compile.PACKAGE / "ascendc" / "csrc"
print(compile.build("dav-2201", jobs=2).sha256)
"""


def _start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, str(compile.PACKAGE)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_processes_build_once(fake: FakeCann) -> None:
    processes = [_start(), _start()]
    said = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert len(set(said)) == 1
    assert fake.compiled() == ["alpha", "beta"]


def test_process_waits_for_another_that_builds_the_same_and_takes_what_it_made(fake: FakeCann) -> None:
    """This test is the other process: it holds alpha's lock until the child has gone on to beta."""
    whole = compile.build("dav-2201").of("alpha")
    kept = {path.name: path.read_bytes() for path in (whole.path, whole.path.parent / "build.json")}
    shutil.rmtree(os.environ["LOGDIFF_CACHE"])
    fake.forget()
    with toolchain.locked(whole.path.parent / "lock"):
        process = _start()
        _wait_for(lambda: fake.compiled() == ["beta"])
        for name, content in kept.items():
            (whole.path.parent / name).write_bytes(content)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert fake.compiled() == ["beta"]


def test_killed_halfway_leaves_nothing_half_made_and_the_next_build_goes_on(fake: FakeCann) -> None:
    fake.order("alpha", "kill-caller")
    process = _start()
    process.communicate(timeout=120)
    assert process.returncode == -9
    cache = Path(os.environ["LOGDIFF_CACHE"])
    _wait_for(lambda: bool(list(cache.rglob("*.part-*/alpha.so"))))  # the orphaned compiler writes to its own folder
    assert not [path for path in cache.glob("ascendc/*/*.so") if path.stem == "alpha"]
    fake.order("alpha", "compile")
    built = compile.build("dav-2201")
    assert built.of("alpha").path.read_bytes().startswith(b"library of alpha")
    assert not list(cache.rglob("*.part-*"))


def test_failing_compile_is_reported_whole_and_the_others_are_kept(fake: FakeCann) -> None:
    fake.order("alpha", "fail use of undeclared identifier 'Mmadd'")
    with pytest.raises(UnsupportedError, match=r"1 of 2 .* could not be compiled for dav-2201: alpha") as caught:
        compile.build("dav-2201")
    error = caught.value
    (log,) = error.value
    text = Path(log).read_text()
    call = next(call for call in fake.calls() if "ascendc/csrc/alpha.asc" in call["argv"])
    for shown in (text, error.hint):
        assert "error: use of undeclared identifier 'Mmadd'" in shown
        assert "1 error generated." in shown
        assert all(word in shown for word in call["argv"])
    assert "exit status 1" in text
    assert "--provider twin" in error.hint
    assert not list(Path(log).parent.glob("*.so"))
    fake.forget()
    fake.order("alpha", "compile")
    compile.build("dav-2201")
    assert fake.compiled() == ["alpha"]  # beta was kept


def test_every_failing_source_is_named(fake: FakeCann) -> None:
    for kernel in ("alpha", "beta"):
        fake.order(kernel, f"fail {kernel} is wrong")
    with pytest.raises(UnsupportedError, match=r"2 of 2 .*: alpha, beta") as caught:
        compile.build("dav-2201")
    assert len(caught.value.value) == 2
    assert "alpha is wrong" in caught.value.hint
    assert "beta is wrong" in caught.value.hint


def test_what_stops_every_source_is_said_once(fake: FakeCann, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGDIFF_CACHE", "/proc/none")
    with pytest.raises(UnsupportedError, match="/proc/none") as caught:
        compile.build("dav-2201")
    assert "alpha" not in caught.value.message
    assert caught.value.hint == "set LOGDIFF_CACHE to a writable folder"


def test_compiler_that_hangs_is_killed_with_its_children(fake: FakeCann) -> None:
    fake.order("alpha", "hang")
    with pytest.raises(UnsupportedError, match="alpha") as caught:
        compile.build("dav-2201", kernels=["alpha"], timeout=2.0)
    assert "killed after 2 s" in Path(caught.value.value[0]).read_text()
    for name in ("parent", "child"):
        process = int((fake.home / name).read_text())
        _wait_for(lambda process=process: not _lives(process))


def test_build_that_is_given_up_ends_the_compilers_that_still_run(fake: FakeCann) -> None:
    fake.order("alpha", "hang")

    def interrupt(_done: int, _total: int, kernel: str) -> None:
        if kernel == "beta":
            _wait_for(lambda: all((fake.home / name).is_file() for name in ("parent", "child")))
            raise InterruptedError("given up")

    with pytest.raises(InterruptedError):
        compile.build("dav-2201", jobs=2, on_done=interrupt)
    for name in ("parent", "child"):
        process = int((fake.home / name).read_text())
        _wait_for(lambda process=process: not _lives(process))


def _wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_record_beside_the_library_repeats_the_build(fake: FakeCann) -> None:
    binary = compile.build("dav-2201").of("alpha")
    record = json.loads((binary.path.parent / "build.json").read_text())
    assert (record["kernel"], record["arch"], record["exact_exp"]) == ("alpha", "dav-2201", False)
    assert (record["cann"], record["compiler"]) == ("8.5.0", "bisheng 15.0.5 (stand-in)")
    assert record["sha256"] == binary.sha256
    assert "compiled alpha" in (binary.path.parent / "build.log").read_text()
    assert binary.log == binary.path.parent / "build.log"


def test_typecheck_is_skipped_without_cann(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert typecheck.main() == 0
    assert "skipped, neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME is set" in capsys.readouterr().out


def test_typecheck_tries_every_source_architecture_and_exp_and_writes_nothing(
    fake: FakeCann, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.order("beta", "fail no overload takes bfloat16_t")
    assert typecheck.main() == 1
    said = capsys.readouterr()
    assert said.err.count("no overload takes bfloat16_t") >= 4
    assert "2 sources, CANN 8.5.0: 4 faults" in said.out
    tried = {
        (argv[-1], argv[2], "-DLD_EXACT_EXP" in argv)
        for argv in (call["argv"] for call in fake.calls())
        if "-fsyntax-only" in argv and "-shared" not in argv
    }
    assert len(tried) == 8
    assert not list(compile.PACKAGE.rglob("*.so"))
    assert not (nothing := list(Path(os.environ["LOGDIFF_CACHE"]).glob("**/*"))), nothing


def test_unknown_architecture_or_kernel_is_named(fake: FakeCann) -> None:
    with pytest.raises(InputError, match="'dav-1001'"):
        compile.build("dav-1001")
    with pytest.raises(InputError, match="'gamma'") as caught:
        compile.build("dav-2201", kernels=["gamma"])
    assert "alpha, beta" in caught.value.hint
    assert fake.calls() == []


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("arch", ARCHES)
def test_real_bisheng_compiles_the_kernels(arch: str) -> None:
    try:
        cann = find_cann()
    except UnsupportedError as error:
        pytest.skip(f"no CANN here: {error.message}")
    if not compile.sources():
        pytest.skip("no Ascend C sources")
    assert len(compile.build(arch, cann=cann).binaries) == len(compile.sources())
