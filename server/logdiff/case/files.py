"""Writing and hashing files so that a kill at any moment leaves either the old or the new content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 20


def temporary_name(path: Path) -> Path:
    """Where a file is written before it takes its name: hidden, in the same folder."""
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the name `path` when the block ends well; otherwise nothing changes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk is told without the file's name
        raise
    sync_folder(path.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace the content of `path` in one step."""
    with atomic_writer(path) as handle:
        handle.write(data)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
