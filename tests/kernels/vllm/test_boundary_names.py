"""Naming the calls of layers that no local model has: explicit sums, norms after blocks, keys that nothing rotates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.engines.vllm.boundaries.calls import Call, Found, Shard  # noqa: E402
from logdiff_kernels.engines.vllm.boundaries.naming import place_end, place_layer, place_output  # noqa: E402

N, H, HEAD = 6, 32, 8
Q, KV = 32, 16


def bare(kind: Any, **attributes: Any) -> Any:
    """A module of that class with these attributes alone; building a whole one takes an engine."""
    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    module.__dict__.update(attributes)
    return module


class Layer:
    """Writes the calls of a layer with rows of their own; `size` ranks share its heads and features."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.calls: list[Call] = []
        self.rank, self.size = rank, size
        self._generator = torch.Generator().manual_seed(1)

    def rows(self, width: int) -> Any:
        return torch.randn(N, width, generator=self._generator).to(torch.bfloat16)

    def call(self, kind: str, where: str, given: list[Any], left: list[Any], module: Any = None) -> list[Any]:
        self.calls.append(Call(kind, f"model.layers.3.{where}", module or object(), given, left))
        return left

    def norm(self, where: str, *given: Any) -> list[Any]:
        module = SimpleNamespace(variance_epsilon=1e-5, weight=torch.ones(given[0].shape[1]))
        left = [self.rows(given[0].shape[1]), *([given[0] + given[1]] if len(given) > 1 else [])]
        return self.call("norm", where, list(given), left, module)

    def qkv(self, x: Any) -> list[Any]:
        from vllm.model_executor.layers.linear import QKVParallelLinear

        module = bare(
            QKVParallelLinear, tp_rank=self.rank, tp_size=self.size, num_heads=Q // HEAD // self.size,
            num_kv_heads=KV // HEAD // self.size, num_kv_head_replicas=1, head_size=HEAD, v_head_size=HEAD,
            total_num_heads=Q // HEAD, total_num_kv_heads=KV // HEAD, gather_output=False, bias=None,
        )  # fmt: skip
        counts = [Q // self.size, KV // self.size, KV // self.size]
        (left,) = self.call("linear", "self_attn.qkv_proj", [x], [self.rows(sum(counts))], module)
        return [part.contiguous() for part in left.split(counts, dim=1)]

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        impl = SimpleNamespace(scale=0.5, sliding_window=(7, 0), logits_soft_cap=None, sinks=None)
        module = SimpleNamespace(impl=impl, num_heads=4, num_kv_heads=2, head_size=HEAD)
        (context,) = self.call("attention", "self_attn.attn", [q, k, v], [self.rows(Q // self.size)], module)
        return self.row("self_attn.o_proj", context, Q)

    def row(self, where: str, x: Any, whole: int, reduced: bool = True) -> Any:
        from vllm.model_executor.layers.linear import RowParallelLinear

        module = bare(
            RowParallelLinear, tp_rank=self.rank, tp_size=self.size, input_size=whole, output_size=H,
            reduce_results=reduced, bias=None,
        )  # fmt: skip
        return self.call("linear", where, [x], [self.rows(H)], module)[0]

    def mlp(self, x: Any) -> Any:
        from vllm.model_executor.layers.linear import MergedColumnParallelLinear

        module = bare(
            MergedColumnParallelLinear, tp_rank=self.rank, tp_size=self.size, output_sizes=[64, 64],
            gather_output=False, bias=None,
        )  # fmt: skip
        (both,) = self.call("linear", "mlp.gate_up_proj", [x], [self.rows(128 // self.size)], module)
        (act,) = self.call("activation", "mlp.act_fn", [both], [self.rows(64 // self.size)])
        return self.row("mlp.down_proj", act, 64)

    def placed(self, stream: Any) -> dict[str, Found]:
        found, strays = place_layer(3, self.calls, stream)
        assert strays == []
        return {one.name.removeprefix("layers.3."): one for one in found}


def same(a: Any, b: Any) -> bool:
    return bool(torch.equal(a, b))


def test_explicit_sums_are_what_the_next_norm_is_given_and_what_the_layer_leaves() -> None:
    layer = Layer()
    stream = layer.rows(H)
    out = layer.attend(*layer.qkv(layer.norm("input_layernorm", stream)[0]))
    middle = stream + out
    last = layer.mlp(layer.norm("post_attention_layernorm", middle)[0])
    found = layer.placed(stream)
    assert same(found["attn_residual"].values, middle)
    assert [same(a, b) for a, b in zip(found["attn_residual"].given, (stream, out), strict=True)] == [True, True]
    assert "attn_post_norm" not in found
    after = place_output(3, "model.layers.3", middle + last, list(found.values()), stream)
    assert after.name == "layers.3.residual"
    assert [same(a, b) for a, b in zip(after.given, (middle, last), strict=True)] == [True, True]


def test_norms_after_the_blocks_alone_are_told_from_norms_before_them() -> None:
    layer = Layer()
    stream = layer.rows(H)
    out = layer.attend(*layer.qkv(stream))
    middle = stream + layer.norm("post_attention_layernorm", out)[0]
    last = layer.mlp(middle)
    layer.norm("post_feedforward_layernorm", last)
    found = layer.placed(stream)
    assert {"attn_post_norm", "mlp_post_norm"} <= set(found)
    assert not {"input_norm", "mlp_norm"} & set(found)
    assert same(found["attn_residual"].values, middle)
    assert same(found["mlp_post_norm"].given[0], last)


def test_a_norm_that_adds_shows_the_sums_before_and_after_the_layer() -> None:
    layer = Layer()
    x, residual = layer.rows(H), layer.rows(H)
    normed, stream = layer.norm("input_layernorm", x, residual)
    out = layer.attend(*layer.qkv(normed))
    layer.mlp(layer.norm("post_attention_layernorm", out, stream)[0])
    before, _ = place_layer(3, layer.calls, None)
    found = {one.name: one for one in before}
    assert same(found["layers.2.residual"].values, x + residual)
    assert same(found["layers.3.attn_residual"].values, out + stream)
    assert same(found["layers.3.mlp_norm"].given[0], out + stream)
    ends = place_end(3, [layer.calls[0]])
    assert [one.name for one in ends] == ["layers.3.residual", "final_norm"]


def test_keys_that_nothing_rotates_are_kept_for_every_position() -> None:
    layer = Layer()
    q, k, v = layer.qkv(layer.norm("input_layernorm", layer.rows(H))[0])
    k_normed = layer.norm("self_attn.k_norm", k)[0]
    layer.attend(q, k_normed, v)
    found = layer.placed(None)
    assert "k_rope" not in found
    assert (found["k_norm"].every, found["k"].every, found["v"].every, found["q"].every) == (True, False, True, False)


def test_a_rotation_that_no_module_makes_is_what_attention_is_given() -> None:
    layer = Layer()
    _, k, v = layer.qkv(layer.norm("input_layernorm", layer.rows(H))[0])
    turned = [layer.rows(Q), layer.rows(KV)]
    layer.attend(*turned, v)
    found = layer.placed(None)
    assert same(found["q_rope"].values, turned[0])
    assert same(found["k_rope"].given[0], k)
    assert found["k_rope"].every


def test_a_norm_of_heads_that_is_fed_something_else_is_told_by_its_name() -> None:
    layer = Layer()
    q, k, v = layer.qkv(layer.norm("input_layernorm", layer.rows(H))[0])
    scaled = (2.0 * q).to(q.dtype)
    layer.attend(layer.norm("self_attn.q_norm", scaled)[0], k, v)
    found = layer.placed(None)
    assert same(found["q_norm"].given[0], scaled)


def test_windows_of_flash_attention_count_the_token_itself() -> None:
    layer = Layer()
    layer.attend(*layer.qkv(layer.norm("input_layernorm", layer.rows(H))[0]))
    assert layer.placed(None)["context"].facts["window"] == 8


@pytest.mark.parametrize("rank", [0, 1])
def test_parts_of_ranks_know_their_place(rank: int) -> None:
    layer = Layer(rank, 2)
    q, k, v = layer.qkv(layer.norm("input_layernorm", layer.rows(H))[0])
    layer.call("rope", "self_attn.rotary_emb", [q, k], [layer.rows(Q // 2), layer.rows(KV // 2)])
    turned = layer.calls[-1].left
    layer.norm("post_attention_layernorm", layer.attend(*turned, v), layer.rows(H))
    layer.mlp(layer.calls[-1].left[0])
    found = layer.placed(None)
    expected = {
        "q": (Q // 2, Q), "k": (KV // 2, KV), "v": (KV // 2, KV), "q_rope": (Q // 2, Q), "k_rope": (KV // 2, KV),
        "context": (Q // 2, Q), "gate": (32, 64), "up": (32, 64), "act": (32, 64),
    }  # fmt: skip
    for part, (width, total) in expected.items():
        assert found[part].shard == Shard("columns", rank * width, total), part
        assert found[part].values.shape[1] == width
    for part in ("attn_out", "mlp_out", "attn_residual", "mlp_norm"):
        assert found[part].shard.mode == "whole", part
    assert found["mlp_out"].given_shards == [Shard("columns", rank * 32, 64)]
    assert found["attn_out"].given_shards == [Shard("columns", rank * Q // 2, Q)]


def test_rotated_pairs_of_latent_attention_are_put_in_halves_for_queries_and_keys_alike() -> None:
    heads, plain, turned = 2, 4, 6
    layer = Layer()
    x = layer.norm("input_layernorm", layer.rows(H))[0]
    (q,) = layer.call("linear", "self_attn.q_proj", [x], [layer.rows(heads * (plain + turned))])
    (kv,) = layer.call("linear", "self_attn.kv_a_proj_with_mqa", [x], [layer.rows(8 + turned)])
    latent = layer.norm("self_attn.kv_a_layernorm", kv[:, :8].contiguous())[0]
    module = SimpleNamespace(is_neox_style=False, rotary_dim=turned)
    left = [layer.rows(heads * turned), layer.rows(turned)]
    given = [q.view(N, heads, -1)[..., plain:].reshape(N, -1), kv[:, 8:].contiguous()]
    layer.call("rope", "self_attn.rotary_emb", given, left, module)
    whole = torch.cat([q.view(N, heads, -1)[..., :plain], left[0].view(N, heads, turned)], -1)
    impl = SimpleNamespace(scale=0.5)
    attention = SimpleNamespace(impl=impl, num_heads=heads, num_kv_heads=1, qk_head_dim=plain + turned, v_head_dim=4)
    layer.call(
        "attention", "self_attn.mla_attn.attn", [whole.reshape(N, -1), latent, left[1]], [layer.rows(8)], attention
    )
    layer.row("self_attn.o_proj", layer.calls[-1].left[0], 8)
    found = layer.placed(None)
    order = [0, 2, 4, 1, 3, 5]
    assert same(found["k_rope"].values, left[1][:, order])
    assert same(found["q_rope"].values, left[0].view(N, heads, turned)[..., order].reshape(N, -1))
    query, _, key = found["context"].given
    assert same(key, found["k_rope"].values)
    assert (found["k_rope"].every, found["kv_a_norm"].every) == (True, True)
    scores, own = (query.double().view(N, heads, -1)[..., plain:], key.double()), (left[0].double(), left[1].double())
    expected = torch.einsum("nhd,md->nhm", own[0].view(N, heads, turned), own[1])
    assert torch.allclose(torch.einsum("nhd,md->nhm", *scores), expected)


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_a_factor_on_the_sum_of_experts_stands_in_weights_and_sum(factor: float) -> None:
    layer = Layer()
    x = layer.rows(H)
    logits, ids = layer.rows(8), torch.arange(N * 2).view(N, 2) % 8
    weights = torch.rand(N, 2).sort(-1, descending=True).values
    layer.attend(*layer.qkv(layer.norm("input_layernorm", layer.rows(H))[0]))
    layer.call("linear", "mlp.gate", [x], [logits])
    layer.call("router", "mlp.experts.router", [logits], [weights, ids])
    (summed,) = layer.call("experts", "mlp.experts.routed_experts", [x, weights, ids], [layer.rows(H)])
    runner = SimpleNamespace(
        router=SimpleNamespace(routed_scaling_factor=1.0), routed_experts=SimpleNamespace(), shared_experts=None,
        routed_scaling_factor=factor, moe_config=SimpleNamespace(tp_size=1, ep_size=1),
    )  # fmt: skip
    layer.call("moe", "mlp.experts", [x], [(factor * summed).to(summed.dtype)], runner)
    found = layer.placed(None)
    assert same(found["expert_weights"].values, weights * factor)
    assert same(found["experts_out"].values, found["moe_out"].values)
    assert same(found["experts_out"].given[1], weights * factor)
    assert same(found["experts_out"].given[2], ids)
    assert found["expert_weights"].facts["scaling"] == factor


def test_an_activation_that_layers_share_belongs_to_the_block_that_feeds_it() -> None:
    layer = Layer()
    layer.attend(*layer.qkv(layer.norm("input_layernorm", layer.rows(H))[0]))
    layer.mlp(layer.norm("post_attention_layernorm", layer.rows(H), layer.rows(H))[0])
    act = next(call for call in layer.calls if call.kind == "activation")
    act.where = "model.layers.0.mlp.act_fn"
    found = layer.placed(None)
    assert {"gate", "up", "act", "mlp_out"} <= set(found)
    assert same(found["mlp_out"].given[0], found["act"].values)
