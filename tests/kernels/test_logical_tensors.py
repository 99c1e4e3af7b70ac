"""Fused tensors are split into the tensors of the checkpoint."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from logdiff_kernels.logical import split_logical
from logdiff_kernels.weights import TensorSum, tensor_sum

CONFIG = SimpleNamespace(num_attention_heads=4, num_key_value_heads=2, head_dim=3, hidden_size=12, num_experts=5)


def test_fused_qkv_rows_become_q_k_and_v() -> None:
    q, k, v = torch.randn(12, 8), torch.randn(6, 8), torch.randn(6, 8)
    pieces = split_logical("m.0.self_attn.qkv_proj.weight", torch.cat([q, k, v]), CONFIG)
    assert [p.name for p in pieces] == [f"m.0.self_attn.{n}_proj.weight" for n in "qkv"]
    assert all(torch.equal(p.values, t) for p, t in zip(pieces, (q, k, v), strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_shards_of_all_ranks_add_up_to_each_projection(ranks: int) -> None:
    parts = {"q": (torch.randn(12, 8), 4), "k": (torch.randn(6, 8), 2), "v": (torch.randn(6, 8), 2)}
    sums: dict[str, TensorSum] = {}
    for rank in range(ranks):
        rows = []
        for values, heads in parts.values():
            held = max(1, heads // ranks)
            first = rank * heads // ranks
            rows.append(values[first * 3 : (first + held) * 3])
        for piece in split_logical("a.qkv_proj.weight", torch.cat(rows), CONFIG, tp_rank=rank, tp_size=ranks):
            sums.setdefault(piece.name, TensorSum(piece.shape, "float32")).add(piece.values, piece.index)
    for name, (values, _) in parts.items():
        assert sums[f"a.{name}_proj.weight"].complete
        assert sums[f"a.{name}_proj.weight"].as_dict() == tensor_sum(values).as_dict()


@pytest.mark.parametrize("rank", [0, 1])
def test_gate_up_shards_know_their_rows(rank: int) -> None:
    gate, up = torch.arange(24.0).reshape(6, 4), torch.arange(24.0, 48.0).reshape(6, 4)
    shard = torch.cat([gate[rank * 3 : rank * 3 + 3], up[rank * 3 : rank * 3 + 3]])
    pieces = split_logical("mlp.gate_up_proj.weight", shard, CONFIG, tp_rank=rank, tp_size=2)
    assert [p.name for p in pieces] == ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
    for piece, whole in zip(pieces, (gate, up), strict=True):
        assert piece.shape == (6, 4)
        assert torch.equal(whole[piece.index], piece.values)


def test_stacked_experts_become_one_tensor_each() -> None:
    stacked = torch.randn(5, 4, 6)
    pieces = split_logical("mlp.experts.gate_up_proj", stacked, CONFIG)
    assert [p.name for p in pieces] == [f"mlp.experts.{i}.gate_up_proj" for i in range(5)]
    assert torch.equal(pieces[3].values, stacked[3])
    bias = split_logical("mlp.experts.down_proj_bias", torch.randn(5, 6), CONFIG)
    assert [p.name for p in bias] == [f"mlp.experts.{i}.down_proj_bias" for i in range(5)]


def test_anything_else_stays_whole() -> None:
    values = torch.randn(5, 4)
    (piece,) = split_logical("mlp.experts.3.down_proj.weight", values, CONFIG)
    assert (piece.name, piece.shape) == ("mlp.experts.3.down_proj.weight", (5, 4))


def test_rows_that_do_not_fit_the_configuration_are_refused() -> None:
    with pytest.raises(ValueError, match="25 rows"):
        split_logical("a.qkv_proj.weight", torch.zeros(25, 8), CONFIG)
