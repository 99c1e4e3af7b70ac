"""What a side's operators and the model itself were fed, against what they should have been."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from logdiff_kernels.check.captured import Captured
from logdiff_kernels.check.clean import Operator
from logdiff_kernels.check.explain import explain
from logdiff_kernels.check.formulas import cut
from logdiff_kernels.check.given import Given, distinct, roundoff
from logdiff_kernels.check.variants import Scene
from logdiff_kernels.errors import InputError
from logdiff_kernels.observe.boundaries.files import given as given_key
from logdiff_kernels.observe.boundaries.files import picked

ROWS = 256


@dataclass(frozen=True, slots=True)
class Fed:
    """One argument of an operator: the boundary it should be and the one it was.

    `number` is its place among the file's arguments where its own rows were kept, -1 elsewhere; `actual` is None then.
    """

    expected: str
    actual: str | None
    number: int = -1


def fed(captured: Captured, operator: Operator) -> list[Fed]:
    """Each argument of an operator as the file tells it; the expected boundary where the file tells nothing."""
    entry = captured.entries[operator.name]
    told = list(entry.inputs)
    if not told or len(told) > len(operator.inputs):
        return [Fed(e, e) for e in operator.inputs]
    rest = [i for i, name in enumerate(told) if name not in operator.inputs]
    found = []
    for expected in operator.inputs:
        if expected in told or not rest:
            found.append(Fed(expected, expected))
            continue
        number = rest.pop(0)
        if told[number]:
            found.append(Fed(expected, told[number]))
        elif given_key(operator.name, number) in captured.file:
            found.append(Fed(expected, None, number))
        else:
            found.append(Fed(expected, expected))
    return found


def _rows_of(captured: Captured, operator: Operator, argument: Fed) -> torch.Tensor:
    if argument.actual is not None:
        return captured.index(argument.actual)
    return captured.file.given_rows(operator.name, argument.number)


def _at(captured: Captured, operator: Operator, argument: Fed, index: torch.Tensor) -> torch.Tensor:
    if argument.actual is not None:
        return captured.at(argument.actual, index)
    values = captured.file.tensor(given_key(operator.name, argument.number)).flatten(1)
    return picked(values, _rows_of(captured, operator, argument), index)


def operands(captured: Captured, operator: Operator) -> tuple[Given, torch.Tensor]:
    """(what the operator received, its rows of the file).

    Raises:
        InputError: an argument that was not captured.
    """
    arguments = fed(captured, operator)
    for argument in arguments:
        if argument.actual is not None and argument.actual not in captured:
            raise InputError(f"{argument.actual} wasn't captured", value=argument.actual)
    cached = operator.kind == "attention"
    index = captured.index(operator.name).sort().values
    for argument in arguments[:-2] if cached else arguments:
        index = index[torch.isin(index, _rows_of(captured, operator, argument))]
    if operator.kind == "logprob":
        index = index[captured.rows.target[index] >= 0]
    rows = captured.rows.take(index)
    if not cached:
        return Given(tuple(_at(captured, operator, a, index) for a in arguments), rows), index
    key, value = arguments[-2:]
    both = _rows_of(captured, operator, key)
    both = both[torch.isin(both, _rows_of(captured, operator, value))].sort().values
    index = _complete(captured, both, index)
    x = tuple(_at(captured, operator, a, index) for a in arguments[:-2])
    given = Given(x, captured.rows.take(index), captured.rows.take(both), _at(captured, operator, key, both),
                  _at(captured, operator, value, both))  # fmt: skip
    return given, index


def _complete(captured: Captured, keys: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Queries whose sample has keys of every position up to theirs."""
    rows = captured.rows
    good = torch.zeros(len(index), dtype=torch.bool)
    for sample in distinct(rows.sample[index]):
        mine = rows.sample[index] == sample
        have = rows.position[keys[rows.sample[keys] == sample]].sort().values
        run = int((have == torch.arange(len(have))).long().cumprod(0).sum())
        good |= mine & (rows.position[index] < run)
    return index[good]


