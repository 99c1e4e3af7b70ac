"""Log-probabilities of the CPU backend: thin calls on tensors whose shapes and dtypes the caller has checked.

`stats` is fp32 [T, 3]: the row's maximum m, the sum s of exp1(z - u) and h, the sum of exp1(z - u)*(z - u).
"""

from __future__ import annotations

from ctypes import c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch
from torch import Tensor

from logdiff_kernels.contract import LOGPROB_LEAVES
from logdiff_kernels.cpu.library import address, check, packed
from logdiff_kernels.errors import InputError

LEAVES = LOGPROB_LEAVES

_P, _L, _I = c_void_p, c_int64, c_int32
_SIGNATURES: dict[str, list[Any]] = {
    "ld_logprob": [*[_P] * 6, *[_L] * 4],
    "ld_logprob_stats": [*[_P] * 3, *[_L] * 6, _I],
    "ld_logprob_merge": [_P, _P, _L, _L],
    "ld_logprob_finish": [*[_P] * 4, _L],
    "ld_logprob_target": [*[_P] * 5, *[_L] * 5],
    "ld_log_softmax": [*[_P] * 4, *[_L] * 4],
    "ld_logprob_backward": [*[_P] * 8, *[_L] * 4],
    "ld_log_softmax_backward": [*[_P] * 5, *[_L] * 4],
}


@cache
def _call(name: str) -> Any:
    return packed(name, _SIGNATURES[name])


def _run(name: str, *arguments: Any) -> None:
    status = _call(name)(*arguments)
    if status:
        check(name, status)


def _rows(logits: Tensor) -> Tensor:
    return logits if logits.stride(1) == 1 or logits.shape[1] <= 1 else logits.contiguous()


def logprob(
    logits: Tensor, temperature: Tensor | None, ids: Tensor, vocabulary: int, entropy: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """(log-probability fp32 [T], entropy fp32 [T] if asked for, stats fp32 [T, 3]).

    Raises:
        InputError: an id that is no column.
    """
    logits, ids = _rows(logits), ids.contiguous()
    tokens, columns = logits.shape
    logp = torch.empty(tokens, dtype=torch.float32)
    found = torch.empty(tokens, 3, dtype=torch.float32)
    bits = torch.empty(tokens, dtype=torch.float32) if entropy else None
    status = _call("ld_logprob")(
        logits.data_ptr(),
        address(temperature),
        ids.data_ptr(),
        found.data_ptr(),
        logp.data_ptr(),
        address(bits),
        tokens,
        columns,
        logits.stride(0),
        vocabulary,
    )
    if status:
        outside = ids[(ids < 0) | (ids >= columns)]
        if outside.numel():
            message = f"aligned logprob: a token id outside of the {columns} columns"
            raise InputError(message, value=outside[:4].tolist())
        check("ld_logprob", status)
    return logp, bits, found


def stats(
    logits: Tensor,
    temperature: Tensor | None,
    vocabulary: int,
    entropy: bool,
    first_leaf: int = 0,
    leaves: int = LEAVES,
) -> Tensor:
    """Stats fp32 [T, 3] over these leaves; logits [T, columns] begin with the first leaf's first column."""
    logits = _rows(logits)
    tokens, columns = logits.shape
    out = torch.empty((tokens, 3), dtype=torch.float32)
    _run(
        "ld_logprob_stats",
        logits.data_ptr(),
        address(temperature),
        out.data_ptr(),
        tokens,
        columns,
        logits.stride(0),
        vocabulary,
        first_leaf,
        leaves,
        entropy,
    )
    return out


def merge(partial: Tensor) -> Tensor:
    """Stats [T, 3] of contiguous shards [T, count, 3] in order."""
    partial = partial.contiguous()
    out = torch.empty((partial.shape[0], 3), dtype=torch.float32)
    _run("ld_logprob_merge", partial.data_ptr(), out.data_ptr(), partial.shape[0], partial.shape[1])
    return out


def target(
    logits: Tensor, temperature: Tensor | None, ids: Tensor, vocabulary: int, first_column: int
) -> tuple[Tensor, Tensor]:
    """(z fp32 [T] of each row's id, owned uint8 [T]: whether the column is here)."""
    logits, ids = _rows(logits), ids.contiguous()
    tokens, columns = logits.shape
    out = torch.empty(tokens, dtype=torch.float32)
    owned = torch.empty(tokens, dtype=torch.uint8)
    _run(
        "ld_logprob_target",
        logits.data_ptr(),
        address(temperature),
        ids.data_ptr(),
        out.data_ptr(),
        owned.data_ptr(),
        tokens,
        columns,
        logits.stride(0),
        vocabulary,
        first_column,
    )
    return out, owned


def finish(stats: Tensor, target: Tensor, entropy: bool) -> tuple[Tensor, Tensor | None]:
    """(log-probability fp32 [T], entropy fp32 [T] if asked for)."""
    tokens = stats.shape[0]
    logp = torch.empty(tokens, dtype=torch.float32)
    bits = torch.empty(tokens, dtype=torch.float32) if entropy else None
    _run("ld_logprob_finish", stats.data_ptr(), target.data_ptr(), logp.data_ptr(), address(bits), tokens)
    return logp, bits


def log_softmax(logits: Tensor, temperature: Tensor | None, stats: Tensor, vocabulary: int) -> Tensor:
    """Every column's log-probability, fp32 [T, columns]."""
    logits = _rows(logits)
    tokens, columns = logits.shape
    out = torch.empty((tokens, columns), dtype=torch.float32)
    _run(
        "ld_log_softmax",
        logits.data_ptr(),
        address(temperature),
        stats.data_ptr(),
        out.data_ptr(),
        tokens,
        columns,
        logits.stride(0),
        vocabulary,
    )
    return out


def logprob_backward(
    logits: Tensor,
    temperature: Tensor | None,
    stats: Tensor,
    ids: Tensor,
    dlogp: Tensor | None,
    entropy: Tensor | None,
    dentropy: Tensor | None,
    vocabulary: int,
) -> Tensor:
    """The gradient of the logits, fp32 [T, columns]."""
    logits, ids = _rows(logits), ids.contiguous()
    dlogp = None if dlogp is None else dlogp.contiguous()
    dentropy = None if dentropy is None else dentropy.contiguous()
    tokens, columns = logits.shape
    out = torch.empty((tokens, columns), dtype=torch.float32)
    _run(
        "ld_logprob_backward",
        logits.data_ptr(),
        address(temperature),
        stats.data_ptr(),
        ids.data_ptr(),
        address(dlogp),
        address(entropy),
        address(dentropy),
        out.data_ptr(),
        tokens,
        columns,
        logits.stride(0),
        vocabulary,
    )
    return out


def log_softmax_backward(
    logits: Tensor, temperature: Tensor | None, stats: Tensor, dout: Tensor, vocabulary: int
) -> Tensor:
    """The gradient of the logits, fp32 [T, columns]."""
    logits, dout = _rows(logits), dout.contiguous()
    tokens, columns = logits.shape
    out = torch.empty((tokens, columns), dtype=torch.float32)
    _run(
        "ld_log_softmax_backward",
        logits.data_ptr(),
        address(temperature),
        stats.data_ptr(),
        dout.data_ptr(),
        out.data_ptr(),
        tokens,
        columns,
        logits.stride(0),
        vocabulary,
    )
    return out
