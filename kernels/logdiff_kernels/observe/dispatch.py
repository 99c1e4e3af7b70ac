"""What a process would run: a hash of every function of an engine's classes, and which of them are somebody else's."""

from __future__ import annotations

import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from logdiff_kernels.observe.code_objects import feed

MAX_BRIEF = 20
MAX_NAMED = 200
"""Foreign functions that a report names."""


def dispatch(
    package: str, modules: list[str], registries: Mapping[str, Mapping[str, Any]], *, load: bool = True
) -> dict[str, Any]:
    """The dispatch table of one engine in this process.

    Args:
        package: name of the engine's package: code whose file lies outside of it is foreign.
        modules: modules whose classes and functions are hashed; one that can't be imported is reported.
        registries: tables by which the engine chooses functions at run time, by name.
        load: import modules that are not there yet; without it they are absent.

    Returns:
        `digest` (over every entry), `entries` (their number), `functions` {name: short hash}, `foreign` (names of
        functions in the engine's own classes whose code belongs to another package, with its file's name) and
        `absent` {module: reason}.
    """
    functions: dict[str, str] = {}
    foreign: list[dict[str, str]] = []
    absent: dict[str, str] = {}
    homes = [place for name in (package, "torch") if (place := _home(name)) is not None]
    homes += _standard_library()
    for name in modules:
        if not load and name not in sys.modules:
            absent[name] = "not loaded"
            continue
        try:
            module = importlib.import_module(name)
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {error}"[:300]
            continue
        for key, value in _members(module):
            functions[key] = _hash(value)
            where = _file(value)
            if where is None or any(where.is_relative_to(place) for place in homes):
                continue
            if not _imported(value, key, name):
                foreign.append({"name": key, "from": "/".join(where.parts[-5:])})
    for table, entries in registries.items():
        for key in sorted(entries, key=str):
            functions[f"{table}[{key}]"] = _hash(entries[key])
    lines = [f"{key}\0{functions[key]}\n" for key in sorted(functions)]
    lines += [f"{name}\0absent\n" for name in sorted(absent)]
    return {
        "digest": hashlib.sha256("".join(lines).encode()).hexdigest(),
        "entries": len(functions),
        "functions": dict(sorted(functions.items())),
        "foreign": sorted(foreign, key=lambda f: f["name"])[:MAX_NAMED],
        "absent": absent,
    }


def brief(package: str, modules: list[str], registries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`dispatch` of what this process has loaded, for a fingerprint: nothing is imported.

    Returns:
        `functions` (short hash over every entry, without paths: comparable over ranks and hosts), `entries`, `foreign`
        (names of functions from other packages, at most `MAX_BRIEF`).
    """
    found = dispatch(package, modules, registries, load=False)
    foreign = [one["name"] for one in found["foreign"]]
    return {"functions": found["digest"][:16], "entries": found["entries"], "foreign": foreign[:MAX_BRIEF]}


def _standard_library() -> list[Path]:
    """The standard library's own entries, without the site-packages folder that lies between them."""
    root = Path(sysconfig.get_paths()["stdlib"]).resolve()
    return [entry for entry in root.iterdir() if entry.name not in ("site-packages", "dist-packages")]


def _imported(value: Any, key: str, module: str) -> bool:
    """Whether a module's function is plainly one that it imported from elsewhere, under its own name."""
    home, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if key.count(".") != module.count(".") + 1 or home == module or str(home).startswith("logdiff_kernels"):
        return False
    return key == f"{module}.{name}" and vars(sys.modules.get(str(home), object)).get(str(name)) is value


def _home(package: str) -> Path | None:
    file = getattr(importlib.import_module(package), "__file__", None)
    return Path(file).resolve().parent if file else None


def _members(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions of a module, and functions and plain values of the classes that it defines."""
    for name, value in sorted(vars(module).items()):
        if isinstance(value, type):
            if value.__module__ == module.__name__:
                for attribute, inner in sorted(vars(value).items()):
                    if _code(inner) is not None or _plain(inner):
                        yield f"{module.__name__}.{value.__qualname__}.{attribute}", inner
        elif _code(value) is not None and not name.startswith("__"):
            yield f"{module.__name__}.{name}", value


def _code(value: Any) -> CodeType | None:
    """The code of a function, method, class or static method, property or wrapper; None for anything else."""
    for _ in range(8):
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        else:
            break
    code = getattr(value, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, type(None)))


def _file(value: Any) -> Path | None:
    """The file that a function's outermost code stands in; None for generated code."""
    code = _code(value)
    if code is None or code.co_filename.startswith("<"):
        return None
    return Path(code.co_filename).resolve()


def _hash(value: Any) -> str:
    code = _code(value)
    if code is None:
        return hashlib.sha256(repr(value).encode() if _plain(value) else str(type(value)).encode()).hexdigest()[:16]
    digest = hashlib.sha256()
    _feed(digest, code)
    inner = value
    for _ in range(8):  # what a decorator wraps counts too
        inner = getattr(getattr(inner, "__func__", inner), "__wrapped__", None)
        wrapped = _code(inner)
        if wrapped is None:
            break
        _feed(digest, wrapped)
    return digest.hexdigest()[:16]


def _feed(digest: Any, code: CodeType) -> None:
    """A code object with the name that it was written under."""
    digest.update(f"{code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}\0".encode())
    feed(digest, code)
