"""The built wheel is complete, small, and works where nothing of the checkout is at hand."""

from __future__ import annotations

import email.parser
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(*argv: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(a) for a in argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pure wheel, as where no compiler is found."""
    return _build(tmp_path_factory.mktemp("wheel"), "none")


@pytest.fixture(scope="module")
def compiled_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel with the CPU kernels of every instruction set."""
    return _build(tmp_path_factory.mktemp("compiled-wheel"), "")


def _build(work: Path, isas: str) -> Path:
    """Built from the tracked and new files alone, through the source distribution as an installer would."""
    listed = _run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).stdout.splitlines()
    source = work / "source"
    for name in listed:
        target = source / name
        if (ROOT / name).exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
    _run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        work / "dist",
        source,
        cwd=work,
        env={**os.environ, "LOGDIFF_WHEEL_ISAS": isas},
    )
    (found,) = (work / "dist").glob("*.whl")
    return found


def test_wheel_holds_every_python_and_data_file_of_both_packages_and_no_other_import_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    listed = _run("git", "ls-files", "-co", "--exclude-standard", "server", "kernels", cwd=ROOT).stdout.splitlines()
    expected = {name.split("/", 1)[1] for name in listed if (ROOT / name).is_file()}
    assert expected <= names, sorted(expected - names)
    top = {name.split("/", 1)[0] for name in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {"logdiff", "logdiff_kernels"}


def test_wheel_carries_the_skill_itself_and_not_a_link(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("logdiff/skill/SKILL.md") == (ROOT / "SKILL.md").read_bytes()


def test_wheel_carries_playbooks_and_the_skills_references(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for path in (ROOT / "playbooks").iterdir():
            assert archive.read(f"logdiff/playbook/pages/{path.name}") == path.read_bytes()
        for path in (ROOT / "skill" / "references").iterdir():
            assert archive.read(f"logdiff/skill/references/{path.name}") == path.read_bytes()


def test_wheel_metadata_names_the_supported_pythons_and_the_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = next(n.split("/")[0] for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        meta = email.parser.Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entry = archive.read(f"{info}/entry_points.txt").decode()
    classifiers = meta.get_all("Classifier") or []
    for version in ("3.10", "3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in classifiers
    assert meta["License-Expression"] == "Apache-2.0"
    assert "logdiff = logdiff.cli:main" in entry
    assert "[vllm.general_plugins]" in entry
    extras = set(meta.get_all("Provides-Extra") or [])
    assert {"cpu", "npu", "ray", "dev"} <= extras


def test_unpacked_wheel_runs_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Only the wheel's files are on the path; its dependencies come from this environment."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    pairs = tmp_path / "pairs.jsonl"
    shutil.copy(ROOT / "examples" / "pairs.jsonl", pairs)
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if not p.startswith({str(ROOT / 'server')!r})"
        f" and not p.startswith({str(ROOT / 'kernels')!r})]; sys.path.insert(0, {str(site)!r});"
        "import logdiff; assert logdiff.__file__.startswith(sys.path[0]), logdiff.__file__;"
        f"sys.argv = ['logdiff', 'measure', {str(pairs)!r}, '--json', '--case', {str(tmp_path / 'case')!r}];"
        "from logdiff.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1, done.stderr  # the example differs
    assert '"logdiff-measure/1"' in done.stdout


@pytest.mark.slow(seconds=90, alone=True)
def test_uvx_runs_the_command_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    env = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_TOOL_DIR": str(tmp_path / "tools")}
    uvx = Path(sys.executable).with_name("uvx")
    done = _run(uvx, "--from", wheel, "logdiff", "--help", cwd=tmp_path, env=env)
    assert "measure" in done.stdout
    assert "serve" in done.stdout


def _interpreter(version: str) -> str | None:
    """An interpreter of that version that runs: on PATH, or one that pyenv keeps off it."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python"))]
    for python in filter(None, found):
        if subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


@pytest.mark.slow(seconds=240, alone=True)
@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_server_side_works_on_other_pythons(version: str, wheel: Path, tmp_path: Path) -> None:
    """A real environment of that version with the wheel and its own dependencies; skipped where it is not installed."""
    uv = Path(sys.executable).with_name("uv")
    python = _interpreter(version)
    if python is None:
        pytest.skip(f"no working Python {version} on PATH or under pyenv")
    env = {**os.environ, "UV_CACHE_DIR": str(tmp_path.parent / "uv-cache")}
    _run(uv, "venv", "--python", python, tmp_path / "venv", cwd=tmp_path, env=env)
    _run(uv, "pip", "install", "--python", tmp_path / "venv/bin/python", wheel, cwd=tmp_path, env=env)
    shutil.copy(ROOT / "examples" / "pairs.jsonl", tmp_path / "pairs.jsonl")
    done = subprocess.run(
        [str(tmp_path / "venv/bin/logdiff"), "measure", "pairs.jsonl", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert '"logdiff-measure/1"' in done.stdout


@pytest.mark.slow(seconds=120, alone=True)
def test_editable_install_works_in_a_fresh_environment(tmp_path: Path) -> None:
    listed = _run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).stdout.splitlines()
    source = tmp_path / "source"
    for name in listed:
        if (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    uv = Path(sys.executable).with_name("uv")
    _run(uv, "venv", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    _run(uv, "pip", "install", "--python", tmp_path / "venv/bin/python", "-e", source, cwd=tmp_path)
    done = _run(tmp_path / "venv/bin/logdiff", "--help", cwd=tmp_path)
    assert "measure" in done.stdout
    where = _run(tmp_path / "venv/bin/python", "-c", "import logdiff; print(logdiff.__file__)", cwd=tmp_path).stdout
    assert where.startswith(str(source))


def test_wheel_without_a_compiler_is_pure(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.mark.slow(seconds=300, alone=True)
@pytest.mark.timeout(2000)
def test_compiled_wheel_runs_its_kernels_without_a_compiler(compiled_wheel: Path, tmp_path: Path) -> None:
    machine = platform.machine()
    assert compiled_wheel.name.endswith(f"-py3-none-linux_{machine}.whl")
    wanted = {"x86_64": {"generic", "avx2", "avx512", "avx512_bf16"}, "aarch64": {"generic", "neon"}}[machine]
    with zipfile.ZipFile(compiled_wheel) as archive:
        built = {Path(n).stem.removeprefix("liblogdiff_cpu_") for n in archive.namelist() if n.endswith(".so")}
        assert built == wanted
        top = {name.split("/", 1)[0] for name in archive.namelist()}
        assert {t for t in top if not t.endswith(".dist-info")} == {"logdiff", "logdiff_kernels"}
        archive.extractall(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r});"
        "from logdiff_kernels.cpu import library; found = library.loaded(); print(found.path, found.refused)"
    )
    env = {**os.environ, "CXX": "/no/such/compiler", "LOGDIFF_CACHE": str(tmp_path / "cache")}
    done = _run(sys.executable, "-c", code, cwd=tmp_path, env=env)
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert done.stdout.strip().endswith("()")
    assert not (tmp_path / "cache").exists()
