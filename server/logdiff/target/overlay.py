"""Making `logdiff_kernels` importable in an interpreter that does not have it, without touching that interpreter."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import logdiff
from logdiff.errors import InputError

_PROBE = (
    "import importlib.util as u\n"
    "s = u.find_spec('logdiff_kernels')\n"
    "print('logdiff_kernels at', list(s.submodule_search_locations)[0] if s else None)\n"
)


def interpreter(python: str | None) -> str:
    """The absolute path of a side's interpreter (None: this one). Raises `InputError` where it can't be run."""
    if python is None:
        return sys.executable
    found = shutil.which(python)
    if found is None:
        raise InputError(
            "python of this side can't be run", value=python, hint="give the path of an executable Python interpreter"
        )
    return str(Path(found).absolute())


def runner_env(python: str, side_env: dict[str, str]) -> dict[str, str]:
    """This process's environment, then the side's own, then what the interpreter needs to import the runner."""
    env = {**os.environ, **side_env}
    if not _has_kernels(python, env.get("PYTHONPATH", "")):
        env["PYTHONPATH"] = os.pathsep.join(p for p in (str(overlay()), env.get("PYTHONPATH", "")) if p)
    return env


def package_folder() -> Path:
    """Where `logdiff_kernels` lies; found without importing it."""
    spec = importlib.util.find_spec("logdiff_kernels")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            "package logdiff_kernels is not installed beside logdiff", value=sys.prefix, hint="install logdiff again"
        )
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def overlay() -> Path:
    """A folder for PYTHONPATH that holds `logdiff_kernels` and its entry point, and nothing else."""
    package = package_folder()
    key = hashlib.sha256(f"{logdiff.__version__}\0{package}".encode()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logdiff"
    folder = root / f"overlay-{key}"
    if (folder / "logdiff_kernels").is_dir():
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        root = Path(tempfile.mkdtemp(prefix="logdiff-"))
        folder = root / folder.name
    building = Path(tempfile.mkdtemp(prefix="overlay-", dir=root))
    (building / "logdiff_kernels").symlink_to(package, target_is_directory=True)
    info = building / f"logdiff_kernels-{logdiff.__version__}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: logdiff_kernels\nVersion: {logdiff.__version__}\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nlogdiff = logdiff_kernels.engines.vllm.plugin:register\n"
    )
    if folder.exists():  # a link to a package that has gone
        shutil.rmtree(folder, ignore_errors=True)
    try:
        building.rename(folder)
    except OSError:
        if not (folder / "logdiff_kernels").is_dir():
            raise
        shutil.rmtree(building, ignore_errors=True)  # another process was faster
    return folder


@lru_cache(maxsize=64)
def _has_kernels(python: str, python_path: str) -> bool:
    """Whether `python` imports this very package: an installed copy of another version would speak another protocol."""
    if python == sys.executable and python_path == os.environ.get("PYTHONPATH", ""):
        return True
    try:
        probe = subprocess.run(
            [python, "-c", _PROBE],
            env={**os.environ, "PYTHONPATH": python_path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=120,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"python of this side can't be run: {error}", value=python, hint="give the path of a Python interpreter"
        ) from None
    lines = [line for line in probe.stdout.splitlines() if line.startswith("logdiff_kernels at ")]
    if probe.returncode != 0 or not lines:
        words = (probe.stderr.strip().splitlines() or ["no words"])[-1][:300]
        raise InputError(
            f"python of this side does not run: {words}", value=python, hint="give the path of a Python interpreter"
        )
    place = lines[-1].removeprefix("logdiff_kernels at ")
    return place != "None" and Path(place).resolve() == package_folder()
