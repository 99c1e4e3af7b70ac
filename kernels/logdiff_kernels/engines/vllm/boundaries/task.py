"""The task `capture` of a running vLLM engine: what `force` or `rescore` runs, with its boundaries kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.observe.boundaries.recorder import MAX_BYTES, Keep
from logdiff_kernels.protocol import required
from logdiff_kernels.sequences import read

TASKS = {"decode": "force", "prefill": "rescore"}
"""Phase -> the task that runs it."""


def capture_engine(engine: Any, task: dict[str, Any], progress: Progress) -> TaskOutput:
    """Run a phase over given tokens and keep its boundaries.

    Args:
        engine: `VllmEngine`.
        task: `phase` and `input` as the phase's own task takes them, `logprobs` for the sequence file, `output` for
            the boundaries, `samples`, `rows`, `boundaries`, `level`, `max_bytes` as `Keep.parse` reads them.

    Raises:
        InputError: options that can't be read, input without responses.
        UnsupportedError: the phase "score", or an engine whose model can't be watched.
    """
    phase = required(task, "phase", str)
    if phase not in TASKS:
        raise UnsupportedError(
            f"a rollout engine has no phase {phase!r}", value=phase, hint=f"one of: {', '.join(TASKS)}"
        )
    output, logprobs = required(task, "output", str), required(task, "logprobs", str)
    source = read(required(task, "input", str))
    keep = Keep.parse(task)
    ranks = int(engine.config.parallel_config.world_size)
    options = {key: task.get(key) for key in ("samples", "rows", "boundaries", "level", "max_bytes")}
    if ranks > 1:  # parts of rows can't be hashed, and every rank has its share of the room
        options |= {"level": "full", "max_bytes": (task.get("max_bytes") or MAX_BYTES) // ranks}
    if not any(source.responses):
        raise InputError("the input has no responses, so there is nothing to score", value=task["input"])
    folder = Path(output).resolve().parent
    engine.ask_workers(
        "capture_begin",
        sample_ids=source.sample_ids,
        prompts=[list(map(int, ids)) for ids in source.prompts],
        responses=[list(map(int, ids)) for ids in source.responses],
        keep=options,
        folder=str(folder),
    )
    parts = [Path(output)] if ranks == 1 else [folder / f".{Path(output).name}.rank{rank}" for rank in range(ranks)]
    try:
        inner = {**task, "task": TASKS[phase], "output": logprobs}
        ran: TaskOutput = getattr(engine, f"_{TASKS[phase]}")(inner, progress)
        answers = engine.ask_workers(
            "capture_end",
            paths=[str(part) for part in parts],
            logprobs=logprobs,
            side=engine.side,
            phase=phase,
            model=engine.model,
        )
        data = answers[0][0]
        if ranks > 1:
            from logdiff_kernels.engines.vllm.boundaries.ranks import join

            data = join(parts, output, keep.level)
    except BaseException:
        engine.ask_workers("capture_abandon")
        raise
    finally:
        if ranks > 1:
            for part in parts:
                part.unlink(missing_ok=True)
    return TaskOutput({**ran.files, "boundaries": Path(output)}, {**ran.data, **data})


def swap_operator(engine: Any, task: dict[str, Any]) -> TaskOutput:
    """Feed one operator what the other side's was given.

    Args:
        engine: `VllmEngine`, which has captured the boundary before.
        task: `boundary`, `inputs` (the other side's boundary file), `output`.

    Raises:
        InputError: a boundary or inputs that there aren't.
        UnsupportedError: an operator that can't be fed row by row, several ranks.
    """
    boundary, inputs, output = (required(task, key, str) for key in ("boundary", "inputs", "output"))
    answers = engine.ask_workers(
        "swap", boundary=boundary, inputs=inputs, output=output, side=engine.side, model=engine.model
    )
    return TaskOutput({"boundaries": Path(output)}, answers[0][0])
