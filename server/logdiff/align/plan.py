"""`logdiff align plan`: which operators on which side by which provider, at what cost, and what can't be aligned."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from logdiff.align.state import PLAN_FORMAT, State
from logdiff.errors import CaseError, InputError
from logdiff.jsonio import dumps
from logdiff.live import RunFile, align_check, load_run_file, resolve_models
from logdiff.target import EngineSpec, OnProgress
from logdiff.target.alignment import CONTRACT, PROVIDER, parse_ops, parse_sides

WHY = {
    "linear": "products accumulate in one fixed order, whatever the batch",
    "linear_row": "partial sums of the sharded dimension combine by one tree, whatever the tensor-parallel size",
    "rms_norm": "the mean of squares is one fixed sum in fp32",
    "add_rms_norm": "the residual is rounded at the same place on both sides",
    "rope": "one table of cosines and sines, made in fp64",
    "swiglu": "one exponential, one rounding",
    "attention": "one order over keys for training, prefill and paged decode",
    "router": "ties and scores are decided alike, so no expert flips",
    "moe": "experts are summed in the order of their ids",
    "embedding": "rows are copied, scaled and rounded alike",
    "lm_head": "logits stay fp32",
    "logprob": "one log-sum-exp over the vocabulary",
    "all_reduce": "partials of ranks are summed by one tree",
    "reduce_scatter": "partials of ranks are summed by one tree",
}


def plan(
    source: Path,
    state: State,
    *,
    ops: str | Sequence[str] | None = None,
    sides: str | Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> dict[str, Any]:
    """Plan an alignment, ask both interpreters what can be had, and keep the plan.

    Args:
        source: a run file, or the folder of a case that a run file made.
        state: where the plan is kept.
        ops: operators; default: the run file's `align.ops`, else all.
        sides: sides; default: the run file's `align.sides`.
        on_progress: called from this thread.

    Returns:
        `logdiff-align-plan/1`.

    Raises:
        InputError, CaseError: no run file and no case of a live run; an unknown operator or side.
        EngineError: an interpreter that can't be asked.
    """
    run, case = read_source(source)
    chosen = parse_ops(ops if ops is not None else run.align.ops or "all")
    where = parse_sides(sides if sides is not None else run.align.sides)
    facts = gather(run, chosen, where, on_progress)
    document = {
        "format": PLAN_FORMAT,
        "id": _identity(facts),
        "source": str(source.absolute()),
        "case": str(case) if case is not None else None,
        "overlay": str((case / "overlay") if case is not None else state.default_overlay),
        "ops": chosen,
        "sides": where,
        "contract": CONTRACT,
        "provider": PROVIDER,
        **_shown(facts, chosen, where),
        "facts": facts,
    }
    state.write_plan(document)
    return document


def read_source(source: Path) -> tuple[RunFile, Path | None]:
    """The run of a run file or case, and the case.

    Raises:
        CaseError: a case that no run file made, or whose run file had environment variables: their values are not kept.
    """
    if not source.is_dir():
        return load_run_file(source), None
    from logdiff.case import Case

    with Case.open(source, verify=False) as case:
        run = case.manifest.inputs.get("run")
        path = case.path
    if not isinstance(run, dict):
        raise CaseError(
            "the case was not made from a run file, so its engines aren't known",
            value=str(source),
            hint="plan from the run file: logdiff align plan RUN.yaml",
        )
    named = [name for side in ("rollout", "train") for name in (run.get(side) or {}).get("env") or []]
    if named:
        raise CaseError(
            "values of environment variables are not kept in a case",
            value=", ".join(map(str, named)),
            hint="plan from the run file: logdiff align plan RUN.yaml",
        )
    data = {**run, "align": run.get("align") or {}}
    for side in ("rollout", "train"):
        data[side] = {**data[side], "env": {}}
    return RunFile.from_dict(data, source=str(source)), path


def gather(run: RunFile, ops: list[str], sides: list[str], on_progress: OnProgress | None = None) -> dict[str, Any]:
    """Everything that a plan stands on, by name; compared again before it is applied."""
    models = resolve_models(run, on_progress)
    found: dict[str, Any] = {"run": run.digest(), "ops": ops, "sides": sides, "rollout": None, "train": None}
    for side in sides:
        found[side] = _side(run.spec(side, models[side]), ops, on_progress)
    return found


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two `gather` results, in words; empty when nothing does."""
    found = []
    names = {"run": "the run file", "ops": "the operators", "sides": "the sides"}
    for key, words in names.items():
        if before.get(key) != now.get(key):
            found.append(words)
    for side in ("rollout", "train"):
        left, right = before.get(side) or {}, now.get(side) or {}
        for key in sorted(left.keys() | right.keys()):
            if left.get(key) != right.get(key):
                found.append(f"{side}: {_difference(key, left.get(key), right.get(key))}")
    return found


def _difference(key: str, left: Any, right: Any) -> str:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted(left.keys() | right.keys()):
            if left.get(name) != right.get(name) and not isinstance(left.get(name), (dict, list)):
                return f"{key}: {name} {left.get(name)} then, {right.get(name)} now"
    return f"{key} changed"


def _side(spec: EngineSpec, ops: list[str], on_progress: OnProgress | None) -> dict[str, Any]:
    if spec.engine == "vllm-http":
        why = "a running server can't be switched from here; start it with the overlay's env.sh"
        return {"engine": {"name": spec.engine}, "not_covered": [{"module": "engine vllm-http", "why": why}]}
    data = align_check(spec, ops, on_progress)
    return {
        "engine": data.get("engine"),
        "packages": data.get("packages"),
        "model": data.get("model"),
        "provider": data.get("provider"),
        "not_covered": data.get("not_covered") or [],
        "unchecked": data.get("unchecked"),
        "dispatch": {key: (data.get("dispatch") or {}).get(key) for key in ("digest", "entries", "native", "foreign")},
        "python": spec.python,
    }


def _shown(facts: dict[str, Any], ops: list[str], sides: list[str]) -> dict[str, Any]:
    table = json.loads((files("logdiff.align") / "costs.json").read_text(encoding="utf-8"))
    engines = {side: str((facts[side].get("engine") or {}).get("name")) for side in sides}
    operators, not_covered, unchecked = [], [], []
    for side in sides:
        block = facts[side]
        not_covered += [{"side": side, **item} for item in block["not_covered"]]
        if block.get("unchecked"):
            unchecked.append({"side": side, "why": block["unchecked"]})
        for op in ops:
            cost = (table["engines"].get(engines[side]) or {}).get(op, "unknown")
            operators.append({"op": op, "side": side, "provider": PROVIDER, "why": WHY[op], "cost": cost})
    total = {side: (table["total"].get(engines[side], "unknown") if len(ops) > 1 else "unknown") for side in sides}
    cost = {"time_ratio": total, "measured_on": table["measured_on"], "unit": table["unit"]}
    return {"operators": operators, "not_covered": not_covered, "unchecked": unchecked, "cost": cost}


def _identity(facts: dict[str, Any]) -> str:
    return hashlib.sha256(dumps(facts).encode()).hexdigest()[:12]


def check_covered(document: dict[str, Any]) -> None:
    """Refuse a plan with a part that can't be aligned: an engine would refuse it when it loads the model.

    Raises:
        InputError: the first of them.
    """
    if document["not_covered"]:
        first = document["not_covered"][0]
        raise InputError(
            f"{first['side']}: {first['module']} can't be aligned: {first['why']}",
            value=first["module"],
            hint="plan fewer operators with --ops, or one side with --sides",
        )
