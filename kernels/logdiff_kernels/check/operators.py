"""Each operator of one side against its reference, on what that side gave it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from logdiff_kernels.check import routing
from logdiff_kernels.check.captured import Captured
from logdiff_kernels.check.clean import Operator
from logdiff_kernels.check.explain import Tried, explain, leans, subtle
from logdiff_kernels.check.given import Given, Parameters, blocks, cast, grouped
from logdiff_kernels.check.inputs import operands
from logdiff_kernels.check.judgement import Judgement
from logdiff_kernels.check.kinds import KINDS, tolerance
from logdiff_kernels.check.structure import features, onset
from logdiff_kernels.check.variants import Scene
from logdiff_kernels.check.variants.base import LOOSE
from logdiff_kernels.errors import InputError
from logdiff_kernels.observe.boundaries import names

BLOCK = 1 << 22
"""Elements of an output that are judged at a time."""

ELEMENTS = 64
"""Fewest elements that a hypothesis about a part of the features is tried on."""

CONTROL_ROWS = 32
"""Rows on which the clean implementation shows its own rounding."""


@dataclass
class Model:
    """The clean model's operators and what hypotheses may be made of.

    Attributes:
        operators: by boundary; a string says why there is no formula.
        dtype: the run's.
        facts: see `Scene.facts`.
    """

    operators: dict[str, Operator | str]
    dtype: torch.dtype
    facts: dict[str, Any] = field(default_factory=dict)

    def operator(self, name: str) -> Operator | None:
        """The operator behind a boundary where it has a formula."""
        found = self.operators.get(name)
        return found if isinstance(found, Operator) else None


class Side:
    """Operators of one captured phase of one side."""

    def __init__(self, model: Model, captured: Captured) -> None:
        self._model, self._captured = model, captured

    def check(self, name: str) -> dict[str, Any]:
        """Judge one boundary: an entry of `checks` in `logdiff-operators/1`."""
        captured, operator = self._captured, self._model.operators.get(name)
        record = self.record(name)
        if not isinstance(operator, Operator):
            if names.operator(name) == "router" and names.parse(name)[1] == "expert_ids":
                return record | routing.check_choice(self._model.operator, captured, name, self._model.dtype)
            return record | {"why": operator or "the clean model has no such boundary"}
        try:
            given, index = operands(captured, operator)
        except InputError as error:
            return record | {"why": error.message}
        if not len(index):
            return record | {"why": "no row has its inputs too"}
        out = captured.at(name, index)
        if out.shape[-1] != self._width(operator, given):
            return record | {"why": f"its rows have {out.shape[-1]} features, the reference has another number"}
        return record | self._judged(operator, given, out, index)

    def record(self, name: str) -> dict[str, Any]:
        """An entry of `checks` that says nothing yet."""
        layer, _ = names.parse(name)
        header = self._captured.header
        return {
            "side": header.side, "phase": header.phase, "boundary": name, "layer": layer,
            "operator": names.operator(name), "rows": 0, "error": None, "clean_error": None, "ratio": None, "ok": None,
            "why": None, "worst": [], "rows_off": None, "onset": None, "variants": [],
        }  # fmt: skip

    def _width(self, operator: Operator, given: Given) -> int:
        p = cast(operator.p, torch.float64)
        one = given.take(torch.zeros(1, dtype=torch.int64)).to(torch.float64)
        return KINDS[operator.kind].formula(one, self._bound(operator, p)).shape[-1]

    def _bound(self, operator: Operator, p: Parameters) -> Parameters:
        """Parameters of the run that aren't the model's."""
        if operator.kind == "logprob":
            return p | {"temperature": float(self._model.facts.get("temperature", 1.0))}
        return p

    def _judged(self, operator: Operator, given: Given, out: torch.Tensor, index: torch.Tensor) -> dict[str, Any]:
        wide = self._bound(operator, cast(operator.p, torch.float64))
        rough = wide | {"rough": True}
        judgement = self._against(operator, given, rough, out)
        clean_error, allowance = self._control(operator, given, rough)
        if operator.kind in ("linear", "lm_head") and not judgement.ok(allowance):
            judgement = self._against(operator, given, wide, out)
            clean_error, allowance = self._control(operator, given, wide)
        off, ok = judgement.off(allowance), judgement.ok(allowance)
        rows = self._captured.rows.take(index)
        found: dict[str, Any] = {
            "rows": len(index),
            "error": judgement.relative,
            "clean_error": clean_error,
            "ratio": judgement.relative / clean_error if clean_error else None,
            "normal": judgement.size,
            "ok": ok,
            "rows_off": float(off.double().mean()),
            "worst": self._captured.worst(index, judgement.row_error()),
        }
        tried: list[Tried] = []
        if ok and leans(operator.kind, operator.p):
            chosen = _spread(torch.arange(len(index)), self._affordable(operator))
            scene, groups = self._scene(operator, given, wide, out, chosen)
            tried = subtle(scene, allowance, groups)
            strong = [t for t in tried if not t.variant.honest]
            if strong:
                words = f"within rounding, but all of it leans one way: it {strong[0].variant.statement}"
                found |= {"ok": False, "why": words, "onset": {"kind": "all"}}
        elif not ok:
            if not bool(off.any()):
                off = judgement.normal >= judgement.normal.median()
            first = self._captured.first_pass[index]
            found["onset"] = onset(off, rows, first, self._captured.header.sample_ids)
            tried, part = self._explained(operator, given, wide, out, off, allowance)
            whole = any(t.fits and t.variant.rank < LOOSE for t in tried) and "heads" not in (part or {})
            if part and not whole:
                found["onset"] = (found["onset"] or {}) | part
            found["why"] = _words(tried, judgement.relative)
        found["variants"] = [t.as_dict() for t in tried]
        return found

    def _against(self, operator: Operator, given: Given, wide: Parameters, out: torch.Tensor) -> Judgement:
        """Errors of all rows, some at a time."""
        judgement = Judgement()
        for some in blocks(torch.arange(len(out)), BLOCK // out.shape[-1]):
            taken = given.take(some).to(torch.float64)
            ref = KINDS[operator.kind].formula(taken, wide)
            judgement.add(out[some].double(), ref, tolerance(operator.kind, taken, wide, ref, self._model.dtype))
        return judgement

    def _explained(
        self, operator: Operator, given: Given, wide: Parameters, out: torch.Tensor, off: torch.Tensor, allowance: float
    ) -> tuple[list[Tried], dict[str, Any] | None]:
        chosen = _spread(off.nonzero()[:, 0], self._affordable(operator))
        scene, groups = self._scene(operator, given, wide, out, chosen)
        part = features((scene.out - scene.ref) / scene.tolerance, operator.heads, 3.0 * allowance)
        if scene.out.numel() < ELEMENTS // 2 and operator.kind != "logprob":
            return [], part  # anything explains a few numbers
        tried = explain(scene, allowance, groups)
        if part and not any(t.fits for t in tried):
            outside = _outside(part, scene.ref.shape[-1])
            if outside is not None and int((~outside).sum()) * len(chosen) >= ELEMENTS:
                limited = scene.tolerance.masked_fill(outside, math.inf)
                again = explain(replace(scene, tolerance=limited), allowance, groups)
                if any(t.fits for t in again):
                    tried = again
        return tried, part

    def _scene(
        self, operator: Operator, given: Given, wide: Parameters, out: torch.Tensor, chosen: torch.Tensor
    ) -> tuple[Scene, torch.Tensor | None]:
        part = given.take(chosen).to(torch.float64)
        ref = KINDS[operator.kind].formula(part, wide)
        spread = tolerance(operator.kind, part, wide, ref, self._model.dtype)
        facts = self._model.facts | {
            "inputs": list(operator.inputs),
            "prompt_lengths": self._captured.prompts,
            "temperature_missing": "temperature-missing-rollout-raw-logprobs"
            if self._captured.header.side == "rollout"
            else "temperature-missing-train",
        }
        facts |= self._neighbours(operator)
        scene = Scene(
            operator.name, operator.part, operator.kind, part, wide, ref, out[chosen].double(), spread,
            self._model.dtype, given, chosen, lambda: self._others(operator), facts, operator.heads,
        )  # fmt: skip
        groups = part.rows.position_id if operator.kind == "rope" else None
        return scene, groups

    def _neighbours(self, operator: Operator) -> dict[str, Any]:
        """For attention: keys and values of other layers, and keys before their rotation."""
        if operator.kind != "attention":
            return {}
        captured = self._captured
        layer, _ = names.parse(operator.name)
        found: dict[str, Any] = {"other_keys": {}}
        both = captured.common(operator.inputs[-2:])

        def taken(name: str) -> Callable[[], torch.Tensor]:
            return lambda: captured.at(name, both).double()

        for other in (layer - 1, layer + 1) if layer is not None else ():
            pair = [f"layers.{other}.{name.rpartition('.')[2]}" for name in operator.inputs[-2:]]
            if all(p in captured and torch.isin(both, captured.index(p)).all() for p in pair):
                found["other_keys"][f"layer {other}"] = (taken(pair[0]), taken(pair[1]))
        rotation = self._model.operator(operator.inputs[-2])
        if rotation is not None and rotation.kind == "rope" and rotation.inputs:
            plain = rotation.inputs[0]
            if plain in captured and torch.isin(both, captured.index(plain)).all():
                found["plain_keys"] = taken(plain)
        return found

    def _others(self, operator: Operator) -> Iterator[tuple[str, Parameters]]:
        """Operators of the same kind and shape elsewhere in the model."""
        weight = operator.p.get("weight")
        for name, other in self._model.operators.items():
            if isinstance(other, Operator) and name != operator.name and other.kind == operator.kind:
                w = other.p.get("weight")
                if w is not None and weight is not None and w.shape == weight.shape:
                    yield name, other.p

    def _affordable(self, operator: Operator) -> int:
        """Rows that hypotheses are tried on."""
        weight = operator.p.get("weight")
        if operator.kind in ("linear", "lm_head") and weight is not None:
            return int(min(768, max(24, 2e8 / weight.numel())))
        return {"attention": 96, "experts": 96, "logprob": 512}.get(operator.kind, 256)

    def _control(self, operator: Operator, given: Given, wide: Parameters) -> tuple[float, float]:
        """(error of the clean implementation in the run's dtype, how far it needs the bounds widened)."""
        chosen = _spread(torch.arange(len(given.rows)), CONTROL_ROWS)
        some = given.take(chosen)
        part = some.to(torch.float64)
        ref = KINDS[operator.kind].formula(part, wide)
        judgement = Judgement()
        made = self._clean(operator, some).double()
        judgement.add(made, ref, tolerance(operator.kind, part, wide, ref, self._model.dtype))
        return judgement.relative, max(1.0, judgement.size)

    def _clean(self, operator: Operator, given: Given) -> torch.Tensor:
        dtype = self._model.dtype if operator.kind != "logprob" else given.x[0].dtype
        narrow = given.to(dtype)
        if operator.kind == "norm" and operator.module is not None:
            with torch.no_grad():
                made: torch.Tensor = operator.module(grouped(narrow.x[0], -1, operator.p["size"]))
            return made.flatten(-2)
        return KINDS[operator.kind].formula(narrow, self._bound(operator, cast(operator.p, dtype)))


def _spread(rows: torch.Tensor, count: int) -> torch.Tensor:
    """At most `count` of the rows, evenly."""
    return rows if len(rows) <= count else rows[torch.linspace(0, len(rows) - 1, count).long()]


def _outside(part: dict[str, Any], width: int) -> torch.Tensor | None:
    """bool [F]: features that a description leaves out."""
    inside = torch.zeros(width, dtype=torch.bool)
    if "heads" in part:
        inside.reshape(part["of"], -1)[part["heads"]] = True
    elif len(part["features"]) == 2:
        inside[part["features"][0] : part["features"][1]] = True
    else:
        return None
    return ~inside


def _words(tried: list[Tried], error: float) -> str:
    best = next((t for t in tried if t.fits), None)
    if best is not None:
        return f"it {best.variant.statement}"
    return f"another function, unexplained: relative error {error:.3g}"
