"""Recorded evidence: measure, compare, report, import, query."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.actions.done import Done, PathLike
from logdiff.errors import CaseError, InputError

if TYPE_CHECKING:
    from logdiff.case import Case
    from logdiff.case.batch import PairBatch
    from logdiff.measure import Measurement, RunFacts
    from logdiff.target.engine import OnProgress


def measure(
    *,
    paths: Sequence[PathLike],
    case: PathLike | None = None,
    fail_above: str | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Measure pair files, or the tokens of a case (`logdiff-measure/1`).

    Pair files are stored in a new case in the same pass. A case folder is measured in place, unless `case` names
    another one.

    Raises:
        InputError: no input, an unreadable one, a limit that can't be set, or a case folder among several inputs.
        CaseError: the case holds other work.
    """
    from logdiff.measure import parse_fail_above

    limits = parse_fail_above(fail_above) if fail_above is not None else None
    if not paths:
        raise InputError("no input", hint="give pair files or one case folder")
    folders = [p for p in paths if Path(p).is_dir()]
    if folders and len(paths) > 1:
        raise InputError("a case folder is measured alone", value=str(folders[0]), hint="give one case folder")
    if folders and (case is None or Path(case).resolve() == Path(folders[0]).resolve()):
        return _measure_case(folders[0], limits, on_progress)
    return _measure_files(paths, case, limits, on_progress)


def _measure_case(folder: PathLike, limits: dict[str, float] | None, on_progress: OnProgress | None) -> Done:
    from logdiff.case import Case
    from logdiff.measure import measure as run_measure

    with Case.open(folder) as case:
        found = run_measure(case.meta, _watched(case.batches(), on_progress), _facts_of(case))
        if case.has_result("measure"):
            found = found.with_floor(case.read_result("measure").get("floor") or {})
        result = measured_result(found, case, limits)
        with case.extended("measured again"):
            case.write_result("measure", result)
    return Done(result, found.exit_code(limits))


def _measure_files(
    paths: Sequence[PathLike],
    case_dir: PathLike | None,
    limits: dict[str, float] | None,
    on_progress: OnProgress | None,
) -> Done:
    from logdiff.case.readers import read_pairs
    from logdiff.measure import measure as run_measure

    meta, batches = read_pairs(paths)
    with _new_case(case_dir, stem(paths[0]), "measure", _inputs(paths)) as case:
        case.write_meta(meta)
        with case.open_writer() as writer:
            found = run_measure(meta, _watched(batches, on_progress), sink=writer.append)
        result = measured_result(found, case, limits)
        case.write_result("measure", result)
        case.seal()
    return Done(result, found.exit_code(limits))


def measured_result(found: Measurement, case: Case, limits: dict[str, float] | None) -> dict[str, Any]:
    """A measurement as `logdiff-measure/1`, with its case and the limits that were set."""
    data = found.as_dict()
    result = {"format": data.pop("format"), "case": str(case.path), **data}
    if limits is not None:
        result["fail_above"] = {"limits": limits, "exceeded": found.exceeded(limits)}
    return result


def _facts_of(case: Case) -> RunFacts:
    """What a live run left in its case beside the tokens: fingerprints and weight checksums of both sides."""
    import json

    from logdiff.measure import RunFacts

    fingerprints: dict[str, dict[str, Any]] = {}
    weights: dict[int, dict[str, dict[str, Any]]] = {}
    for side in ("rollout", "train"):
        folder = case.path / "sides" / side
        if (folder / "fingerprint.json").is_file():
            fingerprints[side] = json.loads((folder / "fingerprint.json").read_text(encoding="utf-8"))
        for file in sorted(folder.glob("weights-step*.json")):
            step = int(file.stem.removeprefix("weights-step"))
            weights.setdefault(step, {})[side] = json.loads(file.read_text(encoding="utf-8"))
    unavailable = case.read_result("measure").get("unavailable", {}) if case.has_result("measure") else {}
    return RunFacts(fingerprints=fingerprints, weights=weights, unavailable=unavailable)


