"""The namespace that is compared: a module, or a class of it, and what its names mean there."""

from __future__ import annotations

import sys
import types
from typing import Any

from logdiff_kernels.observe.patched.bindings import Binding
from logdiff_kernels.observe.patched.layers import function_of, is_a
from logdiff_kernels.observe.patched.owners import Distribution, real
from logdiff_kernels.observe.patched.pristine import Source

MISSING = object()


class Place:
    """A namespace under comparison: a module, or a class of it."""

    __slots__ = ("decorators", "dynamic", "module", "owner", "owner_object", "path", "scope", "source")

    def __init__(
        self,
        module: str,
        scope: str,
        owner_object: Any,
        source: Source,
        path: str,
        owner: Distribution | None,
        *,
        decorators: tuple[str, ...] = (),
        dynamic: bool = False,
    ) -> None:
        self.module, self.scope, self.owner_object, self.source = module, scope, owner_object, source
        self.path, self.owner, self.decorators, self.dynamic = path, owner, decorators, dynamic

    def qualified(self, name: str) -> str:
        """The name with its scope in front."""
        return f"{self.scope}.{name}" if self.scope else name

    def look(self, dotted: str) -> Any:
        """The live value of a dotted name as this namespace sees it, without running any code."""
        first, *rest = dotted.split(".")
        value = vars(self.owner_object).get(first, MISSING)
        if value is MISSING:
            value = vars(sys.modules.get(self.module, types)).get(first, MISSING)
        for name in rest:
            if value is MISSING:
                return MISSING
            try:
                value = vars(value).get(name, MISSING)
            except TypeError:
                return MISSING
        return value


def absolute(source: str, here: Place) -> str:
    """An import's module with its leading dots resolved."""
    if not source.startswith("."):
        return source
    dots = len(source) - len(source.lstrip("."))
    package = here.module.split(".")
    module = sys.modules.get(here.module)
    keep = len(package) - dots + (1 if hasattr(module, "__path__") else 0)
    head = ".".join(package[:keep])
    tail = source[dots:]
    return f"{head}{tail}" if tail.startswith(":") or not tail else f"{head}.{tail}"


def same_file(function: types.FunctionType, path: str) -> bool:
    """Whether a function says that it is from a file."""
    return real(function.__code__.co_filename) == real(path)


def defaults_changed(function: types.FunctionType, known: list[Binding]) -> str | None:
    """The first constant default of the source that the function no longer has."""
    options = [b.defaults for b in known if b.how == "def"]
    if len(options) != 1:
        return None
    actual = {str(i): repr(v) for i, v in enumerate(reversed(function.__defaults__ or ()))}
    actual |= {name: repr(v) for name, v in (function.__kwdefaults__ or {}).items()}
    return next((f"{k}: {v} -> {actual.get(k)}" for k, v in options[0].items() if actual.get(k) != v), None)


def file_of(value: Any) -> str:
    """The file of a function, or of the module of a class or object; "" where there is none."""
    function = function_of(value)
    if function is not None:
        return function.__code__.co_filename
    module = sys.modules.get(home_of(value))
    return str(getattr(module, "__file__", None) or "") if module is not None else ""


def name_of(code: types.CodeType) -> str:
    """A code object's name with its file and line."""
    return f"{getattr(code, 'co_qualname', code.co_name)} ({code.co_filename}:{code.co_firstlineno})"


def inherited(owner: Any, name: str) -> Any:
    """What a class would have under this name without its own; None for modules and for nothing."""
    if not isinstance(owner, type):
        return None
    for base in owner.__mro__[1:]:
        if base is not object and name in vars(base):
            return vars(base)[name]
    return None


def exported(owner: Any, name: str) -> bool:
    """Whether a module lists a name in `__all__`."""
    listed = getattr(owner, "__dict__", {}).get("__all__")
    return isinstance(listed, (list, tuple)) and name in listed


def home_of(value: Any) -> str:
    """The module that a class or instance says it is from."""
    kind = value if is_a(value, type) else type(value)
    return str(vars(kind).get("__module__") or "")
