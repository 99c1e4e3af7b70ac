"""Diagnosis: a verdict on a run file, on pair files or on a case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.actions.done import Done, PathLike
from logdiff.actions.evidence import _facts_of, _inputs, _new_case, _watched, measured_result, stem
from logdiff.errors import InputError

if TYPE_CHECKING:
    from logdiff.case import Case
    from logdiff.target.engine import OnProgress
    from logdiff.verdict import Diagnosis

VERDICT = "verdict"


def diagnose(
    *,
    targets: Sequence[PathLike],
    case: PathLike | None = None,
    max_seconds: float = 180.0,
    max_starts: int = 6,
    resume: bool = True,
    on_progress: OnProgress | None = None,
) -> Done:
    """Why the two sides differ (`logdiff-verdict/1`), from a run file, pair files, or the tokens of a case.

    A run file starts its engines; pair files and cases start nothing, and are judged as far as they carry.

    Args:
        targets: one run file, one case folder, or pair files.
        case: folder for the evidence.
        max_seconds, max_starts, resume: limits of a live diagnosis.
        on_progress: takes progress.

    Raises:
        InputError: no input, an unreadable one, or a run file or case among several inputs.
        CaseError: the case holds other work.
    """
    if not targets:
        raise InputError("no input", hint="give a run file, pair files or one case folder")
    folders = [t for t in targets if Path(t).is_dir()]
    runs = [t for t in targets if Path(t).suffix.lower() in (".yaml", ".yml")]
    if (folders or runs) and len(targets) > 1:
        alone = (folders or runs)[0]
        raise InputError("a case folder or run file is diagnosed alone", value=str(alone), hint="give one of them")
    if runs:
        from logdiff.actions.diagnose_live import diagnose_live

        return diagnose_live(
            run_file=runs[0],
            case=case,
            max_seconds=max_seconds,
            max_starts=max_starts,
            resume=resume,
            on_progress=on_progress,
        )
    if folders:
        return _diagnose_case(folders[0], on_progress)
    return _diagnose_files(targets, case, on_progress)


def _diagnose_case(folder: PathLike, on_progress: OnProgress | None) -> Done:
    from logdiff.case import Case
    from logdiff.verdict.offline import diagnose_case
    from logdiff.verdict.records import exit_code

    with Case.open(folder) as case:
        if case.has_result(VERDICT) and case.manifest.kind == "run":
            data = case.read_result(VERDICT)  # of live experiments: the tokens alone say less
            if data.get("distances") or data.get("toggles") or case.has_result("operators"):
                return Done(data, exit_code(data["verdict"]["class"]))
        found = diagnose_case(case, _facts_of(case), watch=lambda batches: _watched(batches, on_progress))
        with case.extended("diagnosed"):
            _keep(case, found)
    return Done(found.as_dict(), found.exit_code)


def _diagnose_files(paths: Sequence[PathLike], case_dir: PathLike | None, on_progress: OnProgress | None) -> Done:
    from logdiff.case.readers import read_pairs
    from logdiff.verdict.offline import diagnose_pairs

    meta, batches = read_pairs(paths)
    repeat = "logdiff diagnose " + " ".join(str(p) for p in paths)
    with _new_case(case_dir, stem(paths[0]), "measure", _inputs(paths)) as case:
        case.write_meta(meta)
        with case.open_writer() as writer:
            found, measured = diagnose_pairs(
                meta,
                _watched(batches, on_progress),
                case=str(case.path),
                source="tokens.parquet",
                repeat=repeat,
                sink=writer.append,
            )
        case.write_result("measure", measured_result(measured, case, None))
        _keep(case, found)
        case.seal()
    return Done(found.as_dict(), found.exit_code)


def _keep(case: Case, found: Diagnosis) -> None:
    data: dict[str, Any] = found.as_dict()
    case.write_result(VERDICT, data)
    case.journal.append("diagnosed", verdict=data["verdict"]["class"], cause=data["verdict"]["cause"])
