"""`logdiff run`: capture both sides of a run file into a case, measure, seal; resumable at any moment."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import logdiff
from logdiff.case import Case
from logdiff.errors import CaseError, LogdiffError
from logdiff.jsonio import dumps
from logdiff.live import assemble, capture
from logdiff.live.alignment import check_aligned, ignored_variable, sources_digest, write_overlay
from logdiff.live.engine_tasks import build_model
from logdiff.live.floor import (
    FloorCapture,
    Level,
    capture_restarts,
    capture_rollout_floor,
    capture_train_floor,
    summarise,
)
from logdiff.live.layout import CHECKPOINTS
from logdiff.live.models import check_model_folder
from logdiff.live.runfile import BUILTIN, RunFile
from logdiff.live.session import Session
from logdiff.target import OnProgress, Timeouts

if TYPE_CHECKING:
    from logdiff.measure import Measurement

UNAVAILABLE_WITH_RESCORE = ("decode_rescore", "rescore_train")

Then = Callable[[Session, "Measurement"], None]


def run(
    run_file: RunFile,
    case_dir: Path | str | None = None,
    *,
    floor: Level | None = None,
    resume: bool = True,
    on_progress: OnProgress | None = None,
    cancel_token: threading.Event | None = None,
    timeouts: Timeouts | None = None,
    name: str | None = None,
    kind: str = "run",
    then: Then | None = None,
) -> Case:
    """Capture, measure and seal one live comparison.

    A case folder that holds the same run goes on where it stopped; one that is complete is returned as it is, or
    gets the floor that it lacks.

    Args:
        run_file: what to compare.
        case_dir: folder of the case; None takes a new one under ./runs.
        floor: also measure each side against itself: "quick" on the engines as they stand, "full" also with
            restarted engines, "brief" a few axes of "quick".
        resume: False refuses a folder that holds a case.
        on_progress: called from this thread, and from no other.
        cancel_token: set from another thread to stop; `CancelledError` is raised and the case stays resumable.
        timeouts: limits of engines.
        name: name of the case; default: the model folder's.
        kind: "run" or "demo".
        then: more work on the measured case before it is sealed, with the engines still there where memory allows.

    Returns:
        The sealed case: `results/measure.json` is `logdiff-measure/1`.

    Raises:
        InputError, EngineError, EvidenceError: no comparison; what was captured stays in the case.
        CaseError: the folder holds something else, or another process uses it.
        CancelledError: cancelled or out of time.
    """
    models = resolve_models(run_file, on_progress, cancel_token)
    inputs = {"run": run_file.public(), "digest": _digest(run_file, models)}
    with _opened(case_dir, name or _name(run_file), kind, inputs, resume) as case:
        if case.is_complete:
            if not _floor_missing(case, floor) and then is None:
                return case
            case.unseal(f"floor {floor}" if then is None else "more experiments")
        try:
            with Session(
                case, run_file, models, timeouts=timeouts or Timeouts(), on_progress=on_progress, cancel=cancel_token
            ) as session:
                _capture_and_measure(session, floor, then)
        except LogdiffError as error:
            if _captured(case):
                error.hint = f"{error.hint}; what was captured is kept, --case {case.path} goes on from there".lstrip(
                    "; "
                )
            raise
        shutil.rmtree(case.path / CHECKPOINTS, ignore_errors=True)
        case.seal()
        return case


def resolve_models(
    run_file: RunFile, on_progress: OnProgress | None = None, cancel: threading.Event | None = None
) -> dict[str, Path | None]:
    """Folder of each side's model, small local models built; None for a server, which has its own.

    Raises:
        InputError: no model folder, or one without configuration or weights.
    """
    folders: dict[str, Path | None] = {}
    built: dict[str, Path] = {}
    for side in ("train", "rollout"):
        spec = run_file.spec(side)
        if spec.engine == "vllm-http":
            folders[side] = None
            continue
        if spec.model.startswith(BUILTIN):
            model = spec.model.removeprefix(BUILTIN)
            if model not in built:
                built[model] = build_model(model, spec.python, on_progress, cancel=cancel)
            folders[side] = built[model]
        else:
            folders[side] = Path(spec.model)
        check_model_folder(Path(folders[side] or ""), needs_weights=spec.args.get("load_format") != "dummy")
    return folders


def _capture_and_measure(session: Session, floor: Level | None, then: Then | None) -> None:
    from logdiff.measure import measure

    case, steps = session.case, session.run.steps
    together = steps > 1 or (then is not None and fit_together(session.models))
    captured = FloorCapture(floor) if floor is not None else None
    unavailable: dict[str, str] = {}
    session.tell("case", str(case.path))
    ignored = ignored_variable(session.run)
    if ignored is not None:
        session.tell("align", ignored)
    write_overlay(case, session.run)
    prompts = capture.capture_prompts(session)
    for step in range(steps):
        session.tell(f"step{step}", f"step {step + 1} of {steps}")
        rescore = capture.capture_rollout(session, step, prompts)
        if rescore.reason is not None:
            unavailable = dict.fromkeys(UNAVAILABLE_WITH_RESCORE, rescore.reason)
        if captured is not None and step == 0:
            capture_rollout_floor(session, captured)
        if not together:
            session.close("rollout")  # one engine in memory at a time
        capture.capture_train(session, step)
        if captured is not None and step == 0:
            capture_train_floor(session, captured)
    for engine in ("rollout", "train"):
        if then is None:
            session.close(engine)
    if captured is not None and captured.level == "full":
        capture_restarts(session, captured)
    session.tell("measure", "measuring")
    facts = assemble.facts(case.path, steps, unavailable)
    check_aligned(session.run, facts.fingerprints)
    meta = assemble.meta(session, facts)
    case.write_meta(meta)
    with case.open_writer() as writer:
        measurement = measure(meta, assemble.batches(case.path, steps), facts, sink=writer.append)
    if captured is not None:
        summary = summarise(session, captured)
        case.write_result("floor", {"format": "logdiff-floor/1", **summary})
        measurement = measurement.with_floor(summary)
    elif case.has_result("floor"):
        measurement = measurement.with_floor({k: v for k, v in case.read_result("floor").items() if k != "format"})
    case.write_result("measure", {**measurement.as_dict(), "case": str(case.path)})
    if then is not None:
        then(session, measurement)


def fit_together(models: dict[str, Path | None]) -> bool:
    """Whether both engines fit into memory at once: twice the weights of each, and as much again to work with."""
    weights = sum(
        file.stat().st_size
        for folder in models.values()
        if folder is not None
        for pattern in ("*.safetensors", "*.bin")
        for file in folder.glob(pattern)
    )
    return 4 * weights < _available()


def _available() -> int:
    """Bytes of memory that are free to use; 0 where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


