"""Multi-head latent attention in absorbed form: what surrounds `attention` over one latent head.

Keys and values of all heads are made of one latent of L elements per token. Instead of expanding it, the query takes
the keys' projection in, and the output goes through the values' projection afterwards; `attention` (and the paged
cache) then sees a single key head, [latent, rotated part], whose first L elements are also the values.

Both projections are `linear` per head: k ascending in one fp32 accumulator, one cast to the input's dtype. So a row's
bits depend neither on the number of heads that a tensor-parallel rank holds nor on prefill or decode. Their gradients
are those of `linear`, head by head.
"""

from __future__ import annotations

from torch import Tensor, arange, cat

from logdiff_kernels.errors import InputError
from logdiff_kernels.ops.linear import grouped_linear


def per_head(weight: Tensor, heads: int, nope: int) -> tuple[Tensor, Tensor]:
    """The two projections in the up-projection of latents (`kv_b_proj`), as views.

    Args:
        weight: [heads * (nope + Dv), L]; each head's keys come first, then its values.
        heads: heads in `weight`: a rank's own under tensor parallelism.
        nope: elements of a key head without position.

    Returns:
        The keys' [heads, L, nope] and the values' [heads, Dv, L], each as `linear` takes a weight: [out, in].

    Raises:
        InputError: rows that don't divide into such heads.
    """
    size, rest = divmod(weight.shape[0], max(heads, 1))
    if rest or size <= nope:
        raise InputError(
            "latent attention: the up-projection doesn't divide into heads of keys and values",
            value=(tuple(weight.shape), heads, nope),
            hint="weight [heads * (nope + Dv), L]",
        )
    stacked = weight.view(heads, size, weight.shape[1])
    return stacked[:, :nope].transpose(1, 2), stacked[:, nope:]


def absorbed_query(q: Tensor, keys: Tensor) -> Tensor:
    """Queries for the latent: q [T, H, nope + R] to [T, H, L + R]; the last R elements are kept.

    Args:
        keys: [H, L, nope], of `per_head`.
    """
    nope = keys.shape[2]
    return cat((_head_linear(q[..., :nope], keys), q[..., nope:]), dim=-1)


def expanded_output(out: Tensor, values: Tensor) -> Tensor:
    """What attention gave over the latent, [T, H, L], as values of each head: [T, H, Dv].

    Args:
        values: [H, Dv, L], of `per_head`.
    """
    return _head_linear(out, values)


def _head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`linear` per head: x [T, H, K] by weight [H, N, K] to [T, H, N]."""
    tokens, heads, size = x.shape
    if weight.shape[0] != heads:
        raise InputError(
            "latent attention: queries and up-projection have other numbers of heads",
            value=(tuple(x.shape), tuple(weight.shape)),
        )
    rows = x.transpose(0, 1).reshape(heads * tokens, size)
    made = grouped_linear(rows, arange(heads + 1) * tokens, weight)
    return made.view(heads, tokens, weight.shape[1]).transpose(0, 1)
