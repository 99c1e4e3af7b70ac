"""The state of a case: what its own files say, checked field by field.

Nothing here interprets text. Enumerations (class, side, gate, cause) count only where they are known words; numbers
only where they are numbers; every other text is `Foreign` and ends up quoted.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logdiff.playbook.foreign import Foreign, foreign
from logdiff.verdict.records import CLASSES, SIDES

FILE_LIMIT = 32 << 20
"""Largest JSON file that is read, in bytes."""

MOST = 8
"""Most entries of a list that a page needs."""

GATES = (
    *("ids", "lengths", "masks", "duplicates", "vocabulary", "finite", "range", "coverage"),
    *("config", "bypass", "weights", "update", "aligned"),
)
PAIRS = ("decode_train", "decode_rescore", "rescore_train")
NUMBERS = (
    *("tokens", "mismatched_tokens", "mean_abs", "max_abs", "mean", "mean_se", "p99", "k3_kl"),
    *("mean_exp_d", "top1_share", "pearson"),
)
LIVE = ("run", "demo")
"""Kinds of a case that engines made."""

_WORD = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")


@dataclass(frozen=True, slots=True)
class Operators:
    """Counts of `logdiff-operators/1`: operators judged on their own inputs, off, left open; boundaries not mapped."""

    judged: int
    off: tuple[Foreign, ...]
    undecided: int
    unmapped: int
    first: Foreign | None
    inputs_off: tuple[Foreign, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict of a case."""

    class_: str
    side: str
    cause: str | None
    component: Foreign | None
    confidence: float
    statement: Foreign | None


@dataclass(frozen=True, slots=True)
class CaseState:
    """What is known.

    Args:
        case: the folder, as the reader names it.
        kind: of the case ("run", "measure", ...).
        complete: sealed.
        measured: whether there is a measurement.
        numbers: statistics of decode against train (NUMBERS), those that are finite numbers.
        floor: mean_abs, p99, max_abs of a side against itself; empty where none was measured.
        triangle: pair -> its numbers; pairs that were not measured are absent.
        failed: gate -> detail of gates that fail; undecided: gates without the facts to judge them; held: the others.
        engines: side -> engine and version.
        verdict: of `results/verdict.json`, None where nothing was diagnosed.
        candidates: (cause or None, class, score), strongest first.
        excluded: (cause, by what).
        evidence: (claim, value, threshold).
        operators: None where no operator was judged.
        toggles: (side, what was left out, share of mean d squared that went away).
        budget: (component, share, low, high).
        skipped: (experiment, why it was left out).
        aligned: sides that ran aligned operators.
        tokens_of: case whose tokens were scored again.
        looked_into: the verdict rests on live engines, not on recorded tokens alone.
        named_env: the run names environment variables, whose values a case does not keep.
        run: the run of a live case, as its manifest has it.
        problems: files that could not be used, in words.
    """

    case: str
    kind: str = "measure"
    complete: bool = True
    measured: bool = False
    numbers: dict[str, float] = field(default_factory=dict)
    floor: dict[str, float] = field(default_factory=dict)
    triangle: dict[str, dict[str, float]] = field(default_factory=dict)
    failed: dict[str, Foreign | None] = field(default_factory=dict)
    undecided: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    engines: dict[str, Foreign] = field(default_factory=dict)
    verdict: Judged | None = None
    candidates: tuple[tuple[str | None, str, float], ...] = ()
    excluded: tuple[tuple[str, Foreign | None], ...] = ()
    evidence: tuple[tuple[Foreign, Foreign | float | None, Foreign | float | None], ...] = ()
    operators: Operators | None = None
    toggles: tuple[tuple[str, Foreign, float], ...] = ()
    budget: tuple[tuple[Foreign, float, float, float], ...] = ()
    skipped: tuple[tuple[Foreign, Foreign | None], ...] = ()
    aligned: tuple[str, ...] = ()
    tokens_of: Foreign | None = None
    looked_into: bool = False
    named_env: bool = False
    run: dict[str, Any] | None = None
    problems: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        """Whether engines made it, so that they can be looked into again."""
        return self.kind in LIVE

    @property
    def tokens(self) -> int:
        """Tokens that were compared."""
        return int(self.numbers.get("tokens", 0))

    @property
    def mismatched(self) -> int:
        """Tokens whose bits differ."""
        return int(self.numbers.get("mismatched_tokens", 0))

    @property
    def within_floor(self) -> bool | None:
        """Whether mean_abs, p99 and max_abs are at most the floor's; None without a floor."""
        names = ("mean_abs", "p99", "max_abs")
        if not all(n in self.floor and n in self.numbers for n in names):
            return None
        return all(self.numbers[n] <= self.floor[n] for n in names)

    @property
    def larger_leg(self) -> str | None:
        """The leg that carries more: "decode" (decode against prefill) or "engine" (prefill against train)."""
        legs = {name: self.triangle.get(name, {}).get("mean_abs") for name in ("decode_rescore", "rescore_train")}
        decode, engine = legs["decode_rescore"], legs["rescore_train"]
        if decode is None or engine is None or max(decode, engine) == 0:
            return None
        return "decode" if decode > engine else "engine"


