"""Log-probabilities on an NPU, or in the twin: the functions of `cpu.logprob` with a launcher in front."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.ascendc.kernel import FP32, Kernel
from logdiff_kernels.ascendc.rows import cut, dense
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.contract import LOGPROB_LEAVES
from logdiff_kernels.contract.logprob import padded_vocabulary
from logdiff_kernels.errors import InputError
from logdiff_kernels.plan.plans import RowKernel
from logdiff_kernels.plan.structs import FLOAT32, LdLogprobPlan

LEAVES = LOGPROB_LEAVES


def _kernel(name: str, what: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Kernel:
    return Kernel(name, what, LdLogprobPlan, inputs, outputs, dtypes=FP32)


KERNELS = (
    _kernel("logprob_stats", "maximum and sums of each leaf of each token", ("logits", "temperature"), ("parts",)),
    _kernel("logprob_merge", "statistics of contiguous shards merged by the tree", ("partial",), ("stats",)),
    _kernel("logprob_target", "z of each token's id", ("logits", "temperature", "ids"), ("target", "owned")),
    _kernel("logprob_finish", "log-probability and entropy", ("stats", "target"), ("logp", "entropy")),
    _kernel("log_softmax", "log-probability of every column", ("logits", "temperature", "stats"), ("out",)),
    _kernel(
        "logprob_backward",
        "gradient of the logits of logprob and entropy",
        ("logits", "temperature", "stats", "ids", "dlogp", "entropy", "dentropy"),
        ("dlogits",),
    ),
    _kernel(
        "log_softmax_backward",
        "gradient of the logits of log_softmax",
        ("logits", "temperature", "stats", "dout"),
        ("dlogits",),
    ),
)

_PIECE = 4096
"""Columns of a piece of a token where every column has a result: bits don't depend on it."""


