"""Who implements each operator of torch in this process, by dispatch key, with source file and line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

from logdiff_kernels.observe.patched.owners import Owners, installed, normalised

_LINE = re.compile(
    r"^(?P<key>[A-Za-z]\w*)(?P<alias>\[alias\])?(?P<old> \(inactive\))?: registered at (?P<at>\S+?):(?P<line>\d+)"
)
_INTERNAL = frozenset({"Tracer", "FuncTorchBatched", "BatchedNestedTensor"})


@dataclass(frozen=True, slots=True)
class Registration:
    """One implementation that torch itself does not bring.

    Attributes:
        op: "aten::sum.dim_IntList".
        key: dispatch key, such as "CPU".
        source: "file:line" that registered it.
        replaces: what it stands in front of, "" for nothing.
        python: whether it is a Python function.
        declared: whether an operator of that name exists: one that does not is reached by no call.
        by: distribution of the file.
    """

    op: str
    key: str
    source: str
    replaces: str
    python: bool
    declared: bool
    by: str


def parse(dump: str) -> tuple[bool, dict[str, str], dict[str, str]]:
    """(whether it has a schema, {key: file:line} in force, {key: file:line} of what stands behind)."""
    active: dict[str, str] = {}
    behind: dict[str, str] = {}
    for line in dump.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        table = behind if found["old"] else active
        table.setdefault(found["key"], f"{found['at']}:{found['line']}")
    return "\nschema: (none)" not in dump, active, behind


def of_operator(name: str) -> dict[str, str]:
    """{dispatch key: "file:line"} of the implementations of one operator that are in force."""
    return parse(torch._C._dispatch_dump(name))[1]


def foreign(namespaces: tuple[str, ...] = ("aten", "prims", "prim")) -> list[Registration]:
    """Implementations of torch's own operators that neither torch's C++ nor its Python files register."""
    owners, found = installed(), []
    root = _build_root()
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.partition("::")[0] in namespaces]
    dumps = {name: torch._C._dispatch_dump(name) for name in names}
    dumps |= {text.split("\n", 1)[0].removeprefix("name: "): text for text in torch._C._dispatch_find_dangling_impls()}
    for name, text in dumps.items():
        if name.partition("::")[0] not in namespaces:
            continue
        declared, active, behind = parse(text)
        for key, source in active.items():
            file = source.rpartition(":")[0]
            if file.startswith(root) or file == "/dev/null" or key in _INTERNAL or _torchs(file, owners):
                continue
            by = owners.of(file) if file.endswith(".py") else None
            label = by.label if by is not None else "no distribution"
            found.append(Registration(name, key, source, behind.get(key, ""), file.endswith(".py"), declared, label))
    return sorted(found, key=lambda r: (r.op, r.key))


def _build_root() -> str:
    """The folder in which this torch was built, as its own registrations name it."""
    for line in torch._C._dispatch_dump("aten::add.Tensor").splitlines():
        at = line.partition("registered at ")[2].rpartition(":")[0]
        if "/build/aten/" in at:
            return at.partition("build/aten/")[0]
    return "/pytorch/"


def _torchs(file: str, owners: Owners) -> bool:
    owner = owners.of(file)
    return owner is not None and normalised(owner.name) == "torch"


def custom(names: Any) -> dict[str, dict[str, str]]:
    """{operator: {key: "file:line"}} of operators that ran, of other namespaces than torch's own."""
    found = {}
    for name in sorted(set(names)):
        space = name.partition("::")[0]
        if space in ("aten", "prims", "prim", "higher_order") or "::" not in name:
            continue
        keys = of_operator(name) if torch._C._jit_get_schemas_for_operator(name.partition(".")[0]) else {}
        found[name] = {key: _short(source) for key, source in keys.items() if key in _BACKENDS}
    return found


_BACKENDS = frozenset(
    {"CPU", "CUDA", "PrivateUse1", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "MkldnnCPU"}
)


def _short(source: str) -> str:
    return source.rpartition("/site-packages/")[2] or source
