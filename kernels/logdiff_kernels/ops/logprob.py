"""Log-probabilities of tokens: eight leaves of the vocabulary merged by a tree, so that tensor parallelism that divides
eight gives the same bits.

Backward, in fp32, with l_j = (z_j - u) - ln1(s) and p_j = exp1(l_j), 0 beyond the vocabulary:

- logprob: (dlogp*([j = id] - p_j) - dH*(p_j*(l_j + H))) / T, the entropy's term only where its gradient is given and
  +0 where p_j is 0;
- log_softmax: (dout_j - p_j*R64(dout)) / T.

A temperature has no gradient.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from logdiff_kernels.cpu import logprob as cpu
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.ops.definition import define
from logdiff_kernels.ops.devices import Kernels
from logdiff_kernels.ops.direct import check_fp32, check_shapes, direct

_kernels = Kernels(cpu)


@overload
def logprob(
    logits: Tensor,
    ids: Tensor,
    temperature: float | Tensor = ...,
    vocab_size: int | None = ...,
    entropy: Literal[False] = ...,
) -> Tensor: ...


@overload
def logprob(
    logits: Tensor,
    ids: Tensor,
    temperature: float | Tensor = ...,
    vocab_size: int | None = ...,
    *,
    entropy: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def logprob(
    logits: Tensor,
    ids: Tensor,
    temperature: float | Tensor = 1.0,
    vocab_size: int | None = None,
    entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The log-probability of one token per row, in nats; never above 0.

    Args:
        logits: fp32 [T, V'], any strides.
        ids: int64 [T], columns.
        temperature: what logits are divided by; a tensor fp32 [T] has one per row. 0 stands for 1.
        vocab_size: V, the true vocabulary; columns from V up count as -inf. None: V'.
        entropy: also give the entropy of each row.

    Returns:
        fp32 [T], or (log-probabilities, entropies).

    Raises:
        UnsupportedError: another dtype or device.
        InputError: shapes that don't fit, an id that is no column.
    """
    vocabulary = logits.shape[-1] if vocab_size is None else vocab_size
    heat = _temperature(temperature, logits)
    if direct(logits):
        _check(logits, ids, heat, vocabulary)
        logp, bits, _ = _kernels.of(logits).logprob(logits, heat, ids, vocabulary, entropy)
        return logp if bits is None else (logp, bits)
    logp, bits, _ = torch.ops.logdiff.logprob(logits, ids, heat, vocabulary, entropy)
    return (logp, bits) if entropy else logp


def log_softmax(logits: Tensor, temperature: float | Tensor = 1.0, vocab_size: int | None = None) -> Tensor:
    """Every column's log-probability, fp32 [T, V'], with the bits that `logprob` gives; -inf beyond the vocabulary."""
    vocabulary = logits.shape[-1] if vocab_size is None else vocab_size
    heat = _temperature(temperature, logits)
    if direct(logits):
        return _log_softmax(logits, heat, vocabulary)[0]
    return torch.ops.logdiff.log_softmax(logits, heat, vocabulary)[0]  # type: ignore[no-any-return]


def logprob_partial(
    logits: Tensor,
    ids: Tensor,
    rank: int,
    ranks: int,
    vocab_size: int,
    temperature: float | Tensor = 1.0,
    entropy: bool = False,
) -> Tensor:
    """One tensor-parallel rank's part: fp32 [T, 5], to be gathered and given to `logprob_merge`. No gradient.

    Args:
        logits: fp32 [T, C], the columns of this rank: those from rank*W up, W = (V rounded up to a multiple of 64) /
            ranks, at most W of them and at least those below V. The last rank may have more, which count as -inf.
        ids: int64 [T], columns of the whole vocabulary.
        rank: this rank.
        ranks: 1, 2, 4 or 8.
        vocab_size: V.
        temperature: as in `logprob`.
        entropy: whether the merge will ask for entropies.

    Raises:
        UnsupportedError: a split that cuts leaves, or ranks that hold other columns than their leaves'.
    """
    if ranks not in (1, 2, 4, 8) or not 0 <= rank < ranks:
        raise UnsupportedError("aligned logprob: the ranks don't divide 8 leaves", value=(rank, ranks))
    heat = _temperature(temperature, logits)
    _check(logits, ids, heat, vocab_size, whole=False)
    width = (vocab_size + 63) // 64 * 64 // ranks
    first, columns = rank * width, logits.shape[1]
    if columns < min(width, vocab_size - first) or (columns > width and rank < ranks - 1):
        raise UnsupportedError(
            "aligned logprob: this rank's columns aren't those of its leaves",
            value=(columns, width),
            hint=f"move columns so that rank {rank} holds {first} to {first + width}",
        )
    leaves = cpu.LEAVES // ranks
    run = _kernels.of(logits)
    stats = run.stats(logits, heat, vocab_size, entropy, rank * leaves, leaves)
    z, owned = run.target(logits, heat, ids, vocab_size, first)
    return torch.cat([stats, z[:, None], owned[:, None].to(torch.float32)], dim=1)


@overload
def logprob_merge(partials: Tensor, entropy: Literal[False] = ...) -> Tensor: ...


@overload
def logprob_merge(partials: Tensor, entropy: Literal[True]) -> tuple[Tensor, Tensor]: ...


