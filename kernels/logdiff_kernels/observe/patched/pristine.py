"""What a module's source file on disk defines: a hash of every function's code, and how each name is bound.

The file is compiled and never run, so that what a process holds can be compared with what its package says.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import sqlite3
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from logdiff_kernels.observe.code_objects import code_hash
from logdiff_kernels.observe.patched.bindings import Binding, Reader
from logdiff_kernels.toolchain import cache_folder

_VERSION = "8"
_OPTIMIZED = 0x1  # CO_OPTIMIZED: set for functions, not for class bodies
_GENERIC = "<generic parameters of "


@dataclass(frozen=True, slots=True)
class Source:
    """A source file.

    Attributes:
        codes: {qualified name: [(hash, line)]} of every function.
        bindings: {scope: {name: [Binding]}}; the scope is "" for the module, else a class's qualified name.
        tables: {scope.name: {repr of key: dotted name}} of literal dictionaries.
        stores: names that its functions write (attributes and globals), with a line.
        dynamic: whether it fills its namespace by other means.
        generates: whether it runs generated code, or writes attributes by computed names.
        ops: operators of `torch.ops` that it names, as "namespace.name".
        imports: top-level names that it imports, anywhere.
        sha256: of the file.
    """

    codes: dict[str, list[tuple[str, int]]]
    bindings: dict[str, dict[str, list[Binding]]]
    tables: dict[str, dict[str, str]]
    stores: dict[str, int]
    dynamic: bool
    generates: bool
    ops: list[str]
    imports: list[str]
    sha256: str


class Sources:
    """Reads source files once; what was read is kept by content in the cache folder.

    Args:
        cache: folder of the cache; None: the user's, "" for none.
    """

    def __init__(self, cache: str | None = None) -> None:
        self._read: dict[str, Source | None] = {}
        self._store = _Store(cache)
        self.unreadable: dict[str, str] = {}
        self.compiled = 0

    def of(self, path: str) -> Source | None:
        """The file at `path`; None where it can't be read or compiled, which `unreadable` then says."""
        if path not in self._read:
            self._read[path] = self._load(path)
        return self._read[path]

    def close(self) -> None:
        """Write what was compiled into the cache."""
        self._store.flush()

    def _load(self, path: str) -> Source | None:
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            self.unreadable[path] = f"{type(error).__name__}: {error.strerror}"
            return None
        sha256 = hashlib.sha256(text).hexdigest()
        kept = self._store.get(sha256)
        if kept is not None:
            return kept
        try:
            found = read_source(text, path, sha256)
        except (SyntaxError, ValueError, RecursionError) as error:
            self.unreadable[path] = f"{type(error).__name__}: {error}"[:300]
            return None
        self.compiled += 1
        self._store.put(sha256, found)
        return found


def read_source(text: bytes, path: str, sha256: str) -> Source:
    """Parse and compile one file. Raises `SyntaxError` or `ValueError`."""
    tree = ast.parse(text)
    codes: dict[str, list[tuple[str, int]]] = {}
    for name, code in _codes(compile(tree, path, "exec", dont_inherit=True), ""):
        codes.setdefault(name, []).append((code_hash(code), code.co_firstlineno))
    reader = Reader()
    reader.body(tree.body, "")
    ops, imports = sorted(reader.ops), sorted(reader.imports)
    found = (reader.bindings, reader.tables, reader.stores, reader.dynamic, reader.generates, ops, imports)
    return Source(codes, *found, sha256)


def _codes(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    """(qualified name, code) of every function in a code object, nested ones too."""
    for inner in code.co_consts:
        if not isinstance(inner, CodeType):
            continue
        if inner.co_name.startswith(_GENERIC):
            yield from _codes(inner, prefix)
            continue
        name = prefix + inner.co_name
        if inner.co_flags & _OPTIMIZED:
            yield name, inner
            yield from _codes(inner, f"{name}.<locals>.")
        else:
            yield from _codes(inner, f"{name}.")


class _Store:
    """The cache: one SQLite file; anything wrong with it means that files are compiled again."""

    def __init__(self, folder: str | None) -> None:
        self._connection: sqlite3.Connection | None = None
        self._new: list[tuple[str, bytes]] = []
        self._suffix = f"{sys.implementation.cache_tag}-{sys.flags.optimize}-{_VERSION}"
        if folder == "":
            return
        with contextlib.suppress(OSError, sqlite3.Error):
            place = Path(folder) if folder is not None else cache_folder("pristine")
            place.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(place / f"{self._suffix}.sqlite", timeout=20)
            self._connection.execute("create table if not exists source (sha256 text primary key, data blob)")

    def get(self, sha256: str) -> Source | None:
        if self._connection is None:
            return None
        try:
            row = self._connection.execute("select data from source where sha256 = ?", (sha256,)).fetchone()
            return None if row is None else _decode(json.loads(zlib.decompress(row[0])), sha256)
        except (sqlite3.Error, ValueError, KeyError, TypeError, zlib.error):
            return None

    def put(self, sha256: str, source: Source) -> None:
        self._new.append((sha256, zlib.compress(json.dumps(_encode(source)).encode(), 1)))
        if len(self._new) >= 200:
            self.flush()

    def flush(self) -> None:
        if self._connection is not None and self._new:
            with contextlib.suppress(sqlite3.Error), self._connection:
                self._connection.executemany("insert or replace into source values (?, ?)", self._new)
        self._new = []


_FIELDS = ("codes", "tables", "stores", "dynamic", "generates", "ops", "imports")


def _encode(source: Source) -> dict[str, Any]:
    bindings = {
        scope: {
            name: [[b.how, b.line, b.source, b.decorators, b.literal, b.defaults] for b in many]
            for name, many in names.items()
        }
        for scope, names in source.bindings.items()
    }
    return {"bindings": bindings, **{name: getattr(source, name) for name in _FIELDS}}


def _decode(data: dict[str, Any], sha256: str) -> Source:
    bindings = {
        scope: {
            name: [Binding(b[0], b[1], b[2], tuple(b[3]), b[4], dict(b[5])) for b in many]
            for name, many in names.items()
        }
        for scope, names in data["bindings"].items()
    }
    fields = {name: data[name] for name in _FIELDS}
    fields["codes"] = {name: [(str(h), int(line)) for h, line in many] for name, many in data["codes"].items()}
    return Source(bindings=bindings, sha256=sha256, **fields)
