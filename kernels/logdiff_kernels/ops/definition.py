"""How an operator of the namespace `logdiff` is defined: schema, implementation, fake implementation, autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_npu = torch.library.Library("logdiff", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
    mutates: Sequence[str] = (),
) -> None:
    """Define `torch.ops.logdiff.<name>` from its schema, `name(arguments) -> results`.

    Args:
        schema: torch schema without the namespace.
        run: the implementation on a CPU and, under torch's key for them, on NPUs; it looks at its tensors' device.
        fake: the same on shapes and dtypes alone.
        save: setup_context of the autograd function (ctx, inputs, output).
        backward: its backward (ctx, *gradients); without it a gradient through the operator is an error.
        mutates: arguments that are changed in place.
    """
    name = schema[: schema.index("(")]
    operator = torch.library.custom_op(
        f"logdiff::{name}", run, mutates_args=mutates, device_types="cpu", schema=schema[len(name) :]
    )
    _npu.impl(name, run, "PrivateUse1")  # type: ignore[no-untyped-call]
    operator.register_fake(fake)
    if backward is not None:
        operator.register_autograd(backward, setup_context=save)
