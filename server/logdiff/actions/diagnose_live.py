"""Live diagnosis and localisation of a run file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.actions.done import Done, PathLike
from logdiff.actions.evidence import stem
from logdiff.errors import EvidenceError, InputError

if TYPE_CHECKING:
    from logdiff.target.engine import OnProgress

OPERATORS = "operators"


def diagnose_live(
    *,
    run_file: PathLike,
    case: PathLike | None = None,
    max_seconds: float = 180.0,
    max_starts: int = 6,
    resume: bool = True,
    on_progress: OnProgress | None = None,
) -> Done:
    """Diagnose a run file on its engines (`logdiff-verdict/1`); see `logdiff.diagnose.live.diagnose_run`."""
    from logdiff.diagnose.live import diagnose_run
    from logdiff.live import load_run_file

    if max_seconds < 0 or max_starts < 0:
        raise InputError("a limit is below 0", value=min(max_seconds, max_starts), hint="--max-seconds 180")
    loaded = load_run_file(Path(run_file))
    try:
        found, made = diagnose_run(
            loaded,
            None if case is None else Path(case),
            source=str(run_file),
            max_seconds=max_seconds,
            max_starts=max_starts,
            resume=resume,
            on_progress=on_progress,
            name=stem(run_file),
        )
    except EvidenceError as error:  # the engines ran, and what they left proves nothing
        return _no_evidence(error, case)
    with made:
        return Done(found.as_dict(), found.exit_code)


def _no_evidence(error: EvidenceError, case: PathLike | None) -> Done:
    from logdiff.verdict.records import Diagnosis, Evidence, NextExperiment, Verdict

    verdict = Verdict("invalid-evidence", "unknown", None, None, 0.95, error.message)
    found = Diagnosis(
        verdict,
        measure={"tokens": 0},
        evidence=(Evidence(error.message, str(error.value) if error.value is not None else None),),
        next_experiments=(NextExperiment(error.hint, "logdiff diagnose RUN.yaml"),) if error.hint else (),
        case=None if case is None else str(case),
    )
    return Done(found.as_dict(), found.exit_code)


def localize(
    *,
    target: PathLike,
    case: PathLike | None = None,
    max_seconds: float = 180.0,
    on_progress: OnProgress | None = None,
) -> Done:
    """Where two sides part (`logdiff-localize/1`): first divergence, growth, operators that are off, wrong inputs.

    Args:
        target: a case that was diagnosed, or a run file, which is diagnosed first.
        case: folder of the evidence of a run file.
        max_seconds: limit of that diagnosis.
        on_progress: takes progress.

    Raises:
        InputError: neither a run file nor a case with captured operators.
    """
    from logdiff.case import Case

    path = Path(target)
    if (path / "manifest.json").is_file():
        folder = path
    elif path.is_file():
        made = diagnose_live(run_file=path, case=case, max_seconds=max_seconds, on_progress=on_progress)
        folder = Path(str(made.data["case"]))
    else:
        raise InputError("neither a run file nor a case folder", value=str(target), hint="logdiff localize RUN.yaml")
    with Case.open(folder) as opened:
        if not opened.has_result(OPERATORS):
            raise InputError(
                "nobody looked into the engines of this case",
                value=str(folder),
                hint=f"logdiff diagnose RUN.yaml --case {folder}, with its run file",
            )
        report = opened.read_result(OPERATORS)
    data = localized(report, str(folder))
    return Done(data, 1 if data["off"] or data["inputs"] or data["first_divergence"] else 0)


def localized(report: dict[str, Any], case: str) -> dict[str, Any]:
    """`logdiff-localize/1` of a `logdiff-operators/1`."""
    off = [
        {key: check.get(key) for key in ("side", "phase", "boundary", "operator", "error", "clean_error", "ratio")}
        | {"why": _said(check)}
        for check in report.get("checks", [])
        if check.get("ok") is False
    ]
    growth = report.get("divergence", [])
    first = next((entry for entry in growth if (entry.get("bits_differ") or 0) > 0), None)
    return {
        "format": "logdiff-localize/1",
        "case": case,
        "first_divergence": first,
        "off": off,
        "inputs": [entry for entry in report.get("inputs", []) if entry.get("ok") is False],
        "judged": sum(1 for check in report.get("checks", []) if check.get("ok") is not None),
        "coverage": report.get("coverage", {}),
        "divergence": growth,
    }


def _said(check: dict[str, Any]) -> str | None:
    fits = [v["statement"] for v in check.get("variants", []) if v.get("fits")]
    return str(fits[0]) if fits else check.get("why")
