"""Sharded aligned layers give the bits of one rank: row products, embeddings, experts by features and by expert."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels import ops  # noqa: E402
from logdiff_kernels.contract.router import RouterSpec  # noqa: E402
from logdiff_kernels.engines.vllm.align import collectives, moe  # noqa: E402
from logdiff_kernels.engines.vllm.align.linear import row_product  # noqa: E402
from logdiff_kernels.errors import UnsupportedError  # noqa: E402

from tests.kernels.vllm.rank_threads import Ranks, same  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def random(*shape: int, dtype: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_row_product_over_ranks_has_the_bits_of_one(size: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = (random(*s, dtype=dtype, seed=i) for i, s in enumerate([(5, 256), (33, 256), (33,)]))
    ranks, width = Ranks(size), 256 // size
    monkeypatch.setattr(collectives, "gathered", ranks.gathered)
    part = [slice(rank * width, (rank + 1) * width) for rank in range(size)]
    found = ranks.run(lambda r: row_product(x[:, part[r]], weight[:, part[r]], bias, size, 256))
    whole = row_product(x, weight, bias, 1, 256)
    assert all(same(one, whole) for one in found)
    single = x[:, : 256 // size].double() @ weight[:, : 256 // size].double().T
    assert float((whole.double() - single).abs().max()) > 0.1  # one rank's part alone is something else


def test_ranks_that_cannot_share_the_leaves_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = random(2, 24, dtype=torch.float32), random(3, 24, dtype=torch.float32)
    with pytest.raises(UnsupportedError, match="leaves"):
        row_product(x, weight, None, 2, 48)


def experts_of(weights: dict[str, Any], **config: Any) -> Any:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    numbers = {"tp_size": 1, "ep_size": 1, **config}
    activation = weights.pop("activation", MoEActivation.SILU)
    return SimpleNamespace(
        layer_name="mlp.experts",
        moe_config=SimpleNamespace(**numbers),
        activation=activation,
        swiglu_alpha=None,
        swiglu_beta=None,
        swiglu_limit=None,
        **weights,
    )


class Router:
    """vLLM's interface, by the contract's operator."""

    def select_experts(self, *, router_logits: Any, **_: Any) -> Any:
        return ops.router(router_logits, RouterSpec(3, renormalize=True))


def runner_of(experts: Any, shared: Any) -> Any:
    layer = None if shared is None else SimpleNamespace(_layer=lambda x: shared)
    return SimpleNamespace(
        gate=None, router=Router(), routed_experts=experts, moe_config=experts.moe_config, shared_experts=layer
    )


def parameters(dtype: Any, *, bias: bool) -> dict[str, Any]:
    count, hidden, inner = 8, 32, 64
    found = {
        "w13_weight": random(count, 2 * inner, hidden, dtype=dtype, seed=1) / 4,
        "w2_weight": random(count, hidden, inner, dtype=dtype, seed=2) / 4,
    }
    if bias:
        found["w13_bias"] = random(count, 2 * inner, dtype=dtype, seed=3)
        found["w2_bias"] = random(count, hidden, dtype=dtype, seed=4)
    return found


def shard(weights: dict[str, Any], rank: int, size: int, interleaved: bool) -> dict[str, Any]:
    """One tensor-parallel rank's part, as vLLM's loaders cut it: the second bias is rank 0's."""
    inner = weights["w2_weight"].shape[2] // size
    part = slice(rank * inner, (rank + 1) * inner)
    both = weights["w13_weight"]
    cut = {"w2_weight": weights["w2_weight"][:, :, part].contiguous()}

    def rows(fused: Any) -> Any:
        if interleaved:
            return fused[:, 2 * rank * inner : 2 * (rank + 1) * inner].contiguous()
        gate, up = fused.chunk(2, dim=1)
        return torch.cat((gate[:, part], up[:, part]), dim=1)

    cut["w13_weight"] = rows(both)
    if "w13_bias" in weights:
        cut["w13_bias"] = rows(weights["w13_bias"])
        cut["w2_bias"] = weights["w2_bias"] if rank == 0 else torch.zeros_like(weights["w2_bias"])
    return cut


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["silu", "clamped and interleaved with biases"])
@pytest.mark.parametrize("size", [2, 4])
def test_experts_over_ranks_have_the_bits_of_one(
    size: int, kind: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    biased = kind != "silu"
    activation = MoEActivation.SWIGLUOAI if biased else MoEActivation.SILU
    weights = parameters(dtype, bias=biased)
    x, logits = random(7, 32, dtype=dtype, seed=5), random(7, 8, dtype=torch.float32, seed=6)
    shared = random(7, 32, dtype=dtype, seed=7)

    def output(experts: Any) -> Any:
        return moe.layer_output(runner_of(experts, shared), x, logits, None)

    whole = output(experts_of({**weights, "activation": activation}))
    ranks = Ranks(size)
    monkeypatch.setattr(moe, "gathered", ranks.gathered)
    by_feature = [
        experts_of({**shard(weights, rank, size, biased), "activation": activation}, tp_size=size)
        for rank in range(size)
    ]
    assert all(same(one, whole) for one in ranks.run(lambda r: output(by_feature[r])))

    owners = torch.arange(8) % size  # round robin: local order isn't global order
    by_expert = []
    for rank in range(size):
        table = torch.full((8,), -1, dtype=torch.int32)
        table[owners == rank] = torch.arange(8 // size, dtype=torch.int32)
        local = {name: value[owners == rank] for name, value in weights.items()}
        by_expert.append(experts_of({**local, "activation": activation, "expert_map": table}, ep_size=size))
    assert all(same(one, whole) for one in ranks.run(lambda r: output(by_expert[r])))


def test_a_shared_expert_is_weighed_by_the_sigmoid_of_its_gate() -> None:
    weights = parameters(torch.float32, bias=False)
    x, logits = random(4, 32, dtype=torch.float32), random(4, 8, dtype=torch.float32)
    shared, gate = random(4, 32, dtype=torch.float32, seed=8), random(4, 1, dtype=torch.float32, seed=9)
    runner = runner_of(experts_of(weights), shared)
    setattr(runner, moe.GATE, (lambda x: (gate, None),))
    gated = moe.layer_output(runner, x, logits, None)
    plain = moe.layer_output(runner_of(experts_of(weights), None), x, logits, None)
    expected = plain.double() + torch.sigmoid(gate.double()) * shared.double()
    assert float((gated.double() - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("size", [2, 4])
def test_embedding_rows_are_copied_from_their_owner(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from logdiff_kernels.align import AlignSpec
    from logdiff_kernels.engines.vllm.align import embedding
    from logdiff_kernels.engines.vllm.align.patches import Patches
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    table = random(64, 6, dtype=torch.bfloat16)
    table[10] = -0.0
    ids = torch.tensor([10, 0, 63, 31, 32, 10])
    width = 64 // size
    layers = [
        SimpleNamespace(
            tp_size=size,
            tp_rank=rank,
            num_embeddings_per_partition=width,
            weight=table[rank * width : (rank + 1) * width],
        )
        for rank in range(size)
    ]
    ranks = Ranks(size)
    monkeypatch.setattr(embedding, "gathered", ranks.gathered)
    patches = Patches()
    embedding.apply(patches, AlignSpec(frozenset({"embedding"})))
    try:
        found = ranks.run(lambda r: VocabParallelEmbedding.forward(layers[r], ids))
    finally:
        patches.restore()
    assert all(same(one, table[ids]) for one in found)
