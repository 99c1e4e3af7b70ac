"""One capture in one worker, from its begin to its file; what a worker is asked by the task `capture`."""

from __future__ import annotations

from typing import Any

from logdiff_kernels.engines.vllm.boundaries.worker import WorkerCapture
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.observe.boundaries.recorder import Keep, Recorder

_HELD = "logdiff_capture"
"""Attribute of a model runner: the capture that runs, with its recorder and samples."""


_PLACES = "logdiff_places"
"""Attribute of a model runner: boundary -> (name, module) of its captures."""


def begin(worker: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Watch the idle engine's model until `end`.

    Args:
        worker: the vLLM worker.
        payload: `sample_ids`, `prompts`, `responses` (token ids), `keep` (as `Keep.parse` reads it), `folder`.

    Raises:
        InputError: the task names a sample that isn't there, or its options can't be read.
    """
    runner = worker.model_runner
    abandon(worker)
    keep, sample_ids = Keep.parse(payload["keep"]), payload["sample_ids"]
    recorder = Recorder(sample_ids, payload["prompts"], payload["responses"], keep, payload["folder"])
    lengths = {
        index: (len(prompt), len(prompt) + len(response))
        for index, (prompt, response) in enumerate(zip(payload["prompts"], payload["responses"], strict=True))
        if keep.samples is None or sample_ids[index] in keep.samples
    }
    capture = WorkerCapture(runner, recorder, lengths)
    setattr(runner, _HELD, (capture, recorder, payload))
    capture.install()
    return {"watched": capture.watched}


def abandon(worker: Any) -> None:
    """Put everything back and keep nothing; may be called when nothing runs."""
    held = getattr(worker.model_runner, _HELD, None)
    if held is not None:
        setattr(worker.model_runner, _HELD, None)
        held[0].remove()
        held[1].close()


def end(worker: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Put everything back and write this rank's file.

    Args:
        worker: the vLLM worker.
        payload: `paths` of the ranks' files, `logprobs` (the task's sequence file), and `side`,
            `phase`, `model` as the file says them.

    Raises:
        UnsupportedError: the engine computed tokens of the samples, and no module of its model was seen to run.
    """
    held: tuple[WorkerCapture, Recorder, dict[str, Any]] = getattr(worker.model_runner, _HELD)
    capture, recorder, begun = held
    setattr(worker.model_runner, _HELD, None)
    try:
        capture.remove()
        _check_seen(capture)
        known = getattr(worker.model_runner, _PLACES, {})
        setattr(worker.model_runner, _PLACES, {**known, **capture.places})
        _note(capture, recorder, begun)
        _logprobs(recorder, payload["logprobs"])
        return recorder.write(
            payload["paths"][worker.rank],
            engine="vllm", side=payload["side"], phase=payload["phase"], model=payload["model"],
            dtype=str(worker.vllm_config.model_config.dtype).removeprefix("torch."),
            unmapped=capture.unmapped(), extra=_extra(worker, capture, begun),
        )  # fmt: skip
    finally:
        recorder.close()


def swapped(worker: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Run one operator over the other side's inputs; see `swap.swap`."""
    from logdiff_kernels.engines.vllm.boundaries.swap import swap

    return swap(worker, payload, getattr(worker.model_runner, _PLACES, {}))


def _check_seen(capture: WorkerCapture) -> None:
    if capture.blind:
        raise UnsupportedError(
            f"the engine computed {capture.rows} rows, and no module of its model was seen to run: it runs as one "
            "compiled or recorded graph",
            value=capture.rows,
            hint="start the side with enforce_eager: true for the capture",
        )


def _note(capture: WorkerCapture, recorder: Recorder, begun: dict[str, Any]) -> None:
    if capture.eager:
        recorder.note(
            "the engine runs compiled or as recorded graphs; for the capture its own forward ran uncompiled: "
            + ", ".join(capture.eager)
        )
    if capture.again:
        recorder.note(f"{capture.again} rows were computed again after a preemption; the first ones stand")
    if capture.moved:
        recorder.note(f"{capture.moved} rows were rotated at other positions than the model was given")
    if capture.unplaced:
        recorder.note(f"{capture.unplaced} rows of logits could not be placed")
    for index, (count, source) in capture.sources(begun["prompts"], begun["responses"]).items():
        if source is not None:
            recorder.cached(index, source, count)
    if capture.cached:
        rows = sum(capture.cached.values())
        recorder.note(
            f"{rows} rows of {len(capture.cached)} samples came from the prefix cache and were not computed: of them "
            "there are keys and values alone, as the sample that the cache was filled by has them"
        )


def _logprobs(recorder: Recorder, path: str) -> None:
    from logdiff_kernels.sequences import read

    columns = read(path).columns
    if "logprobs" in columns:
        recorder.logprobs(columns["logprobs"], columns.get("logprobs_null"))


def _extra(worker: Any, capture: WorkerCapture, begun: dict[str, Any]) -> dict[str, Any]:
    config = worker.vllm_config
    extra: dict[str, Any] = {
        "eager": bool(capture.eager),
        "steps": capture.steps,
        "tensor_parallel": int(config.parallel_config.tensor_parallel_size),
        "logprobs_mode": str(config.model_config.logprobs_mode),
    }
    if extra["tensor_parallel"] > 1:
        extra["shards"] = capture.shards
    if capture.cached:
        names = begun["sample_ids"]
        extra["cached"] = {
            names[index]: {"rows": count, "same_as": None if source is None else names[source]}
            for index, (count, source) in capture.sources(begun["prompts"], begun["responses"]).items()
        }
    return extra
