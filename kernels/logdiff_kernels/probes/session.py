"""The task `probe`: which checks a request asks for, run within its time, and what was left out and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from logdiff_kernels.errors import InputError
from logdiff_kernels.probes import check as checks
from logdiff_kernels.probes import relations
from logdiff_kernels.probes.catalogue import families, providers
from logdiff_kernels.probes.check import Check, Setting
from logdiff_kernels.probes.records import AbsentError, Family, Impl, Provider, Shape

DTYPES = ("bfloat16", "float16", "float32")
DEVICES = ("cpu", "npu", "cuda")
OnCheck = Callable[[int, int, str, dict[str, Any] | None], None]


@dataclass(frozen=True)
class Wanted:
    """A request of `run`.

    Attributes:
        ops, providers, relations: names; no providers or relations: all there are.
        shapes: operator -> shapes, cheapest first; an operator without any takes its family's own.
        setting: seed, dtype, device, control.
        seconds: time for all checks together.
        unfit: shapes of a model that are none of their operator's, as entries of `skipped`.
    """

    ops: tuple[str, ...]
    providers: tuple[str, ...]
    relations: tuple[str, ...]
    shapes: dict[str, list[Shape]]
    setting: Setting
    seconds: float
    unfit: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of(cls, task: dict[str, Any]) -> Wanted:
        """The request in a runner's task. Raises `InputError` with the value at fault; shapes made for a `model` that
        are none of their operator's are left out instead."""
        known, named = families(), providers()
        ops = tuple(known) if task.get("ops") == ["all"] else tuple(task.get("ops") or ())
        _among("operator", ops, known)
        wanted = tuple(task.get("providers") or ())
        _among("provider", wanted, named)
        names = tuple(task.get("relations") or ())
        _among("relation", names, relations.names())
        dtype, device = task.get("dtype") or "bfloat16", task.get("device") or "cpu"
        _among("dtype", (dtype,), DTYPES)
        _among("device", (device,), DEVICES)
        seconds = float(task.get("seconds", 120.0))
        shapes: dict[str, list[Shape]] = {}
        unfit: list[dict[str, Any]] = []
        for op, listed in (task.get("shapes") or {}).items():
            _among("operator", (op,), known)
            for shape in listed:
                if isinstance(shape, dict) and known[op].fits(shape):
                    continue
                if not task.get("model"):
                    raise InputError(f"{op} has no such shape", value=shape, hint=_shape_hint(known[op]))
                reason = f"no shape of {op}: {_shape_hint(known[op])}"
                unfit.append({"op": op, "provider": None, "relation": None, "shapes": [shape], "reason": reason})
            shapes[op] = [shape for shape in listed if known[op].fits(shape)]
        setting = Setting(int(task.get("seed") or 0), dtype, device)
        return cls(ops, wanted, names, shapes, setting, seconds, tuple(unfit))


