"""One check: one relation of one operator of one provider, over shapes, with its control and the shrinking."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes import accuracy, control, gradient, relations
from logdiff_kernels.probes.bits import digest, first_difference, signature
from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.records import Difference, Family, Impl, Problem, Shape
from logdiff_kernels.probes.relations import row_trials, sequence_trials
from logdiff_kernels.probes.relations.trial import Trial
from logdiff_kernels.probes.shrink import shrink

SMALL = 1 << 20
"""Problems of less work than this are drawn in all three ways."""
TINY = 1 << 11
"""Problems of less work than this are drawn many times."""

MOST_EXACT = 1 << 26
"""Work of the largest problem that is computed in fp64 (of rows, those that are judged), unless every one is larger."""

Plant = Callable[[str, Family, Impl], Impl]


@dataclass(frozen=True)
class Setting:
    """What stays the same over all checks of a run.

    Attributes:
        seed: of the inputs.
        dtype: storage dtype, as torch names it.
        device: `cpu`, `npu` or `cuda`.
        plant: makes the control of a relation I; None: no control, so that nothing is proven.
    """

    seed: int
    dtype: str
    device: str
    plant: Plant | None = control.planted


@dataclass(frozen=True)
class Check:
    """What is asked. `other`: for relation P, the provider compared with and its implementation."""

    family: Family
    provider: str
    impl: Impl
    relation: str
    other: tuple[str, Impl] | None = None


def problem(check: Check, shape: Shape, setting: Setting, number: int = 0) -> tuple[Problem, Draw]:
    """The inputs of a check at a shape, on its device, and the draw that made them.

    `number` modulo 3: 0 like activations, 1 with sums that cancel, 2 without edges.
    """
    key = f"{check.family.op}/{sorted(shape.items())}/{number}"
    draw = Draw(setting.seed, key, getattr(torch, setting.dtype), edges=number % 3 != 2, cancelling=number % 3 == 1)
    made = check.family.draw(draw, shape)
    if setting.device != "cpu":
        made = Problem(made.shape, _moved(made.rows, setting.device), _moved(made.fixed, setting.device))
    if check.relation.startswith(relations.GRADIENT):
        made = gradient.with_output_gradients(check.family, check.impl, made, draw)
    return made, draw


def _moved(values: dict[str, Any], device: str) -> dict[str, Any]:
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in values.items()}


class LeftOutError(Exception):
    """Why a shape was not tried; not the implementation's doing."""


class RefusedError(Exception):
    """An implementation refused every shape; the first refusal is the cause."""


def _refusals(refused: list[tuple[Shape, Exception]], tried: list[Shape]) -> None:
    if refused and not tried:
        raise RefusedError(told(refused[0][1])) from refused[0][1]


def told(error: Exception) -> str:
    """What an implementation said when it refused, one line."""
    if isinstance(error, LeftOutError):
        return str(error)
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else 'no words'}"[:300]


def run(
    check: Check,
    shapes: list[Shape],
    setting: Setting,
    deadline: float,
    refused: list[tuple[Shape, Exception]],
) -> tuple[dict[str, Any], list[Shape]]:
    """Try a check over shapes, cheapest first. Shapes that the implementation refuses are added to `refused`.

    Returns:
        (one entry of `results`, shapes that there was no time for). The entry's `ok` is null where the control was
        not seen, or where no shape left anything to compare.

    Raises:
        RefusedError: no shape could be run.
    """
    plain = check.relation.removeprefix(relations.GRADIENT)
    if plain == relations.ACCURACY:
        return _accuracy(check, shapes, setting, deadline, refused)
    impl = _implementation(check)
    seen, how = _control(check, impl, shapes, setting)
    tried: list[Shape] = []
    compared = 0
    for at, shape in enumerate(shapes):
        if tried and time.monotonic() > deadline:
            return _unfinished(_entry(check, setting, None, seen, how, tried), shapes[at:]), shapes[at:]
        try:
            difference, count = _fails(check, impl, shape, setting)
        except Exception as error:
            refused.append((shape, error))
            continue
        tried.append(shape)
        compared += count
        if difference is None:
            continue
        small, difference, whole = shrink(
            check.family, shape, difference, lambda s: _tolerant(check, impl, s, setting),
            lambda: time.monotonic() > deadline + 2.0,
        )  # fmt: skip
        entry = _entry(check, setting, False, seen, how, tried)
        entry["detail"]["difference"] = difference.as_dict()
        return _failed(entry, check, setting, shape, small, whole), []
    _refusals(refused, tried)
    return _entry(check, setting, True if compared else None, seen, how, tried), []


