"""Every function of the packages of interest, compared with what their installed files say."""

from __future__ import annotations

import hashlib
import sys
import time
import types
from collections.abc import Iterable, Iterator

from logdiff_kernels.observe.patched.compare import Comparer
from logdiff_kernels.observe.patched.layers import is_a
from logdiff_kernels.observe.patched.owners import Owners, installed, normalised, real
from logdiff_kernels.observe.patched.packages import package_records
from logdiff_kernels.observe.patched.pristine import Sources
from logdiff_kernels.observe.patched.record import RANK, Inventory, Record
from logdiff_kernels.observe.patched.torch_names import torch_records

PACKAGES = (
    "torch", "transformers", "accelerate", "vllm", "vllm_ascend", "torch_npu", "megatron", "mindspeed", "verl",
)  # fmt: skip
"""Packages that decide log-probabilities, where they are loaded."""


def inventory(
    packages: Iterable[str] = PACKAGES,
    *,
    stock: Iterable[str] | None = None,
    cache: str | None = None,
    only: Iterable[str] = (),
) -> Inventory:
    """Compare the loaded modules of packages with their source files.

    Nothing is imported and no source is run: files are compiled, and live objects are looked at. Files that were
    read before are kept by content in a cache, so that the first call takes some seconds per thousand modules and
    the next ones a few seconds in all.

    Args:
        packages: import names; those that are not loaded stand in `absent`.
        stock: distributions (or import names) whose own patches are explained and no findings; default: those that
            bring `packages`.
        cache: folder for what was compiled; "" for none; default: the user's cache folder.
        only: prefixes of module names, for example "vllm.model_executor"; default: every loaded module.

    Returns:
        an `Inventory`; its `findings` are what nothing explains.
    """
    begin = time.monotonic()
    owners, sources = installed(), Sources(cache)
    wanted = list(dict.fromkeys(packages))
    prefixes = tuple(only)
    loaded = {top: _modules(top, prefixes) for top in wanted}
    homes = _stock(stock if stock is not None else wanted, owners)
    comparer = Comparer(sources, owners, homes)
    records: list[Record] = []
    modules = files = 0
    for top, members in loaded.items():
        for name, module in members:
            modules += 1
            records += _module_records(top, name, module, owners)
            path = str(module.__file__)
            files += 1
            changed = owners.changed(path)
            if changed is not None:
                records.append(Record("file", name, changed, live=path, by="edited on disk"))
            source = sources.of(path)
            if source is not None:
                records += comparer.module(module, source, path)
    if "torch" in wanted and "torch" in sys.modules:
        records += torch_records(owners, homes)
    records += package_records(owners, sources, loaded)
    sources.close()
    records = _unique(records)
    return Inventory(
        records=sorted(records, key=lambda r: (not r.finding, RANK.get(r.kind, 9), r.target)),
        checked={"modules": modules, "functions": comparer.functions, "classes": comparer.classes, "files": files},
        unreadable=sources.unreadable,
        absent=[top for top in wanted if not loaded[top]],
        digest=_digest(records),
        seconds=round(time.monotonic() - begin, 3),
    )


def _modules(top: str, prefixes: tuple[str, ...]) -> list[tuple[str, types.ModuleType]]:
    found, seen = [], set()
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] != top or not is_a(module, types.ModuleType) or id(module) in seen:
            continue
        if prefixes and not name.startswith(prefixes):
            continue
        file = vars(module).get("__file__")
        if isinstance(file, str) and file.startswith("/") and file.endswith(".py"):
            seen.add(id(module))
            found.append((name, module))
    return found


def _stock(names: Iterable[str], owners: Owners) -> frozenset[str]:
    found = set()
    for name in names:
        found.add(normalised(name))
        file = getattr(sys.modules.get(name), "__file__", None)
        owner = owners.of(file) if file else None
        if owner is not None:
            found.add(normalised(owner.name))
    return frozenset(found)


def _module_records(top: str, name: str, module: types.ModuleType, owners: Owners) -> Iterator[Record]:
    """A module under a name of the package whose file is not where the package lies."""
    root = sys.modules.get(top)
    places = [real(str(p)) for p in getattr(root, "__path__", [])]
    path = real(str(module.__file__))
    if not places or any(path.startswith(f"{place}/") for place in places):
        return
    owner = owners.of(path)
    detail = f"it is loaded from {path}, outside of {places[0]}"
    yield Record("module", name, detail, live=path, by=owner.label if owner is not None else "no distribution")


def _unique(records: list[Record]) -> list[Record]:
    kept: dict[tuple[str, str], Record] = {}
    for record in records:
        kept.setdefault((record.kind, record.target), record)
    return list(kept.values())


def _digest(records: list[Record]) -> str:
    lines = sorted(f"{r.kind}\0{r.target}\0{r.by}\0{r.code}\0{r.detail if not r.code else ''}\n" for r in records)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
