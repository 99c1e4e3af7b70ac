"""The case folder: everything about one investigation (layout: docs/architecture.md, "Case folder")."""

from __future__ import annotations

import fcntl
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff import __version__
from logdiff.case.files import sha256_file, temporary_name, write_atomic
from logdiff.case.journal import Journal
from logdiff.case.manifest import KINDS, MANIFEST, Manifest, hash_files, read_manifest, verify_files
from logdiff.errors import CaseError
from logdiff.jsonio import dumps

if TYPE_CHECKING:
    from logdiff.case.batch import PairBatch, PairMeta
    from logdiff.case.tokens import TokenWriter

META = "meta.json"
_LOCK = ".lock"
_TABLES = ("tokens.parquet", "samples.parquet")
_OPTIONAL_TABLES = ("topk.parquet", "experts.parquet")
_RESULTS = {
    "run": ("measure",),
    "demo": ("measure",),
    "measure": ("measure",),
    "import": (),
    "audit": ("audit",),
    "probe": ("probe",),
    "dispatch": ("dispatch",),
    "profile": ("dispatch-profile",),
}
_WITHOUT_TOKENS = frozenset({"audit", "probe", "dispatch", "profile"})
"""Kinds of case that hold results alone."""


def default_case_dir(name: str, root: str | os.PathLike[str] = "runs") -> Path:
    """Make and return a new empty folder `root/<time>-<name>`, never one that exists.

    Characters of `name` that make poor file names become `-`; a number is added when two cases start in one second.
    """
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "case"
    stem = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{clean}"
    folder = Path(root)
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = folder / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


