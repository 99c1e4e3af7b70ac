"""Two sides' device work, set side by side and ranked by what can change numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from logdiff.dispatch.ascend_profile.records import FIELDS, Side, Tally, Work

KINDS: dict[str, str] = {
    "operator": "the operator ran on one side only",
    "dtype": "other data types",
    "format": "another memory format",
    "algorithm": "another communication algorithm",
    "core": "another kind of core",
    "precision": "another HF32 setting",
    "attributes": "other attributes or tiling",
    "state": "dynamic on one side, static on the other",
    "blocks": "another number of cores, so another split of the work",
    "output": "other output shapes from the same inputs",
    "shapes": "shapes that the other side never ran",
    "name": "launched under another name",
    "count": "another number of calls",
    "time": "another share of the time",
}
"""Kind of difference -> what it means, most telling first; those of `MILD` alone are no other kernels."""

_KIND_OF = {
    "input_types": "dtype", "output_types": "dtype", "input_formats": "format", "output_formats": "format",
    "algorithm": "algorithm", "core": "core", "hf32": "precision", "attributes": "attributes", "state": "state",
    "name": "name", "blocks": "blocks", "mix_blocks": "blocks", "grid": "blocks", "output_shapes": "output",
}  # fmt: skip
_ANY_SHAPE = ("input_types", "output_types", "input_formats", "output_formats", "core", "hf32", "algorithm")
"""Fields that are compared over all shapes too, for a kernel's choice of them should not hang on the shape."""

MILD = ("name", "count", "time")
"""A name is the launching function's or, in a graph, the node's; the operator type says which kernel it was."""
_RANK = {kind: place for place, kind in enumerate(KINDS)}
_SHOWN = 5
_TIME_POINTS = 0.10
"""Difference of two shares of the time that is told: a tenth of all device time."""


@dataclass(slots=True)
class OpType:
    """One operator type on one side: calls, time, and its variants by input shapes."""

    count: int = 0
    time_ns: int = 0
    shapes: dict[str | None, dict[Work, int]] = field(default_factory=dict)
    counts: Counter[str | None] = field(default_factory=Counter)
    callers: Counter[tuple[str | None, str | None]] = field(default_factory=Counter)

    def values(self, name: str, shapes: Iterable[str | None]) -> frozenset[str | None]:
        """The values of a field over some shapes."""
        return frozenset(getattr(work, name) for shape in shapes for work in self.shapes.get(shape, ()))


def by_type(side: Side) -> dict[tuple[str, str], OpType]:
    """(kind, operator type) -> what ran of it."""
    found: dict[tuple[str, str], OpType] = {}
    for work, tally in side.work():
        entry = found.setdefault((work.kind, work.op_type), OpType())
        entry.count += tally.count
        entry.time_ns += tally.time_ns
        variants = entry.shapes.setdefault(work.input_shapes, {})
        variants[work] = variants.get(work, 0) + tally.count
        entry.counts[work.input_shapes] += tally.count
        _call(entry, tally)
    return found


def _call(entry: OpType, tally: Tally) -> None:
    for caller, count in tally.callers.items():
        entry.callers[caller] += count


def compare(left: Side, right: Side) -> dict[str, Any]:
    """Differences of two sides, the most telling first.

    A field is compared only where both sides recorded it; a difference in it is told with the shapes that show it.

    Returns:
        `verdict` ("same", "different" or "undetermined"), `why` in one sentence, `compared` (fields), `not_compared`
        {field: reason}, `differences` [{"kind", "op_type", "field", the two sides' values by name, "basis",
        "shapes" (number), "examples", "share", "statement"}].
    """
    ours, theirs = by_type(left), by_type(right)
    total = {left.name: _time(ours), right.name: _time(theirs)}
    recorded = left.recorded(), right.recorded()
    compared = [name for name in FIELDS if recorded[0][name] and recorded[1][name]]
    gaps = {name: _gap(name, left, right, recorded) for name in FIELDS if recorded[0][name] != recorded[1][name]}
    differences: list[dict[str, Any]] = []
    for key in sorted(ours.keys() | theirs.keys()):
        one, two = ours.get(key), theirs.get(key)
        share = max(_share(one, total[left.name]), _share(two, total[right.name]))
        tell = _Teller(key, left.name, right.name, share, differences)
        if one is None or two is None:
            there = left.name if two is None else right.name
            entry = one or two
            assert entry is not None
            values = {there: f"{entry.count} call" + ("s" if entry.count != 1 else "")}
            tell("operator", None, values.get(left.name), values.get(right.name), entry.shapes, "any shapes")
            continue
        _fields(tell, one, two, compared)
        _mild(tell, one, two, total[left.name], total[right.name], "input_shapes" in compared)
    differences.sort(key=lambda d: (_RANK[d["kind"]], -d["share"], d["op_type"]))
    verdict, why = _verdict(differences, compared, gaps)
    return {"verdict": verdict, "why": why, "compared": compared, "not_compared": gaps, "differences": differences}


