"""Code objects by what they do: hashes that do not depend on where a file lies."""

from __future__ import annotations

import hashlib
from types import CodeType
from typing import Any


def code_hash(code: CodeType) -> str:
    """A short hash of what a code object does, whatever file and line it stands in."""
    digest = hashlib.blake2b(digest_size=8)
    feed(digest, code)
    return digest.hexdigest()


def feed(digest: Any, code: CodeType) -> None:
    """Everything of a code object that decides what it does, nested ones included."""
    table = getattr(code, "co_exceptiontable", b"")
    constants: list[str] = []
    inner: list[CodeType] = []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner.append(constant)
        else:
            constants.append(_constant(constant))
    head = (code.co_name, code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, constants)
    digest.update(repr((head, names)).encode("utf-8", "backslashreplace") + code.co_code + table)
    for one in inner:
        feed(digest, one)


def _constant(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"{{{sorted(map(_constant, value))}}}"
    if isinstance(value, tuple):
        return f"({','.join(map(_constant, value))})"
    return repr(value)
