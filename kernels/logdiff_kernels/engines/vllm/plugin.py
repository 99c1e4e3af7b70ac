"""The `vllm.general_plugins` entry point: inert unless the environment of a logdiff run says otherwise.

vLLM calls `register` in every process it starts (client, engine core, workers), before the model is built.
"""

from __future__ import annotations

import os

HOOKS = "LOGDIFF_HOOKS"
"""Environment variable that, set to 1, gives every worker the method through which the adapter asks it things."""

METHOD = "logdiff_call"
"""Name of that method, for `collective_rpc`."""


def register() -> None:
    """Import the run's `modules`, align vLLM's operators if an overlay says so or keep raw weights if the engine is to
    be switched later (budget mode), and, for a logdiff run, add `logdiff_call` to vLLM's workers. May be called often.

    Raises:
        InputError: a module that fails on import, an overlay that can't be read; vLLM then does not start.
    """
    from logdiff_kernels import align
    from logdiff_kernels.modules import load_from_environment

    load_from_environment()
    spec = align.from_environment("rollout")
    if spec is not None:
        from logdiff_kernels.engines.vllm.align import apply

        apply(spec)
    if align.budget_mode():
        from logdiff_kernels.engines.vllm.align.switching import keep_raw_weights

        keep_raw_weights()
    if os.environ.get(HOOKS) == "1":
        from vllm.v1.worker.worker_base import WorkerBase

        from logdiff_kernels.engines.vllm.worker import call

        setattr(WorkerBase, METHOD, call)
