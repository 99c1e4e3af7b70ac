"""All that one process can say of its own dispatch, in a form that other processes' can be compared with."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import torch

from logdiff_kernels.observe import registrations
from logdiff_kernels.observe.experiments import operator_records
from logdiff_kernels.observe.libraries import libraries
from logdiff_kernels.observe.patched import PACKAGES, inventory
from logdiff_kernels.observe.patched.layers import function_of
from logdiff_kernels.observe.patched.owners import installed, normalised
from logdiff_kernels.observe.patched.record import Record
from logdiff_kernels.observe.trace import split_layer

CROSS = 60
"""Explained records that are kept: those of one package about another."""


def process_facts(
    model: torch.nn.Module, packages: tuple[str, ...] = PACKAGES, *, aligned: bool = False
) -> dict[str, Any]:
    """Patched functions, operator registrations, libraries and modules of this process.

    Args:
        model: whose modules are listed.
        packages: whose functions are compared with their files.
        aligned: whether an overlay is on, which explains what this package put in place.

    Returns:
        `patched`: {"findings": [...], "explained": [...], "checked", "digest", "seconds"}; `libraries`; `modules`:
        {boundary: {"class", "forward", "by", "layers"}}; `threads`; `switches` of torch.
    """
    ours = (__name__.partition(".")[0],) if aligned else ()
    names = (*packages, *ours)
    stock = frozenset(normalised(owner.name) for name in names if (owner := _owner(name)) is not None)
    found = inventory(packages, stock=names)
    operators = operator_records(stock)
    records = [*(r for r in operators if r.finding), *found.findings]
    explained = [r for r in operators if not r.finding]
    explained += [r for r in found.records if not r.finding and r.kind != "value" and _crosses(r.target, r.by)]
    modules, replaced = _modules(model, stock)
    lines = sorted(f"{r.target}\0{r.by}\0{r.detail}" for r in operators)
    return {
        "patched": {
            "findings": [r.as_dict() for r in records][:200] + replaced,
            "explained": [r.as_dict() for r in explained][:CROSS],
            "checked": found.checked,
            "unreadable": found.unreadable,
            "digest": hashlib.sha256("\n".join([found.digest, *lines]).encode()).hexdigest(),
            "seconds": found.seconds,
        },
        "libraries": libraries(),
        "modules": modules,
        "threads": torch.get_num_threads(),
        "switches": switches(),
    }


def _owner(name: str) -> Any:
    file = getattr(sys.modules.get(name), "__file__", None)
    return installed().of(file) if file else None


def _crosses(target: str, by: str) -> bool:
    """Whether a record is of one package about another: what torch does to itself is nobody's question."""
    owner = _owner(target.partition(".")[0])
    return owner is None or owner.label != by


def switches() -> dict[str, Any]:
    """Settings of torch that choose kernels."""
    cuda: Any = torch.backends.cuda
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "sdp": {
            name: bool(getattr(cuda, f"{name}_sdp_enabled")())
            for name in ("flash", "mem_efficient", "math", "cudnn")
            if hasattr(cuda, f"{name}_sdp_enabled")
        },
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "weight_format": os.environ.get("VLLM_ASCEND_ENABLE_NZ") if _npu() else None,
    }


def _npu() -> bool:
    return hasattr(torch, "npu") and bool(torch.npu.is_available())


def _modules(model: torch.nn.Module, stock: frozenset[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """({boundary: class, function that its call runs, whose file that is, how many}, methods set on one object)."""
    found: dict[str, Any] = {}
    replaced: dict[str, Record] = {}
    owners = installed()
    for name, module in model.named_modules():
        where, _ = split_layer(name)
        function = function_of(module.forward)
        code = getattr(function, "__code__", None)
        owner = owners.of(code.co_filename) if code is not None else None
        if "forward" in vars(module) and (owner is None or normalised(owner.name) not in stock):
            target, live = f"{where}.forward", f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""
            detail = f"the forward of this object was set to {getattr(function, '__qualname__', '?')}"
            by = owner.label if owner is not None else "no distribution"
            replaced.setdefault(target, Record("replaced", target, detail, live=live, by=by))
        forward = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
        method = getattr(module, "quant_method", None)
        entry = {
            "class": f"{type(module).__module__}.{type(module).__qualname__}",
            "forward": forward,
            "by": owner.label if owner is not None else "no distribution",
            "method": type(method).__name__ if method is not None else None,
        }
        key = json.dumps(entry, sort_keys=True)
        slot = found.setdefault(where or "(model)", {})
        slot[key] = slot.get(key, 0) + 1
    return {w: [{**json.loads(k), "count": n} for k, n in many.items()] for w, many in found.items()}, [
        record.as_dict() for record in replaced.values()
    ]


def rank_digest(document: dict[str, Any]) -> dict[str, str]:
    """Short hashes of the parts of a rank's document that must agree over ranks and hosts: no paths, no counts."""
    parts = {
        "operators": _phases(document.get("phases") or {}),
        "kernels": _kernels(document.get("native") or {}),
        "patched": document["patched"]["digest"],
        "libraries": sorted(
            (lib["file"].rpartition("/")[2], lib["sha256"]) for lib in document["libraries"] if lib["computes"]
        ),
        "modules": document["modules"],
        "switches": document["switches"],
        "resolved": document.get("resolved"),
        "threads": document["threads"],
    }
    return {
        name: hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
        for name, value in parts.items()
    }


def _phases(phases: dict[str, Any]) -> Any:
    return {
        name: [(e["where"], e["op"], e["from"], e["in"], e["out"], e["options"]) for e in phase["entries"]]
        for name, phase in phases.items()
    }


def _kernels(native: dict[str, Any]) -> Any:
    return {
        name: [sorted(phase["kernels"]), sorted(phase["direct"]), sorted(str(g["sha256"]) for g in phase["generated"])]
        for name, phase in native.items()
    }


def custom_operators(phases: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Where the custom operators of a trace are registered."""
    names = {
        f"{parts[0]}::{parts[1]}" + (f".{parts[2]}" if len(parts) > 2 and parts[2] != "default" else "")
        for phase in phases.values()
        for entry in phase["entries"]
        for parts in [entry["op"].split(".")]
    }
    return registrations.custom(names)
