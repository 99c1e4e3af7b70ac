"""Operator probes: list and run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.actions.done import Done, PathLike

if TYPE_CHECKING:
    from logdiff.target.engine import OnProgress


def probe_list(*, python: str | None = None, on_progress: OnProgress | None = None) -> Done:
    """Operators, providers and relations that an interpreter knows (`logdiff-probe-list/1`)."""
    from logdiff.probe.run import list_probes

    return Done({"format": "logdiff-probe-list/1", **list_probes(python)})


def probe_run(
    *,
    ops: Sequence[str],
    providers: Sequence[str] = (),
    device: str = "cpu",
    model: PathLike | None = None,
    relations: Sequence[str] = (),
    dtype: str = "bfloat16",
    seed: int = 0,
    shapes: Sequence[str] = (),
    max_seconds: float = 120.0,
    fresh: bool = False,
    case: PathLike | None = None,
    python: str | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Probe operators (`logdiff-probe/1`); exit code 1 when a relation fails.

    Args:
        ops: operators, or `all`.
        providers: names; none: every one that is found.
        device: `cpu`, `npu` or `cuda`.
        model: Hugging Face folder, `builtin:NAME` or run file whose sizes decide the shapes.
        relations: names; none: all but compiling.
        dtype: storage dtype of activations and weights.
        seed: of the inputs.
        shapes: `rows=2,k=64,n=32` each, of one operator, instead of a model's.
        max_seconds: time for all checks; what does not run in it stands in `skipped`.
        fresh: ask again what the cache knows.
        case: case folder that keeps the result as `results/probe.json`; made where there is none.
        python: interpreter with the providers; default: the running one.
        on_progress: takes progress.

    Raises:
        InputError: a name, shape, dtype, device or model that can't be used.
        EngineError: the runner died; finished checks are kept.
    """
    from logdiff.case.case import is_case
    from logdiff.probe import exit_code, make_plan, parse_shapes, summary
    from logdiff.probe.run import run_probes

    plan = make_plan(
        list(ops), providers=providers, relations=relations, dtype=dtype, device=device, seed=seed,
        seconds=max_seconds, model=None if model is None else _folder(str(model), python, on_progress),
        shapes=parse_shapes(shapes),
    )  # fmt: skip
    if case is not None:
        is_case(Path(case))  # refused before minutes of probes, not after
    data = run_probes(plan, python=python, fresh=fresh, on_progress=on_progress)
    data["summary"] = summary(data)
    data["case"] = None
    if case is not None:
        arguments = {
            "ops": list(ops), "providers": list(providers), "relations": list(relations), "dtype": dtype,
            "device": device, "seed": seed, "shapes": list(shapes), "model": None if model is None else str(model),
        }  # fmt: skip
        data = _stored(Path(case), data, {"asked": plan.task(), "arguments": arguments})
    return Done(data, exit_code(data))


def _folder(model: str, python: str | None, on_progress: OnProgress | None) -> Path:
    """The model folder that an argument means."""
    from logdiff.live import build_model, load_run_file

    if model.endswith((".yaml", ".yml")):
        model = load_run_file(model).model
    if model.startswith("builtin:"):
        return build_model(model.removeprefix("builtin:"), python, on_progress)
    return Path(model)


def _stored(folder: Path, data: dict[str, Any], inputs: dict[str, Any]) -> dict[str, Any]:
    from logdiff.case import Case

    with Case.open_or_create(folder, "probe", inputs) as case, case.extended("probed"):
        data = {**data, "case": str(case.path)}
        case.write_result("probe", data)
    return data
