"""The functions of attention layers that are no modules: rotations and transformers' attention interface, watched.

Whatever stands at those names is called as it is, with what it was given, and its result is handed on; `remove` puts
the very objects back.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from logdiff_kernels.engines.transformers.align.stand_in import own_class

_TABLES = (("cos", "sin"), ("freqs_cis",))
_INTERFACE = ["module", "query", "key", "value"]
_EAGER, _ROTATION = "eager_attention_forward", "apply_rotary"
"""What transformers calls these functions in every model's file: user code in their place may take anything."""

_ABSENT = object()


class Functions:
    """Watches the functions that attention layers call.

    Args:
        layers: the attention modules.
        before_rotation: given the tensors to be rotated and the arguments by name; what it returns is handed to
            `after_rotation` with the result.
        before_attention: given (module, query, key, value, named arguments) of a call of the interface; likewise.
    """

    def __init__(
        self,
        layers: list[Any],
        before_rotation: Callable[[list[Any], dict[str, Any]], Any],
        after_rotation: Callable[[Any, Any], None],
        before_attention: Callable[..., Any],
        after_attention: Callable[[Any, Any], None],
    ) -> None:
        self._layers = layers
        self._rotation = before_rotation, after_rotation
        self._attention = before_attention, after_attention
        self._undo: list[Callable[[], None]] = []
        self._depth = {"rotation": 0, "attention": 0}

    def install(self) -> None:
        """Put the watchers in place."""
        spaces = {id(space): space for module in self._layers for space in _namespaces(module)}
        wanted = {getattr(getattr(m, "config", None), "_attn_implementation", None) for m in self._layers}
        tables: dict[int, Any] = {}
        for space in spaces.values():
            for key, value in list(space.items()):
                if isinstance(value, FunctionType) and (key.startswith(_ROTATION) or _tables(value)):
                    self._put(space, key, self._rotating(value))
                elif isinstance(value, FunctionType) and (key == _EAGER or _parameters(value)[:4] == _INTERFACE):
                    self._put(space, key, self._attending(value))
                elif key == "ALL_ATTENTION_FUNCTIONS":
                    tables[id(value)] = value
        for table in tables.values():
            for name in wanted:
                if name is not None and name in table:
                    self._put(table._local_mapping, name, self._attending(table[name]))

    def remove(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()

    def _put(self, space: dict[str, Any], key: str, value: Any) -> None:
        before = space.get(key, _ABSENT)
        space[key] = value

        def undo() -> None:
            if space.get(key) is not value:
                return  # someone else's by now
            if before is _ABSENT:
                del space[key]
            else:
                space[key] = before

        self._undo.append(undo)

    def _rotating(self, inner: Any) -> Any:
        names, count = _rotated_names(inner)
        before, after = self._rotation

        @functools.wraps(inner)
        def rotate(*args: Any, **kwargs: Any) -> Any:
            given = dict(zip(names, args, strict=False)) | kwargs
            with self._inside("rotation") as outermost:
                taken = before([given.get(key) for key in names[:count]], given) if outermost else None
                result = inner(*args, **kwargs)
                if outermost:
                    after(taken, result)
            return result

        return rotate

    def _attending(self, inner: Any) -> Any:
        before, after = self._attention

        @functools.wraps(inner)
        def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            with self._inside("attention") as outermost:
                taken = before(module, query, key, value, kwargs) if outermost else None
                result = inner(module, query, key, value, *args, **kwargs)
                if outermost:
                    after(taken, result)
            return result

        return attend

    def _inside(self, what: str) -> _Depth:
        return _Depth(self._depth, what)


class _Depth:
    """True for the outermost of nested calls."""

    def __init__(self, depth: dict[str, int], what: str) -> None:
        self._depth, self._what = depth, what

    def __enter__(self) -> bool:
        self._depth[self._what] += 1
        return self._depth[self._what] == 1

    def __exit__(self, *_error: object) -> None:
        self._depth[self._what] -= 1


def _namespaces(module: Any) -> Iterator[dict[str, Any]]:
    """Where the code of an attention layer looks names up: its own forward's, its classes', any wrapper's."""
    forwards = [module.forward, *(base.__dict__.get("forward") for base in own_class(module).__mro__)]
    for forward in forwards:
        function = getattr(forward, "__func__", forward)
        for _ in range(8):
            if isinstance(function, FunctionType) and not function.__module__.startswith("torch."):
                yield function.__globals__
            function = getattr(function, "__wrapped__", None)
            if function is None:
                break
    for base in own_class(module).__mro__:
        home = sys.modules.get(base.__module__)
        if home is not None and not base.__module__.startswith(("torch", "builtins")):
            yield home.__dict__


def _parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


def _tables(function: Callable[..., Any]) -> tuple[str, ...]:
    names = _parameters(function)
    return next((wanted for wanted in _TABLES if set(wanted) <= set(names)), ())


def _rotated_names(function: Callable[..., Any]) -> tuple[list[str], int]:
    """(names of the arguments, how many of the first are rotated)."""
    names, tables = _parameters(function), _tables(function)
    if not tables:  # a stand-in that takes what the function it stands for takes
        return ["q", "k", "cos", "sin"], 2
    return names, 2 if names.index(tables[0]) >= 2 else 1
