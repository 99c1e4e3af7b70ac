"""Packed memory gives back the exact weight, and only what the kernel reads counts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.engines.vllm import unpack  # noqa: E402
from logdiff_kernels.engines.vllm.linear_parts import row_parts  # noqa: E402


class Method:
    def apply(self, layer: Any, x: Any, bias: Any) -> Any:
        assert bias is None
        return x @ layer.hidden.T


def packed_layer(rows: int, columns: int, dtype: Any) -> Any:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(dtype)
    return SimpleNamespace(
        cpu_linear=object(),
        quant_method=Method(),
        hidden=weight,
        weight=torch.empty(0, dtype=dtype),
        params_dtype=dtype,
        output_size_per_partition=rows,
        input_size_per_partition=columns,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bound", [1 << 26, 1000, 1])
def test_identity_rows_give_back_every_bit_in_bounded_blocks(
    dtype: Any, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "BLOCK_BYTES", bound)
    layer = packed_layer(33, 20, dtype)
    blocks = list(unpack.weight_columns(layer))
    assert torch.equal(torch.cat([block for _, block in blocks], dim=1), layer.hidden)
    assert blocks[0][0] == 0
    assert all(block.numel() * dtype.itemsize <= max(bound, 33 * dtype.itemsize) for _, block in blocks)


def test_a_layer_that_packs_nothing_is_read_where_it_stands() -> None:
    weight = torch.randn(4, 3)
    ((start, values),) = unpack.weight_columns(SimpleNamespace(weight=weight))
    assert start == 0
    assert values.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_expert_packing_operator_is_undone(dtype: Any) -> None:
    from vllm._custom_ops import cpu_prepack_moe_weight
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("the packing operator belongs to vLLM's CPU backend")
    weight = torch.randn(2, 96, 64, generator=torch.Generator().manual_seed(2)).to(dtype)
    packed = cpu_prepack_moe_weight(weight, "vec")
    assert not torch.equal(packed, weight)
    order = unpack._packed_order(packed, "vec")
    for expert in range(2):
        assert torch.equal(unpack._unpacked(packed[expert], order), weight[expert])


def qkv(rank: int, size: int, heads: int, kv_heads: int) -> Any:
    from vllm.model_executor.layers.linear import QKVParallelLinear

    layer = object.__new__(QKVParallelLinear)
    torch.nn.Module.__init__(layer)
    layer.tp_rank, layer.tp_size = rank, size
    layer.head_size = layer.v_head_size = 8
    layer.total_num_heads, layer.total_num_kv_heads = heads, kv_heads
    layer.num_heads = heads // size
    layer.num_kv_heads = max(1, kv_heads // size)
    layer.num_kv_head_replicas = max(1, size // kv_heads)
    return layer


def test_ranks_that_share_a_key_head_name_the_same_rows() -> None:
    """Eight query and two key heads of size 8 on four ranks: ranks 0 and 1 hold key head 0, ranks 2 and 3 head 1."""
    found = [list(row_parts(qkv(rank, 4, 8, 2))) for rank in range(4)]
    assert [(part.start, part.count, part.total) for part in (parts[0] for parts in found)] == [
        (0, 16, 64),
        (16, 16, 64),
        (32, 16, 64),
        (48, 16, 64),
    ]
    assert [(parts[1].local, parts[1].start, parts[1].total) for parts in found] == [
        (16, 0, 16),
        (16, 0, 16),
        (16, 8, 16),
        (16, 8, 16),
    ]
    assert [(parts[2].local, parts[2].start) for parts in found] == [(24, 0), (24, 0), (24, 8), (24, 8)]
