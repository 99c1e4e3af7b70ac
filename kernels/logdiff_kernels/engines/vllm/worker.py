"""What runs inside a vLLM worker on the adapter's request.

One method, JSON text in, JSON text and bytes out, so that no serialiser setting of vLLM matters. Observers are
installed for one task on the idle engine and taken away after it; outside of that the engine is stock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from logdiff_kernels.engines.vllm.observers import Observers
from logdiff_kernels.errors import RunnerError, UnsupportedError
from logdiff_kernels.protocol import plain

_OPERATIONS: dict[str, Callable[[Any, dict[str, Any]], tuple[Any, bytes]]] = {}


def call(worker: Any, operation: str, payload: str) -> list[Any]:
    """Do `operation` in this worker.

    Args:
        worker: the vLLM worker (`self` of the method that `plugin.register` adds).
        operation: one of this module's operations.
        payload: a JSON object.

    Returns:
        [JSON text, bytes]: {"rank", "value"} or {"rank", "error": {type, message, value, hint}}, and a binary part.
    """
    try:
        value, blob = _OPERATIONS[operation](worker, json.loads(payload))
        document = {"rank": int(worker.rank), "value": value}
    except RunnerError as error:
        document, blob = {"rank": int(worker.rank), "error": error.as_dict()}, b""
    return [json.dumps(plain(document)), blob]


def _operation(function: Callable[[Any, dict[str, Any]], tuple[Any, bytes]]) -> Callable[..., tuple[Any, bytes]]:
    _OPERATIONS[function.__name__.removeprefix("_")] = function
    return function


_V2 = "this vLLM runs its model runner V2, which the observers do not know"


@_operation
def _observe(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Install the observers that the payload names, on the idle engine; see `Observers.install`.

    Raises:
        UnsupportedError: vLLM chose its model runner V2 and the task can't do without an observer.
    """
    runner = worker.model_runner
    if getattr(worker, "use_v2_model_runner", False):
        if payload.get("force") or payload.get("prompt_scores"):
            raise UnsupportedError(
                _V2, value=type(runner).__name__, hint="set VLLM_USE_V2_MODEL_RUNNER=0 in the side's env"
            )
        return {"experts": _V2}, b""
    current = getattr(runner, "logdiff_observers", None)
    if current is not None:
        current.remove()
    runner.logdiff_observers = Observers(runner)
    return runner.logdiff_observers.install(**payload), b""


@_operation
def _release(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Take the observers away and hand over what they saw."""
    current = getattr(worker.model_runner, "logdiff_observers", None)
    if current is None:
        return {}, b""
    worker.model_runner.logdiff_observers = None
    current.remove()
    collected: tuple[dict[str, Any], bytes] = current.collected()
    return collected if worker.rank == 0 else ({}, b"")


@_operation
def _weights(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Checksums of this rank's part of the weights; see `checksums.rank_checksums`."""
    from logdiff_kernels.engines.vllm.checksums import rank_checksums

    return rank_checksums(worker, payload["names"]), b""


@_operation
def _prepare_reload(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Make a second load pack what the first one packed; see `reloading.prepare`."""
    from logdiff_kernels.engines.vllm.reloading import prepare

    return prepare(worker), b""


@_operation
def _finish_reload(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Make up for what the engine's reload lost; see `reloading.finish`."""
    from logdiff_kernels.engines.vllm.reloading import finish

    return finish(worker, payload["folder"], payload["names"]), b""


@_operation
def _realign(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Switch aligned operators on and off in place; see `align.switching.realign`."""
    from logdiff_kernels.engines.vllm.align.switching import realign

    return realign(worker, payload["ops"]), b""


@_operation
def _describe(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Facts that only a worker knows; see `fingerprint.worker_facts`."""
    from logdiff_kernels.engines.vllm.fingerprint import worker_facts

    return worker_facts(worker), b""


@_operation
def _trace_begin(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Trace the next steps of this worker; see `tracing.StepTracer`.

    Raises:
        UnsupportedError: vLLM chose its model runner V2.
    """
    from logdiff_kernels.engines.vllm.tracing import StepTracer

    if getattr(worker, "use_v2_model_runner", False):
        raise UnsupportedError(_V2, value=type(worker.model_runner).__name__, hint="VLLM_USE_V2_MODEL_RUNNER=0")
    tracer = StepTracer(worker.model_runner, native=bool(payload["native"]), phase=payload.get("phase"))
    worker.model_runner.logdiff_tracer = tracer
    tracer.install()
    return True, b""


@_operation
def _trace_end(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """End the trace. Returns what was seen, by phase."""
    tracer = worker.model_runner.logdiff_tracer
    worker.model_runner.logdiff_tracer = None
    return tracer.remove(), b""


@_operation
def _capture_begin(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Keep the boundaries of the next steps; see `boundaries.session.begin`.

    Raises:
        UnsupportedError: vLLM chose its model runner V2.
    """
    from logdiff_kernels.engines.vllm.boundaries import session

    if getattr(worker, "use_v2_model_runner", False):
        raise UnsupportedError(_V2, value=type(worker.model_runner).__name__, hint="VLLM_USE_V2_MODEL_RUNNER=0")
    return session.begin(worker, payload), b""


@_operation
def _capture_end(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Write what was kept; see `boundaries.session.end`."""
    from logdiff_kernels.engines.vllm.boundaries import session

    return session.end(worker, payload), b""


@_operation
def _capture_abandon(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """End a capture without a file; may be asked when none runs."""
    from logdiff_kernels.engines.vllm.boundaries import session

    session.abandon(worker)
    return True, b""


@_operation
def _swap(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Feed one operator the other side's inputs; see `boundaries.swap`."""
    from logdiff_kernels.engines.vllm.boundaries import session

    return session.swapped(worker, payload), b""


@_operation
def _inspect(worker: Any, payload: dict[str, Any]) -> tuple[Any, bytes]:
    """Patched functions, libraries, modules and resolved backends of this worker; see `tracing.worker_document`."""
    from logdiff_kernels.engines.vllm.tracing import worker_document

    return worker_document(worker), b""
