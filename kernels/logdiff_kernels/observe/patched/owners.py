"""Which installed distribution a file belongs to, whether it is as the wheel brought it, and who depends on whom."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

_STANDARD_FOLDERS = ("site-packages", "dist-packages")


@dataclass(slots=True)
class Distribution:
    """An installed distribution: `name`, `version`, `files` {absolute path: "sha256=..." or ""}, `folder` of an
    editable install (its files can't be checked), what it `requires`, by normalised name, and `root`, the folder that
    it was installed into.
    """

    name: str
    version: str
    files: dict[str, str] = field(default_factory=dict)
    folder: str | None = None
    requires: frozenset[str] = frozenset()
    root: str = ""

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


def installed() -> Owners:
    """The `Owners` of this interpreter as `sys.path` stands, read again when a folder of it changed."""
    places = []
    for place in sys.path:
        with contextlib.suppress(OSError):
            places.append((place, Path(place).stat().st_mtime_ns))
    return _owners(tuple(places))


@lru_cache(maxsize=2)
def _owners(_places: tuple[tuple[str, int], ...]) -> Owners:
    return Owners()


class Owners:
    """The installed distributions of this interpreter."""

    def __init__(self) -> None:
        self.distributions = list(_distributions())
        self._files: dict[str, list[Distribution]] = {}
        for one in self.distributions:
            for path in one.files:
                self._files.setdefault(path, []).append(one)
        self._editable = [(one.folder, one) for one in self.distributions if one.folder is not None]
        self._named = {normalised(one.name): one for one in self.distributions}
        paths = sysconfig.get_paths()
        self._standard = tuple({os.path.realpath(paths[key]) + "/" for key in ("stdlib", "platstdlib")})

    def of(self, path: str) -> Distribution | None:
        """The distribution that brought a file; None for the standard library's and for files of no distribution."""
        found = self._files.get(real(path))
        if found:
            return found[-1] if len(found) == 1 else self._whole(real(path), found)
        return next((one for folder, one in self._editable if real(path).startswith(f"{folder}/")), None)

    def claimants(self, path: str) -> list[Distribution]:
        """Every distribution whose file list has this path."""
        return list(self._files.get(real(path), []))

    def _whole(self, path: str, found: list[Distribution]) -> Distribution:
        """Of several distributions that claim a file, the one whose hash it has."""
        actual = file_digest(path)
        return next((one for one in found if one.files[path] == actual), found[-1])

    def standard(self, path: str) -> bool:
        """Whether a file is the standard library's."""
        full = real(path)
        inside = any(full.startswith(root) for root in self._standard)
        return (inside and not any(f"/{part}/" in full for part in _STANDARD_FOLDERS)) or (path.startswith("<frozen "))

    def changed(self, path: str) -> str | None:
        """Why a file isn't what its wheel brought; None where it is, or where no hash is known."""
        known = [one for one in self.claimants(path) if one.files[real(path)]]
        if not known:
            return None
        actual = file_digest(real(path))
        if actual is None:
            return "the file is gone"
        if any(one.files[real(path)] == actual for one in known):
            return None
        return f"its hash is not the one that {known[-1].label} recorded"

    def verified(self, path: str) -> bool:
        """Whether a file's hash is known and right."""
        return any(one.files[real(path)] for one in self.claimants(path)) and self.changed(path) is None

    def kin(self, distribution: str) -> frozenset[str]:
        """Normalised names of a distribution and of everything that it requires, directly or not."""
        return _closure(normalised(distribution), {n: d.requires for n, d in self._named.items()})

    def tops(self) -> dict[str, list[Distribution]]:
        """{import name: distributions that bring `NAME/__init__.py`, `NAME.py` or an extension module of it}."""
        found: dict[str, list[Distribution]] = {}
        for one in self.distributions:
            names = set()
            for path in one.files:
                parts = path.removeprefix(f"{one.root}/").split("/")
                if len(parts) == 2 and parts[1] == "__init__.py":
                    names.add(parts[0])
                elif len(parts) == 1 and parts[0].endswith((".py", ".so")):
                    names.add(parts[0].split(".")[0])
            for name in names:
                found.setdefault(name, []).append(one)
        return found


@cache
def real(path: str) -> str:
    """The path without symbolic links in its folder."""
    folder, _, name = path.rpartition("/")
    return f"{_real_folder(folder)}/{name}"


@cache
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)


def file_digest(path: str) -> str | None:
    """A file's hash as wheels write it (`sha256=...`, URL-safe base64 without padding); None where it can't be read."""
    try:
        facts = Path(path).stat()
    except OSError:
        return None
    return _digest(path, facts.st_mtime_ns, facts.st_size)


@cache
def _digest(path: str, _time: int, _size: int) -> str | None:
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    except OSError:
        return None
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def normalised(name: str) -> str:
    """A distribution's name as packaging compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _distributions() -> Iterator[Distribution]:
    seen = set()
    for found in metadata.distributions():
        name = found.metadata["Name"]
        if not name or normalised(name) in seen:
            continue
        seen.add(normalised(name))
        requires = frozenset(
            normalised(re.split(r"[\s;<>=!~\[(@]", line.strip(), maxsplit=1)[0]) for line in found.requires or []
        )
        one = Distribution(name, found.version, requires=requires, folder=_editable(found))
        root = one.root = os.path.realpath(str(found.locate_file("")))
        for row in csv.reader((found.read_text("RECORD") or "").splitlines()):
            if len(row) >= 2:
                path = f"{root}/{row[0]}"
                one.files[real(os.path.normpath(path) if "/.." in path else path)] = row[1]
        yield one


def _editable(found: metadata.Distribution) -> str | None:
    try:
        data = json.loads(found.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    if not (data.get("dir_info") or {}).get("editable"):
        return None
    return os.path.realpath(unquote(urlparse(str(data.get("url"))).path))


def _closure(name: str, graph: dict[str, frozenset[str]]) -> frozenset[str]:
    reached, waiting = {name}, [name]
    while waiting:
        for other in graph.get(waiting.pop(), frozenset()):
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return frozenset(reached)
