"""Imports the Python files that a user's own stack loads (`modules` of the run file), before the model is built."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

from logdiff_kernels.errors import InputError

VARIABLE = "LOGDIFF_MODULES"
"""Environment variable (os.pathsep-joined paths) by which child processes of an engine find the same modules."""

_loaded: dict[str, dict[str, str]] = {}


def load_modules(paths: list[str]) -> list[dict[str, str]]:
    """Import each file once per process, in order.

    A module is registered in `sys.modules` under a unique name and, where that is free, under the file's stem.

    Returns:
        One `{"path", "sha256"}` per file, of the bytes that ran.

    Raises:
        InputError: a file that can't be read, or that raises while it is imported; it is named.
    """
    return [_load(path) for path in paths]


def load_from_environment() -> list[dict[str, str]]:
    """`load_modules` of the paths in `LOGDIFF_MODULES`; for plug-ins that run in an engine's child processes."""
    return load_modules([path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path])


def loaded() -> list[dict[str, str]]:
    """What this process imported so far, in order."""
    return list(_loaded.values())


def _load(path: str) -> dict[str, str]:
    full = str(Path(path).resolve())
    if full in _loaded:
        return _loaded[full]
    try:
        source = Path(full).read_bytes()
    except OSError as error:
        raise InputError(f"can't read the module {path}: {error.strerror}", value=path) from error
    digest = hashlib.sha256(source).hexdigest()
    name = f"logdiff_module_{hashlib.sha256(full.encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise InputError(f"the module {path} is no Python file", value=path, hint="a path that ends in .py")
    module = importlib.util.module_from_spec(spec)
    stem = Path(full).stem
    names = [name] if stem in sys.modules else [name, stem]
    for key in names:
        sys.modules[key] = module
    try:
        exec(compile(source, full, "exec"), module.__dict__)  # the very bytes that were hashed
    except BaseException as error:
        for key in names:
            sys.modules.pop(key, None)
        if isinstance(error, (KeyboardInterrupt, SystemExit)) or not isinstance(error, Exception):
            raise
        raise InputError(
            f"the module {path} failed while it was imported: {type(error).__name__}: {error}", value=path
        ) from error
    _loaded[full] = {"path": path, "sha256": digest}
    return _loaded[full]
