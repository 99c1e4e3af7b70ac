"""Where CANN is on this machine: its folder, its version, and bisheng, the compiler of Ascend C."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from logdiff_kernels.errors import UnsupportedError

VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
"""Environment variables with CANN's folder, in the order in which they count; its set_env.sh sets both."""

PLACES = (
    Path("/usr/local/Ascend/cann"),
    Path("/usr/local/Ascend/ascend-toolkit/latest"),
    Path("/usr/local/Ascend/latest"),
    Path("~/Ascend/cann"),
    Path("~/Ascend/ascend-toolkit/latest"),
)
"""Where its installer puts it."""

LOWEST = (8, 5)
"""The oldest release whose public headers the kernels type-check against."""

INSTEAD = (
    "without CANN the same kernel sources run in the twin on the CPU: `logdiff kernels build --provider twin`, "
    "`logdiff kernels selftest --provider twin`"
)

_COMPILERS = (
    "bin/bisheng",
    "tools/bisheng_compiler/bin/bisheng",
    "tools/ccec_compiler/bin/bisheng",
    "compiler/ccec_compiler/bin/bisheng",
    "compiler/bin/bisheng",
    "{machine}-linux/ccec_compiler/bin/bisheng",
    "{machine}-linux/bisheng_compiler/bin/bisheng",
)
_VERSION_FILES = (
    "{machine}-linux/ascend_toolkit_install.info",
    "ascend_toolkit_install.info",
    "version.info",
    "version.cfg",
    "toolkit/version.info",
    "compiler/version.info",
    "share/info/asc-devkit/version.info",
)
_INCLUDES = ("{machine}-linux/tikcpp/include", "compiler/tikcpp/include")
_RELEASE = re.compile(r"\d+\.\d+(?:\.[A-Za-z0-9]+)*(?:[-.][A-Za-z0-9.]+)?")


@dataclass(frozen=True, slots=True)
class Cann:
    """One installed CANN.

    Attributes:
        home: its folder.
        found_by: the variable, `PATH` or the customary folder that led to it.
        version: as its version file says, for example `8.5.0` or `9.0.0-beta.2`.
        bisheng: the compiler.
        compiler: what `bisheng --version` says, in one line.
        includes: folders with the headers of Ascend C, those that are there.
    """

    home: Path
    found_by: str
    version: str
    bisheng: Path
    compiler: str
    includes: tuple[Path, ...]

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number of the version."""
        return _release(self.version)


def find_cann() -> Cann:
    """The CANN of this process: by `VARIABLES`, else by the bisheng on PATH, else in a customary folder.

    A variable that is set decides: nothing else is looked for when it leads nowhere.

    Raises:
        UnsupportedError: there is none, or a part of it is missing; the message says which, the hint what to set and
            what the twin can do instead.
    """
    home, found_by = _home()
    version = _version(home)
    if _release(version) < LOWEST:
        raise _missing(
            f"CANN {version} is too old for the Ascend C kernels",
            str(home),
            f"install CANN {LOWEST[0]}.{LOWEST[1]} or newer and set {VARIABLES[0]} to its folder",
        )
    bisheng = _bisheng(home)
    includes = tuple(folder for folder in _inside(home, _INCLUDES) if folder.is_dir())
    return Cann(home, found_by, version, bisheng, _said(bisheng), includes)


def _home() -> tuple[Path, str]:
    for variable in VARIABLES:
        value = os.environ.get(variable)
        if value:
            folder = Path(value).expanduser()
            if not folder.is_dir():
                raise _missing(f"{variable} names no folder", value, "set it to CANN's folder: source its set_env.sh")
            return folder, variable
    on_path = shutil.which("bisheng")
    if on_path is not None:
        for folder in Path(on_path).resolve().parents:
            if any(path.is_file() for path in _inside(folder, _VERSION_FILES[:4])):
                return folder, "PATH"
    for place in PLACES:
        folder = place.expanduser()
        if folder.is_dir():
            return folder, str(place)
    raise _missing(
        "CANN is not installed here: no compiler for Ascend C",
        " and ".join(f"{variable} not set" for variable in VARIABLES) + ", no bisheng on PATH",
        f"install the CANN toolkit and source its set_env.sh, or set {VARIABLES[0]} to its folder",
    )


def _version(home: Path) -> str:
    for path in _inside(home, _VERSION_FILES):
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found = _version_in(text)
            if found:
                return found
    named = re.fullmatch(r"(?:cann-)?(\d+\.\d+\..*)", home.resolve().name)
    if named:
        return named.group(1)
    raise _missing(
        "the version of CANN can't be read",
        f"{home}: none of {', '.join(str(path.relative_to(home)) for path in _inside(home, _VERSION_FILES))}",
        f"set {VARIABLES[0]} to the folder that holds the toolkit's version file",
    )


def _version_in(text: str) -> str | None:
    """The release that a version file names: `version_dir` before `version`, which may be a component's own number."""
    for key in ("version_dir", "version"):
        found = re.search(rf"^\s*{key}\s*=\s*(\S+)\s*$", text, re.MULTILINE | re.IGNORECASE)
        if found and _RELEASE.fullmatch(found.group(1)):
            return found.group(1)
    for part in ("toolkit", "compiler", "runtime"):  # version.cfg: part_running_version=[number of the part:release]
        running = re.search(rf"^\s*{part}_running_version\s*=\s*\[[^:\]]*:([^\]:]+)\]", text, re.MULTILINE)
        if running and _RELEASE.fullmatch(running.group(1)):
            return running.group(1)
    return None


def _release(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def _bisheng(home: Path) -> Path:
    for path in _inside(home, _COMPILERS):
        if path.is_file() and os.access(path, os.X_OK):
            return path
    on_path = shutil.which("bisheng")
    if on_path is not None and Path(on_path).resolve().is_relative_to(home.resolve()):
        return Path(on_path)
    other = f"; the one on PATH, {on_path}, belongs to another CANN" if on_path else ""
    raise _missing(
        f"this CANN has no bisheng{other}",
        str(home),
        f"install the CANN toolkit (not the runtime alone) and set {VARIABLES[0]} to its folder",
    )


def _said(bisheng: Path) -> str:
    try:
        done = subprocess.run(
            [str(bisheng), "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _missing(f"bisheng does not start: {error}", str(bisheng), "source CANN's set_env.sh") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[:300]
        raise _missing(f"bisheng does not start: {words}", str(bisheng), "source CANN's set_env.sh")
    return " ".join(line.strip() for line in done.stdout.splitlines() if not line.startswith("InstalledDir"))


def _inside(home: Path, names: tuple[str, ...]) -> Iterator[Path]:
    machines = dict.fromkeys([platform.machine(), "aarch64" if platform.machine() == "arm64" else platform.machine()])
    for name in names:
        for machine in machines if "{machine}" in name else [""]:
            yield home / name.format(machine=machine)


def _missing(message: str, value: str, way_out: str) -> UnsupportedError:
    return UnsupportedError(message, value=value, hint=f"{way_out}; {INSTEAD}")
