"""Latent attention: absorbed, it is the expanded attention; its projections are `linear`, one head at a time."""

from __future__ import annotations

import pytest
import torch
from logdiff_kernels import ops
from logdiff_kernels.errors import InputError
from logdiff_kernels.ops.attention_latent import absorbed_query, expanded_output, per_head
from logdiff_kernels.ops.reference import attention as exact

HEADS, NOPE, ROPE, VALUE, RANK = 3, 24, 16, 40, 72
LENGTHS = (1, 37, 530)


class Case:
    """Queries, latents and an up-projection of a few sequences."""

    def __init__(self, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(4)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        total = sum(LENGTHS)
        self.q, self.latent, self.rotated = draw(total, HEADS, NOPE + ROPE), draw(total, RANK), draw(total, ROPE)
        self.weight = draw(HEADS * (NOPE + VALUE), RANK) * RANK**-0.5
        self.cu = torch.tensor([0, *LENGTHS]).cumsum(0)
        self.scale = (NOPE + ROPE) ** -0.5

    def absorbed(self) -> torch.Tensor:
        keys, values = per_head(self.weight, HEADS, NOPE)
        key = torch.cat((self.latent, self.rotated), dim=-1).unsqueeze(1)
        out = ops.attention(absorbed_query(self.q, keys), key, key[..., :RANK], self.cu, scale=self.scale)
        return expanded_output(out, values)

    def expanded(self) -> torch.Tensor:
        """In fp64, as the models' papers write it."""
        made = (self.latent.double() @ self.weight.double().T).unflatten(-1, (HEADS, NOPE + VALUE))
        rotated = self.rotated.double().unsqueeze(1).expand(-1, HEADS, -1)
        key = torch.cat((made[..., :NOPE], rotated), dim=-1)
        found = exact.attention(self.q.double(), key, made[..., NOPE:], self.cu, scale=self.scale)
        assert isinstance(found, torch.Tensor)
        return found


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03), (torch.float16, 0.004)])
def test_the_absorbed_form_is_expanded_attention(dtype: torch.dtype, bound: float) -> None:
    case = Case(dtype)
    error = (case.absorbed().double() - case.expanded()).abs().max() / case.expanded().abs().max()
    assert float(error) < bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_projections_are_linear_of_each_head(dtype: torch.dtype) -> None:
    case = Case(dtype)
    keys, values = per_head(case.weight, HEADS, NOPE)
    query = absorbed_query(case.q, keys)
    out = torch.randn(11, HEADS, RANK, generator=torch.Generator().manual_seed(2)).to(dtype)
    made = expanded_output(out, values)
    for head in range(HEADS):
        rows = case.weight[head * (NOPE + VALUE) : (head + 1) * (NOPE + VALUE)]
        alone = ops.linear(case.q[:, head, :NOPE].contiguous(), rows[:NOPE].T.contiguous())
        assert torch.equal(query[:, head, :RANK], alone)
        assert torch.equal(query[:, head, RANK:], case.q[:, head, NOPE:])
        assert torch.equal(made[:, head], ops.linear(out[:, head].contiguous(), rows[NOPE:].contiguous()))


def test_rows_and_heads_have_the_bits_that_they_have_alone() -> None:
    case = Case(torch.bfloat16)
    keys, values = per_head(case.weight, HEADS, NOPE)
    whole = absorbed_query(case.q, keys)
    assert torch.equal(absorbed_query(case.q[5:6], keys), whole[5:6])
    one, _ = per_head(case.weight[(NOPE + VALUE) : 2 * (NOPE + VALUE)], 1, NOPE)
    assert torch.equal(absorbed_query(case.q[:, 1:2], one), whole[:, 1:2])
    assert absorbed_query(case.q[:0], keys).shape == (0, HEADS, RANK + ROPE)
    assert expanded_output(whole[:0, :, :RANK], values).shape == (0, HEADS, VALUE)


def test_paged_latents_in_chunks_have_the_bits_of_packed_prefill() -> None:
    """One cache of [blocks, block, L + R] is the key head, its first L elements the values."""
    case, block = Case(torch.bfloat16), 16
    keys, values = per_head(case.weight, HEADS, NOPE)
    expected, begin = case.absorbed(), int(case.cu[-2])
    length = LENGTHS[-1]
    pages = torch.randperm(-(-length // block), generator=torch.Generator().manual_seed(1)).to(torch.int32)
    cache = torch.full((len(pages), block, RANK + ROPE), float("nan"), dtype=torch.bfloat16).unsqueeze(2)
    slots = pages[torch.arange(length) // block].long() * block + torch.arange(length) % block
    at = 0
    for size in (1, 100, 17, 411, 1):
        rows = slice(begin + at, begin + at + size)
        ops.store_kv(
            case.latent[rows].unsqueeze(1),
            case.rotated[rows].unsqueeze(1),
            cache[..., :RANK],
            cache[..., RANK:],
            slots[at : at + size],
        )
        at += size
        found = ops.paged_attention(
            absorbed_query(case.q[rows], keys),
            cache,
            cache[..., :RANK],
            pages[None],
            torch.tensor([0, size], dtype=torch.int32),
            torch.tensor([at], dtype=torch.int32),
            scale=case.scale,
        )
        assert torch.equal(expanded_output(found, values), expected[rows]), at
    assert at == length


def test_gradients_are_those_of_expanded_attention_in_fp64() -> None:
    case = Case(torch.float32)
    leaves = [x.requires_grad_() for x in (case.q, case.latent, case.rotated, case.weight)]
    direction = torch.randn(sum(LENGTHS), HEADS, VALUE, generator=torch.Generator().manual_seed(6))
    found = torch.autograd.grad((case.absorbed() * direction).sum(), leaves)
    expected = torch.autograd.grad((case.expanded() * direction.double()).sum(), leaves)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, rtol=0, atol=2e-5 * float(other.abs().max()))


def test_weights_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match="up-projection"):
        per_head(torch.zeros(10, 4), 3, 2)
    with pytest.raises(InputError, match="up-projection"):
        per_head(torch.zeros(12, 4), 3, 4)
    keys, _ = per_head(torch.zeros(12, 4), 3, 2)
    with pytest.raises(InputError, match="heads"):
        absorbed_query(torch.zeros(5, 2, 3), keys)
