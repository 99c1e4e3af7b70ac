"""Relation A: how far a result is from fp64, held against what rounding can explain.

The bar of a row is R * E + u * |exact| + the smallest subnormal, in 2-norms over the row: E is the largest change of
the fp64 result over `PERTURBATIONS` random relative changes of every input by +-v, v = u + sqrt(K) * 2^-24, u the unit
roundoff of the storage dtype, K the length of the longest sum; R (`Family.roundings`) counts how often an
implementation that keeps every intermediate value in the storage dtype rounds between an input and the output. So a
result is passed when it is no worse than R roundings of the inputs would make the exact one, and sqrt(K) * 2^-24 is
what fp32 sums in any order are held to (law 10 of the numeric contract).

A gradient's row may cancel exactly (the query of a token that sees one key has none), which no change of inputs shows:
its bar has R * u * the root mean square of all rows' norms besides, or of the terms that cancel where a family knows
them (`Family.cancelling`), whichever is larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes import gradient
from logdiff_kernels.probes.bits import parts, ulp
from logdiff_kernels.probes.draw import Draw
from logdiff_kernels.probes.records import Family, Impl, Problem, Result, Shape
from logdiff_kernels.probes.relations import row_trials, sequence_trials
from logdiff_kernels.probes.relations.trial import spread

PERTURBATIONS = 3
MOST_ROWS = 32
CONTROL = 4.0
"""Size of the planted fault in bars."""


@dataclass(frozen=True)
class Verdict:
    """`ratio`: the largest error of a row in bars, passed at most 1; `share`: the largest bar over its row's norm."""

    ok: bool
    ratio: float
    share: float
    facts: dict[str, Any]


def judge(family: Family, impl: Impl, problem: Problem, draw: Draw) -> Verdict:
    """Compare an implementation's rows with fp64.

    Args:
        family: the operator.
        impl: the implementation; for gradients the one made by `gradient.graded`.
        problem: inputs; of row families all go into the call, and `MOST_ROWS` spread over them are judged.
        draw: source of the perturbations.
    """
    index = spread(problem.count, MOST_ROWS)
    if family.kind == "rows":
        found = [tuple(x[index] for x in row_trials.whole(impl, problem))]
        problem = problem.take(index)
    else:
        layout = sequence_trials.alone(impl)
        found = sequence_trials.each(impl, sequence_trials.sequences(problem), layout, problem.fixed)
    exact = _exact(family, problem)
    sizes = [[torch.zeros(_rows(x)) for x in result] for result in exact]
    for _ in range(PERTURBATIONS):
        moved = _exact(family, _perturbed(problem, family, draw))
        for size, result, base in zip(sizes, moved, exact, strict=True):
            for i, (x, y) in enumerate(zip(result, base, strict=True)):
                size[i] = torch.maximum(size[i], _norms(_finite(x) - _finite(y)).float())
    gradients = any(name.startswith(gradient.PREFIX) for name in problem.rows)
    terms = family.cancelling(problem.rows, problem.fixed) if gradients and family.cancelling else ()
    verdict = _verdict(family, found, exact, sizes, terms if terms else (0.0,) * 8 if gradients else ())
    if family.kind == "rows" and "worst" in verdict.facts:
        verdict.facts["worst"]["row"] = index[verdict.facts["worst"]["row"]]
    return verdict


def cost(family: Family, shape: Shape) -> float:
    """Work of the rows that are judged, or of all sequences."""
    first = family.dims[0]
    return family.cost({**shape, first: min(shape[first], MOST_ROWS)} if family.kind == "rows" else shape)


def planted(family: Family, impl: Impl, share: float) -> Impl:
    """`impl` scaled by `CONTROL` of its bars: a wrong factor just large enough that it must be seen."""
    factor = 1.0 + CONTROL * share
    call = impl.call

    def scaled(result: Any) -> Any:
        listed = result if isinstance(result, (tuple, list)) else (result,)
        return tuple((x.double() * factor).to(x.dtype) if x.is_floating_point() else x for x in listed)

    if family.kind == "rows":
        return replace(impl, call=lambda **inputs: scaled(call(**inputs)))
    return replace(impl, call=lambda listed, layout, fixed: [scaled(r) for r in call(listed, layout, fixed)])