@contextmanager
def _opened(case_dir: Path | str | None, name: str, kind: str, inputs: dict[str, Any], resume: bool) -> Iterator[Case]:
    """The case to work in: a new one, or the one in the folder when it was made from the same inputs."""
    folder = Path(case_dir) if case_dir is not None else None
    if folder is not None and (folder / "manifest.json").is_file():
        if not resume:
            raise CaseError("the folder holds a case", value=str(folder), hint="give a new folder with --case")
        case = Case.open(folder)
        if case.manifest.inputs.get("digest") != inputs["digest"]:
            if case.is_complete or _captured(case):
                raise CaseError(
                    "the case in this folder was made from another run file, model or version of logdiff",
                    value=str(folder),
                    hint="give a new folder with --case",
                )
            _clear(case)  # nothing was captured: a run file that had to be corrected first
            case = Case.create(folder, name, kind, inputs)
    else:
        case = Case.create(folder, name, kind, inputs)
    with case:
        yield case


def _captured(case: Case) -> bool:
    """Whether an engine has left something in the case."""
    return any(r["event"] == "output" and r.get("task") not in ("prompts", "tokenize") for r in case.journal.read())


def _clear(case: Case) -> None:
    """Remove what a run left that never came to capture anything."""
    with case:
        case.journal.append("abandoned")  # takes the lock, so no other process works here
        for name in ("captures", "logs", "sides", CHECKPOINTS):
            shutil.rmtree(case.path / name, ignore_errors=True)
        for name in ("journal.jsonl", "manifest.json"):
            (case.path / name).unlink(missing_ok=True)


def _floor_missing(case: Case, level: Level | None) -> bool:
    if level is None:
        return False
    if not case.has_result("floor"):
        return True
    levels = ("brief", "quick", "full")
    had = case.read_result("floor").get("level")
    return had not in levels or levels.index(level) > levels.index(had)


def _name(run_file: RunFile) -> str:
    return Path(run_file.model.removeprefix(BUILTIN)).name or "run"


def _digest(run_file: RunFile, models: dict[str, Path | None]) -> str:
    """SHA-256 of what decides the captured numbers: the run, the model folders' state, this version, and for an
    aligned run the operators' sources."""
    folders = {}
    for side, folder in models.items():
        if folder is not None:
            stats = {p.name: p.stat() for p in sorted(folder.iterdir()) if p.is_file()}
            folders[side] = {name: [s.st_size, s.st_mtime_ns] for name, s in stats.items()}
    parts: dict[str, Any] = {"run": run_file.digest(), "models": folders, "logdiff": logdiff.__version__}
    sources = sources_digest(run_file)
    if sources is not None:
        parts["aligned"] = sources
    return hashlib.sha256(dumps(parts).encode()).hexdigest()
