"""Trials of sequence families: a token's result must not depend on layout, company or how its sequence was cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.probes.bits import parts
from logdiff_kernels.probes.records import Impl, Layout, Problem, Result, Sequence
from logdiff_kernels.probes.relations.row_trials import apart, compiled, thread_counts, threads
from logdiff_kernels.probes.relations.trial import Trial, spread

_LAYOUT_OF = {"padding": ("right", "left"), "packing": ("packed",), "page_size": ("paged",)}


def possible(name: str, impl: Impl) -> str:
    """Empty where the implementation has the layouts that a relation needs, else why not."""
    wanted = _LAYOUT_OF.get(name)
    if wanted and not set(wanted) & set(impl.layouts):
        return f"its call has no {' or '.join(wanted)} layout"
    if name in ("batch", "order", "neighbours") and not together(impl):
        return "its call takes one sequence"
    return ""


def together(impl: Impl) -> Layout | None:
    """The layout in which the call takes several sequences of one length; None: one at a time."""
    for kind in ("stacked", "paged", "packed"):
        if kind in impl.layouts:
            return Layout(kind, page=_page(impl))
    return None


def alone(impl: Impl) -> Layout:
    """The layout of one sequence."""
    for kind in ("single", "paged", "packed", "stacked"):
        if kind in impl.layouts:
            return Layout(kind, page=_page(impl))
    raise ValueError("an implementation without a layout")


def _page(impl: Impl) -> int:
    return impl.pages[0] if "paged" in impl.layouts else 0


def sequences(problem: Problem, ragged: bool = False) -> list[Sequence]:
    """The problem's sequences; `ragged` cuts all but the first to other lengths."""
    found = []
    length = next(iter(problem.rows.values())).shape[1]
    for i in range(problem.count):
        keep = length if not ragged or i == 0 else 1 + (length * (2 * i + 1) // 5) % length
        found.append(Sequence({name: x[i, :keep] for name, x in problem.rows.items()}))
    return found


def run(impl: Impl, listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Result]:
    """One call; one result per sequence."""
    return [parts(result) for result in impl.call(listed, layout, fixed)]


def each(impl: Impl, listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Result]:
    """One call per sequence."""
    return [run(impl, [one], layout, fixed)[0] for one in listed]


def _one_call(impl: Impl, problem: Problem) -> tuple[list[Sequence], Layout]:
    """As many sequences as one call takes, and their layout."""
    layout = together(impl)
    listed = sequences(problem)
    return (listed[:1], alone(impl)) if layout is None else (listed, layout)


def _batch(impl: Impl, problem: Problem) -> Iterator[Trial]:
    layout = together(impl)
    if problem.count < 2 or layout is None:
        return
    listed = sequences(problem)
    rows = list(range(len(listed)))
    full = run(impl, listed, layout, problem.fixed)
    first = alone(impl)
    yield Trial(f"{len(listed)} sequences against each alone", rows, full, each(impl, listed, first, problem.fixed))
    if len(listed) > 2:
        some = run(impl, listed[:2], layout, problem.fixed)
        yield Trial(f"{len(listed)} sequences against 2", [0, 1], full[:2], some)


def _order(impl: Impl, problem: Problem) -> Iterator[Trial]:
    layout = together(impl)
    if problem.count < 2 or layout is None:
        return
    listed = sequences(problem, ragged=layout.kind != "stacked")
    full = run(impl, listed, layout, problem.fixed)
    back = run(impl, listed[::-1], layout, problem.fixed)[::-1]
    yield Trial("sequences reversed", list(range(len(listed))), full, back)


def _neighbours(impl: Impl, problem: Problem) -> Iterator[Trial]:
    layout = together(impl)
    if problem.count < 2 or layout is None:
        return
    listed = sequences(problem, ragged=layout.kind != "stacked")
    full = run(impl, listed, layout, problem.fixed)
    for name, change in (("other values", lambda x: (x * 0.5 + 0.25).to(x.dtype)), ("NaN", _nan)):
        changed = [listed[0]] + [Sequence({k: change(x) for k, x in one.parts.items()}) for one in listed[1:]]
        yield Trial(f"{name} in the other sequences", [0], full[:1], run(impl, changed, layout, problem.fixed)[:1])


def _nan(x: Tensor) -> Tensor:
    return torch.full_like(x, torch.nan)


def _padding(impl: Impl, problem: Problem) -> Iterator[Trial]:
    listed = sequences(problem)
    length = listed[0].length
    plain = each(impl, listed, alone(impl), problem.fixed)
    rows = list(range(len(listed)))
    for extra in sorted({1, 7, -length % 64 or 64}):
        for side in ("right", "left"):
            if side in impl.layouts:
                padded = run(impl, listed, Layout(side, width=length + extra), problem.fixed)
                yield Trial(f"{extra} padding tokens on the {side}", rows, plain, padded)


def _packing(impl: Impl, problem: Problem) -> Iterator[Trial]:
    if problem.count < 2:
        return
    listed = sequences(problem, ragged=True)
    packed = run(impl, listed, Layout("packed"), problem.fixed)
    lengths = "+".join(str(one.length) for one in listed)
    single = alone(impl)
    yield Trial(
        f"packed {lengths} against one at a time", list(range(len(listed))), packed,
        each(impl, listed, single, problem.fixed),
    )  # fmt: skip


def _micro_batch(impl: Impl, problem: Problem) -> Iterator[Trial]:
    layout = together(impl)
    count = problem.count
    if count < 3 or layout is None:
        return
    listed = sequences(problem)
    full = run(impl, listed, layout, problem.fixed)
    again: list[Result] = []
    for at in range(0, count, 2):
        again += run(impl, listed[at : at + 2], layout, problem.fixed)
    yield Trial("calls of 2 sequences", list(range(count)), full, again)


def pieces(impl: Impl, one: Sequence, bounds: list[int], layout: Layout, fixed: dict[str, Any]) -> Result:
    """One sequence computed piece by piece: queries of a piece see every key so far, or a state is carried."""
    if impl.pieces is not None:
        return parts(impl.pieces(one, bounds, fixed))
    found = []
    for begin, end in pairwise(bounds):
        cut = {name: x[begin:end] if name == "q" else x[:end] for name, x in one.parts.items()}
        found.append(run(impl, [Sequence(cut)], layout, fixed)[0])
    return tuple(torch.cat(of) for of in zip(*found, strict=True))


def _chunking(impl: Impl, problem: Problem) -> Iterator[Trial]:
    one = sequences(problem)[0]
    length = one.length
    if length < 3:
        return
    layout = alone(impl)
    (full,) = run(impl, [one], layout, problem.fixed)
    cuts = {"a cached prefix, then the rest": [0, length // 2, length], "all, then the last": [0, length - 1, length]}
    for size in (16, 64, 512):
        if size < length:
            cuts[f"chunks of {size}"] = [*range(0, length, size), length]
    for name, bounds in cuts.items():
        yield Trial(name, [0], [full], [pieces(impl, one, bounds, layout, problem.fixed)])


def _decode(impl: Impl, problem: Problem) -> Iterator[Trial]:
    listed = sequences(problem)
    length = listed[0].length
    if length < 2:
        return
    if impl.pieces is not None:
        (full,) = run(impl, listed[:1], alone(impl), problem.fixed)
        half = length // 2
        bounds = [0, *range(half, length + 1)] if half else list(range(length + 1))
        tail = tuple(x[half:] for x in full)
        again = pieces(impl, listed[0], bounds, alone(impl), problem.fixed)
        yield Trial(f"tokens {half} to {length} decoded", [0], [tail], [tuple(x[half:] for x in again)])
        return
    layout = together(impl) or alone(impl)
    prefilled = each(impl, listed, alone(impl), problem.fixed)
    for at in sorted({length - 1, length // 2}):
        steps = [
            Sequence({name: x[at : at + 1] if name == "q" else x[: at + 1] for name, x in one.parts.items()})
            for one in listed
        ]
        decoded = (run if together(impl) else each)(impl, steps, layout, problem.fixed)
        rows = list(range(len(listed)))
        wanted = [tuple(x[at : at + 1] for x in result) for result in prefilled]
        yield Trial(f"token {at} of {length} decoded, {len(steps)} at a time", rows, wanted, decoded)


def _page_size(impl: Impl, problem: Problem) -> Iterator[Trial]:
    if len(impl.pages) < 2:
        return
    listed = sequences(problem, ragged=True)
    first = run(impl, listed, Layout("paged", page=impl.pages[0]), problem.fixed)
    rows = list(range(len(listed)))
    for page in impl.pages[1:]:
        again = run(impl, listed, Layout("paged", page=page), problem.fixed)
        yield Trial(f"pages of {impl.pages[0]} against {page}", rows, first, again)


def _rerun(impl: Impl, problem: Problem) -> Iterator[Trial]:
    listed, layout = _one_call(impl, problem)
    first = run(impl, listed, layout, problem.fixed)
    rows = list(range(len(listed)))
    for number in (2, 3):
        yield Trial(f"run {number}", rows, first, run(impl, listed, layout, problem.fixed))


def _threads(impl: Impl, problem: Problem) -> Iterator[Trial]:
    listed, layout = _one_call(impl, problem)
    first = run(impl, listed, layout, problem.fixed)
    now = torch.get_num_threads()
    for number in thread_counts():
        with threads(number):
            again = run(impl, listed, layout, problem.fixed)
        yield Trial(f"{now} threads against {number}", list(range(len(listed))), first, again)


def _strides(impl: Impl, problem: Problem) -> Iterator[Trial]:
    listed = spread_first(problem)
    layout = alone(impl)
    plain = each(impl, listed, layout, problem.fixed)
    views = [Sequence({name: apart(x) for name, x in one.parts.items()}) for one in listed]
    yield Trial("heads apart", list(range(len(listed))), plain, each(impl, views, layout, problem.fixed))


def spread_first(problem: Problem) -> list[Sequence]:
    """The first sequences, two at most."""
    return [sequences(problem)[i] for i in spread(problem.count, 2)]


def _tp(impl: Impl, problem: Problem) -> Iterator[Trial]:
    assert impl.split is not None
    one = sequences(problem)[:1]
    full = run(impl, one, alone(impl), problem.fixed)
    for ranks in (2, 4):
        again = impl.split(problem, ranks)
        if again is not None:
            yield Trial(f"1 rank against {ranks}", [0], full, [parts(again)])


def _compile(impl: Impl, problem: Problem) -> Iterator[Trial]:
    listed, layout = sequences(problem)[:1], alone(impl)
    first = run(impl, listed, layout, problem.fixed)
    again = [parts(x) for x in compiled(impl)(listed, layout, problem.fixed)]
    yield Trial("eager against compiled", [0], first, again)


TRIALS: dict[str, Callable[[Impl, Problem], Iterator[Trial]]] = {
    "batch": _batch,
    "order": _order,
    "neighbours": _neighbours,
    "padding": _padding,
    "chunking": _chunking,
    "decode": _decode,
    "page_size": _page_size,
    "rerun": _rerun,
    "threads": _threads,
    "micro_batch": _micro_batch,
    "tp": _tp,
    "packing": _packing,
    "strides": _strides,
    "compile": _compile,
}
