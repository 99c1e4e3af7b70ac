"""Aligned operators in vLLM: process-wide replacements on vLLM's own layer classes, switched on by the overlay.

`apply` is called by the plug-in in every vLLM process, before the model is built; `restore` undoes it. Engines that
were built in between keep running aligned: the switch is for engines that are built after it. Each operator has a file
of its own; `checks` refuses engines and models with parts that no aligned operator covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logdiff_kernels.align import AlignSpec
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import EngineError


@dataclass(frozen=True, slots=True)
class _Active:
    spec: AlignSpec
    patches: Patches


_active: _Active | None = None


def apply(spec: AlignSpec) -> None:
    """Replace vLLM's operators by the aligned ones that `spec` names. May be called often with the same spec.

    Raises:
        EngineError: another spec is applied already.
    """
    global _active
    if _active is not None:
        if _active.spec != spec:
            raise EngineError("vLLM is aligned already, by another plan", value=_active.spec.id, hint="restore() first")
        return
    from logdiff_kernels.engines.vllm.align import (
        activation,
        arithmetic,
        attention,
        checks,
        collectives,
        compiling,
        embedding,
        latent,
        linear,
        lm_head,
        logprob,
        moe,
        norm,
        rope,
        router,
    )

    patches = Patches()
    try:
        for part in (
            checks, linear, collectives, norm, rope, activation, attention, latent, router, moe, embedding, lm_head,
            logprob, compiling, arithmetic,
        ):  # fmt: skip
            part.apply(patches, spec)
    except BaseException:
        patches.restore()
        raise
    _active = _Active(spec, patches)


def restore() -> None:
    """Give vLLM's classes their own functions back. May be called twice."""
    global _active
    if _active is not None:
        _active.patches.restore()
        _active = None


def active() -> AlignSpec | None:
    """The spec that is applied in this process."""
    return _active.spec if _active is not None else None


def describe() -> dict[str, Any] | None:
    """The `aligned` block of a fingerprint: the spec, what is replaced, and the kernels that run; None if native."""
    if _active is None:
        return None
    from logdiff_kernels.ops.registry import fingerprint

    return {**fingerprint(), **_active.spec.as_dict(), "replaced": _active.patches.targets()}