def logprob_merge(partials: Tensor, entropy: bool = False) -> Tensor | tuple[Tensor, Tensor]:
    """`logprob` from the parts of all ranks, fp32 [ranks, T, 5] in rank order.

    Raises:
        InputError: a token that no rank, or more than one, has a column for.
    """
    check_fp32("logprob", partials)
    fits = partials.dim() == 3 and partials.shape[2] == 5 and partials.shape[0] in (1, 2, 4, 8)
    check_shapes("logprob", fits, "partials [ranks, T, 5]", partials)
    owned = partials[:, :, 4]
    if bool((owned.sum(0) != 1).any()):
        raise InputError("aligned logprob: a token id that no rank, or more than one, has a column for")
    run = _kernels.of(partials)
    stats = run.merge(partials[:, :, :3].transpose(0, 1))
    z = partials[:, :, 3].gather(0, owned.argmax(0, keepdim=True))[0].contiguous()
    logp, bits = run.finish(stats, z, entropy)
    return logp if bits is None else (logp, bits)


def _temperature(temperature: float | Tensor, logits: Tensor) -> Tensor | None:
    if not isinstance(temperature, Tensor):
        if temperature in (0.0, 1.0):
            return None
        return torch.full(logits.shape[:1], float(temperature), dtype=torch.float32, device=logits.device)
    if temperature.dim() == 0:
        temperature = temperature.expand(logits.shape[0])
    return temperature.detach().to(torch.float32).contiguous()


def _check(
    logits: Tensor, ids: Tensor | None, temperature: Tensor | None, vocabulary: int, *, whole: bool = True
) -> None:
    check_fp32("logprob", logits, temperature)
    fits = logits.dim() == 2 and (temperature is None or temperature.shape == logits.shape[:1])
    fits = fits and vocabulary > 0 and (vocabulary <= logits.shape[-1] or not whole)
    if ids is not None:
        fits = fits and ids.shape == logits.shape[:1] and ids.dtype == torch.int64 and ids.is_cpu == logits.is_cpu
    check_shapes(
        "logprob", fits, "logits [T, V'], 0 < V <= V', ids int64 [T], temperature [T]", logits, ids, temperature
    )


def _logprob(
    logits: Tensor, ids: Tensor, temperature: Tensor | None, vocabulary: int, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    _check(logits, ids, temperature, vocabulary)
    logp, bits, stats = _kernels.of(logits).logprob(logits, temperature, ids, vocabulary, entropy)
    return logp, logits.new_empty(0) if bits is None else bits, stats


def _log_softmax(logits: Tensor, temperature: Tensor | None, vocabulary: int) -> tuple[Tensor, Tensor]:
    _check(logits, None, temperature, vocabulary)
    run = _kernels.of(logits)
    stats = run.stats(logits, temperature, vocabulary, False)
    return run.log_softmax(logits, temperature, stats, vocabulary), stats


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, ids, temperature, ctx.vocabulary, ctx.entropy = inputs
    ctx.save_for_backward(logits, ids, temperature, output[1], output[2])
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dlogp: Tensor | None, dentropy: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    logits, ids, temperature, entropy, stats = ctx.saved_tensors
    if not ctx.entropy:
        entropy = dentropy = None
    if dlogp is None and dentropy is None:
        return None, None, None, None, None
    d = torch.ops.logdiff.logprob_backward(logits, temperature, stats, ids, dlogp, entropy, dentropy, ctx.vocabulary)
    return d, None, None, None, None


def _softmax_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, temperature, ctx.vocabulary = inputs
    ctx.save_for_backward(logits, temperature, output[1])
    ctx.mark_non_differentiable(output[1])


def _softmax_backward(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    logits, temperature, stats = ctx.saved_tensors
    return torch.ops.logdiff.log_softmax_backward(logits, temperature, stats, dout, ctx.vocabulary), None, None


define(
    "logprob(Tensor logits, Tensor ids, Tensor? temperature, SymInt vocabulary, bool entropy)"
    " -> (Tensor, Tensor, Tensor)",
    _logprob,
    lambda logits, ids, temperature, vocabulary, entropy: (
        logits.new_empty(logits.shape[0]),
        logits.new_empty(logits.shape[0] if entropy else 0),
        logits.new_empty((logits.shape[0], 3)),
    ),
    _setup,
    _backward,
)
define(
    "logprob_backward(Tensor logits, Tensor? temperature, Tensor stats, Tensor ids, Tensor? dlogp, Tensor? entropy,"
    " Tensor? dentropy, SymInt vocabulary) -> Tensor",
    lambda logits, *rest: _kernels.of(logits).logprob_backward(logits, *rest),
    lambda logits, *rest: logits.new_empty(logits.shape),
)
define(
    "log_softmax(Tensor logits, Tensor? temperature, SymInt vocabulary) -> (Tensor, Tensor)",
    _log_softmax,
    lambda logits, temperature, vocabulary: (logits.new_empty(logits.shape), logits.new_empty((logits.shape[0], 3))),
    _softmax_setup,
    _softmax_backward,
)
define(
    "log_softmax_backward(Tensor logits, Tensor? temperature, Tensor stats, Tensor dout, SymInt vocabulary) -> Tensor",
    lambda logits, *rest: _kernels.of(logits).log_softmax_backward(logits, *rest),
    lambda logits, *rest: logits.new_empty(logits.shape),
)