class Case:
    """One case folder. Reading needs no lock; the first write takes an advisory lock that `close` gives back.

    Use as a context manager, or call `close`.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.journal = Journal(path / "journal.jsonl", self._require_writable)
        self._lock: int | None = None

    @classmethod
    def create(cls, path: str | os.PathLike[str] | None, name: str, kind: str, inputs: dict[str, Any]) -> Case:
        """Start a new case.

        Args:
            path: folder to make (an empty one may exist); None takes `default_case_dir(name)`.
            name: what people call it.
            kind: one of `KINDS`.
            inputs: what it was made from (paths, arguments), kept in the manifest.

        Raises:
            CaseError: the folder already holds something, or can't be made.
        """
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind!r}")
        folder = default_case_dir(name) if path is None else Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            taken = next((entry.name for entry in folder.iterdir() if not entry.name.startswith(".")), None)
        except OSError as error:
            raise CaseError(
                f"the case folder can't be made: {error}", value=str(folder), hint="give a folder you may write to"
            ) from None
        if taken is not None:
            raise CaseError(
                f"the folder already holds {taken}",
                value=str(folder),
                hint="give a new folder with --case, or resume the case that lies there",
            )
        manifest = Manifest(
            id=uuid.uuid4().hex,
            name=name,
            kind=kind,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            logdiff=__version__,
            inputs=inputs,
        )
        case = cls(folder.resolve(), manifest)
        case._take_lock()
        manifest.write(case.path)
        case.journal.append("created", id=manifest.id, kind=kind, logdiff=__version__)
        return case

    @classmethod
    def open_or_create(cls, path: str | os.PathLike[str], kind: str, inputs: dict[str, Any]) -> Case:
        """The case in a folder, or a new one there, named after its kind.

        Raises:
            CaseError: as `open`, or the folder holds something else.
        """
        folder = Path(path)
        return cls.open(folder) if is_case(folder) else cls.create(folder, kind, kind, inputs)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, verify: bool = True) -> Case:
        """Open a case, sealed or not.

        Args:
            path: the case folder.
            verify: also check the hashes of a sealed case; presence and sizes are checked always.

        Raises:
            CaseError: no case, a damaged manifest, or a sealed case whose files changed (named).
        """
        folder = Path(path).resolve()
        manifest = read_manifest(folder)
        if manifest.state == "complete":
            verify_files(folder, manifest, hashes=verify)
        return cls(folder, manifest)

    def close(self) -> None:
        """Give the lock back. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Case:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_complete(self) -> bool:
        """Whether the case is sealed."""
        return self.manifest.state == "complete"

    @property
    def holds_tokens(self) -> bool:
        """Whether this kind of case has log-probabilities to compare; audits and probes have results alone."""
        return self.manifest.kind not in _WITHOUT_TOKENS

    @property
    def meta(self) -> PairMeta:
        """Facts of the pair header or run (`meta.json`); empty when none were written."""
        from logdiff.case.batch import PairMeta

        if not (self.path / META).is_file():
            return PairMeta(source=str(self.path))
        return PairMeta(facts=self._read_object(META), source=str(self.path))

    def write_meta(self, meta: PairMeta) -> Path:
        """Write `meta.json` from `meta.facts`."""
        return self.write_json(META, meta.facts)

    def write_json(self, relpath: str, obj: Any) -> Path:
        """Write one JSON document (numbers as in `logdiff.jsonio`) at a path inside the case, in one step."""
        self._require_writable()
        path = self._inside(relpath)
        write_atomic(path, (dumps(obj, indent=1) + "\n").encode())
        return path

    def write_result(self, name: str, obj: dict[str, Any]) -> Path:
        """Write `results/<name>.json`."""
        return self.write_json(f"results/{name}.json", obj)

    def read_result(self, name: str) -> dict[str, Any]:
        """Read `results/<name>.json`. Raises CaseError when it is absent or damaged."""
        return self._read_object(f"results/{name}.json")

    def has_result(self, name: str) -> bool:
        """Whether `results/<name>.json` exists."""
        return (self.path / "results" / f"{name}.json").is_file()

    def open_writer(self) -> TokenWriter:
        """A writer of the token table; the tables take their names when it closes, all or none."""
        from logdiff.case.tokens import TokenWriter

        self._require_writable()
        return TokenWriter(self.path)

    def batches(self, max_tokens: int | None = None) -> Iterator[PairBatch]:
        """Read the token table back as it was written, at most `max_tokens` response tokens per batch.

        Raises:
            CaseError: the table is missing, cut off or damaged.
        """
        from logdiff.case.token_reader import read_batches

        return read_batches(self.path, max_tokens)

    def record_outputs(self, task: str, files: Iterable[str | os.PathLike[str]], **fields: Any) -> None:
        """Note in the journal that `task` is done and left `files` (inside the case), with their hashes."""
        entries = {}
        for file in files:
            path = self._inside(os.fspath(file))
            entries[path.relative_to(self.path).as_posix()] = sha256_file(path)
        self.journal.append("output", task=task, files=entries, **fields)

    def recorded_outputs(self, task: str) -> dict[str, Any] | None:
        """The last `output` event of `task` when all its files are still there unchanged, else None."""
        for record in reversed(self.journal.read()):
            if record["event"] == "output" and record.get("task") == task:
                files = record.get("files")
                if isinstance(files, dict) and all(self._has(name, digest) for name, digest in files.items()):
                    return dict(record)
                return None
        return None

    def missing(self) -> list[str]:
        """What keeps an open case from being whole, one sentence each; empty for a whole or sealed case."""
        if self.is_complete:
            return []
        words = self._missing_files()
        if self.journal.torn:
            words.append("journal.jsonl ends in half a line: the event that was being written is lost")
        return words

    def seal(self) -> None:
        """Hash every file, write the manifest as complete and give the lock back.

        Raises:
            CaseError: something that this kind of case must hold is missing, or the case is sealed already.
        """
        self._require_writable()
        lacking = self._missing_files()
        if lacking:
            raise CaseError(
                f"the case can't be sealed: {'; '.join(lacking)}", value=str(self.path), hint="run the command again"
            )
        self.journal.append("sealed")
        self.manifest = replace(self.manifest, state="complete", files=hash_files(self.path))
        self.manifest.write(self.path)
        self.close()

    def unseal(self, reason: str) -> None:
        """Open a sealed case for more work (a new measurement, a diagnosis); the reason stands in the journal."""
        if not self.is_complete:
            return
        verify_files(self.path, self.manifest, hashes=True)
        self._take_lock()
        self.manifest = replace(self.manifest, state="open", files={})
        self.manifest.write(self.path)
        self.journal.append("unsealed", reason=reason)

    @contextmanager
    def extended(self, reason: str) -> Iterator[None]:
        """Open for more results, and sealed afterwards where it was sealed before or lacks nothing."""
        sealed = self.is_complete
        self.unseal(reason)
        yield
        if sealed or not self.missing():
            self.seal()

    def _missing_files(self) -> list[str]:
        from logdiff.case.token_reader import table_problem

        words: list[str] = []
        tables = _TABLES if self.holds_tokens else ()
        if tables and not (self.path / META).is_file():
            words.append("meta.json: the facts of the input were not written")
        for name in tables + tuple(name for name in _OPTIONAL_TABLES if (self.path / name).is_file()):
            path = self.path / name
            if path.is_file():
                problem = table_problem(path)
                if problem:
                    words.append(f"{name}: {problem}")
            elif temporary_name(path).is_file():
                words.append(f"{name}: writing was cut off; {temporary_name(path).name} holds nothing that can be read")
            else:
                words.append(f"{name}: the table was not written")
        words += [
            f"results/{name}.json: not computed" for name in _RESULTS[self.manifest.kind] if not self.has_result(name)
        ]
        latest = {r.get("task"): r.get("files") for r in self.journal.read() if r["event"] == "output"}
        for task, files in latest.items():
            for name, digest in files.items() if isinstance(files, dict) else ():
                if not self._has(name, digest):
                    words.append(f"{name}: recorded as output of {task}, now missing or changed")
        return words

    def _has(self, name: str, digest: str) -> bool:
        path = self._inside(name)
        return path.is_file() and sha256_file(path) == digest

    def _read_object(self, relpath: str) -> dict[str, Any]:
        path = self._inside(relpath)
        try:
            data = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise CaseError(
                f"the case has no {relpath}", value=str(self.path), hint="run the command that makes it first"
            ) from None
        except (ValueError, RecursionError, OSError) as error:
            raise CaseError(f"{relpath} can't be read: {error}", value=str(path), hint="make it again") from None
        if not isinstance(data, dict):
            raise CaseError(f"{relpath} must hold one JSON object", value=type(data).__name__, hint="make it again")
        return data

    def _inside(self, relpath: str) -> Path:
        path = Path(os.path.normpath(self.path / relpath))
        if not path.is_relative_to(self.path) or path == self.path:
            raise CaseError("a file of a case must lie inside it", value=relpath, hint=f"give a path in {self.path}")
        return path

    def _require_writable(self) -> None:
        if self.is_complete:
            raise CaseError(
                "the case is sealed and can't be written", value=str(self.path), hint="start a new case with --case"
            )
        self._take_lock()

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        try:
            descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CaseError(
                f"the case can't be written: {error.strerror}", value=str(self.path), hint="check rights and free space"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise CaseError(
                "another process is writing this case",
                value=str(self.path),
                hint="wait until it ends, or give another folder with --case",
            ) from None
        self._lock = descriptor
        # What stands on the disk may have moved on between opening and locking.
        if (self.path / MANIFEST).is_file():
            current = read_manifest(self.path)
            if current.state != self.manifest.state:
                self.manifest = current
                if self.is_complete:
                    self.close()
                    raise CaseError(
                        "the case was sealed by another process", value=str(self.path), hint="open it again"
                    )


def is_case(folder: Path) -> bool:
    """Whether a folder holds a case; False where one can be made there.

    Raises:
        CaseError: it holds something else.
    """
    if (folder / MANIFEST).is_file():
        return True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CaseError("the folder is no case", value=str(folder), hint="give a case folder or a new one with --case")
    return False
