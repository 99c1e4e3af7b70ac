"""Aligned operators in a Transformers model: `apply` replaces, `Handle.restore` puts back.

Recognition is by what code computes, never by a model's name: modules are run on random or stubbed parts and compared
with fp64 formulas. Replacements are entries of module instances (and two of the configuration), so other models of the
process, also of the same class, stay as they are, and FSDP2's hooks around a forward stay in force. The implementation
that is registered with transformers' attention interface answers aligned layers only.
"""

from __future__ import annotations

from typing import Any

from logdiff_kernels.align import AlignSpec, from_environment
from logdiff_kernels.engines.transformers.align import (
    arithmetic,
    attention,
    coverage,
    embedding,
    head,
    linear,
    mlp,
    moe,
    norm,
    rope,
)
from logdiff_kernels.engines.transformers.align.patching import Patches
from logdiff_kernels.engines.transformers.align.scene import Scene
from logdiff_kernels.errors import InputError

_MARK = "_logdiff_align_handle"


class Handle:
    """What `apply` did to one model."""

    def __init__(self, spec: AlignSpec | None, patches: Patches, facts: dict[str, Any]) -> None:
        self.spec = spec
        self._patches = patches
        self._facts = facts

    @property
    def active(self) -> bool:
        """Whether the model is aligned now."""
        return self.spec is not None and bool(self._patches.names)

    def restore(self) -> None:
        """Put back every forward and setting that was there before. May be called twice."""
        self._patches.restore()

    def report(self) -> dict[str, Any] | None:
        """The `aligned` block of a fingerprint; None where nothing is aligned.

        `contract`, `provider`, `id`, `ops`, the providers' records (`isa`, `binary_hash`), `rope` (hashes of the
        tables), and as `operators` what was found: counts, leaves by K of `linear_row`, router rules.
        """
        if not self.active or self.spec is None:
            return None
        from logdiff_kernels.ops import registry

        tables = self._facts.get("rope", {}).get("tables", [])
        return {**registry.fingerprint(), **self.spec.as_dict(), "rope": tables, "operators": self._facts}

    def patched(self) -> list[str]:
        """One line per replaced part: its path in the model and the operator that it runs."""
        return list(self._patches.names)


def apply(model: Any, spec: AlignSpec | None = None, *, max_length: int | None = None) -> Handle:
    """Let a causal language model of Transformers run the contract's operators.

    Args:
        model: loaded on the CPU, before or after `fully_shard`, in evaluation or training mode.
        spec: operators; None: what `LOGDIFF_ALIGN` says for the train side, and nothing without it.
        max_length: the longest sequence that either side will see, for RoPE rules that depend on it (longrope).

    Returns:
        A handle to restore and report by. The model is unchanged after any error.

    Raises:
        UnsupportedError: a part that the contract or this provider doesn't cover, named by its path.
        InputError: the model is aligned already, or the overlay can't be read.
    """
    spec = from_environment("train") if spec is None else spec
    if spec is None:
        return Handle(None, Patches(), {})
    if model.__dict__.get(_MARK):
        raise InputError(f"{type(model).__name__} is aligned already", hint="restore() the first handle")
    coverage.check_model(model)
    scene = Scene(model, spec, max_length)
    for operator in (embedding, moe, mlp, head, linear, norm, rope, attention):
        operator.find(scene)
    coverage.forbid_dropout(scene)
    coverage.check_rest(scene)
    try:
        for step in scene.steps:
            step()
        scene.patches.attribute(model, _MARK, True)
        arithmetic.watch(scene)
    except BaseException:
        scene.patches.restore()
        raise
    return Handle(spec, scene.patches, scene.facts)


__all__ = ["Handle", "apply"]