def _new_case(folder: PathLike | None, name: str, kind: str, inputs: dict[str, Any]) -> Case:
    """A new case, or the open one in `folder` that the same work on the same input left unfinished."""
    from logdiff.case import Case

    if folder is None or not (Path(folder) / "manifest.json").exists():
        return Case.create(folder, name, kind, inputs)
    case = Case.open(folder)
    if case.is_complete or case.manifest.kind != kind or case.manifest.inputs != inputs:
        what = "is complete" if case.is_complete else "belongs to other input"
        hint = "give a new folder with --case"
        if case.is_complete and case.manifest.inputs == inputs:
            hint = f"it holds this input: `logdiff measure {folder}` measures it again; else give a new --case"
        raise CaseError(f"the case {what}", value=str(folder), hint=hint)
    return case


def _inputs(paths: Sequence[PathLike]) -> dict[str, Any]:
    entries = []
    for path in paths:
        stat = Path(path).stat()
        entries.append({"path": str(Path(path).resolve()), "size": stat.st_size, "mtime_ns": stat.st_mtime_ns})
    return {"files": entries}


def stem(path: PathLike) -> str:
    """A file's name up to its first dot: the name of the case that it makes."""
    return Path(path).name.split(".")[0]


def _watched(batches: Iterable[PairBatch], on_progress: OnProgress | None) -> Iterator[PairBatch]:
    from logdiff.target.engine import Progress

    tokens = 0
    for batch in batches:
        tokens += batch.tokens
        yield batch
        if on_progress is not None:
            on_progress(Progress("measure", tokens, None, "tokens"))


def compare(*, before: PathLike, after: PathLike, on_progress: OnProgress | None = None) -> Done:
    """Two measured cases side by side (`logdiff-compare/1`); exit code 1 when something changed."""
    from logdiff.measure import compare as run_compare

    data = run_compare(_measured(before), _measured(after))
    return Done(data, 1 if data["changed"] else 0)


def _measured(folder: PathLike) -> dict[str, Any]:
    from logdiff.case import Case

    with Case.open(folder) as case:
        if not case.has_result("measure"):
            raise CaseError("the case is not measured", value=str(folder), hint=f"logdiff measure {folder}")
        return {
            "case": str(case.path),
            "result": case.read_result("measure"),
            "fingerprints": _facts_of(case).fingerprints,
            "meta": case.meta.facts,
        }


def report(
    *,
    case: PathLike,
    output: PathLike | None = None,
    png: PathLike | None = None,
    before: PathLike | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Write the HTML report of a case (`logdiff-report/1`: `case`, `report`, `plots`)."""
    from contextlib import ExitStack

    from logdiff.case import Case
    from logdiff.report import render

    with ExitStack() as stack:
        opened = stack.enter_context(Case.open(case))
        earlier = stack.enter_context(Case.open(before)) if before is not None else None
        target = Path(output).resolve() if output is not None else opened.path / "report.html"
        written = render(opened, target, png, earlier)
        plots = [str(p) for p in written["png"]]
        return Done({"format": "logdiff-report/1", "case": str(opened.path), "report": str(target), "plots": plots})


def import_(
    *,
    format: str,
    paths: Sequence[PathLike],
    case: PathLike | None = None,
    mapping: dict[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> Done:
    """Read foreign records into a new case (`logdiff-case/1`: its manifest and where it is)."""
    from logdiff.case.importing import import_case
    from logdiff.target.engine import Progress

    def told(tokens: int) -> None:
        if on_progress is not None:
            on_progress(Progress("import", tokens, None, "tokens"))

    with import_case(format, paths, case, mapping, on_tokens=told) as made:
        manifest = made.manifest.as_dict()
        return Done({"format": manifest.pop("format"), "case": str(made.path), **manifest})


def query(*, case: PathLike, sql: str, limit: int = 1000, on_progress: OnProgress | None = None) -> Done:
    """Read-only SQL over a case (`logdiff-query/1`)."""
    from logdiff.case.query import query as run_query

    return Done(run_query(case, sql, limit_rows=limit))
