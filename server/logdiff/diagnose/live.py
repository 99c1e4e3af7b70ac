"""`logdiff diagnose RUN.yaml`: measure, look into both engines, change one thing, and judge; within limits."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.case import Case
from logdiff.diagnose import capture, toggles
from logdiff.diagnose.capture import Observed
from logdiff.diagnose.judge import judge
from logdiff.diagnose.known import Known, far_sides, has_moved, merged, share_of, suspects
from logdiff.diagnose.limits import Limits
from logdiff.live import RunFile, assemble
from logdiff.live.capture import read_json
from logdiff.live.layout import CHECKPOINTS, generated, rescored, scored
from logdiff.live.run import run
from logdiff.live.session import Session
from logdiff.localize.budget_run import budget
from logdiff.localize.configuration import configuration_findings, flat
from logdiff.localize.distance import distances
from logdiff.localize.finding import CONFIG, WEIGHTS
from logdiff.localize.operators import input_findings, operator_findings
from logdiff.localize.quantity import dtype_findings, gate_findings
from logdiff.localize.routing import routing
from logdiff.localize.weights import weight_findings
from logdiff.measure.gates.weights import tensor_differences
from logdiff.target import OnProgress, Timeouts
from logdiff.target.alignment import SIDES
from logdiff.verdict.causes import causes
from logdiff.verdict.offline import diagnose_pairs
from logdiff.verdict.records import Diagnosis

if TYPE_CHECKING:
    from logdiff.measure import Measurement

RESULT = "verdict"
BUDGET_SECONDS = 40.0
"""Below this no budget is begun: two engines start, and a few passes are needed."""


def diagnose_run(
    run_file: RunFile,
    case_dir: Path | str | None = None,
    *,
    source: str,
    max_seconds: float = 180.0,
    max_starts: int = 6,
    resume: bool = True,
    on_progress: OnProgress | None = None,
    cancel_token: threading.Event | None = None,
    timeouts: Timeouts | None = None,
    name: str | None = None,
) -> tuple[Diagnosis, Case]:
    """Capture a live comparison and go on until its cause is known or the limits are reached.

    Args:
        run_file: what to compare.
        case_dir: folder of the evidence; one that holds the same run goes on where it stopped.
        source: path of the run file, for the commands that repeat what was done.
        max_seconds: experiments that would not end in time are not begun; the first measurement is always made.
        max_starts: engines that may be started in all, those of the measurement included.
        resume: False refuses a folder that holds a case.
        on_progress, cancel_token, timeouts, name: as `logdiff.live.run`.

    Returns:
        the diagnosis and its sealed case: `results/verdict.json` is `logdiff-verdict/1`.

    Raises:
        as `logdiff.live.run`: no comparison could be made.
    """
    limits = Limits(max_seconds, max_starts)
    found: list[Diagnosis] = []

    def experiments(session: Session, measurement: Measurement) -> None:
        limits.used = lambda: session.starts
        repeat = f"logdiff diagnose {source} --case {session.case.path}"
        diagnosis = _Live(session, measurement, limits, repeat).diagnose()
        session.case.write_result(RESULT, diagnosis.as_dict())
        found.append(diagnosis)

    case = run(
        run_file, case_dir, floor="brief", resume=resume, on_progress=on_progress, cancel_token=cancel_token,
        timeouts=timeouts, name=name, kind="run", then=experiments,
    )  # fmt: skip
    return found[0], case


class _Live:
    """One diagnosis at work."""

    def __init__(self, session: Session, measurement: Measurement, limits: Limits, repeat: str) -> None:
        self._session = session
        self._measurement = measurement
        self._limits = limits
        self._classes = {cause.id: cause.class_ for cause in causes().values()}
        block = measurement.as_dict()
        self._known = Known(
            measure=block["measure"], floor=block["floor"], pairs=block["pairs"], repeat=repeat,
            reruns=_reruns(block["floor"]), own=[side for side in SIDES if session.run.spec(side).modules],
        )  # fmt: skip
        self._facts = assemble.facts(session.case.path, session.run.steps, measurement.unavailable)
        self._sums = self._facts.weights
        self._step = _step(block["measure"], session.run.steps, self._sums)
        self._observed = Observed(self._step)
        self._toggled: set[str] = set()

    def diagnose(self) -> Diagnosis:
        """All experiments that the limits allow, and the verdict."""
        known, session = self._known, self._session
        known.findings += gate_findings([gate.as_dict() for gate in self._measurement.gates])
        self._configuration(self._facts.fingerprints)
        if self._measurement.comparable and known.measure["mismatched_tokens"]:
            session.tell("diagnose", "looking into both engines")
            self._look()
            if any(f.rank <= CONFIG for f in known.findings):
                self._toggles()  # a cause is named already: its proof before a look at every operator
            self._check()
            session.close_free()
            self._toggles()
        else:
            self._weights(None)
        known.same_bits = self._observed.same_bits
        known.skipped = list(self._observed.skipped)
        for entry in known.toggles:
            session.case.journal.append("toggle", **entry)
        diagnosis = self._judged()
        if diagnosis.verdict.class_ in ("operator", "routing") and known.distances:
            self._budget()
            diagnosis = self._judged()
        return diagnosis

    def _budget(self) -> None:
        """Each operator's share by aligned replacements, and the smallest set that is enough."""
        why = self._limits.allow(BUDGET_SECONDS, 2)
        if why is not None:
            self._known.skipped.append(("budget", why))
            return
        self._session.tell("budget", "replacing operators")
        seconds = self._limits.seconds_left - 5.0
        made = budget(
            self._session, seconds=seconds, max_starts=self._limits.starts_left, step=self._step,
            floor=self._known.floor,
        )  # fmt: skip
        self._known.budget = made.records()
        self._known.sufficient = made.smallest
        if made.reason is not None:
            self._known.skipped.append(("budget", made.reason))

    def _judged(self) -> Diagnosis:
        """The verdict; where neither engine nor checkpoint could be asked, what the tokens alone say."""
        known, case = self._known, str(self._session.case.path)
        if known.measure["mismatched_tokens"] and not known.distances and not known.operators and not known.toggles:
            return self._from_tokens(case)
        return replace(judge(known), case=case)

    def _from_tokens(self, case: str) -> Diagnosis:
        session, known = self._session, self._known
        found, _ = diagnose_pairs(
            session.case.meta,
            assemble.batches(session.case.path, session.run.steps),
            self._facts,
            floor=known.floor,
            case=case,
            repeat=known.repeat,
        )
        skipped = [{"what": what, "why": why} for what, why in known.skipped]
        return replace(found, extra={**found.extra, "skipped": skipped})

    def _look(self) -> None:
        """Captures of both sides, and the checkpoint's own numbers."""
        session, observed, step = self._session, self._observed, self._step
        model = self._model()
        if model is None:
            observed.skipped.append(("reference", "no model folder of this side is at hand"))
            return
        config = read_json(model / "config.json")
        samples = capture.choose_samples(session, step, capture.values_per_row(config))
        capture.boundaries(session, observed, samples, self._limits)
        for side in ("rollout", "train"):
            session.close(side)
        why = self._limits.allow(10)
        if why is None:
            capture.reference(session, observed, model)
        else:
            observed.skipped.append(("reference", why))
        self._weights(observed)
        self._distances()
        self._known.routing = routing(session.case.path / generated(step), session.case.path / scored(step))

    def _check(self) -> None:
        """Every captured operator on its own inputs."""
        observed, known, model = self._observed, self._known, self._model()
        if model is None or not observed.boundaries:
            return
        why = self._limits.allow(10)
        if why is not None:
            observed.skipped.append(("operator checks", why))
            return
        capture.check(self._session, observed, model)
        known.operators = observed.operators
        known.findings += operator_findings(
            observed.operators,
            self._classes,
            known.repeat,
            self._sound(),
            self._session.run.sampling.temperature or 1.0,
        )
        known.findings += input_findings(observed.operators, self._classes, known.repeat)

    def _model(self) -> Path | None:
        """The folder that both sides should hold at the step that is looked at."""
        session = self._session
        if self._step > 0:
            folder = session.case.path / CHECKPOINTS / f"checkpoint-step{self._step}"
            if folder.is_dir():
                return folder
        named = session.run.model
        for side in ("train", "rollout"):
            if session.models[side] is not None and session.run.side_model(side) == named:
                return session.models[side]
        return Path(named) if Path(named).is_dir() else session.models["train"]

    def _configuration(self, fingerprints: dict[str, dict[str, Any]]) -> None:
        known, session = self._known, self._session
        models = {side: f["model"] for side, f in fingerprints.items() if isinstance(f.get("model"), dict)}
        model = self._model()
        checkpoint = read_json(model / "config.json") if model is not None else {}
        overrides = {side: flat(_overrides(session.spec(side).args)) for side in ("rollout", "train")}
        if len(models) == 2:
            known.findings += configuration_findings(models, checkpoint, overrides)
        dtypes = {side: session.spec(side).dtype for side in ("rollout", "train")}
        known.findings += dtype_findings(dtypes, session.run.dtype)

    def _weights(self, observed: Observed | None) -> None:
        """Weights of every step: those of the step that is looked at against the checkpoint, others side by side."""
        checkpoint = None
        if observed is not None and observed.reference is not None and observed.reference_folder is not None:
            name = observed.reference.get("weights")
            checkpoint = read_json(observed.reference_folder / name) if name else None
        for step, sides in self._sums.items():
            truth = checkpoint if step == self._step else None
            before = self._sums.get(step - 1, {}).get("train")
            source = f"sides/*/weights-step{step}.json"
            self._known.findings += weight_findings(sides, truth, step, source, before)

    def _sound(self) -> frozenset[str]:
        """Sides whose weights were compared with the checkpoint's and are equal."""
        if self._observed.reference is None or not self._observed.reference.get("weights"):
            return frozenset()
        off = {f.side for f in self._known.findings if f.rank == WEIGHTS}
        return frozenset(self._sums.get(self._step, {})) - off

    def _distances(self) -> None:
        observed, case, step = self._observed, self._session.case.path, self._step
        if observed.reference is None or observed.reference_folder is None:
            return
        scores = {d: observed.reference_folder / n for d, n in observed.reference["scores"].items()}
        if "float32" not in scores:
            return
        dtype = self._session.run.dtype
        columns = {"decode": generated(step), "prefill": rescored(step), "train": scored(step)}
        there = {name: case / path for name, path in columns.items() if (case / path).is_file()}
        own = scores.get(dtype) if dtype != "float32" else None
        self._known.distances = distances(there, scores["float32"], own)

    def _toggles(self) -> None:
        """Start accused sides without what is their own: the number moves, or it does not."""
        known, session = self._known, self._session
        for side in _accused(known):
            parts = list(toggles.removable(session.spec(side)))
            if not parts or side in self._toggled:
                continue
            self._toggled.add(side)
            result = toggles.toggle(session, side, parts, self._step, self._limits)
            if isinstance(result, str):
                self._observed.skipped.append((f"{side} started plain", result))
                continue
            known.toggles.append(result.as_dict())
            if has_moved(result.as_dict()) and len(parts) > 1:
                self._narrow(side, parts)

    def _narrow(self, side: str, parts: list[str]) -> None:
        """Which of several things that were left out together it was."""
        for part in parts[:-1]:
            result = toggles.toggle(self._session, side, [part], self._step, self._limits)
            if isinstance(result, str):
                self._observed.skipped.append((f"{side} without {part}", result))
                return
            if has_moved(result.as_dict()):
                self._known.toggles = [t for t in self._known.toggles if t["side"] != side] + [result.as_dict()]
                return


