"""Which results of a driver function belong to which rows of its arguments, and the same call with the rows elsewhere.

`moved` gives calls in which the rows stand in another order beside rows of NaN; each row's result keeps its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from logdiff_kernels.ascendc.attention_inputs import starts
from logdiff_kernels.ascendc.cases import Case
from torch import Tensor

NEIGHBOUR = -1
"""In a list of rows: a row of NaN (of integers: a copy of row 0)."""


@dataclass(frozen=True)
class Along:
    """Rows along a dimension. A tensor may have several entries for each row.

    Attributes:
        arguments: dimension of each argument that has the rows, by its position.
        results: dimension of each result that has them.
        same: results that don't, and keep their bits all the same.
    """

    arguments: dict[int, int]
    results: dict[int, int]
    same: tuple[int, ...] = ()


@dataclass
class Moved:
    """A call with the rows elsewhere.

    Attributes:
        arguments: of the call.
        results: by position (dimension, rows of this call, the rows of the first call that they equal).
        same: positions of results that are equal as a whole.
    """

    arguments: tuple[Any, ...]
    results: dict[int, tuple[int, Tensor, Tensor]] = field(default_factory=dict)
    same: tuple[int, ...] = ()


FIRST: dict[int, int] = {0: 0}

ROWS: dict[str, tuple[Along, ...]] = {
    "norm.rms_norm": (Along({0: 0}, {0: 0, 1: 0}),),
    "norm.add_rms_norm": (Along({0: 0, 1: 0}, {0: 0, 1: 0}),),
    "norm.rms_norm_backward": (
        Along({0: 0, 1: 0, 3: 0, 4: 0}, {0: 0}),
        Along({0: 1, 1: 1, 2: 0, 4: 1}, {1: 0}),  # a column's weight gradient
    ),
    "rope.rope": (Along({0: 0, 1: 0, 2: 0, 5: 0}, FIRST), Along({0: 1, 5: 1}, {0: 1})),
    "linear.matmul": (Along({0: 0}, FIRST), Along({1: 0, 2: 0}, {0: 1})),
    "linear.grouped_outer": (Along({0: 1}, {0: 1}), Along({1: 1}, {0: 2})),
    "linear.grouped_row_sum": (Along({0: 1}, {0: 1}),),
    "linear.tree_combine": (Along({0: 1}, FIRST), Along({0: 2, 1: 0}, {0: 1})),
    "linear.scale_cap_": (Along({0: 0}, FIRST), Along({0: 1}, {0: 1})),
    "activation.glu": (Along({0: 0, 1: 0}, FIRST), Along({0: 1, 1: 1}, {0: 1})),
    "activation.glu_backward": (Along({0: 0, 1: 0, 2: 0}, {0: 0, 1: 0}),),
    "logprob.logprob": (Along({0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}),),
    "logprob.stats": (Along({0: 0, 1: 0}, FIRST),),
    "logprob.target": (Along({0: 0, 1: 0, 2: 0}, {0: 0, 1: 0}),),
    "logprob.merge": (Along({0: 0}, FIRST),),
    "logprob.finish": (Along({0: 0, 1: 0}, {0: 0, 1: 0}),),
    "logprob.log_softmax": (Along({0: 0, 1: 0, 2: 0}, FIRST),),
    "logprob.logprob_backward": (Along(dict.fromkeys(range(7), 0), FIRST),),
    "logprob.log_softmax_backward": (Along(dict.fromkeys(range(4), 0), FIRST),),
    "router.router": (Along({0: 0}, {0: 0, 1: 0}),),
    "router.router_backward": (Along({0: 0, 1: 0, 2: 0}, FIRST),),
    "moe.gather": (Along({1: 0}, FIRST), Along({0: 1}, {0: 1})),
    "moe.combine": (Along({1: 0, 2: 0, 3: 0, 5: 0}, FIRST), Along({0: 1, 5: 1}, {0: 1})),
    "moe.combine_backward": (Along({0: 0, 2: 0, 3: 0}, {1: 0}, same=(0,)),),
    "embedding.embedding": (Along({0: 0}, FIRST), Along({1: 1}, {0: 1})),
    "embedding.embedding_backward": (Along({0: 1}, {0: 1}),),
}
"""Of every function but those of `OTHERS`."""


def moved(case: Case, arguments: tuple[Any, ...], seed: int) -> Iterator[Moved]:
    """Calls with the rows elsewhere, one for each way in which the function has rows.

    Raises:
        KeyError: nobody has said which rows the function has.
    """
    name = function_name(case)
    if name in OTHERS:
        yield OTHERS[name](arguments)
        return
    for along in ROWS[name]:
        yield _along(along, arguments, seed)


def known(case: Case) -> bool:
    """Whether it is said which rows the case's function has."""
    return function_name(case) in {*ROWS, *OTHERS}


def function_name(case: Case) -> str:
    """Module and function."""
    return f"{case.part}.{case.function}"


def placed(x: Tensor, dim: int, rows: Tensor, count: int) -> Tensor:
    """`x`, with `count` rows along `dim`, as the given rows."""
    each = x.shape[dim] // count
    found = x.reshape(*x.shape[:dim], count, each, *x.shape[dim + 1 :])
    found = found.index_select(dim, rows.clamp(min=0))
    if x.is_floating_point():
        found.index_fill_(dim, torch.nonzero(rows == NEIGHBOUR)[:, 0], torch.nan)
    return found.flatten(dim, dim + 1)


