"""Dispatch of a vLLM worker: its steps told apart by phase, its attention, graphs and communicator as resolved.

Installed on the idle engine for one task, so that warm-up and profiling runs are over and never counted.
"""

from __future__ import annotations

from typing import Any

from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.engines.dispatching import NEW_TOKENS, failure, finish, phases_of, sequences
from logdiff_kernels.errors import RunnerError
from logdiff_kernels.observe.native import Native
from logdiff_kernels.observe.process import custom_operators, process_facts
from logdiff_kernels.observe.registrations import foreign
from logdiff_kernels.observe.trace import Trace

_ABSENT = object()
_STEPS = ("execute_model", "sample_tokens")


class StepTracer:
    """Runs the steps of one model runner under a trace.

    Args:
        runner: vLLM's model runner.
        native: without a dispatch mode, for kernel names and generated code.
        phase: name for steps that hold a prompt, in place of "prefill".
    """

    def __init__(self, runner: Any, *, native: bool, phase: str | None) -> None:
        self._runner = runner
        self._prefill = phase or "prefill"
        self._current = self._prefill
        self._sizes: dict[int, str] = {}
        self._native = Native() if native else None
        inside = frozenset(r.op for r in foreign() if r.python)
        self._trace = None if native else Trace(runner.get_model(), inside)
        self._kept: list[tuple[str, Any]] = []

    def install(self) -> None:
        """Wrap the runner's steps."""
        for name in _STEPS:
            original = getattr(self._runner, name, None)
            if original is not None:
                self._kept.append((name, vars(self._runner).get(name, _ABSENT)))
                object.__setattr__(self._runner, name, self._wrapped(name, original))

    def remove(self) -> dict[str, Any]:
        """Put the runner's steps back. Returns what was seen."""
        for name, previous in reversed(self._kept):
            if previous is _ABSENT:
                delattr(self._runner, name)
            else:
                object.__setattr__(self._runner, name, previous)
        self._kept.clear()
        seen = self._native if self._trace is None else self._trace
        assert seen is not None
        return seen.as_dict()

    def _wrapped(self, name: str, original: Any) -> Any:
        def step(*arguments: Any, **named: Any) -> Any:
            if name == "execute_model":
                self._look(arguments[0] if arguments else named["scheduler_output"])
            if self._trace is not None:
                with self._trace.phase(self._current, self._sizes):
                    return original(*arguments, **named)
            assert self._native is not None
            with self._native.phase(self._current):
                return original(*arguments, **named)

        return step

    def _look(self, scheduled: Any) -> None:
        """A step that holds new requests or several tokens of one is a prefill."""
        counts = scheduled.num_scheduled_tokens
        decode = bool(counts) and not scheduled.scheduled_new_reqs and max(counts.values()) == 1
        self._current = "decode" if decode else self._prefill
        self._sizes = {len(counts): "B", int(scheduled.total_num_scheduled_tokens): "T"}


def worker_document(worker: Any) -> dict[str, Any]:
    """What a worker says of its process and of what vLLM resolved in it."""
    runner = worker.model_runner
    from logdiff_kernels.engines.vllm.fingerprint import aligned_facts

    aligned = aligned_facts(runner.get_model()) is not None
    return {**process_facts(runner.get_model(), aligned=aligned), "resolved": _resolved(worker)}


def _resolved(worker: Any) -> dict[str, Any]:
    config = worker.vllm_config
    compilation = config.compilation_config
    attention: dict[str, int] = {}
    for layer in getattr(compilation, "static_forward_context", {}).values():
        impl = getattr(layer, "impl", None)
        if impl is not None:
            backend: Any = getattr(layer, "attn_backend", None)
            name = f"{type(impl).__module__}.{type(impl).__qualname__}"
            name += f" ({backend.get_name()})" if hasattr(backend, "get_name") else ""
            attention[name] = attention.get(name, 0) + 1
    return {
        "attention": attention,
        "attention_asked": str(getattr(getattr(config, "attention_config", None), "backend", None)),
        "model_runner": type(worker.model_runner).__name__,
        "sampler": type(getattr(worker.model_runner, "sampler", None)).__name__,
        "graphs": str(getattr(compilation, "cudagraph_mode", None)),
        "compile": str(getattr(compilation, "mode", None)),
        "compile_backend": str(getattr(compilation, "backend", None)),
        "custom_ops": list(getattr(compilation, "custom_ops", []) or []),
        "quantization": config.model_config.quantization,
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "dtype": str(config.model_config.dtype),
        "communicator": _communicator(),
        "device": str(worker.device.type),
    }


