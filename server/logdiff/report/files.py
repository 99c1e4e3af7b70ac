"""What a case folder holds beside the tokens, read with distrust: a missing or broken file is reported, never fatal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from logdiff.report.texts import FILE_LIMIT, read_texts

if TYPE_CHECKING:
    from logdiff.case import Case


_Section = TypeVar("_Section")


@dataclass(slots=True)
class CaseFiles:
    """The small files of a case, absent ones empty, and `missing`: what isn't there, in words.

    `token_text` maps a token id to its text; `measure`, `floor`, `manifest` and `meta` are the JSON objects as
    written; `fingerprints` maps a side to its `logdiff-fingerprint/1`; `compares` is false for a case that was made for
    results alone (audit, probes, dispatch) and has nothing of two sides.
    """

    name: str
    manifest: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    measure: dict[str, Any] = field(default_factory=dict)
    floor: dict[str, Any] = field(default_factory=dict)
    fingerprints: dict[str, dict[str, Any]] = field(default_factory=dict)
    token_text: dict[int, str] = field(default_factory=dict)
    has_tokens: bool = False
    compares: bool = True
    missing: list[str] = field(default_factory=list)


def _object(path: Path, problems: list[str], label: str) -> dict[str, Any]:
    """The JSON object in `path`, empty when there is none; a broken one is told in `problems`."""
    try:
        if path.stat().st_size > FILE_LIMIT:
            problems.append(f"{label} is larger than {FILE_LIMIT >> 20} MiB and was not read.")
            return {}
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{label} can't be read: {type(error).__name__}: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{label} holds {type(value).__name__}, not an object, and was not used.")
        return {}
    return value


def read_section(
    case: Path, name: str, form: str, missing: list[str], make: Callable[[dict[str, Any]], _Section]
) -> _Section | None:
    """What `make` gives for `results/NAME.json` of a case folder; None where there is none.

    Args:
        case: the folder.
        name: of the result.
        form: its `format`.
        missing: takes words about a file that is too large, broken, or of another format.
        make: the section of a page; may trip over a field that is absent or of another type.
    """
    label = f"results/{name}.json"
    path = case / label
    try:
        if path.stat().st_size > FILE_LIMIT:
            missing.append(f"{label} is larger than {FILE_LIMIT >> 20} MiB and was not read.")
            return None
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("format") != form:
            raise ValueError(f"format {data.get('format')!r}, not {form}")
        return make(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        missing.append(f"{label} can't be used: {type(error).__name__}: {error}")
        return None


def _section(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def read_files(case: Case) -> CaseFiles:
    """Read the JSON files of the case; raises nothing for what is missing or broken there."""
    root = case.path
    result = CaseFiles(name=root.resolve().name)
    missing = result.missing
    result.manifest = _object(root / "manifest.json", missing, "manifest.json")
    result.meta = _object(root / "meta.json", missing, "meta.json")
    measure = _object(root / "results" / "measure.json", missing, "results/measure.json")
    if measure and measure.get("format") != "logdiff-measure/1":
        missing.append(f"results/measure.json has format {measure.get('format')!r}, not logdiff-measure/1: not used.")
        measure = {}
    result.measure = measure
    result.floor = _object(root / "results" / "floor.json", missing, "results/floor.json") or _section(
        measure.get("floor")
    )
    for side in ("rollout", "train"):
        label = f"sides/{side}/fingerprint.json"
        found = _object(root / label, missing, label)
        if found:
            result.fingerprints[side] = found
    result.token_text = read_texts(case, missing)
    result.has_tokens = (root / "tokens.parquet").exists() and (root / "samples.parquet").exists()
    name = result.manifest.get("name")
    if isinstance(name, str) and name:
        result.name = name
    of_two_sides = result.has_tokens or bool(result.measure or result.floor or result.fingerprints)
    result.compares = case.holds_tokens or of_two_sides
    missing += [f"The case is not whole: {words}." for words in case.missing()]
    if result.compares:
        missing += _without(result)
    if not case.is_complete:
        missing.append("The case is not sealed: work may be unfinished, and no hash protects its files.")
    return result


def _without(files: CaseFiles) -> list[str]:
    """What a comparison lacks, and what can't be said for it."""
    words = []
    if not files.has_tokens:
        words.append("Without a token table (tokens.parquet, samples.parquet) no token can be drawn.")
    if not files.measure:
        words.append("Without the result of `logdiff measure` (results/measure.json) no gate was judged.")
    if not files.floor:
        words.append("No floor was measured, so the difference can't be set against a side's own variation.")
    words += [
        f"The {side} side left no fingerprint (sides/{side}/fingerprint.json)."
        for side in ("rollout", "train")
        if side not in files.fingerprints
    ]
    return words