def _among(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    listed = list(known)
    for name in names:
        if name not in listed:
            raise InputError(f"no such {what}", value=name, hint=f"one of: {', '.join(listed)}")


def _shape_hint(family: Family) -> str:
    rules = [f"{dim} >= {family.least.get(dim, 1)}" for dim in family.dims]
    rules += [f"{dim} a multiple of {n}" for dim, n in family.multiples.items()]
    return "dimensions: " + ", ".join(rules) + (f"; for example {family.defaults[0]}" if family.defaults else "")


def identity(check: Check) -> tuple[str, str, str, str]:
    """(op, provider, relation, other provider or empty): what tells one check of a run from another."""
    return check.family.op, check.provider, check.relation, "" if check.other is None else check.other[0]


def run(
    wanted: Wanted,
    on_check: OnCheck = lambda done, total, name, result: None,
    known: Collection[tuple[str, ...]] = (),
) -> dict[str, Any]:
    """Do the checks of a request.

    Args:
        wanted: the request.
        on_check: takes (done, total, what is next, the entry that was just finished or None).
        known: checks (`identity`) whose result is at hand; they are left out.

    Returns:
        `results` and `skipped` of `logdiff-probe/1`, `seconds` used, `implementations`: what each provider says of
        itself, `order`: every operator and relation in the order of lists, and `known`: those of `known` that the
        request asks for.
    """
    begin = time.monotonic()
    skipped: list[dict[str, Any]] = [entry for entry in wanted.unfit if entry["op"] in wanted.ops]
    listed: list[Check] = []
    abouts: dict[str, str] = {}
    for op in wanted.ops:
        listed += _checks(families()[op], wanted, skipped, abouts)
    asked = [identity(check) for check in listed if identity(check) in known]
    listed = [check for check in listed if identity(check) not in known]
    listed.sort(key=lambda check: rank(check.relation))
    results: list[dict[str, Any]] = []
    deadline = time.monotonic() + wanted.seconds  # the imports of the providers are not the probes' time
    for done, check in enumerate(listed):
        name = f"{check.family.op} {check.provider} {check.relation}"
        on_check(done, len(listed), name, None)
        now = time.monotonic()
        if now >= deadline:
            skipped += [_skip(left, "out of time") for left in listed[done:]]
            break
        share = max(2.0, 4.0 * (deadline - now) / (len(listed) - done))
        entry = _one(check, wanted, min(deadline, now + share), skipped)
        if entry is not None:
            results.append(entry)
        on_check(done + 1, len(listed), name, entry)
    seconds = round(time.monotonic() - begin, 2)
    return {
        "results": results,
        "skipped": skipped,
        "seconds": seconds,
        "implementations": abouts,
        "known": [list(who) for who in asked],
        "order": {"operators": list(families()), "relations": list(relations.names())},
    }


def rank(relation: str) -> int:
    """Which relations come first: a short time is spent on one relation of every operator, not on all of the first."""
    return relations.names().index(relation)


def _one(check: Check, wanted: Wanted, until: float, skipped: list[dict[str, Any]]) -> dict[str, Any] | None:
    shapes = wanted.shapes.get(check.family.op, list(check.family.defaults))
    if not shapes:
        skipped.append(_skip(check, "no shape was planned"))
        return None
    begin = time.monotonic()
    refused: list[tuple[Shape, Exception]] = []
    try:
        entry, left = checks.run(check, sorted(shapes, key=check.family.cost), wanted.setting, until, refused)
    except checks.RefusedError as error:
        skipped.append(_skip(check, str(error)))
        return None
    for shape, refusal in refused:
        skipped.append({**_skip(check, checks.told(refusal)), "shapes": [shape]})
    entry["detail"]["seconds"] = round(time.monotonic() - begin, 3)
    entry["detail"]["finished"] = not left and bool(entry["detail"].get("shrunk", True))
    if left:
        skipped.append({**_skip(check, "out of time"), "shapes": left})
    return entry


def _skip(check: Check, reason: str) -> dict[str, Any]:
    against = {} if check.other is None else {"against": check.other[0]}
    return {"op": check.family.op, "provider": check.provider, "relation": check.relation, **against, "reason": reason}


def _checks(family: Family, wanted: Wanted, skipped: list[dict[str, Any]], abouts: dict[str, str]) -> list[Check]:
    """The checks of one operator; what can't be asked goes to `skipped`."""
    setting = wanted.setting
    named = wanted.providers or tuple(providers())
    if setting.dtype not in family.dtypes:
        reason = f"{family.op} is computed in {', '.join(family.dtypes)}"
        skipped.append({"op": family.op, "provider": None, "relation": None, "reason": reason})
        return []
    impls: dict[str, Impl] = {}
    for name in named:
        found = _implementation(providers()[name], family.op, setting, wanted)
        if isinstance(found, Impl):
            impls[name] = found
            if found.about:
                abouts[f"{family.op} {name}"] = found.about
        elif found:
            skipped.append({"op": family.op, "provider": name, "relation": None, "reason": found})
    listed: list[Check] = []
    for name, impl in impls.items():
        for relation in wanted.relations or _default(family):
            if relation == relations.PROVIDERS:
                continue
            why = _refused(relation, family, impl, setting, explicit=bool(wanted.relations) and len(wanted.ops) == 1)
            if why is None:
                listed.append(Check(family, name, impl, relation))
            elif why:
                skipped.append({"op": family.op, "provider": name, "relation": relation, "reason": why})
    if not wanted.relations or relations.PROVIDERS in wanted.relations:
        listed += _pairs(family, impls)
    return listed


def _pairs(family: Family, impls: dict[str, Impl]) -> list[Check]:
    names = list(impls)
    return [
        Check(family, a, impls[a], relations.PROVIDERS, (b, impls[b]))
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    ]


def _default(family: Family) -> list[str]:
    """Every relation that makes sense for a family, but for compiling, which takes minutes."""
    plain = [f"I:{name}" for name in family.relations if name != "compile"]
    if not family.wrt:
        return [*plain, relations.ACCURACY]
    gradients = [f"grad-I:{name}" for name in family.relations if name in relations.GRADIENT_INVARIANCES]
    return [*plain, relations.ACCURACY, *gradients, "grad-A"]


def _refused(relation: str, family: Family, impl: Impl, setting: Setting, *, explicit: bool) -> str | None:
    """None where a relation can be asked; empty where it makes no sense and nobody asked for it; else why not."""
    name = relation.removeprefix(relations.GRADIENT).removeprefix("I:")
    if relation.startswith(relations.GRADIENT):
        if not family.wrt:
            return "no input has a gradient" if explicit else ""
        if not impl.gradients:
            return "no gradient goes through this provider's call"
        if family.kind == "sequences" and set(impl.layouts) == {"paged"}:
            return "a paged cache has no gradient"
    if name == relations.ACCURACY:
        return None
    if name not in family.relations:
        return f"{family.op} has nothing that {name} varies" if explicit else ""
    if name == "threads" and setting.device != "cpu":
        return "cores of a device are its own"
    from logdiff_kernels.probes.gradient import graded

    asked = graded(family, impl) if relation.startswith(relations.GRADIENT) else impl
    return relations.possible(name, family, asked) or None


def _implementation(provider: Provider, op: str, setting: Setting, wanted: Wanted) -> Impl | str:
    """The implementation; a text: why there is none; an empty one where nobody would expect it."""
    named = bool(wanted.providers)
    make = provider.ops.get(op)
    if make is None:
        return f"{provider.name} has no {op}" if named and len(wanted.ops) == 1 else ""
    if provider.on_request and not named:
        return provider.on_request
    if setting.device not in provider.devices:
        return f"{provider.name} runs on {' and '.join(provider.devices)}, not on {setting.device}"
    missing = device_missing(setting.device)
    if missing:
        return missing
    try:
        return make(setting.device, setting.dtype)
    except AbsentError as error:
        return str(error)
    except Exception as error:  # a broken installation of one provider must not hide the others
        return f"{type(error).__name__}: {error}"[:300]


def device_missing(device: str) -> str:
    """Empty where the device can be used, else why not."""
    if device == "cpu":
        return ""
    if device == "npu":
        try:
            import_module("torch_npu")
        except Exception as error:
            return f"no NPU can be used here: {type(error).__name__}: {error}"[:200]
        return "" if torch.npu.is_available() else "torch_npu sees no NPU"  # type: ignore[attr-defined]
    return "" if torch.cuda.is_available() else "torch sees no CUDA device"
