"""The floor: each side against itself on the same tokens when only the shape of the work varies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from logdiff.errors import EngineError, InputError
from logdiff.live.capture import read_json, score_task, scoring, setting
from logdiff.live.layout import floor_axis, generated, rescored, scored
from logdiff.live.session import Outcome, Session
from logdiff.measure import floor_summary, self_stats
from logdiff.target import EngineSpec

Level = Literal["brief", "quick", "full"]
"""brief: rerun, one at a time, other order or padding; quick: every axis of a running engine; full: restarts too."""
BRIEF = frozenset({("rerun", "same"), ("rerun", "subset"), ("batch", 1), ("order", "reversed")})
BRIEF_TRAIN = frozenset({"rerun", "micro_batch_size", "padding_side"})
BUDGET = 4096
"""Tokens that the floor is measured on: whole samples from the first on, at least one."""
SUBSET = "captures/step0/floor/input.safetensors"


@dataclass(frozen=True, slots=True)
class Axis:
    """One variation: `task` on `engine`, started with `args` on top of the side's own when it is another start.

    Args:
        side: "rollout" (decode), "rescore" or "train": whose baseline it is compared with.
        name, value: what varies, as the result names it.
        task: the task of the runner protocol, without its input.
        args: engine arguments of this axis alone; None uses the engine that made the baseline.
    """

    side: str
    name: str
    value: Any
    task: dict[str, Any]
    args: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """Name of the task in the case."""
        return f"floor/{self.side}/{self.name}={self.value}"

    @property
    def output(self) -> str:
        """Path of its sequence file in the case."""
        return floor_axis(self.side, self.name, self.value)


@dataclass(slots=True)
class FloorCapture:
    """What was captured, axis by axis, and which engines refused to start (name -> words)."""

    level: Level
    outcomes: list[tuple[Axis, Outcome]] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def floor_input(session: Session) -> Path:
    """The sequence file that the floor is measured on: the rollout's own, or its first samples up to the budget."""
    from logdiff.case.sequences import build_sequences, read_sequences, write_sequences

    whole_path = session.case.path / generated(0)
    whole = read_sequences(whole_path)
    if whole.tokens <= BUDGET or len(whole.sample_ids) == 1:
        return whole_path
    path = session.case.path / SUBSET
    count = 1
    assert whole.response_offsets is not None
    while count < len(whole.sample_ids) and whole.response_offsets[count + 1] <= BUDGET:
        count += 1
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sequences(
        path,
        build_sequences(
            whole.sample_ids[:count],
            [whole.prompt(i).tolist() for i in range(count)],
            [whole.response(i).tolist() for i in range(count)],
        ),
    )
    return path


def capture_rollout_floor(session: Session, capture: FloorCapture) -> None:
    """Decode and rescore the given tokens again in other shapes, on the rollout engine as it stands."""
    spec, source = session.spec("rollout"), floor_input(session)
    sampling = session.run.sampling.request()
    if spec.engine == "transformers":
        for axis in _score_axes("rollout", sampling, spec.score, whole=_is_whole(source), level=capture.level):
            _run(session, capture, axis, "rollout", spec, source)
        return
    for side, task in (("rollout", "force"), ("rescore", "rescore")):
        base = {"task": task, "sampling": sampling if task == "force" else scoring(sampling)}
        for axis in _order_axes(side, base, source, capture.level):
            outcome = _run(session, capture, axis, "rollout", spec, source)
            if outcome.path is None:
                break  # the engine can't do this task in any shape; the reason is kept once


def capture_train_floor(session: Session, capture: FloorCapture) -> None:
    """Score the given tokens again in other layouts, on the train engine as it stands."""
    spec, source = session.spec("train"), floor_input(session)
    sampling = session.run.sampling.request()
    for axis in _score_axes("train", sampling, spec.score, whole=_is_whole(source), level=capture.level):
        _run(session, capture, axis, "train", spec, source)


def capture_restarts(session: Session, capture: FloorCapture) -> None:
    """`full`: axes that need an engine of other arguments; one that the engine refuses is kept with its words."""
    source = floor_input(session)
    sampling = session.run.sampling.request()
    decode = {"task": "force", "sampling": sampling, "batch": None, "order": "given"}
    again = {"task": "rescore", "sampling": scoring(sampling), "batch": None, "order": "given"}
    spec = session.spec("rollout")
    if spec.engine == "vllm-http":
        axis = Axis("rollout", "restart", "same", decode)
        capture.outcomes.append((axis, Outcome(None, reason="a running server is not restarted from here")))
    else:
        for name, value, args in _restarts(session, spec):
            tasks = [("rollout", decode), ("rescore", again)]
            if spec.engine == "transformers":
                tasks = [("rollout", score_task(source, sampling, spec.score))]
            engine = f"floor-{name}-{value}"
            changed = replace(spec, args={**spec.args, **args})
            for side, task in tasks:
                _run(session, capture, Axis(side, name, value, task, args), engine, changed, source)
            session.close(engine)
    train = session.spec("train")
    axis = Axis("train", "restart", "same", score_task(source, sampling, train.score), {})
    _run(session, capture, axis, "floor-train-restart", train, source)
    session.close("floor-train-restart")


def summarise(session: Session, capture: FloorCapture) -> dict[str, Any]:
    """The `floor` block of `logdiff-measure/1`: `floor_summary` of all axes, what it was measured on, what was not."""
    from logdiff.case.sequences import read_sequences

    source = read_sequences(floor_input(session))
    whole = read_sequences(session.case.path / generated(0))
    baselines = {"rollout": generated(0), "rescore": rescored(0), "train": scored(0)}
    rows, skipped = [], []
    for axis, outcome in capture.outcomes:
        where = {"side": axis.side, "axis": axis.name, "value": axis.value}
        baseline = session.case.path / baselines[axis.side]
        if outcome.path is None or not baseline.is_file():
            skipped.append({**where, "reason": outcome.reason or "its side has no baseline"})
            continue
        statistics = _against(baseline, outcome.path)
        rows.append({**where, **statistics})
    return {
        **floor_summary(rows),
        "level": capture.level,
        "measured_on": {
            "samples": len(source.sample_ids),
            "of_samples": len(whole.sample_ids),
            "tokens": source.tokens,
            "of_tokens": whole.tokens,
            "budget": BUDGET,
        },
        "skipped": skipped,
    }


def _against(baseline: Path, other: Path) -> dict[str, Any]:
    """`self_stats` of the samples of `other` against the same samples of `baseline`."""
    import numpy as np

    from logdiff.case.sequences import read_sequences

    first, second = read_sequences(baseline), read_sequences(other)
    assert second.response_offsets is not None
    place = {name: i for i, name in enumerate(first.sample_ids)}
    spans = []
    for i, name in enumerate(second.sample_ids):
        j = place.get(name)
        if j is None or first.response(j).tolist() != second.response(i).tolist():
            raise EngineError("a floor run answered other tokens", value=f"{other.name}: {name}", hint="see its log")
        spans.append(np.arange(first.span(j).start, first.span(j).stop))
    rows = np.concatenate(spans) if spans else np.zeros(0, dtype=np.int64)
    empty = np.zeros(first.tokens, dtype=np.uint8)
    null = (first.columns.get("logprobs_null", empty)[rows] != 0).astype(np.bool_)
    null_other = (second.columns.get("logprobs_null", np.zeros(second.tokens, np.uint8)) != 0).astype(np.bool_)
    return self_stats(
        first.columns["logprobs"][rows],
        second.columns["logprobs"],
        second.response_offsets,
        null_baseline=null,
        null_other=null_other,
        sample_ids=second.sample_ids,
    )