def edge(captured: Captured, operator: Operator, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Arguments of an operator that aren't, to the bit, the boundary that should feed it: entries of `inputs`."""
    found = []
    if operator.p.get("up") is not None:
        return []  # latent attention is given its queries put together from two boundaries
    for argument in fed(captured, operator):
        if argument.actual == argument.expected or argument.expected not in captured:
            continue
        index = _rows_of(captured, operator, argument)
        index = index[torch.isin(index, captured.index(argument.expected))]
        if not len(index):
            continue
        got = _at(captured, operator, argument, index)
        due = cut(captured.at(argument.expected, index), operator.p)
        record = _edge(captured, operator, argument, got, due, index, dtype)
        if record is not None:
            found.append(record)
    return found


def _edge(
    captured: Captured, operator: Operator, argument: Fed, got: torch.Tensor, due: torch.Tensor, index: torch.Tensor,
    dtype: torch.dtype,
) -> dict[str, Any] | None:  # fmt: skip
    if got.shape != due.shape:
        detail = f"received rows of {got.shape[-1]} features where {argument.expected} has {due.shape[-1]}"
        return record(captured, "edge", False, detail, operator.name, rows_off=1.0)
    different = (got != due).any(-1)
    if not bool(different.any()):
        return None
    out, ref = got.double(), due.double()
    size = roundoff(dtype)
    tolerance = 1.5 * size * ref.abs() + 1e-3 * size * ref.square().mean(-1, keepdim=True).sqrt()
    units = ((out - ref) / tolerance).abs().amax(-1).nan_to_num(float("inf"), float("inf"))
    off = units > 2.0
    rows = captured.rows.take(index)
    if not bool(off.any()):
        detail = f"received {argument.expected} within its rounding, not to the bit"
        return record(captured, "edge", True, detail, operator.name, rows_off=0.0)
    name = argument.actual or "no boundary"
    detail = f"received {name} in place of {argument.expected}"
    chosen = off.nonzero()[:, 0][:ROWS]
    everywhere = Given((ref,), rows)
    scene = Scene(
        operator.name, "residual", "add", everywhere.take(chosen), {}, ref[chosen], out[chosen], tolerance[chosen],
        dtype, everywhere, chosen, lambda: iter(()), {"inputs": [argument.expected]},
    )  # fmt: skip
    tried = explain(scene)
    best = next((t for t in tried if t.fits), None)
    if best is not None:
        detail += f": {argument.expected} that {best.variant.statement}"
    error = (out - ref).square().mean(-1).sqrt() / max(float(ref.square().mean().sqrt()), 1e-300)
    made = record(captured, "edge", False, detail, operator.name, float(off.double().mean()), index, error)
    made["variants"] = [t.as_dict() for t in tried]
    return made


def record(
    captured: Captured,
    what: str,
    ok: bool,
    detail: str,
    boundary: str | None = None,
    rows_off: float = 0.0,
    index: torch.Tensor | None = None,
    error: torch.Tensor | None = None,
) -> dict[str, Any]:
    """An entry of `inputs` in `logdiff-operators/1`."""
    worst = [] if index is None or error is None else captured.worst(index, error)
    return {
        "side": captured.header.side, "phase": captured.header.phase, "what": what, "ok": ok, "detail": detail,
        "cause": None, "boundary": boundary, "rows_off": rows_off, "worst": worst,
    }  # fmt: skip


def tokens(captured: Captured) -> dict[str, Any]:
    """The ids that the model received, against the truth."""
    rows = captured.rows
    due = captured.expected(rows.sample, rows.position)
    wrong = rows.token != due
    if not bool(wrong.any()):
        return record(captured, "ids", True, f"{len(rows)} ids as they should be")
    names = captured.header.sample_ids
    first = int(wrong.nonzero()[0, 0])
    detail = (
        f"{int(wrong.sum())} of {len(rows)} ids differ, the first in sample {names[int(rows.sample[first])]} at "
        f"{int(rows.position[first])}: {int(rows.token[first])} instead of {int(due[first])}"
    )
    shift = _shift(captured, wrong)
    made = record(captured, "ids", False, detail, "embedding", float(wrong.double().mean()),
                  wrong.nonzero()[:, 0], torch.ones(int(wrong.sum()), dtype=torch.float64))  # fmt: skip
    made["cause"] = "ids-differ"
    if shift:
        made["detail"] += f"; they are those {shift:+d} places on"
        made["cause"] = "shifted-by-one"
    return made


def _shift(captured: Captured, wrong: torch.Tensor) -> int:
    rows = captured.rows
    for by in (-1, 1):
        moved = captured.expected(rows.sample, rows.position + by)
        if float((rows.token == moved)[wrong].double().mean()) > 0.95:
            return by
    return 0


def positions(captured: Captured) -> dict[str, Any]:
    """The positions that the model received: places in the sequence, or a constant away from them."""
    if not captured.positions_known:
        return record(captured, "positions", True, "not known to the capture")
    rows, names = captured.rows, captured.header.sample_ids
    offset = rows.position_id - rows.position
    constant, wrong = {}, torch.zeros(len(rows), dtype=torch.bool)
    for sample in distinct(rows.sample):
        mine = rows.sample == sample
        usual = int(offset[mine].mode().values)
        constant[sample] = usual
        wrong |= mine & (offset != usual)
    if not bool(wrong.any()):
        moved = {names[s]: o for s, o in constant.items() if o}
        detail = "places in the sequence" if not moved else f"places plus a constant per sample: {moved}"
        return record(captured, "positions", True, detail)
    at = int(wrong.nonzero()[0, 0])
    mine = rows.sample == rows.sample[at]
    order = rows.position[mine].argsort()
    steps = rows.position_id[mine][order].diff() - rows.position[mine][order].diff()
    jumps = [(int(rows.position[mine][order][i + 1]), int(rows.position_id[mine][order][i + 1]))
             for i in (steps != 0).nonzero()[:3, 0].tolist()]  # fmt: skip
    restart = any(now == 0 for _, now in jumps)
    detail = (
        f"{int(wrong.sum())} of {len(rows)} positions leave their sample's count; in {names[int(rows.sample[at])]} "
        + ", ".join(f"place {place} got {now}" for place, now in jumps)
    )
    made = record(captured, "positions", False, detail, None, float(wrong.double().mean()),
                  wrong.nonzero()[:, 0], (offset[wrong]).abs().double())  # fmt: skip
    made["cause"] = "position-per-pack" if restart else "position-offset"
    return made


def places(captured: Captured) -> dict[str, Any]:
    """Whether every token of a sample was fed, from the first to the last but one."""
    rows = captured.rows
    missing: list[str] = []
    lost = 0
    for sample, ids in enumerate(captured.truth):
        have = rows.position[rows.sample == sample]
        due = torch.arange(max(len(ids) - 1, 0))
        absent = due[~torch.isin(due, have)]
        if len(absent):
            lost += len(absent)
            missing.append(f"{captured.header.sample_ids[sample]}: {absent[:4].tolist()}")
    again = next((n for n in captured.header.notes if "computed by several passes" in n), None)
    if missing:
        return record(captured, "rows", False, f"{lost} tokens were not fed: {'; '.join(missing[:4])}", None,
                      lost / max(1, lost + len(rows)))  # fmt: skip
    return record(captured, "rows", True, again or f"all {len(rows)} tokens were fed")


def cache(captured: Captured, checks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Attention that is right with the keys and values of its own pass and wrong with those of earlier ones."""
    mine = [c for c in checks if c["operator"] == "attention" and c["ok"] is not None]
    if captured.header.phase != "decode" or not mine:
        return None
    wrong = [c for c in mine if c["ok"] is False and (c["onset"] or {}).get("kind") != "all"]
    wrong = [c for c in wrong if not any(v["fits"] and not _of_cache(v) for v in c["variants"])]
    wrong = [c for c in wrong if _decodes(c["onset"] or {})]
    if not wrong:
        return record(captured, "cache", True, "decode attention is explained by the keys and values written before")
    first = min(wrong, key=lambda c: (c["layer"] is None, c["layer"]))
    detail = (
        f"decode attention of {len(wrong)} of {len(mine)} layers isn't explained by the keys and values that were "
        f"written, while the first pass is: what was read from the cache is something else"
    )
    made = record(captured, "cache", False, detail, first["boundary"], max(c["rows_off"] for c in wrong))
    made["cause"] = "kv-cache-corrupt"
    made["worst"] = first["worst"]
    return made


def _of_cache(variant: dict[str, Any]) -> bool:
    return str(variant["cause"] or "").startswith("kv-cache")


def _decodes(onset: dict[str, Any]) -> bool:
    return onset.get("kind") not in (None, "prefill", "position-below")
