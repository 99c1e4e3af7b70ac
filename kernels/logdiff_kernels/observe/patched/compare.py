"""Compares one live module with its source file, name by name."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

from logdiff_kernels.observe.patched.bindings import Binding
from logdiff_kernels.observe.patched.layers import function_of, hash_of, is_a, is_callable, path_to, unwrapped
from logdiff_kernels.observe.patched.owners import Owners, normalised, real
from logdiff_kernels.observe.patched.place import (
    MISSING,
    Place,
    absolute,
    defaults_changed,
    exported,
    file_of,
    home_of,
    inherited,
    name_of,
    same_file,
)
from logdiff_kernels.observe.patched.pristine import Source, Sources
from logdiff_kernels.observe.patched.record import Record

_PLAIN = (bool, int, float, str, bytes, type(None), tuple)


class Comparer:
    """Compares modules with their files.

    Args:
        sources: reads files.
        owners: knows whose a file is.
        stock: normalised names of distributions whose own changes to others are theirs to make (the engine's).
    """

    def __init__(self, sources: Sources, owners: Owners, stock: frozenset[str]) -> None:
        self._sources = sources
        self._owners = owners
        self._stock = stock
        self._kin: dict[str, frozenset[str]] = {}
        self.functions = 0
        self.classes = 0
        self._seen: set[int] = set()

    def module(self, module: types.ModuleType, source: Source, path: str) -> Iterator[Record]:
        """Records of everything in a module that is not as its file says."""
        here = Place(module.__name__, "", module, source, path, self._owners.of(path), dynamic=source.dynamic)
        for name, value in list(vars(module).items()):
            if name.startswith("__") and name.endswith("__"):
                continue
            yield from self._name(here, name, value)
            if is_a(value, type) and value.__module__ == module.__name__ and id(value) not in self._seen:
                yield from self._class(here, value)

    def _class(self, outer: Place, kind: type) -> Iterator[Record]:
        scope = kind.__qualname__
        bindings = outer.source.bindings.get(scope)
        if bindings is None:
            return
        self._seen.add(id(kind))
        self.classes += 1
        made = outer.source.bindings.get(scope.rpartition(".")[0], {}).get(scope.rpartition(".")[2], [])
        decorators = tuple(d for b in made for d in b.decorators)
        here = Place(outer.module, scope, kind, outer.source, outer.path, outer.owner, decorators=decorators)
        for name, value in list(vars(kind).items()):
            yield from self._name(here, name, value)
            if is_a(value, type) and value.__module__ == outer.module and id(value) not in self._seen:
                yield from self._class(outer, value)

    def _name(self, here: Place, name: str, value: Any) -> Iterator[Record]:
        known = here.source.bindings.get(here.scope, {}).get(name)
        if known is None:
            yield from self._added(here, name, value)
            return
        if any(b.how == "def" for b in known):
            self.functions += 1
            found = self._defined(here, name, value, known)
        elif any(b.how == "class" for b in known):
            found = self._named_class(here, name, value, known)
        elif is_a(value, types.ModuleType):
            return
        elif function_of(value) is not None or is_a(value, type):
            found = self._assigned(here, name, value, known)
        else:
            found = self._constant(here, name, value, known)
        if found is not None:
            yield found
        if is_a(value, dict):
            yield from self._table(here, name, value)

    def _defined(self, here: Place, name: str, value: Any, known: list[Binding]) -> Record | None:
        if not all(b.how == "def" for b in known) and self._elsewhere(here, value, known):
            return None
        codes = here.source.codes.get(here.qualified(name), [])
        wanted = {code for code, _ in codes}
        stock = f"{here.path}:{known[-1].line}"
        function = function_of(value)
        decorators = tuple(d for b in known for d in b.decorators) + here.decorators
        if function is not None and hash_of(function.__code__) in wanted and same_file(function, here.path):
            changed = defaults_changed(function, known) if not decorators else None
            if changed is None:
                return None
            detail = f"its default argument {changed} is not the source file's"
            return self._record("edited", here, name, function, detail, stock)
        layers = path_to(value, wanted)
        if layers is not None:
            return self._wrapped(here, name, layers, decorators, stock)
        if function is None:
            if decorators or is_callable(value) is False:
                return None
            detail = f"it is a {type(value).__module__}.{type(value).__qualname__} now"
            return self._record("replaced", here, name, value, detail, stock)
        if decorators and self._kindred(here, function.__code__.co_filename, decorators):
            inner = unwrapped(function)
            if inner is not function and not self._kindred(here, inner.__code__.co_filename, decorators):
                detail = f"it is {inner.__module__}.{inner.__qualname__} now, inside of the original's decorator"
                return self._record("replaced", here, name, inner, detail, stock)
            twin = self._twin(here, function)
            if twin is None:
                return None
        if self._of_class(here, function.__code__.co_filename):
            return None
        twin = self._twin(here, function)
        if twin is not None:
            return self._record("rebound", here, name, function, f"it is {here.module}.{twin} now", stock)
        if real(function.__code__.co_filename) == real(here.path):
            detail = "its code is not what the source file compiles to"
            return self._record("edited", here, name, function, detail, stock)
        home = f"{function.__module__}.{function.__qualname__}"
        if home == f"{here.module}.{here.qualified(name)}":
            return self._record("edited", here, name, function, "its code was exchanged in place", stock)
        return self._record("replaced", here, name, function, f"it is {home} now", stock)

    def _twin(self, here: Place, function: types.FunctionType) -> str | None:
        """Another function of the same file whose code this is."""
        if real(function.__code__.co_filename) != real(here.path):
            return None
        mine = hash_of(function.__code__)
        return next((n for n, many in here.source.codes.items() if any(code == mine for code, _ in many)), None)

    def _wrapped(
        self, here: Place, name: str, layers: list[types.CodeType], decorators: tuple[str, ...], stock: str
    ) -> Record | None:
        for code in layers[:-1]:
            generated = code.co_filename.startswith("<")
            if decorators and (generated or self._kindred(here, code.co_filename, decorators)):
                continue
            if self._of_class(here, code.co_filename):
                continue
            detail = f"calls go through {name_of(code)} first"
            return self._record("wrapped", here, name, code, detail, stock)
        return None

    def _named_class(self, here: Place, name: str, value: Any, known: list[Binding]) -> Record | None:
        if is_a(value, type) and (value.__module__, value.__qualname__) == (here.module, here.qualified(name)):
            return None
        if not all(b.how == "class" for b in known) and self._elsewhere(here, value, known):
            return None
        decorators = tuple(d for b in known for d in b.decorators)
        if decorators and (not is_a(value, type) or self._kindred(here, file_of(value), decorators)):
            return None
        words = f"{value.__module__}.{value.__qualname__}" if is_a(value, type) else repr(type(value))
        if not is_a(value, type) and not is_callable(value):
            return None
        detail = f"it is {words} now"
        return self._record("replaced", here, name, value, detail, f"{here.path}:{known[-1].line}")

    def _assigned(self, here: Place, name: str, value: Any, known: list[Binding]) -> Record | None:
        """A function or class under a name that the file binds by import or assignment."""
        if self._elsewhere(here, value, known):
            return None
        file = file_of(value)
        sources = tuple(b.source.split(":")[0].lstrip(".") for b in known if b.source)
        if not file or file.startswith("<") or self._kindred(here, file, sources):
            return None
        words = (
            f"{value.__module__}.{value.__qualname__}"
            if is_a(value, (type, types.FunctionType))
            else type(value).__name__
        )
        detail = f"it is {words} now, which the source file does not bind to it"
        return self._record("rebound", here, name, value, detail, f"{here.path}:{known[-1].line}")

    def _elsewhere(self, here: Place, value: Any, known: list[Binding]) -> bool:
        """Whether a binding by import or assignment explains a value, by name or by its code."""
        for binding in known:
            if binding.how == "import":
                home, _, attribute = absolute(binding.source, here).partition(":")
                module = sys.modules.get(home)
                if module is not None and vars(module).get(attribute, MISSING) is value:
                    return True
                if sys.modules.get(f"{home}.{attribute}" if attribute else home) is value:
                    return True
            elif binding.how == "assign" and (
                (binding.source and here.look(binding.source) is value)
                or (binding.literal is not None and is_a(value, _PLAIN) and repr(value) == binding.literal)
            ):
                return True
        return self._authentic(value)

    def _authentic(self, value: Any) -> bool:
        """Whether a function or class is, under its own name, what its own file defines."""
        if is_a(value, type):
            module = sys.modules.get(value.__module__)
            file = getattr(module, "__file__", None) or ""
            return self._owners.of(file) is not None and self._stocked(file) if file else True
        function = function_of(value)
        if function is None:
            return False
        path = function.__code__.co_filename
        if path.startswith("<") or not path.endswith(".py"):
            return path.startswith("<frozen")
        if self._owners.standard(path):
            return True
        if not self._stocked(path):
            return False
        source = self._sources.of(path)
        mine = hash_of(function.__code__)
        return source is not None and any(code == mine for many in source.codes.values() for code, _ in many)

    def _stocked(self, path: str) -> bool:
        owner = self._owners.of(path)
        return owner is not None and normalised(owner.name) in self._stock

    def _constant(self, here: Place, name: str, value: Any, known: list[Binding]) -> Record | None:
        literals = {b.literal for b in known if b.literal is not None}
        if len(known) != len(literals) or len(known) != 1 or not is_a(value, _PLAIN):
            return None
        literal = known[0].literal
        if repr(value) == literal or name in here.source.stores or (name.startswith("__") and name.endswith("__")):
            return None
        detail = f"the source file says {literal}, the process has {repr(value)[:120]}"
        record = self._record("value", here, name, value, detail, f"{here.path}:{known[0].line}")
        record.explained = "a setting: values may be changed at run time"
        return record

    def _table(self, here: Place, name: str, table: dict[Any, Any]) -> Iterator[Record]:
        """Entries of a dictionary of functions or classes that come from outside of the package's kin."""
        literal = here.source.tables.get(here.qualified(name), {})
        for key, value in list(dict.items(table))[:5000]:
            if not is_a(value, (types.FunctionType, type)):
                continue
            bound = literal.get(repr(key))
            if bound is not None:
                expected = here.look(bound)
                if expected is MISSING or expected is value:
                    continue
            file = file_of(value)
            if not file or file.startswith("<") or self._kindred(here, file, ()) or self._stocked(file):
                continue
            detail = f"the entry {key!r} is {value.__module__}.{value.__qualname__}"[:300]
            record = self._record("registered", here, f"{name}[{key!r}]"[:200], value, detail, "")
            if bound is None and not record.explained:
                record.notes.append("the source file has no such entry")
            yield record

    def _added(self, here: Place, name: str, value: Any) -> Iterator[Record]:
        """A name that the file does not bind: foreign functions alone matter."""
        function = function_of(value)
        if function is None:
            return
        file = function.__code__.co_filename
        shadowed = inherited(here.owner_object, name)
        if file.startswith("<"):
            if (
                shadowed is None
                or here.decorators
                or here.source.generates
                or name.startswith("__")
                or not is_callable(shadowed)
            ):
                return
        elif self._kindred(here, file, here.decorators):
            return
        home = f"{function.__module__}.{function.__qualname__}"
        if shadowed is not None or (here.dynamic and exported(here.owner_object, name)):
            yield self._record("replaced", here, name, function, f"it is {home} now", "")
            return
        record = self._record("added", here, name, function, f"{home} was put there", "")
        record.explained = record.explained or "a new name, which no code of the package looks up"
        yield record

    def _kindred(self, here: Place, file: str, names: tuple[str, ...]) -> bool:
        """Whether a file is the standard library's, of the module's own distribution or one that it requires, or of
        that of a decorator or source name."""
        if not file or self._owners.standard(file):
            return True
        if file.startswith("<"):
            return False
        owner = self._owners.of(file)
        if owner is None:
            return here.owner is None and real(file).startswith(real(here.path).rpartition("/")[0])
        if here.owner is not None and normalised(owner.name) in self._relatives(here.owner.name):
            return True
        for name in names:
            origin = here.look(name.partition(".")[0]) if name else MISSING
            module = sys.modules.get(getattr(origin, "__module__", None) or getattr(origin, "__name__", "") or "")
            top = sys.modules.get(module.__name__.partition(".")[0]) if module is not None else None
            place = getattr(top, "__file__", None)
            theirs = self._owners.of(place) if place else None
            if theirs is not None and normalised(owner.name) in self._relatives(theirs.name):
                return True
        return False

    def _of_class(self, here: Place, file: str) -> bool:
        """Whether a file is of the distribution of a class's metaclass or of a base that lies elsewhere."""
        kind = here.owner_object
        owner = self._owners.of(file) if is_a(kind, type) and not file.startswith("<") else None
        if owner is None or (here.owner is not None and owner.name == here.owner.name):
            return False
        relatives = [type(kind), *kind.__mro__[1:]]
        files = (getattr(sys.modules.get(home_of(one)), "__file__", None) for one in relatives)
        return any(theirs is owner for one in files if one for theirs in [self._owners.of(one)])

    def _relatives(self, name: str) -> frozenset[str]:
        if name not in self._kin:
            self._kin[name] = self._owners.kin(name)
        return self._kin[name]

    def _record(self, kind: str, here: Place, name: str, value: Any, detail: str, stock: str) -> Record:
        code = value if is_a(value, types.CodeType) else getattr(function_of(value), "__code__", None)
        file = code.co_filename if code is not None else file_of(value)
        record = Record(
            kind,
            f"{here.module}.{here.qualified(name)}",
            detail,
            stock,
            f"{file}:{code.co_firstlineno}" if code is not None else file,
            code=hash_of(code) if code is not None else "",
        )
        attribute(record, file, self._owners, self._stock)
        if kind == "rebound" and record.explained and name in here.source.stores:
            record.notes.append(f"the package itself writes this name: {here.path}:{here.source.stores[name]}")
        elif (
            kind == "rebound"
            and real(file) == real(here.path)
            and not (name in here.source.stores or here.source.generates)
        ):
            record.explained = ""  # somebody else exchanged two functions of the package
            record.notes.append("no code of that file does this")
        return record


def attribute(record: Record, file: str, owners: Owners, stock: frozenset[str]) -> None:
    """Fill in whose a change is, and call it explained when it is the engine's own and its file is as installed."""
    if not file or file.startswith("<"):
        record.by = "code without a file"
        return
    if owners.standard(file):
        record.by = "standard library"
        return
    owner = owners.of(file)
    record.by = owner.label if owner is not None else "no distribution"
    if owner is None or normalised(owner.name) not in stock or record.kind == "edited":
        return
    changed = owners.changed(file)
    if changed is not None:
        record.notes.append(f"{file}: {changed}")
        return
    record.explained = f"{owner.label} does this itself"
    if not owners.verified(file):
        record.notes.append("no hash of that file is recorded, so it could not be checked")
