"""The task `check_operators`: `logdiff-operators/1` of the captures of both sides."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from logdiff_kernels.check import inputs
from logdiff_kernels.check.captured import Captured
from logdiff_kernels.check.clean import Operator
from logdiff_kernels.check.divergence import PAIRS, divergence
from logdiff_kernels.check.given import roundoff
from logdiff_kernels.check.operators import Model, Side
from logdiff_kernels.engines.base import Progress
from logdiff_kernels.observe.boundaries import names

FORMAT = "logdiff-operators/1"


def report(
    model: Model, captures: Sequence[Captured], progress: Progress, seconds: float | None = None
) -> dict[str, Any]:
    """Judge every operator and every input of the captures.

    Args:
        model: the clean model's operators.
        captures: of each side and phase one.
        progress: told of each boundary.
        seconds: budget; None: everything. Layers where the sides part come first.
    """
    started = time.monotonic()
    by_phase = {c.header.phase: c for c in captures}
    parted = [
        entry
        for a, b in PAIRS
        if a in by_phase and b in by_phase
        for entry in divergence(by_phase[a], by_phase[b], f"{a}-{b}")
    ]
    document: dict[str, Any] = {
        "format": FORMAT, "dtype": str(model.dtype).removeprefix("torch."), "coverage": {}, "checks": [], "inputs": [],
        "first_off": {}, "divergence": parted, "without_formula": _without(model),
    }  # fmt: skip
    work = [(c, name) for c in captures for name in c.names()]
    weight = _growth(parted, roundoff(model.dtype))
    if seconds is not None:
        work.sort(key=lambda entry: (-weight.get(names.parse(entry[1])[0], 0.0), names.order(entry[1])))
    checks: dict[str, list[dict[str, Any]]] = {c.label: [] for c in captures}
    edges: dict[str, list[dict[str, Any]]] = {c.label: [] for c in captures}
    left: dict[str, list[str]] = {c.label: [] for c in captures}
    sides = {c.label: Side(model, c) for c in captures}
    for done, (captured, name) in enumerate(work):
        if seconds is not None and time.monotonic() - started > seconds:
            left[captured.label].append(name)
            continue
        progress(done, len(work), "boundary", f"{captured.label} {name}")
        side = sides[captured.label]
        try:
            checks[captured.label].append(side.check(name))
            operator = model.operators.get(name)
            if isinstance(operator, Operator):
                edges[captured.label] += inputs.edge(captured, operator, model.dtype)
        except (RuntimeError, IndexError, ValueError) as error:  # rows of a shape that nobody thought of
            checks[captured.label].append(side.record(name) | {"why": f"it could not be judged: {error}"})
    for captured in captures:
        _put(document, captured, checks[captured.label], edges[captured.label], left[captured.label])
    return document


def _put(
    document: dict[str, Any], captured: Captured, checks: list[dict[str, Any]], edges: list[dict[str, Any]],
    left: list[str],
) -> None:  # fmt: skip
    checks.sort(key=lambda c: names.order(c["boundary"]))
    edges.sort(key=lambda e: names.order(e["boundary"]))
    document["checks"] += checks
    document["inputs"] += [inputs.tokens(captured), inputs.positions(captured), inputs.places(captured)]
    document["inputs"] += edges
    found = inputs.cache(captured, checks)
    if found is not None:
        document["inputs"].append(found)
    off = next((c["boundary"] for c in checks if c["ok"] is False), None)
    document["first_off"][captured.label] = off
    document["coverage"][captured.label] = {
        "mapped": len(captured.entries),
        "unmapped": captured.header.unmapped,
        "judged": sum(c["ok"] is not None for c in checks),
        "not_reached": left,
        "notes": captured.header.notes,
    }


def _without(model: Model) -> list[dict[str, str]]:
    return [
        {"boundary": n, "why": o}
        for n, o in model.operators.items()
        if isinstance(o, str) and names.parse(n)[1] != "expert_ids"
    ]


def _growth(parted: list[dict[str, Any]], floor: float) -> dict[int | None, float]:
    """How much the sides part within each layer: the largest ratio of a boundary's difference to the one before.

    Differences below `floor`, a rounding, count as one.
    """
    found: dict[int | None, float] = {}
    before: dict[str, float] = {}
    for entry in parted:
        layer = names.parse(entry["boundary"])[0]
        now = max(entry["relative"], floor)
        found[layer] = max(found.get(layer, 0.0), now / before.get(entry["pair"], floor))
        before[entry["pair"]] = now
    return found
