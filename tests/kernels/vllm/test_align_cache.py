"""The paged cache as vLLM lays it out in memory, written and read by the aligned operators."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels import ops  # noqa: E402
from logdiff_kernels.engines.vllm.align.attention import cache_views  # noqa: E402


@pytest.mark.parametrize("block", [16, 48, 128])
def test_keys_then_values_stand_in_each_block_and_head(block: int) -> None:
    cache = torch.zeros(4, 2, block, 2 * 8, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(3, 2, 8, generator=generator).to(torch.bfloat16) for _ in range(2))
    slots = torch.tensor([2 * block + 5, -1, block - 1])
    ops.store_kv(k, v, *cache_views(cache), slots)
    memory = cache.view(4, 2, 2, block, 8)  # block, head, keys or values, place, element
    for row, (number, place) in ((0, (2, 5)), (2, (0, block - 1))):
        for head in range(2):
            assert torch.equal(memory[number, head, 0, place], k[row, head])
            assert torch.equal(memory[number, head, 1, place], v[row, head])
    assert int((cache != 0).any(-1).sum()) <= 8  # the row without a slot is nowhere


@pytest.mark.parametrize("block", [16, 64])
def test_attention_over_pages_equals_attention_over_rows(block: int) -> None:
    generator = torch.Generator().manual_seed(1)
    length, heads, kv_heads, dim = 77, 4, 2, 32
    q, k, v = (torch.randn(length, n, dim, generator=generator).to(torch.bfloat16) for n in (heads, kv_heads, kv_heads))
    cache = torch.full((8, kv_heads, block, 2 * dim), 3.0, dtype=torch.bfloat16)
    table = torch.tensor([[7, 2, 5, 0, 1][: -(-length // block)]], dtype=torch.int32)
    places = torch.arange(length)
    slots = table[0].long()[places // block] * block + places % block
    ops.store_kv(k, v, *cache_views(cache), slots)
    starts = torch.tensor([0, length], dtype=torch.int32)
    whole = ops.attention(q, k, v, starts, scale=0.2)
    last = ops.paged_attention(
        q[-3:], *cache_views(cache), table, torch.tensor([0, 3], dtype=torch.int32), torch.tensor([length]), scale=0.2
    )
    assert torch.equal(whole[-3:].view(torch.int16), last.view(torch.int16))