def _verdict(
    family: Family, found: list[Result], exact: list[Result], sizes: list[list[Tensor]], terms: tuple[float, ...]
) -> Verdict:
    ratio = share = worst_ulp = 0.0
    error2 = exact2 = signed = total = 0.0
    worst = [0, 0, 0]
    for number, (got, wanted, size) in enumerate(zip(found, exact, sizes, strict=True)):
        floats = [x for x in got if x.is_floating_point()]
        for output, (x, e, s) in enumerate(zip(floats, wanted, size, strict=True)):
            same = torch.isfinite(x.double()) == torch.isfinite(e)
            rounded = torch.isfinite(e.to(x.dtype)) == torch.isfinite(x)  # an overflow of the dtype is no error
            if not bool((same | rounded).all()):
                return Verdict(False, float("inf"), share, {"why": "not finite where the exact result is"})
            difference, clean = _finite(x.double()) - _finite(e), _finite(e)
            difference = torch.where(torch.isfinite(x), difference, torch.zeros_like(difference))
            info = torch.finfo(x.dtype)
            norms = _norms(clean)
            least = info.smallest_normal * info.eps * max(1, clean[0].numel()) ** 0.5 if clean.numel() else 0.0
            bars = family.roundings * s.double() + info.eps / 2 * norms + least
            if terms and norms.numel():
                bars = bars + family.roundings * info.eps / 2 * max(float((norms**2).mean()) ** 0.5, terms[output])
            ratios = _norms(difference) / bars
            if ratios.numel() and float(ratios.max()) > ratio:
                ratio = float(ratios.max())
                worst = [number, output, int(ratios.argmax())]
            known = norms > 0
            if bool(known.any()):
                share = max(share, float((bars[known] / norms[known]).max()))
            error2 += float((difference**2).sum())
            exact2 += float((clean**2).sum())
            signed += float((difference * torch.sign(clean)).sum())
            total += float(clean.abs().sum())
            distance = ulp(x, _finite(e).to(x.dtype))[torch.isfinite(x)]
            worst_ulp = max(worst_ulp, float(distance.max()) if distance.numel() else 0.0)
    facts = {
        "max_ulp": worst_ulp,
        "relative_norm": (error2 / exact2) ** 0.5 if exact2 else error2**0.5,
        "bias": signed / total if total else 0.0,
        "error_in_bars": ratio,
        "worst": {"result": worst[0], "output": worst[1], "row": worst[2]},
        "roundings": family.roundings,
    }
    return Verdict(ratio <= 1.0, ratio, share, facts)


def _rows(x: Tensor) -> int:
    return x.shape[0]


def _norms(x: Tensor) -> Tensor:
    return x.double().reshape(x.shape[0], -1).norm(dim=1) if x.numel() else x.new_zeros(x.shape[0]).double()


def _finite(x: Tensor) -> Tensor:
    return torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _exact(family: Family, problem: Problem) -> list[Result]:
    """The fp64 result, floats only, as lists of results like the implementation's."""
    rows = {name: _wide(x.to("cpu")) for name, x in problem.rows.items()}
    fixed = {name: _wide(x.to("cpu") if isinstance(x, Tensor) else x) for name, x in problem.fixed.items()}
    gradients = any(name.startswith(gradient.PREFIX) for name in rows)
    if family.kind == "rows":
        call: Callable[..., Any] = gradient.row_gradient(family.exact, family) if gradients else family.exact
        return [_floats(call(**rows, **fixed))]
    exact = Impl(family.exact, layouts=("single",))
    if gradients:
        exact = gradient.graded(family, exact)
    listed = sequence_trials.sequences(Problem(problem.shape, rows))
    layout = sequence_trials.alone(exact)
    return [_floats(exact.call([one], layout, fixed)[0]) for one in listed]


def _floats(result: Any) -> Result:
    return tuple(x.double() for x in parts(result) if x.is_floating_point())


def _perturbed(problem: Problem, family: Family, draw: Draw) -> Problem:
    share = family.terms(problem.shape) ** 0.5 * 2.0**-24

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        signs = draw.integers(2, *value.shape).double() * 2.0 - 1.0
        step = torch.finfo(value.dtype).eps / 2 + share
        return value.to("cpu").double() * (1.0 + step * signs)

    rows = {name: moved(x) for name, x in problem.rows.items()}
    return Problem(problem.shape, rows, {name: moved(x) for name, x in problem.fixed.items()})
