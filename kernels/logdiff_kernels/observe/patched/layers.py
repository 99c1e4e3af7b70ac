"""Taking a live value apart: the functions that it calls through, from the outermost to the original."""

from __future__ import annotations

import functools
import types
from collections import deque
from types import CodeType
from typing import Any

from logdiff_kernels.observe.code_objects import code_hash

MAX_VISITED = 300
MAX_DEPTH = 7
MAX_ATTRIBUTES = 40

_LRU = type(functools.lru_cache(lambda: None))
_hashes: dict[int, tuple[CodeType, str]] = {}


def is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """`isinstance` that runs no code of the value: proxies and lazy objects answer to `__class__`."""
    return issubclass(type(value), kinds)


def is_callable(value: Any) -> bool:
    """`callable` that asks the value's class alone."""
    return any("__call__" in vars(kind) for kind in type(value).__mro__)


def hash_of(code: CodeType) -> str:
    """`code_hash`, computed once per code object."""
    kept = _hashes.get(id(code))
    if kept is None or kept[0] is not code:
        kept = _hashes[id(code)] = (code, code_hash(code))
    return kept[1]


def function_of(value: Any) -> types.FunctionType | None:
    """The outermost Python function of a value as it stands in a namespace; None for anything else."""
    for _ in range(6):
        if is_a(value, types.FunctionType):
            function: types.FunctionType = value
            return function
        if is_a(value, (staticmethod, classmethod, types.MethodType)):
            value = value.__func__
        elif is_a(value, property):
            value = value.fget
        elif is_a(value, functools.cached_property) or is_a(value, (functools.partial, functools.partialmethod)):
            value = value.func
        elif is_a(value, _LRU):
            value = value.__wrapped__
        else:
            return None
    return None


def unwrapped(function: types.FunctionType) -> types.FunctionType:
    """The innermost function that `functools.wraps` names, as decorators of the standard library leave it."""
    for _ in range(MAX_DEPTH):
        inner: Any = vars(function).get("__wrapped__")
        if not is_a(inner, types.FunctionType):
            break
        function = inner
    return function


def path_to(value: Any, wanted: set[str]) -> list[CodeType] | None:
    """Codes from the outermost function down to one whose hash is wanted; None where none is reached.

    Follows what decorators leave: `__wrapped__`, closures, bound functions, attributes of callable objects.
    """
    queue: deque[tuple[Any, tuple[CodeType, ...]]] = deque([(value, ())])
    seen: set[int] = set()
    while queue and len(seen) < MAX_VISITED:
        current, codes = queue.popleft()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if is_a(current, types.FunctionType):
            codes = (*codes, current.__code__)
            if hash_of(current.__code__) in wanted:
                return list(codes)
        if len(codes) <= MAX_DEPTH:
            queue.extend((child, codes) for child in _children(current))
    return None


def _children(value: Any) -> list[Any]:
    found: list[Any] = []
    if is_a(value, types.FunctionType):
        found += list(vars(value).values())
        for cell in value.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:  # an empty cell
                continue
        found += list(value.__defaults__ or ())
    elif is_a(value, (staticmethod, classmethod, types.MethodType)):
        found.append(value.__func__)
    elif is_a(value, property):
        found += [value.fget, value.fset, value.fdel]
    elif is_a(value, _LRU):
        found.append(value.__wrapped__)
    elif is_a(value, (functools.partial, functools.partialmethod)):
        found += [value.func, *value.args]
    elif not is_a(value, (type, types.ModuleType, str, bytes, int, float, list, tuple, set)):
        try:
            inside = object.__getattribute__(value, "__dict__")
        except (AttributeError, TypeError):
            inside = None
        if type(inside) is dict and len(inside) <= MAX_ATTRIBUTES:
            found += list(inside.values())
    return [child for child in found if _worth(child)]


def _worth(value: Any) -> bool:
    if value is None or is_a(value, (type, types.ModuleType, str, bytes, int, float)):
        return False
    return is_callable(value) or is_a(value, (staticmethod, classmethod, property, functools.cached_property))