def read_state(folder: Path, shown: str | None = None) -> CaseState:
    """Read a case folder. A file that is missing, broken or too large is told in `problems`, never fatal.

    Args:
        folder: the case.
        shown: the folder as pages and calls name it; default: as given.
    """
    problems: list[str] = []
    files = {
        name: _object(folder / path, path, problems)
        for name, path in (
            ("manifest", "manifest.json"),
            ("measure", "results/measure.json"),
            ("verdict", "results/verdict.json"),
            ("operators", "results/operators.json"),
        )
    }
    prints = {
        side: _object(folder / "sides" / side / "fingerprint.json", f"sides/{side}/fingerprint.json", problems)
        for side in ("rollout", "train")
    }
    return case_state(shown or str(folder), fingerprints=prints, problems=problems, **files)


def case_state(
    case: str,
    *,
    manifest: dict[str, Any] | None = None,
    measure: dict[str, Any] | None = None,
    verdict: dict[str, Any] | None = None,
    operators: dict[str, Any] | None = None,
    fingerprints: dict[str, dict[str, Any]] | None = None,
    problems: list[str] | None = None,
) -> CaseState:
    """The same from JSON objects as the files have them; an absent one is None or empty."""
    manifest, measure, verdict = _dict(manifest), _dict(measure), _dict(verdict)
    inputs = _dict(manifest.get("inputs"))
    run = inputs.get("run") if isinstance(inputs.get("run"), dict) else None
    gates = [_dict(g) for g in _list(measure.get("gates")) or _list(verdict.get("gates"))]
    known = [g for g in gates if g.get("gate") in GATES]
    kind = str(manifest.get("kind"))
    return CaseState(
        case=case,
        kind=kind if _WORD.match(kind) else "measure",
        complete=manifest.get("state", "complete") == "complete",
        measured=bool(measure.get("measure") or verdict.get("measure")),
        numbers=_numbers(measure.get("measure") or verdict.get("measure"), NUMBERS),
        floor=_numbers(measure.get("floor") or verdict.get("floor"), ("mean_abs", "p99", "max_abs")),
        triangle={p: n for p in PAIRS if (n := _numbers(_dict(measure.get("pairs")).get(p), NUMBERS))},
        failed={str(g["gate"]): foreign(g.get("detail")) for g in known if g.get("ok") is False},
        undecided=tuple(str(g["gate"]) for g in known if g.get("ok") is None),
        held=tuple(str(g["gate"]) for g in known if g.get("ok") is True),
        engines={side: name for side, f in (fingerprints or {}).items() if (name := _engine(f))},
        operators=_operators(_dict(operators)),
        aligned=_aligned(run),
        tokens_of=foreign(_dict(_dict(run).get("align")).get("tokens")),
        named_env=any(_dict(_dict(run).get(side)).get("env") for side in ("rollout", "train")),
        run=run,
        problems=tuple(problems or ()),
        **_of_verdict(verdict),
    )