def _communicator() -> dict[str, Any] | None:
    from vllm.distributed import parallel_state

    try:
        group = parallel_state.get_tp_group()
    except AssertionError:
        return None
    device = getattr(group, "device_communicator", None)
    inside = vars(device) if device is not None else {}
    parts = {name: type(value).__name__ for name, value in inside.items() if name.endswith("_comm")}
    return {
        "world_size": int(group.world_size),
        "backend": str(getattr(group, "backend", None) or _backend(group)),
        "class": type(device).__name__,
        "parts": parts,
    }


def _backend(group: Any) -> str:
    import torch.distributed as dist

    return str(dist.get_backend(group.device_group)) if dist.is_initialized() else "none"


def trace_engine(engine: Any, task: dict[str, Any], progress: Progress) -> TaskOutput:
    """The task `dispatch_trace` of a running engine: each phase once under a trace, once natively, on every rank.

    A pass that fails is the last one. What the processes say of themselves is taken then too: a switch may have changed
    registrations before the first step fails.
    """
    wanted = phases_of(task)
    vocabulary = int(engine.config.model_config.get_vocab_size())
    room = int(engine.config.model_config.max_model_len) - NEW_TOKENS - 1
    prompts = [ids[:room] for ids in sequences(vocabulary)]
    skipped = {"backward": "a rollout engine computes no gradients"} if "backward" in wanted else {}
    runs: list[tuple[str | None, int, bool]] = []
    if {"prefill", "decode"} & set(wanted):
        runs.append((None, NEW_TOKENS if "decode" in wanted else 1, False))
    if "score" in wanted:
        runs.append(("score", 1, True))
    traced: list[dict[str, Any]] = []
    native: list[dict[str, Any]] = []
    failed = None
    try:
        for place, (phase, tokens, score) in enumerate(runs):
            for kind, found in ((False, traced), (True, native)):
                progress(2 * place + int(kind), 2 * len(runs), "pass", phase or "prefill and decode")
                _join(found, _one_pass(engine, prompts, phase, tokens, score, native=kind))
    except _PassError as error:
        failed = failure(error.error, error.phase, native=error.native)
        progress(2 * len(runs), 2 * len(runs), "pass", f"{error.phase} failed: {failed['error']}"[:200])
    progress(2 * len(runs), 2 * len(runs), "pass", "comparing functions with their files")
    documents = [value for value, _ in engine.ask_workers("inspect")]
    for found in (traced, native):
        _join(found, [{} for _ in documents])
    ranks = [
        {"phases": _only(t, wanted), "native": _only(n, wanted), "operators": custom_operators(t), **facts}
        for t, n, facts in zip(traced, native, documents, strict=True)
    ]
    from logdiff_kernels.coverage import dispatch

    return finish(task, ranks, skipped, dispatch("vllm", engine.side, engine.model), failed)


class _PassError(Exception):
    """A pass failed in the engine, and the engine's processes still answer."""

    def __init__(self, error: Exception, phase: str, native: bool) -> None:
        super().__init__(str(error))
        self.error, self.phase, self.native = error, phase, native


def _one_pass(
    engine: Any, prompts: list[list[int]], phase: str | None, tokens: int, score: bool, *, native: bool
) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    from logdiff_kernels.engines.vllm.requests import Job, run_jobs

    options: dict[str, Any] = {"prompt_logprobs": 0} if score else {"logprobs": 0}
    params = [  # seeded, as every run of this package samples
        SamplingParams(temperature=1.0, seed=i + 1, max_tokens=tokens, ignore_eos=True, detokenize=False, **options)
        for i in range(len(prompts))
    ]
    jobs = [Job(i, ids, params[i]) for i, ids in enumerate(prompts)]
    engine.llm.reset_prefix_cache()
    engine.ask_workers("trace_begin", native=native, phase=phase)
    try:
        run_jobs(engine.llm, jobs, batch=None, finished=_ignore)
    except Exception as error:
        try:
            seen = [value for value, _ in engine.ask_workers("trace_end")]
        except Exception:
            raise error from None  # the processes are gone: the engine's own words count
        if isinstance(error, RunnerError):
            raise
        reached = list(seen[0]) if seen else []
        raise _PassError(error, reached[-1] if reached else phase or "prefill", native) from error
    return [value for value, _ in engine.ask_workers("trace_end")]


def _ignore(_index: int, _output: Any) -> None:
    """The tokens of a trace are nobody's."""


def _join(found: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    if not found:
        found += [{} for _ in more]
    for mine, theirs in zip(found, more, strict=True):
        mine.update(theirs)


def _only(phases: dict[str, Any], wanted: list[str]) -> dict[str, Any]:
    return {name: phases[name] for name in wanted if name in phases}