def logprob(
    launcher: Launcher, logits: Tensor, temperature: Tensor | None, ids: Tensor, vocabulary: int, entropy: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """As `cpu.logprob.logprob`. Waits for the device, to see whether an id is no column."""
    columns = logits.shape[1]
    found, owned = target(launcher, logits, temperature, ids, vocabulary, 0)
    if not bool(owned.all()):
        outside = ids[(ids < 0) | (ids >= columns)]
        message = f"aligned logprob: a token id outside of the {columns} columns"
        raise InputError(message, value=outside[:4].tolist())
    merged = stats(launcher, logits, temperature, vocabulary, entropy)
    logp, bits = finish(launcher, merged, found, entropy)
    return logp, bits, merged


def stats(
    launcher: Launcher,
    logits: Tensor,
    temperature: Tensor | None,
    vocabulary: int,
    entropy: bool,
    first_leaf: int = 0,
    leaves: int = LEAVES,
) -> Tensor:
    """As `cpu.logprob.stats`."""
    logits = _rows(logits)
    tokens, columns = logits.shape
    leaf = padded_vocabulary(vocabulary) // LEAVES
    parts = torch.empty((tokens, leaves, 3), dtype=torch.float32, device=logits.device)
    plan = LdLogprobPlan(
        stride=_stride(logits),
        dtype=FLOAT32,
        tokens=tokens,
        columns=columns,
        vocabulary=vocabulary,
        leaves=leaves,
        leaf=leaf,
        first_leaf=first_leaf,
        has_temperature=temperature is not None,
        entropy=entropy,
        rows=cut(launcher, RowKernel.LOGPROB, FLOAT32, tokens * leaves, leaf),
    )
    if tokens:
        launcher.launch("logprob_stats", [logits, dense(temperature), parts], plan, plan.rows.blocks)
    return merge(launcher, parts) if leaves > 1 else parts.view(tokens, 3)


def merge(launcher: Launcher, partial: Tensor) -> Tensor:
    """As `cpu.logprob.merge`."""
    partial = partial.contiguous()
    tokens, count = partial.shape[:2]
    out = torch.empty((tokens, 3), dtype=torch.float32, device=partial.device)
    if tokens:
        plan = _token_plan(launcher, tokens, leaves=count)
        launcher.launch("logprob_merge", [partial, out], plan, plan.rows.blocks)
    return out


def target(
    launcher: Launcher, logits: Tensor, temperature: Tensor | None, ids: Tensor, vocabulary: int, first_column: int
) -> tuple[Tensor, Tensor]:
    """As `cpu.logprob.target`."""
    logits, ids = _rows(logits), ids.contiguous()
    tokens, columns = logits.shape
    out = torch.empty(tokens, dtype=torch.float32, device=logits.device)
    owned = torch.empty(tokens, dtype=torch.uint8, device=logits.device)
    if tokens:
        plan = _token_plan(
            launcher,
            tokens,
            stride=_stride(logits),
            columns=columns,
            vocabulary=vocabulary,
            first_leaf=first_column,
            has_temperature=temperature is not None,
        )
        tensors = [logits, dense(temperature), ids, out, owned]
        launcher.launch("logprob_target", tensors, plan, plan.rows.blocks)
    return out, owned


def finish(launcher: Launcher, stats: Tensor, target: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """As `cpu.logprob.finish`."""
    tokens = stats.shape[0]
    logp = torch.empty(tokens, dtype=torch.float32, device=stats.device)
    bits = torch.empty_like(logp) if entropy else None
    if tokens:
        plan = _token_plan(launcher, tokens, entropy=entropy)
        tensors = [stats.contiguous(), target.contiguous(), logp, bits]
        launcher.launch("logprob_finish", tensors, plan, plan.rows.blocks)
    return logp, bits


def log_softmax(
    launcher: Launcher, logits: Tensor, temperature: Tensor | None, stats: Tensor, vocabulary: int
) -> Tensor:
    """As `cpu.logprob.log_softmax`."""
    logits = _rows(logits)
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if out.numel():
        plan = _column_plan(launcher, logits, temperature, vocabulary)
        tensors = [logits, dense(temperature), stats.contiguous(), out]
        launcher.launch("log_softmax", tensors, plan, plan.rows.blocks)
    return out


def logprob_backward(
    launcher: Launcher,
    logits: Tensor,
    temperature: Tensor | None,
    stats: Tensor,
    ids: Tensor,
    dlogp: Tensor | None,
    entropy: Tensor | None,
    dentropy: Tensor | None,
    vocabulary: int,
) -> Tensor:
    """As `cpu.logprob.logprob_backward`."""
    logits, ids = _rows(logits), ids.contiguous()
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if out.numel():
        plan = _column_plan(launcher, logits, temperature, vocabulary)
        given = [dense(temperature), stats.contiguous(), ids, dense(dlogp), dense(entropy), dense(dentropy)]
        launcher.launch("logprob_backward", [logits, *given, out], plan, plan.rows.blocks)
    return out


def log_softmax_backward(
    launcher: Launcher, logits: Tensor, temperature: Tensor | None, stats: Tensor, dout: Tensor, vocabulary: int
) -> Tensor:
    """As `cpu.logprob.log_softmax_backward`."""
    logits, dout = _rows(logits), dout.contiguous()
    out = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    if out.numel():
        plan = _column_plan(launcher, logits, temperature, vocabulary, whole=True)
        tensors = [logits, dense(temperature), stats.contiguous(), dout, out]
        launcher.launch("log_softmax_backward", tensors, plan, plan.rows.blocks)
    return out


def _rows(logits: Tensor) -> Tensor:
    return logits if logits.stride(1) == 1 or logits.shape[1] <= 1 else logits.contiguous()


def _stride(logits: Tensor) -> int:
    return logits.stride(0) if logits.shape[0] > 1 else logits.shape[1]


def _token_plan(launcher: Launcher, tokens: int, **fields: Any) -> LdLogprobPlan:
    """A row is a token, of which few values are needed."""
    rows = cut(launcher, RowKernel.LOGPROB, FLOAT32, tokens, 1)
    return LdLogprobPlan(dtype=FLOAT32, tokens=tokens, rows=rows, **fields)


def _column_plan(
    launcher: Launcher, logits: Tensor, temperature: Tensor | None, vocabulary: int, whole: bool = False
) -> LdLogprobPlan:
    """A row is a piece of a token's columns, or (`whole`) a token, taken piece by piece."""
    tokens, columns = logits.shape
    piece = min(_PIECE, -(-columns // 64) * 64)
    pieces = -(-columns // piece)
    return LdLogprobPlan(
        stride=_stride(logits),
        dtype=FLOAT32,
        tokens=tokens,
        columns=columns,
        vocabulary=vocabulary,
        leaves=pieces,
        leaf=piece,
        has_temperature=temperature is not None,
        rows=cut(launcher, RowKernel.LOGPROB_BACKWARD, FLOAT32, tokens if whole else tokens * pieces, piece),
    )