class _Teller:
    """Adds differences of one operator type."""

    def __init__(self, key: tuple[str, str], left: str, right: str, share: float, out: list[dict[str, Any]]) -> None:
        self.op_type, self.left, self.right, self.share, self.out = key[1], left, right, share, out

    def __call__(
        self, kind: str, name: str | None, left: Any, right: Any, shapes: Iterable[str | None], basis: str
    ) -> None:
        known = sorted(shape or "not recorded" for shape in shapes)
        self.out.append(
            {
                "kind": kind,
                "op_type": self.op_type,
                "field": name,
                self.left: left,
                self.right: right,
                "basis": basis,
                "shapes": len(known),
                "examples": known[:_SHOWN],
                "share": round(self.share, 6),
                "statement": f"{self.op_type}: {KINDS[kind]}"
                + (f" ({name}: {self.left} {_text(left)}, {self.right} {_text(right)})" if name else "")
                + (f" ({self.left if right is None else self.right}, {left or right})" if kind == "operator" else ""),
            }
        )


def _fields(tell: _Teller, one: OpType, two: OpType, compared: list[str]) -> None:
    shared = [
        shape for shape in one.shapes if shape in two.shapes and (shape is not None or "input_shapes" not in compared)
    ]
    told = set()
    for name in compared:
        if name == "input_shapes":
            continue
        groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str | None]] = {}
        for shape in shared:
            pair = one.values(name, [shape]), two.values(name, [shape])
            if pair[0] != pair[1] and None not in pair[0] | pair[1]:
                groups.setdefault((_sorted(pair[0]), _sorted(pair[1])), []).append(shape)
        for (left, right), shapes in sorted(groups.items(), key=lambda g: (-len(g[1]), g[0])):
            told.add(name)
            tell(_KIND_OF[name], name, list(left), list(right), shapes, "same shapes")
        if name in _ANY_SHAPE and name not in told:
            every = one.values(name, one.shapes) - {None}, two.values(name, two.shapes) - {None}
            if every[0] != every[1] and every[0] and every[1]:
                tell(_KIND_OF[name], name, list(_sorted(every[0])), list(_sorted(every[1])), (), "any shapes")
    if "input_shapes" in compared:
        alone = {s for s in one.shapes if s not in two.shapes}, {s for s in two.shapes if s not in one.shapes}
        if alone[0] or alone[1]:
            words = [f"{len(names)} of {len(side.shapes)}" for names, side in zip(alone, (one, two), strict=True)]
            tell("shapes", "input_shapes", words[0], words[1], alone[0] | alone[1], "any shapes")


def _mild(tell: _Teller, one: OpType, two: OpType, ours: int, theirs: int, shaped: bool) -> None:
    counts = (one.count, two.count)
    if counts[0] != counts[1]:
        same = [s for s in one.shapes if s in two.shapes and one.counts[s] != two.counts[s]] if shaped else []
        tell("count", "count", counts[0], counts[1], same, "same shapes" if same else "any shapes")
    shares = _share(one, ours), _share(two, theirs)
    if abs(shares[0] - shares[1]) >= _TIME_POINTS:
        tell("time", "time", f"{shares[0]:.1%}", f"{shares[1]:.1%}", (), "any shapes")


def _verdict(differences: list[dict[str, Any]], compared: list[str], gaps: dict[str, str]) -> tuple[str, str]:
    kinds = [d["kind"] for d in differences if d["kind"] not in MILD]
    if kinds:
        number = Counter(kinds)
        words = ", ".join(f"{number[kind]} {kind}" for kind in KINDS if kind in number)
        return "different", f"{len(kinds)} differences in what ran: {words}"
    missing = [name for name in ("input_shapes", "input_types", "input_formats") if name not in compared]
    if missing:
        return (
            "undetermined",
            f"{', '.join(missing)} not recorded on both sides; profile both with profiler_level=Level1",
        )
    return "same", "the same operators ran on the same shapes, types, formats and cores" + (
        f"; not compared: {', '.join(gaps)}" if gaps else ""
    )


def _gap(name: str, left: Side, right: Side, recorded: tuple[dict[str, bool], dict[str, bool]]) -> str:
    return f"recorded on the {left.name if recorded[0][name] else right.name} side only"


def _time(types: dict[tuple[str, str], OpType]) -> int:
    return sum(entry.time_ns for entry in types.values())


def _share(entry: OpType | None, total: int) -> float:
    return entry.time_ns / total if entry is not None and total else 0.0


def _sorted(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted(value for value in values if value is not None))


def _text(value: Any) -> str:
    text = (
        " | ".join(str(v) for v in value[:3]) + (" | ..." if len(value) > 3 else "")
        if isinstance(value, list)
        else str(value)
    )
    return text if len(text) <= 160 else text[:159] + "…"
