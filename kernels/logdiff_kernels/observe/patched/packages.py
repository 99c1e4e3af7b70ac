"""Import names that are not unique: two distributions of one name, hidden copies, operators that are absent."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

from logdiff_kernels.observe.patched.layers import is_a
from logdiff_kernels.observe.patched.owners import Distribution, Owners, real
from logdiff_kernels.observe.patched.pristine import Sources
from logdiff_kernels.observe.patched.record import Record

Loaded = dict[str, list[tuple[str, types.ModuleType]]]


def package_records(owners: Owners, sources: Sources, loaded: Loaded) -> Iterator[Record]:
    """Records of loaded packages that code of interest imports and whose name more than one place could answer."""
    tops = owners.tops()
    asked = _imported(sources, loaded)
    for name, module in sorted(sys.modules.items()):
        file = vars(module).get("__file__") if is_a(module, types.ModuleType) else None
        if "." in name or not isinstance(file, str) or not file.startswith("/") or owners.standard(file):
            continue
        if name in asked:
            yield from _of_name(name, file, tops.get(name, []), owners)
    yield from _absent_operators(owners, sources, loaded)


def _of_name(name: str, file: str, claims: list[Distribution], owners: Owners) -> Iterator[Record]:
    owner = owners.of(file)
    by = owner.label if owner is not None else "no distribution"
    if len(claims) > 1:
        both = ", ".join(one.label for one in claims)
        detail = f"{both} all bring an import package {name!r}; the one that is imported is {by}'s: {file}"
        yield Record("package", name, detail, live=file, by=by)
        return
    if claims and owner is not claims[0]:
        detail = f"{claims[0].label} brings {name!r}, and what is imported is another file, of {by}: {file}"
        yield Record("package", name, detail, live=file, by=by)
        return
    hidden = _hidden(name, file) if owner is None else None
    if hidden is not None and not owners.standard(hidden):
        detail = f"{file} comes first on sys.path and hides another {name!r}: {hidden}"
        yield Record("package", name, detail, live=file, by=by)


def _imported(sources: Sources, loaded: Loaded) -> set[str]:
    """Top-level names that the packages of interest import."""
    found: set[str] = set()
    for members in loaded.values():
        for _, module in members:
            source = sources.of(str(module.__file__))
            found |= set(source.imports) if source is not None else set()
    return found


def _hidden(name: str, file: str) -> str | None:
    """Another importable copy of a top-level name further along `sys.path`."""
    for place in sys.path:
        for candidate in (f"{place or '.'}/{name}/__init__.py", f"{place or '.'}/{name}.py"):
            if Path(candidate).is_file() and real(candidate) != real(file):
                return real(candidate)
    return None


def _absent_operators(owners: Owners, sources: Sources, loaded: Loaded) -> Iterator[Record]:
    """A namespace of `torch.ops` that loaded code names, whose package is imported and has none of those operators."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    named: dict[str, dict[str, str]] = {}
    for members in loaded.values():
        for name, module in members:
            source = sources.of(str(module.__file__))
            for op in source.ops if source is not None else []:
                space, _, operator = op.partition(".")
                named.setdefault(space, {}).setdefault(operator, name)
    for space, operators in sorted(named.items()):
        package = sys.modules.get(space)
        file = getattr(package, "__file__", None)
        if file is None or owners.standard(file):
            continue
        present = {op for op in operators if _registered(torch, space, op)}
        missing = sorted(set(operators) - present)
        if present or not missing:  # some are left out on purpose, by platform: none at all is another package
            continue
        owner = owners.of(file)
        by = owner.label if owner is not None else "no distribution"
        detail = (
            f"{operators[missing[0]]} calls torch.ops.{space}.{missing[0]}, and the package {space!r} that is "
            f"imported ({by}, {file}) registers none of its operators"
        )
        yield Record("package", f"torch.ops.{space}", detail, live=file, by=by, notes=missing[:20])


def _registered(torch: types.ModuleType, space: str, operator: str) -> bool:
    schemas = torch._C._jit_get_schemas_for_operator(f"{space}::{operator}")
    return bool(schemas)