def _of_verdict(data: dict[str, Any]) -> dict[str, Any]:
    verdict = _dict(data.get("verdict"))
    if verdict.get("class") not in CLASSES:
        return {}
    confidence = _number(verdict.get("confidence"))
    side = verdict.get("side")
    judged = Judged(
        class_=str(verdict["class"]),
        side=str(side) if side in SIDES else "unknown",
        cause=_word(verdict.get("cause")),
        component=foreign(verdict.get("component")),
        confidence=min(1.0, max(0.0, confidence or 0.0)),
        statement=foreign(verdict.get("statement")),
    )
    candidates = [_dict(c) for c in _list(data.get("candidates"))[:MOST]]
    excluded = [_dict(e) for e in _list(data.get("excluded"))[:MOST]]
    evidence = [_dict(e) for e in _list(data.get("evidence"))[:MOST]]
    toggles = [_dict(t) for t in _list(data.get("toggles"))[:MOST]]
    budget = [_dict(b) for b in _list(data.get("budget"))[:MOST]]
    skipped = [_dict(s) for s in _list(data.get("skipped"))[:MOST]]
    return {
        "verdict": judged,
        "looked_into": bool(data.get("distances") or _dict(data.get("operators")).get("judged")),
        "candidates": tuple(
            (_word(c.get("cause")), str(c["class"]), _number(c.get("score")) or 0.0)
            for c in candidates
            if c.get("class") in CLASSES
        ),
        "excluded": tuple((name, foreign(e.get("by"))) for e in excluded if (name := _word(e.get("cause")))),
        "evidence": tuple(
            (claim, _value(e.get("value")), _value(e.get("threshold")))
            for e in evidence
            if (claim := foreign(e.get("claim")))
        ),
        "toggles": tuple(
            (str(t["side"]), removed, share)
            for t in toggles
            if t.get("side") in SIDES
            and (removed := foreign(t.get("removed"))) is not None
            and (share := _number(t.get("share"))) is not None
        ),
        "budget": tuple(
            (name, share, _number(b.get("low")) or 0.0, _number(b.get("high")) or 0.0)
            for b in budget
            if (name := foreign(b.get("component"))) is not None and (share := _number(b.get("share"))) is not None
        ),
        "skipped": tuple((what, foreign(s.get("why"))) for s in skipped if (what := foreign(s.get("what")))),
    }


def _operators(data: dict[str, Any]) -> Operators | None:
    checks = [_dict(c) for c in _list(data.get("checks"))]
    if not checks:
        return None
    coverage = [_dict(c) for c in _dict(data.get("coverage")).values()]
    divergence = [_dict(d) for d in _list(data.get("divergence"))]
    leading = (d for d in divergence if d.get("pair") != "decode-prefill" and (_number(d.get("bits_differ")) or 0) > 0)
    off = [name for c in checks if c.get("ok") is False and (name := foreign(c.get("boundary")))]
    inputs = [_dict(i) for i in _list(data.get("inputs"))]
    return Operators(
        judged=sum(1 for c in checks if isinstance(c.get("ok"), bool)),
        off=tuple(dict.fromkeys(off))[:MOST],
        undecided=sum(1 for c in checks if c.get("ok") is None),
        unmapped=sum(len(_list(c.get("unmapped"))) for c in coverage),
        first=next((name for d in leading if (name := foreign(d.get("boundary")))), None),
        inputs_off=tuple(name for i in inputs if i.get("ok") is False and (name := foreign(i.get("what"))))[:MOST],
    )


def _aligned(run: dict[str, Any] | None) -> tuple[str, ...]:
    align = _dict(_dict(run).get("align"))
    if not align.get("ops"):
        return ()
    sides = align.get("sides") or ["rollout", "train"]
    return tuple(side for side in ("rollout", "train") if side in sides)


def _engine(fingerprint: Any) -> Foreign | None:
    engine = _dict(_dict(fingerprint).get("engine"))
    name = engine.get("name")
    return Foreign(f"{name} {engine.get('version') or ''}".strip()) if isinstance(name, str) else None


def _numbers(block: Any, names: tuple[str, ...]) -> dict[str, float]:
    found = _dict(block)
    return {name: number for name in names if (number := _number(found.get(name))) is not None}


def _number(value: Any) -> float | None:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if plain and math.isfinite(value) else None


def _value(value: Any) -> Foreign | float | None:
    number = _number(value)
    return number if number is not None else foreign(str(value)) if isinstance(value, (str, list, dict)) else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and _WORD.match(value) and len(value) <= 60 else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(path: Path, label: str, problems: list[str]) -> dict[str, Any]:
    try:
        if path.stat().st_size > FILE_LIMIT:
            problems.append(f"{label} is larger than {FILE_LIMIT >> 20} MiB and was not read")
            return {}
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{label} can't be read ({type(error).__name__})")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{label} holds no object")
        return {}
    return value
