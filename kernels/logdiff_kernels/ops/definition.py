"""How an operator of the namespace `logdiff` is defined: schema, CPU kernel, fake implementation, autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY: Any = torch.library.Library("logdiff", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> None:
    """Define `torch.ops.logdiff.<name>` from its schema, `name(arguments) -> results`; pure functions only.

    Args:
        schema: torch schema without the namespace.
        run: the CPU implementation.
        fake: the same on shapes and dtypes alone.
        save: setup_context of the autograd function (ctx, inputs, output).
        backward: its backward (ctx, *gradients); without it the operator has no gradient.
    """
    name = schema[: schema.index("(")]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CPU")
    torch.library.register_fake(f"logdiff::{name}", fake, lib=_LIBRARY)
    if backward is not None:
        torch.library.register_autograd(f"logdiff::{name}", backward, setup_context=save, lib=_LIBRARY)
