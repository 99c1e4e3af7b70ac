"""Writes a patch function as the one self-contained Python file that a run file's `modules` names."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.patches import loading

_SHARED = {name: value for name, value in vars(loading).items() if inspect.isfunction(value)}


def source(patch: Callable[..., None], values: dict[str, Any]) -> str:
    """The module's text: the shared functions that the patch calls, the patch, and its call with `values`.

    Docstrings are left out and the function is called `apply`, so that a file tells no more than a user's would.
    """
    tree = _parsed(patch)
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    function.name = "apply"
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    needed = [_parsed(value) for name, value in _SHARED.items() if name in named]
    call = f"apply({', '.join(f'{key}={value!r}' for key, value in values.items())})"
    return "\n\n\n".join([*(ast.unparse(part) for part in [*needed, tree]), call]) + "\n"


def write(folder: Path, patch: Callable[..., None], values: dict[str, Any]) -> Path:
    """Write the module into `folder` under a name that says nothing."""
    text = source(patch, values)
    path = folder / f"plugin_{hashlib.sha256(text.encode()).hexdigest()[:6]}.py"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _parsed(function: Callable[..., Any]) -> ast.Module:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree
