"""The task `capture`: what `force`, `rescore` or `score` would run, with its boundaries recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from logdiff_kernels import sequences as files
from logdiff_kernels.engines.base import TaskOutput
from logdiff_kernels.engines.transformers.boundaries.calls import Batch, Found
from logdiff_kernels.engines.transformers.boundaries.watch import Watch
from logdiff_kernels.engines.transformers.layout import Expect
from logdiff_kernels.errors import InputError
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.files import PHASES
from logdiff_kernels.observe.boundaries.recorder import Keep, Recorder, Rows
from logdiff_kernels.protocol import required


def capture(
    task: dict[str, Any],
    model: Any,
    run: Callable[[dict[str, Any], Expect], TaskOutput],
    facts: dict[str, str],
) -> TaskOutput:
    """Run a task of the adapter with hooks on.

    Args:
        task: {"task": "capture", "phase", "input", "logprobs", "output", ...} of docs/architecture.md.
        model: the loaded model.
        run: does the task that the phase stands for and writes its sequence file to the task's `output`.
        facts: `engine`, `side`, `model`, `dtype` of the file.

    Raises:
        InputError: a phase, row selection or sample that there isn't.
    """
    phase = required(task, "phase", str)
    if phase not in PHASES:
        raise InputError(f"unknown phase {phase!r}", value=phase, hint=f"one of: {', '.join(PHASES)}")
    path, scored = Path(required(task, "output", str)), required(task, "logprobs", str)
    given = files.read(required(task, "input", str))
    recorder = Recorder(given.sample_ids, given.prompts, given.responses, Keep.parse(task), path.parent)
    try:
        with Observer(model, recorder) as observer:
            done = run({**task, "output": scored}, observer.expect)
        columns = files.read(scored).columns
        recorder.logprobs(columns["logprobs"], columns.get("logprobs_null"))
        for note in observer.notes():
            recorder.note(note)
        data = recorder.write(path, phase=phase, unmapped=observer.unmapped(), extra=done.data, **facts)
    finally:
        recorder.close()
    return TaskOutput({"boundaries": path, **done.files}, {**done.data, **data})


class Observer:
    """Hands what a watch sees to a recorder, one pass per call of `expect`."""

    def __init__(self, model: Any, recorder: Recorder) -> None:
        self._recorder = recorder
        self._watch = Watch(model, self._wants)
        self._watch.emit, self._watch.received = self._emit, self._received
        self._device = model.device
        self._wanted: dict[int, bool] = {}
        self._who: tuple[torch.Tensor, torch.Tensor] | None = None
        self._got: dict[str, torch.Tensor] = {}
        self._queue: list[Found] = []

    def __enter__(self) -> Observer:
        self._watch.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._watch.__exit__(kind, error, at)
        if error is None:
            self._end()

    def expect(self, sample: torch.Tensor, position: torch.Tensor) -> None:
        """A forward over these rows comes next; calls of the model until the next `expect` belong to it."""
        self._end()
        kept = torch.from_numpy(self._recorder.kept(sample.reshape(-1)))
        self._who, self._got = (sample.reshape(-1), position.reshape(-1)), {}
        self._watch.batch = Batch((int(sample.shape[0]), int(sample.shape[1])), kept) if len(kept) else None

    def unmapped(self) -> list[dict[str, str]]:
        """Modules and layers that no boundary stood for; those that were not asked for are not counted."""
        return self._watch.unmapped()

    def notes(self) -> list[str]:
        """What a reader of the file must know."""
        compiled = self._watch.compiled()
        found = sorted(self._watch.trouble)
        if compiled:
            found.append(f"compiled parts: {', '.join(compiled)}; hooks split their graphs")
        return found

    def _wants(self, layer: int | None) -> bool:
        if layer is None:
            return self._recorder.wants("logits")
        if layer not in self._wanted:
            self._wanted[layer] = any(self._recorder.wants(f"layers.{layer}.{part}") for part in names.LAYER)
        return self._wanted[layer]

    def _received(self, what: str, values: torch.Tensor) -> None:
        assert self._watch.batch is not None
        if values.shape[0] in (1, self._watch.batch.size[0]):
            self._got[what] = values.expand(self._watch.batch.size).reshape(-1).cpu()

    def _emit(self, found: Found) -> None:
        if found.name == "embedding":  # positions are known when the first layer is done
            self._queue.append(found)
            return
        self._begin()
        self._give(found)

    def _begin(self) -> None:
        """Tell the recorder who the rows are, once per pass."""
        if self._who is not None:
            sample, position = self._who
            self._who = None
            unknown = torch.full_like(sample, -1)
            self._recorder.begin(Rows(sample, position, self._got.get("ids", unknown), self._got.get("positions")))
        queue, self._queue = self._queue, []
        for found in queue:
            self._give(found)

    def _give(self, found: Found) -> None:
        self._recorder.give(
            found.name,
            found.values,
            where=found.where,
            inputs=found.given,
            facts={"take": found.take, **found.facts},
            at=found.at if found.at is not None else self._recorder.kept_rows,
            every=found.every,
        )

    def _end(self) -> None:
        if self._who is not None:
            self._begin()
        self._recorder.end()
        self._watch.batch = None