def _run(session: Session, capture: FloorCapture, axis: Axis, engine: str, spec: EngineSpec, source: Path) -> Outcome:
    """Capture one axis. An engine that can't be started or used with the axis's own arguments is a skipped axis."""
    if engine in capture.refused:
        outcome = Outcome(None, reason=capture.refused[engine])
        capture.outcomes.append((axis, outcome))
        return outcome
    task = {**axis.task, "input": str(source)}
    try:
        outcome = session.do(axis.key, engine, spec, task, output=axis.output, inputs=[source])
    except (EngineError, InputError) as error:
        if axis.args is None:
            raise
        session.close(engine)
        session.case.journal.append("floor_axis_failed", task=axis.key, error=error.message[:2000])
        capture.refused[engine] = (
            f"the engine refused to start with {axis.args or 'the same arguments'}: {error.message[:2000]}"
        )
        outcome = Outcome(None, reason=capture.refused[engine])
    capture.outcomes.append((axis, outcome))
    return outcome


def _order_axes(side: str, base: dict[str, Any], source: Path, level: Level) -> Iterator[Axis]:
    """Rerun; batch 1, 2, 4, ... below n; reversed and shuffled order; `brief` leaves some out."""
    count = _samples(source)
    sizes = [1 << i for i in range(max(count - 1, 0).bit_length())]
    axes = [("rerun", _rerun(whole=_is_whole(source))), *(("batch", size) for size in sizes)]
    if count > 1:
        axes += [("order", "reversed"), ("order", "shuffled:1")]
    for name, value in axes:
        if level == "brief" and (name, value) not in BRIEF:
            continue
        batch, order = (value if name == "batch" else None), (value if name == "order" else "given")
        yield Axis(side, name, value, {**base, "batch": batch, "order": order})


def _rerun(*, whole: bool) -> str:
    """A rerun of a subset is decoded in a smaller batch than its baseline was; its name says so."""
    return "same" if whole else "subset"


def _is_whole(source: Path) -> bool:
    return source.name != Path(SUBSET).name


def _score_axes(
    side: str, sampling: dict[str, Any], score: dict[str, Any], *, whole: bool, level: Level
) -> Iterator[Axis]:
    """Rerun; micro-batch 1; reversed order; the other padding side; the other layouts; `brief` leaves some out."""
    for axis in _all_score_axes(side, sampling, score, whole=whole):
        if level != "brief" or axis.name in BRIEF_TRAIN:
            yield axis


def _all_score_axes(side: str, sampling: dict[str, Any], score: dict[str, Any], *, whole: bool) -> Iterator[Axis]:

    def axis(name: str, value: Any, order: str = "given", **changed: Any) -> Axis:
        task = score_task(Path(), sampling, {**score, **changed}, order)
        return Axis(side, name, value, task)

    yield axis("rerun", _rerun(whole=whole))
    if score["layout"] != "single" and score["micro_batch_size"] > 1:
        yield axis("micro_batch_size", 1, micro_batch_size=1)
    yield axis("order", "reversed", order="reversed")
    if score["layout"] == "padded":
        other = "left" if score["padding_side"] == "right" else "right"
        yield axis("padding_side", other, padding_side=other)
    for layout in ("single", "padded"):
        if layout != score["layout"]:
            yield axis("layout", layout, layout=layout)


def _restarts(session: Session, spec: EngineSpec) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, value and arguments of every restart of the rollout engine."""
    yield "restart", "same", {}
    if spec.engine != "vllm":
        return
    path = session.case.path / "sides/rollout/fingerprint.json"
    fingerprint = read_json(path) if path.is_file() else {}

    def current(name: str) -> Any:
        known = setting(fingerprint, name)
        return spec.args.get(name) if known is None else known

    for value, more in ((True, {"max_num_batched_tokens": 64, "max_num_seqs": 16}), (False, {})):
        if value or current("enable_chunked_prefill") is not False:
            yield "enable_chunked_prefill", value, {"enable_chunked_prefill": value, **more}
    for value in (True, False):
        if current("enable_prefix_caching") is not value:
            yield "enable_prefix_caching", value, {"enable_prefix_caching": value}
    size = 64 if current("block_size") == 32 else 32
    yield "block_size", size, {"block_size": size}
    eager = not bool(current("enforce_eager"))
    yield "enforce_eager", eager, {"enforce_eager": eager}


def _samples(path: Path) -> int:
    from logdiff.case.sequences import read_sequences

    return len(read_sequences(path).sample_ids)