def _along(along: Along, arguments: tuple[Any, ...], seed: int) -> Moved:
    given = {i: dim for i, dim in along.arguments.items() if i < len(arguments) and arguments[i] is not None}
    count = min(int(arguments[i].shape[dim]) for i, dim in given.items())
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    middle, pad = count // 2, torch.tensor([NEIGHBOUR])
    rows = torch.cat([pad, pad, order[:middle], pad, order[middle:], pad])
    done: dict[int, Tensor] = {}  # one tensor given twice stays one
    new = list(arguments)
    for i, dim in given.items():
        new[i] = done.setdefault(id(arguments[i]), placed(arguments[i], dim, rows, count))
    at = torch.nonzero(rows != NEIGHBOUR)[:, 0]
    return Moved(tuple(new), {i: (dim, at, order) for i, dim in along.results.items()}, along.same)


# --- rows in groups or sequences


def _of_parts(begins: list[int], lengths: list[int], order: list[int]) -> Tensor:
    """Rows of parts in another order; ~part is that part as rows of NaN."""
    found = []
    for part in order:
        begin, length = begins[max(part, ~part)], lengths[max(part, ~part)]
        found.append(torch.full((length,), NEIGHBOUR) if part < 0 else torch.arange(begin, begin + length))
    return torch.cat(found)


def _backwards(lengths: list[int]) -> tuple[list[int], list[int]]:
    """Parts backwards behind the shortest as NaN: as `_of_parts` takes them, and their numbers."""
    order = [~lengths.index(min(n for n in lengths if n)), *reversed(range(len(lengths)))]
    return order, [max(part, ~part) for part in order]


def _kept(rows: Tensor) -> tuple[Tensor, Tensor]:
    at = torch.nonzero(rows != NEIGHBOUR)[:, 0]
    return at, rows[at]


def _grouped(arguments: tuple[Any, ...]) -> Moved:
    """Each group's rows backwards behind one of NaN."""
    a, offsets, *rest = arguments
    parts, ends = [], [0]
    for begin, end in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
        rows = torch.arange(begin, end).flip(0)
        parts.append(torch.cat([torch.tensor([NEIGHBOUR]), rows]) if end > begin else rows)
        ends.append(ends[-1] + len(parts[-1]))
    rows = torch.cat(parts)
    at, old = _kept(rows)
    return Moved((placed(a, 0, rows, a.shape[0]), torch.tensor(ends), *rest), {0: (0, at, old)})


def _sequences(cu: Tensor) -> tuple[list[int], list[int]]:
    return cu[:-1].tolist(), cu.diff().tolist()


def _packed(queries: tuple[int, ...], keys: tuple[int, ...], cu: int, results: tuple[str, ...]) -> Callable[..., Moved]:
    """Sequences backwards behind one of NaN; `cu`: position of cu_q, cu_k follows; `results`: of queries or of keys."""

    def move(arguments: tuple[Any, ...]) -> Moved:
        new, cu_q, cu_k = list(arguments), arguments[cu], arguments[cu + 1]
        begins, lengths = _sequences(cu_q)
        order, parts = _backwards(lengths if cu_k is None else _sequences(cu_k)[1])
        q_rows = k_rows = _of_parts(begins, lengths, order)
        new[cu] = starts([lengths[i] for i in parts])
        if cu_k is not None:
            begins, lengths = _sequences(cu_k)
            k_rows = _of_parts(begins, lengths, order)
            new[cu + 1] = starts([lengths[i] for i in parts])
        for positions, rows in ((queries, q_rows), (keys, k_rows)):
            for i in positions:
                new[i] = placed(arguments[i], 0, rows, arguments[i].shape[0])
        kinds = {"q": _kept(q_rows), "k": _kept(k_rows)}
        return Moved(tuple(new), {i: (0, *kinds[kind]) for i, kind in enumerate(results)})

    return move


def _paged(arguments: tuple[Any, ...]) -> Moved:
    """Sequences backwards behind one whose queries are NaN."""
    q, k_cache, v_cache, table, cu_q, lengths, *rest = arguments
    begins, counts = _sequences(cu_q)
    order, parts = _backwards(counts)
    rows = _of_parts(begins, counts, order)
    at, old = _kept(rows)
    new = (placed(q, 0, rows, q.shape[0]), k_cache, v_cache, table[parts], starts([counts[i] for i in parts]))
    return Moved((*new, lengths[parts], *rest), {0: (0, at, old)})


def _stored(arguments: tuple[Any, ...]) -> Moved:
    """Tokens backwards between tokens of NaN that have no slot."""
    k, v, k_cache, v_cache, slots = arguments
    count = slots.shape[0]
    rows = torch.stack([torch.arange(count).flip(0), torch.full((count,), NEIGHBOUR)], 1).flatten()
    new = (placed(k, 0, rows, count), placed(v, 0, rows, count), k_cache, v_cache)
    return Moved((*new, torch.where(rows < 0, -1, slots[rows.clamp(min=0)])), same=(0, 1))


OTHERS: dict[str, Callable[[tuple[Any, ...]], Moved]] = {
    "linear.grouped_matmul": _grouped,
    "attention.attention": _packed((0,), (1, 2), 3, ("q", "q")),
    "attention.paged_attention": _paged,
    "attention.store_kv": _stored,
    "attention.attention_backward": _packed((0, 1, 4, 5), (2, 3), 6, ("q", "k", "k")),
}
