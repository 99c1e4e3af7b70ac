"""The manifest of a case: what it is, whether it is complete, and the hash of every file when it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from logdiff.case.files import sha256_file, write_atomic
from logdiff.errors import CaseError
from logdiff.jsonio import dumps

FORMAT = "logdiff-case/1"
MANIFEST = "manifest.json"
KINDS = ("run", "measure", "import", "demo", "audit", "probe", "dispatch", "profile")


@dataclass(frozen=True, slots=True)
class Manifest:
    """`manifest.json`. `created` is UTC in ISO 8601; `files` maps relative paths to {"sha256", "size"} once sealed."""

    id: str
    name: str
    kind: str
    created: str
    logdiff: str
    state: str = "open"
    inputs: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The content of `manifest.json`."""
        return {
            "format": FORMAT,
            "id": self.id,
            "name": self.name,
            "kind": self.kind,
            "created": self.created,
            "state": self.state,
            "logdiff": self.logdiff,
            "inputs": self.inputs,
            "files": self.files,
        }

    def write(self, case: Path) -> None:
        """Replace the manifest of the case folder `case` in one step."""
        write_atomic(case / MANIFEST, (dumps(self.as_dict(), indent=1) + "\n").encode())


def read_manifest(case: Path) -> Manifest:
    """Read and check the manifest of a case folder.

    Raises:
        CaseError: no folder, no manifest, or one that isn't `logdiff-case/1`.
    """
    if not case.is_dir():
        raise CaseError(
            "there is no case folder here", value=str(case), hint="give a folder that measure, run or import wrote"
        )
    path = case / MANIFEST
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CaseError(
            "the folder is no case: manifest.json is missing", value=str(case), hint="give a folder that logdiff wrote"
        ) from None
    except (ValueError, RecursionError, OSError) as error:
        raise CaseError(
            f"manifest.json can't be read: {error}", value=str(path), hint="restore it from a copy of the case"
        ) from None
    found = data.get("format") if isinstance(data, dict) else None
    if found != FORMAT:
        raise CaseError(
            f"manifest.json is not of format {FORMAT}",
            value=str(path) if found is None else found,
            hint="use the logdiff version that wrote it",
        )
    text = {key: data.get(key) for key in ("id", "name", "kind", "created", "state", "logdiff")}
    for key, value in text.items():
        if not isinstance(value, str):
            raise CaseError(
                f"manifest.json: {key} must be text",
                value=str(path) if value is None else value,
                hint="restore it from a copy of the case",
            )
    inputs, files = data.get("inputs"), data.get("files")
    if text["state"] not in ("open", "complete") or not isinstance(inputs, dict) or not isinstance(files, dict):
        raise CaseError(
            "manifest.json is damaged: state, inputs or files", value=str(path), hint="restore it from a copy"
        )
    for name, entry in files.items():
        pure = PurePosixPath(name)
        whole = isinstance(entry, dict) and isinstance(entry.get("sha256"), str) and isinstance(entry.get("size"), int)
        if pure.is_absolute() or ".." in pure.parts or not whole:
            raise CaseError("manifest.json lists a file in a wrong way", value=name, hint="restore it from a copy")
    return Manifest(inputs=inputs, files=files, **text)


_DRAWN = (".html", ".png")
_OVERLAY = "overlay"  # comes and goes with `align apply` and `align revert`


def evidence_files(case: Path) -> Iterator[str]:
    """Relative paths of everything that a seal covers.

    Left out are the manifest, hidden (temporary, lock) files, an alignment's overlay, and pages and plots, which are
    drawn from the evidence and drawn again at any time.
    """
    for folder, folders, names in os.walk(case):
        top = Path(folder) == case
        folders[:] = sorted(name for name in folders if not name.startswith(".") and not (top and name == _OVERLAY))
        for name in sorted(names):
            relative = (Path(folder) / name).relative_to(case).as_posix()
            if not name.startswith(".") and relative != MANIFEST and not name.endswith(_DRAWN):
                yield relative


def hash_files(case: Path) -> dict[str, dict[str, Any]]:
    """SHA-256 and size of every evidence file."""
    return {
        name: {"sha256": sha256_file(case / name), "size": (case / name).stat().st_size}
        for name in evidence_files(case)
    }


def verify_files(case: Path, manifest: Manifest, *, hashes: bool) -> None:
    """Check a sealed case against its manifest: presence and size always, content when `hashes`.

    Files added later aren't evidence and are left alone.

    Raises:
        CaseError: naming the first files that are missing or changed.
    """
    wrong = []
    for name, entry in manifest.files.items():
        path = case / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif (size := path.stat().st_size) != entry["size"]:
            wrong.append(f"{name} has {size} bytes, sealed with {entry['size']}")
        elif hashes and sha256_file(path) != entry["sha256"]:
            wrong.append(f"{name} has other content than when sealed")
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CaseError(
            f"the sealed case was changed: {'; '.join(wrong[:5])}{more}",
            value=str(case),
            hint="restore the files from a copy, or make the case again",
        )
