"""One run at work: its case, its engines, and which tasks are done already."""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from logdiff.case import Case
from logdiff.case.files import sha256_file
from logdiff.errors import CancelledError, EngineError, InputError
from logdiff.jsonio import dumps
from logdiff.live.alignment import engine_spec
from logdiff.live.layout import CHECKPOINTS, generated
from logdiff.live.runfile import RunFile
from logdiff.target import Engine, EngineSpec, OnProgress, Progress, Timeouts, UnsupportedError, start
from logdiff.target.alignment import VARIABLE
from logdiff.target.local import LocalRunner

MAX_DATA = 64 << 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task left: `path` of its output, or `reason` why the engine can't do it."""

    path: Path | None
    data: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None

    @property
    def file(self) -> Path:
        """The output. Raises `EngineError` where the engine could not do a task that the run can't go without."""
        if self.path is None:
            raise EngineError(self.reason or "no output", hint="use an engine that can do it")
        return self.path


@dataclass(slots=True)
class _Slot:
    engine: Engine
    step: int


class Session:
    """Runs tasks at most once per case: what the journal records with unchanged inputs and output is not done again.

    Engines are started, and weights updated and synced, when the first task needs them. Use as a context manager: it
    ends every engine.
    """

    def __init__(
        self,
        case: Case,
        run: RunFile,
        models: dict[str, Path | None],
        *,
        timeouts: Timeouts,
        on_progress: OnProgress | None,
        cancel: threading.Event | None,
    ) -> None:
        self.case = case
        self.run = run
        self.models = models
        self._timeouts = timeouts
        self._on_progress = on_progress
        self._cancel = cancel
        self._slots: dict[str, _Slot] = {}
        self._hashes: dict[Path, str] = {}
        self._unsupported: dict[str, tuple[str, str]] = {
            str(r["task"]): (str(r.get("request")), str(r.get("reason")))
            for r in case.journal.read()
            if r["event"] == "unsupported"
        }
        self._starts = sum(1 for r in case.journal.read() if r["event"] == "engine_starting")
        self._free: LocalRunner | None = None
        self.switchable = False
        """Whether engines are started such that operators can be switched in place; stock calls stay stock."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._slots):
            self.close(name)
        self.close_free()

    def spec(self, side: str) -> EngineSpec:
        """The engine of a side on the folder that its model was resolved to."""
        return engine_spec(self.run.spec(side, self.models[side]), self.run, self.case.path, self.switchable)

    def do(
        self,
        key: str,
        engine: str,
        spec: EngineSpec,
        task: dict[str, Any],
        *,
        output: str,
        inputs: Sequence[Path] = (),
        step: int = 0,
        optional: bool = False,
    ) -> Outcome:
        """Do one task with the engine named `engine` (started from `spec` when it is not there), or find it done.

        Args:
            key: name of the task in the case, for example "step0/rollout/generate".
            engine: name of the engine in this session; engines of different specs have different names.
            task: the task of the runner protocol without `id` and `output`.
            output: path of its output in the case.
            inputs: files that it reads; the task is done again when one of them changed.
            step: which weights it needs.
            optional: the run goes on without it: an `InputError` (no tokenizer) is a reason too.

        Raises:
            LogdiffError: as the engine raised it. A task that the engine can't do is an `Outcome` with a reason.
        """
        return self._once(key, task, output, inputs, optional=optional, engine=lambda: self._engine(engine, spec, step))

    def do_free(
        self, key: str, task: dict[str, Any], *, output: str, inputs: Sequence[Path] = (), side: str = "train"
    ) -> Outcome:
        """Do one engine-free task beside the model, with the interpreter of `side` and without its `env` and `modules`,
        or find it done. One process does all of them, until `close_free`. Arguments and errors as `do`."""
        return self._once(key, task, output, inputs, optional=True, engine=lambda: self._free_runner(side))

    def close_free(self) -> None:
        """End the process of engine-free tasks, if it runs."""
        runner, self._free = self._free, None
        if runner is not None:
            runner.close()

    def _free_runner(self, side: str) -> Engine:
        if self._free is None:
            self._free = LocalRunner.start(
                None,
                log=self.case.path / "logs" / "beside-the-model.log",
                python=self.run.spec(side).python,
                env={VARIABLE: ""},
                timeouts=self._timeouts,
                on_progress=self._on_progress,
                cancel=self._cancel,
            )
        return self._free

    @property
    def starts(self) -> int:
        """Engines that were started for this case, earlier sessions included."""
        return self._starts

    def is_open(self, engine: str) -> bool:
        """Whether the engine of that name runs."""
        return engine in self._slots

    def _once(
        self,
        key: str,
        task: dict[str, Any],
        output: str,
        inputs: Sequence[Path],
        *,
        optional: bool,
        engine: Callable[[], Engine],
    ) -> Outcome:
        request = self._digest(task, inputs)
        if self._unsupported.get(key, ("", ""))[0] == request:
            return Outcome(None, reason=self._unsupported[key][1])
        path = self.case.path / output
        record = self.case.recorded_outputs(key)
        if record is not None and record.get("request") == request:
            data = record.get("data")
            return Outcome(path, data if isinstance(data, dict) else {})
        self.check_cancel()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            result = engine().run({**task, "id": key, "output": str(path)}, self._on_progress)
        except (UnsupportedError, InputError) as error:
            if isinstance(error, InputError) and not optional:
                raise
            reason = f"{error.message}; {error.hint}" if error.hint else error.message
            self.case.journal.append("unsupported", task=key, request=request, reason=reason)
            self._unsupported[key] = (request, reason)
            return Outcome(None, reason=reason)
        if not path.is_file():
            raise EngineError(
                f"the engine said that {key} is done and left no file", value=str(path), hint="see the log of this side"
            )
        data = result.data if len(dumps(result.data)) <= MAX_DATA else {"left_out": "more than 64 KiB"}
        self._hashes.pop(path, None)
        self.case.record_outputs(key, [path], request=request, data=data)
        return Outcome(path, data)

    def act(self, engine: str, task: dict[str, Any]) -> dict[str, Any]:
        """Do a task that leaves no file on an engine that runs, whatever was done before; nothing is recorded.

        Raises as the engine does.
        """
        return self._slots[engine].engine.run(task, self._on_progress).data

    def close(self, engine: str) -> None:
        """End the engine of that name, if it runs."""
        slot = self._slots.pop(engine, None)
        if slot is not None:
            slot.engine.close()

    def check_cancel(self) -> None:
        """Raise `CancelledError` when the run was cancelled."""
        if self._cancel is not None and self._cancel.is_set():
            raise CancelledError("cancelled", value=str(self.case.path), hint="run again to resume the case")

    def tell(self, task: str, message: str) -> None:
        """Report progress that no engine makes."""
        if self._on_progress is not None:
            self._on_progress(Progress(task, 0, None, "", message))

    def _engine(self, name: str, spec: EngineSpec, step: int) -> Engine:
        slot = self._slots.get(name)
        if slot is None:
            slot = self._start(name, spec, step)
        if slot.step != step:
            slot = self._sync(name, spec, slot, step)
        return slot.engine

    def _start(self, name: str, spec: EngineSpec, step: int) -> _Slot:
        """Start on the run's model; a train engine of a later step starts on that step's checkpoint."""
        at = 0
        if step > 0 and spec.side == "train":
            spec, at = replace(spec, model=str(self._need_checkpoint(step))), step
        return self._start_on(name, spec, at)

    def _start_on(self, name: str, spec: EngineSpec, at: int) -> _Slot:
        self._starts += 1
        log = self.case.path / "logs" / f"{self._starts:02d}-{re.sub(r'[^A-Za-z0-9_.=-]+', '-', name)}.log"
        self.tell(name, f"starting {spec.engine}")
        self.case.journal.append("engine_starting", engine=name, kind=spec.engine, log=log.name)
        engine = start(spec, log=log, timeouts=self._timeouts, on_progress=self._on_progress, cancel=self._cancel)
        self._slots[name] = slot = _Slot(engine, at)
        return slot

    def _sync(self, name: str, spec: EngineSpec, slot: _Slot, step: int) -> _Slot:
        """Bring an engine to the weights of `step` through its own reload, else by a start on the checkpoint."""
        model = str(self._need_checkpoint(step)) if step > 0 else spec.model
        how = "reload"
        try:
            if spec.side == "train":
                raise UnsupportedError("the train engine makes the weights")
            slot.engine.run({"task": "reload", "id": f"step{step}/{name}/reload", "path": model}, self._on_progress)
            slot.step = step
        except UnsupportedError as error:
            how = f"restart on the checkpoint: {error.message}"
            self.close(name)
            slot = self._start_on(name, replace(spec, model=model), step)
        self.case.journal.append("weights_synced", engine=name, step=step, how=how)
        return slot

    def _checkpoint_folder(self, step: int) -> Path:
        return self.case.path / CHECKPOINTS / f"checkpoint-step{step}"

    def _checkpoint(self, step: int) -> Path | None:
        folder = self._checkpoint_folder(step)
        for record in reversed(self.case.journal.read()):
            if record["event"] == "checkpoint" and record.get("step") == step:
                return folder if folder.is_dir() and record.get("files") == _listing(folder) else None
        return None

    def _need_checkpoint(self, step: int) -> Path:
        """The checkpoint of `step`, made by one update of the train engine on the tokens of the step before."""
        folder = self._checkpoint(step)
        if folder is not None:
            return folder
        self.check_cancel()
        folder = self._checkpoint_folder(step)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        source = self.case.path / generated(step - 1)
        task = {"task": "update", "id": f"step{step}/train/update", "input": str(source), "output": str(folder)}
        engine = self._engine("train", self.spec("train"), step - 1)
        result = engine.run({**task, "lr": self.run.update.lr, "seed": self.run.update.seed}, self._on_progress)
        self._slots["train"].step = step
        self.case.journal.append("checkpoint", step=step, files=_listing(folder), data=result.data)
        if step > 1:
            shutil.rmtree(self._checkpoint_folder(step - 1), ignore_errors=True)
        return folder

    def _digest(self, task: dict[str, Any], inputs: Sequence[Path]) -> str:
        parts = {"task": {k: v for k, v in task.items() if k != "input"}, "inputs": [self._hash(p) for p in inputs]}
        return hashlib.sha256(dumps(parts).encode()).hexdigest()

    def _hash(self, path: Path) -> str:
        if path not in self._hashes:
            self._hashes[path] = sha256_file(path)
        return self._hashes[path]


def _listing(folder: Path) -> dict[str, int]:
    """Relative path and size of every file below a folder."""
    return {p.relative_to(folder).as_posix(): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