def _failed(
    entry: dict[str, Any], check: Check, setting: Setting, found_at: Shape, small: Shape, whole: bool
) -> dict[str, Any]:
    """The entry with the smallest failing shape and what repeats it."""
    entry["smallest_failing_shape"] = small
    entry["detail"] |= {
        "found_at": found_at, "shrunk": whole, "inputs": _inputs(check, small, setting),
        "repeat": repeat(check, small, setting),
    }  # fmt: skip
    return entry


def _unfinished(entry: dict[str, Any], left: list[Shape]) -> dict[str, Any]:
    """Nothing failed so far, but not every shape was tried: that proves nothing of the others."""
    tried = len(entry["detail"]["shapes"])
    if entry["control_seen"]:
        entry["detail"]["not_proven"] = f"out of time: {tried} of {tried + len(left)} shapes were tried, and held"
    return entry


def _tolerant(check: Check, impl: Impl, shape: Shape, setting: Setting) -> Difference | None:
    """`_fails` while shrinking: a shape that is refused is no failure."""
    try:
        return _fails(check, impl, shape, setting)[0]
    except Exception:
        return None


def repeat(check: Check, shape: Shape, setting: Setting) -> str:
    """The command that runs this check at one shape again, threads included."""
    dims = ",".join(f"{name}={value}" for name, value in shape.items())
    provider = check.provider if check.other is None else f"{check.provider} --provider {check.other[0]}"
    text = (
        f"OMP_NUM_THREADS={torch.get_num_threads()} logdiff probe run {check.family.op} --provider {provider} "
        f"--device {setting.device} --relations {check.relation} --dtype {setting.dtype} --seed {setting.seed} "
        f"--shape {dims} --fresh"
    )
    return text


def _implementation(check: Check) -> Impl:
    if not check.relation.startswith(relations.GRADIENT):
        return check.impl
    weights = check.relation in ("grad-I:rerun", "grad-I:threads")
    return gradient.graded(check.family, check.impl, weights=weights)


def _name(check: Check) -> str:
    return check.relation.removeprefix(relations.GRADIENT).removeprefix("I:")


def _fails(check: Check, impl: Impl, shape: Shape, setting: Setting) -> tuple[Difference | None, int]:
    """The first difference at a shape, and how many trials there were."""
    count = 0
    for number in range(2) if check.relation == "I:compile" else _draws(check.family, shape):
        given, _ = problem(check, shape, setting, number)
        for trial in _trials(check, impl, given):
            count += 1
            found = first_difference(trial.base, trial.varied, trial.rows, trial.variant)
            if found is not None:
                return found, count
    return None, count


def _draws(family: Family, shape: Shape) -> range:
    """Numbers of the draws of a problem: three kinds, of tiny problems many, so that a lucky rounding hides nothing."""
    if family.world:
        return range(1)
    cost = family.cost(shape)
    return range(24 if cost < TINY else 3 if cost < SMALL else 2)


def _trials(check: Check, impl: Impl, given: Problem) -> list[Trial] | Any:
    if check.relation == relations.PROVIDERS:
        assert check.other is not None
        return [_between(check.family, impl, check.other, given)]
    return relations.trials(_name(check), check.family, impl, given)


def _between(family: Family, impl: Impl, other: tuple[str, Impl], given: Problem) -> Trial:
    """One provider against another, on the same rows or sequences."""
    if family.kind == "rows":
        first, second = row_trials.whole(impl, given), row_trials.whole(other[1], given)
        index = list(range(given.count))
        return Trial(f"against {other[0]}", index, row_trials.rows_of(first, index), row_trials.rows_of(second, index))
    listed = sequence_trials.sequences(given)
    a = sequence_trials.each(impl, listed, sequence_trials.alone(impl), given.fixed)
    b = sequence_trials.each(other[1], listed, sequence_trials.alone(other[1]), given.fixed)
    return Trial(f"against {other[0]}", list(range(len(listed))), a, b)


def _control(check: Check, impl: Impl, shapes: list[Shape], setting: Setting) -> tuple[bool, str]:
    """Whether a planted fault is seen by the same comparison, at the smallest shape that leaves something to vary."""
    if setting.plant is None:
        return False, "no control"
    why = "no shape leaves anything to vary"
    for shape in shapes[:6]:
        try:
            seen = _planted(check, impl, shape, setting)
        except Exception:
            continue  # refused: told where the shape itself is tried
        if seen:
            return True, ""
        if seen is not None:
            why = "the planted fault was not seen"
    return False, why


def _planted(check: Check, impl: Impl, shape: Shape, setting: Setting) -> bool | None:
    """Whether the fault shows at one shape; None where nothing varies there."""
    assert setting.plant is not None
    given, _ = problem(check, shape, setting)
    if check.relation == relations.PROVIDERS:
        assert check.other is not None
        faulty = (check.other[0], control.nudge(check.other[1], check.family))
        clean = _all([_between(check.family, impl, check.other, given)])
        found = _all([_between(check.family, impl, faulty, given)])
    else:
        clean = _all(relations.trials(_name(check), check.family, impl, given))
        if clean is None:
            return None
        bad = setting.plant(_name(check), check.family, impl)
        found = _all(relations.trials(_name(check), check.family, bad, given))
    return bool(found) and found != clean


