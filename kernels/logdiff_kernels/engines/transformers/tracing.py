"""Dispatch of a Transformers model: prefill and decode with its cache, teacher-forced scoring, and a backward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from logdiff_kernels.engines.base import Progress, TaskOutput
from logdiff_kernels.engines.dispatching import NEW_TOKENS, failure, finish, phases_of, sequences
from logdiff_kernels.errors import RunnerError
from logdiff_kernels.observe.native import Native
from logdiff_kernels.observe.process import custom_operators, process_facts
from logdiff_kernels.observe.registrations import foreign
from logdiff_kernels.observe.trace import Trace


def trace_model(
    model: Any, task: dict[str, Any], runs: Mapping[str, Callable[[int], Any]], aligned: bool, table: Any,
    progress: Progress,
) -> TaskOutput:  # fmt: skip
    """The task `dispatch_trace`.

    Args:
        model: the loaded model.
        task: the task.
        runs: {"generate", "score", "backward"}: what this side can do; called with a number of new tokens.
        aligned: whether an overlay is on.
        table: gives `logdiff_kernels.coverage.dispatch`.
        progress: reports passes.

    A phase that fails is the last one; what the process says of itself is taken then too.
    """
    wanted = phases_of(task)
    skipped: dict[str, str] = {}
    failed = None
    trace, native = Trace(model, frozenset(r.op for r in foreign() if r.python)), Native()
    sizes = _sizes()
    for done, phase in enumerate(wanted):
        progress(2 * done, 2 * len(wanted), "pass", phase)
        kind = "generate" if phase in ("prefill", "decode") else phase
        run = runs.get(kind)
        try:
            if run is None:
                skipped[phase] = _WHY[kind]
            elif kind == "generate":
                if phase == "prefill" or "prefill" not in wanted:
                    _generate(model, run, trace, native, sizes)
            else:
                with trace.phase(phase, sizes):
                    run(NEW_TOKENS)
                progress(2 * done + 1, 2 * len(wanted), "pass", phase)
                with native.phase(phase):
                    run(NEW_TOKENS)
        except RunnerError:
            raise
        except Exception as error:
            failed = failure(error, phase, native=phase in native.phases)
            wanted = wanted[:done]
            break
    phases = {name: value for name, value in trace.as_dict().items() if name in wanted}
    seen = {name: value for name, value in native.as_dict().items() if name in wanted}
    progress(2 * len(wanted), 2 * len(wanted), "pass", "comparing functions with their files")
    facts = process_facts(model, aligned=aligned)
    rank = {"phases": phases, "native": seen, "operators": custom_operators(phases), **facts}
    return finish(task, [{**rank, "resolved": resolved(model)}], skipped, table(), failed)


_WHY = {
    "generate": "this side scores given tokens and does not sample",
    "score": "this side does not score",
    "backward": "this side computes no gradients",
}


def _sizes() -> dict[int, str]:
    rows = [len(ids) for ids in sequences(1 << 20)]
    scored = [n + NEW_TOKENS for n in rows]
    count = len(rows)
    return {
        count: "B", max(rows): "L", max(scored): "L", count * max(scored): "BL", count * max(rows): "BL",
        sum(scored): "T", sum(rows): "T",
    }  # fmt: skip


def _generate(model: Any, run: Callable[[int], Any], trace: Trace, native: Native, sizes: dict[int, str]) -> None:
    """Prefill and decode: the first call of the model is the prefill, the others are decode steps."""
    calls = 0

    def before(_module: Any, _inputs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            trace.switch("decode", sizes)

    handle = model.register_forward_pre_hook(before)
    try:
        with trace.phase("prefill", sizes):
            run(NEW_TOKENS)
    finally:
        handle.remove()
    with native.phase("prefill"):
        run(1)
    with native.phase("decode"):
        run(NEW_TOKENS)
    first, both = native.phases["prefill"], native.phases["decode"]
    native.phases["decode"] = {kind: Counter(both[kind]) - Counter(first[kind]) for kind in both}


def backward(model: Any, prompts: list[list[int]], responses: list[list[int]], rows: int, filler: int) -> None:
    """Forward and backward of the update's loss; the gradients are thrown away and no weight changes."""
    from logdiff_kernels.engines.transformers.layout import micro_batches
    from logdiff_kernels.engines.transformers.settings import Score
    from logdiff_kernels.engines.transformers.update import loss_of

    trainable = [p for p in model.parameters() if p.dtype.is_floating_point and p.device.type != "meta"]
    whole = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
    flags = [p.requires_grad for p in trainable]
    try:
        for parameter in trainable:
            parameter.requires_grad_(True)
        with torch.enable_grad():
            for batch in micro_batches(whole, list(range(len(whole))), Score(micro_batch_size=rows), filler):
                loss_of(model, batch, prompts, responses, np.ones(len(prompts))).backward()  # type: ignore[no-untyped-call]
    finally:
        for parameter, flag in zip(trainable, flags, strict=True):
            parameter.grad = None
            parameter.requires_grad_(flag)


def resolved(model: Any) -> dict[str, Any]:
    """What Transformers chose for this model."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config = model.config.get_text_config(decoder=True)
    name = getattr(config, "_attn_implementation", None)
    function = ALL_ATTENTION_FUNCTIONS.get(name, None)
    compiled = [n or "(model)" for n, m in model.named_modules() if getattr(m, "_compiled_call_impl", None) is not None]
    compiled += ["(model)"] if type(model).__name__ == "OptimizedModule" else []
    return {
        "attention": name,
        "attention_function": f"{function.__module__}.{function.__qualname__}" if function is not None else "eager",
        "experts": getattr(config, "_experts_implementation", None),
        "compile": compiled,
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": str(getattr(model.config, "quantization_config", None) or "") or None,
        "device": str(model.device),
        "training": bool(model.training),
    }