def _accused(known: Known) -> list[str]:
    """Sides worth a restart, the most suspicious first; both where something is off and nobody is named."""
    found = [f for f in merged(known.findings) if f.rank > WEIGHTS]
    sides = [f.side for f in sorted(found, key=lambda f: -share_of(f, known)) if f.side in ("rollout", "train")]
    sides += list(far_sides(known))
    sides += known.reruns + suspects(known)
    if not sides and (not known.distances or any(f.side in ("unknown", "both") for f in found)):
        sides = ["train", "rollout"]
    return [side for side in dict.fromkeys(sides) if side in ("rollout", "train")]


def _overrides(args: dict[str, Any]) -> dict[str, Any]:
    """Arguments that may change the model's configuration: those of `hf_overrides`, and plain keys."""
    nested = args.get("hf_overrides")
    return {**args, **(nested if isinstance(nested, dict) else {})}


def _reruns(floor: dict[str, Any]) -> list[str]:
    """Sides whose log-probabilities change when the same task is done again."""
    found = []
    for axis in floor.get("axes", []):
        if axis.get("axis") == "rerun" and axis.get("value") == "same" and axis.get("mismatched_tokens"):
            found.append("train" if axis["side"] == "train" else "rollout")
    return list(dict.fromkeys(found))


def _step(measure: dict[str, Any], steps: int, sums: dict[int, dict[str, dict[str, Any]]]) -> int:
    """The step to look at: the last one where its weights differ or it is much worse than the first, else the first.

    Only the last step's checkpoint is still there.
    """
    if steps == 1:
        return 0
    last = steps - 1
    sides = sums.get(last, {})
    if len(sides) == 2 and tensor_differences(sides["rollout"], sides["train"]):
        return last
    by_step = measure.get("by_step") or {}
    means = [(by_step.get(str(step)) or {}).get("mean_abs") for step in (0, last)]
    first, final = (float(m) if isinstance(m, (int, float)) else 0.0 for m in means)
    return last if final > 1.5 * first else 0
