"""Aligned operators switched on and off in a loaded model, between tasks: restore, then apply what is asked for."""

from __future__ import annotations

from typing import Any

from logdiff_kernels.align import OPERATORS, AlignSpec
from logdiff_kernels.engines.transformers.align import Handle, apply
from logdiff_kernels.errors import UnsupportedError


def switch(model: Any, handle: Handle | None, ops: frozenset[str]) -> tuple[Handle | None, dict[str, Any]]:
    """Let a model run exactly these operators aligned, the others stock.

    Nothing of a model is packed, so stock is stock again and no weight is held twice.

    Args:
        model: a causal language model of Transformers.
        handle: of the alignment that stands; None: stock.
        ops: operators of the contract; none: stock.

    Returns:
        The handle (None: stock) and facts as `engines.vllm.align.switching.realign` gives them: `ops`, `operators`
        of which parts were found among `ops`, `bytes` 0, `layers` replaced.

    Raises:
        UnsupportedError: a compiled model, or a part that isn't covered; the model is stock then.
    """
    if handle is not None:
        handle.restore()
    found: dict[str, Any] = {"ops": [op for op in OPERATORS if op in ops], "operators": [], "bytes": 0, "layers": 0}
    if not ops:
        return None, found
    compiled = [name for name, module in model.named_modules() if getattr(module, "_compiled_call_impl", None)]
    if compiled:
        raise UnsupportedError(
            "a compiled model can't be switched in place: its graph holds the operators that it was traced with",
            value=compiled[0] or type(model).__name__,
            hint="leave torch.compile out",
        )
    now = apply(model, AlignSpec(ops, id="budget"))
    lines = now.patched()
    parts = {line.rpartition("-> ")[2] for line in lines} | ({"logprob"} & ops)
    if "rms_norm" in parts and "add_rms_norm" in ops:  # with both asked for, norms aren't told apart
        parts.add("add_rms_norm")
    return now, {**found, "operators": [op for op in OPERATORS if op in parts], "layers": len(lines)}