def _all(trials: Any) -> list[tuple[str, str]] | None:
    """Every trial that differs with the signature of its differences; None where there was no trial.

    Bits are compared, never values: a NaN is no other than itself.
    """
    found, count = [], 0
    for trial in trials:
        count += 1
        differences = signature(trial.base, trial.varied)
        if differences:
            found.append((trial.variant, differences))
    return found if count else None


def _inputs(check: Check, shape: Shape, setting: Setting) -> str:
    given, _ = problem(check, shape, setting)
    return digest([*given.rows.items(), *given.fixed.items()])


def _entry(check: Check, setting: Setting, ok: bool | None, seen: bool, how: str, tried: list[Shape]) -> dict[str, Any]:
    detail: dict[str, Any] = {
        "dtype": setting.dtype, "device": setting.device, "seed": setting.seed, "shapes": tried,
    }  # fmt: skip
    if check.other is not None:
        detail["against"] = check.other[0]
    if not seen:
        detail["not_proven"] = how
        detail["without_control"] = ok
    elif ok is None:
        detail["not_proven"] = "no shape leaves anything to vary"
    return {
        "op": check.family.op,
        "provider": check.provider,
        "relation": check.relation,
        "ok": ok if seen else None,
        "control_seen": seen,
        "smallest_failing_shape": None,
        "detail": detail,
    }


def _accuracy(
    check: Check,
    shapes: list[Shape],
    setting: Setting,
    deadline: float,
    refused: list[tuple[Shape, Exception]],
) -> tuple[dict[str, Any], list[Shape]]:
    fitting = [shape for shape in shapes if accuracy.cost(check.family, shape) <= MOST_EXACT] or shapes[:1]
    found = _judged(check, fitting, setting, deadline, refused)
    large = LeftOutError("too large to be computed in fp64 as well")
    refused += [(shape, large) for shape in shapes if shape not in fitting]
    return found


def _judged(
    check: Check,
    shapes: list[Shape],
    setting: Setting,
    deadline: float,
    refused: list[tuple[Shape, Exception]],
) -> tuple[dict[str, Any], list[Shape]]:
    impl = _implementation(check)
    seen, how = False, "no control" if setting.plant is None else "the planted fault was not seen"
    tried: list[Shape] = []
    worst: dict[str, Any] = {}

    def judged(shape: Shape, given: Impl) -> accuracy.Verdict:
        made, draw = problem(check, shape, setting)
        return accuracy.judge(check.family, given, made, draw)

    for at, shape in enumerate(shapes):
        if tried and time.monotonic() > deadline:
            return _unfinished(_with(_entry(check, setting, None, seen, how, tried), worst), shapes[at:]), shapes[at:]
        try:
            verdict = judged(shape, impl)
        except Exception as error:
            refused.append((shape, error))
            continue
        tried.append(shape)
        if not seen and setting.plant is not None and verdict.ok:
            seen = not judged(shape, accuracy.planted(check.family, impl, verdict.share)).ok
        if not worst or verdict.ratio > worst["error_in_bars"]:
            worst = {**verdict.facts, "error_in_bars": verdict.ratio, "shape": shape}
        if verdict.ok:
            continue
        if not seen and setting.plant is not None:
            exact = accuracy.planted(check.family, impl, max(verdict.share, verdict.ratio * verdict.share))
            seen = judged(shape, exact).ratio != verdict.ratio

        def wrong(s: Shape) -> Difference | None:
            try:
                again = judged(s, impl)
            except Exception:
                return None
            return None if again.ok else _from_exact(again)

        start = _from_exact(verdict)
        small, _, whole = shrink(check.family, shape, start, wrong, lambda: time.monotonic() > deadline + 2.0)
        entry = _with(_entry(check, setting, False, seen, how, tried), judged(small, impl).facts | {"shape": small})
        return _failed(entry, check, setting, shape, small, whole), []
    _refusals(refused, tried)
    return _with(_entry(check, setting, True if tried else None, seen, how, tried), worst), []


def _from_exact(verdict: accuracy.Verdict) -> Difference:
    """The worst place of a verdict, as shrinking takes it."""
    place = verdict.facts.get("worst", {"output": 0, "row": 0})
    return Difference("against fp64", place["output"], place["row"], (), ("", ""), (0.0, 0.0), 0, 0, 0, 0)


def _with(entry: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    entry["detail"]["accuracy"] = facts
    return entry


__all__ = ["Check", "Setting", "repeat", "run"]
