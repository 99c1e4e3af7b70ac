"""Parts of ranks make one report; copies that differ are told, missing tensors too."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from logdiff_kernels.engines.vllm.checkpoint_names import NameTable, checkpoint_shapes  # noqa: E402
from logdiff_kernels.engines.vllm.checksums import merge_ranks  # noqa: E402
from logdiff_kernels.errors import InputError  # noqa: E402
from logdiff_kernels.weights import TensorSum, tensor_sum  # noqa: E402

WEIGHT = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))


def part(name: str, values: Any, rows: tuple[int, int], shape: tuple[int, int]) -> list[Any]:
    total = TensorSum(shape, "float32").add(values, [slice(*rows), slice(0, shape[1])])
    return [name, [list(rows), [0, shape[1]]], json.loads(json.dumps(total.state()))]


def rank(*entries: Any, not_covered: list[dict[str, str]] | None = None) -> dict[str, Any]:
    return {"entries": list(entries), "not_covered": not_covered or [], "adapters": []}


def test_shards_add_up_to_the_sum_of_the_whole_tensor() -> None:
    ranks = [rank(part("w", WEIGHT[:4], (0, 4), (8, 6))), rank(part("w", WEIGHT[4:], (4, 8), (8, 6)))]
    report = merge_ranks(ranks, {"w": [8, 6]}, tied=False, quantization=None)
    assert report.as_dict()["tensors"]["w"] == tensor_sum(WEIGHT).as_dict()
    assert report.not_covered == []


def test_equal_copies_count_once_and_different_copies_are_named() -> None:
    other = WEIGHT.clone()
    other[3, 3] += 1
    ranks = [rank(part("w", WEIGHT, (0, 8), (8, 6)), part("n", WEIGHT, (0, 8), (8, 6)))]
    ranks.append(rank(part("w", WEIGHT, (0, 8), (8, 6)), part("n", other, (0, 8), (8, 6))))
    found = merge_ranks(ranks, {}, tied=False, quantization=None).as_dict()
    assert found["tensors"]["w"] == tensor_sum(WEIGHT).as_dict()
    assert "n" not in found["tensors"]
    assert found["not_covered"][0]["name"] == "n"
    assert "ranks" in found["not_covered"][0]["why"]


def test_a_missing_shard_and_a_missing_tensor_are_told() -> None:
    ranks = [rank(part("w", WEIGHT[:4], (0, 4), (8, 6)))]
    found = merge_ranks(ranks, {"w": [8, 6], "v": [2]}, tied=False, quantization=None).as_dict()
    assert found["tensors"] == {}
    assert {entry["name"] for entry in found["not_covered"]} == {"w", "v"}


def test_a_tied_head_that_went_stale_is_no_longer_tied() -> None:
    stale = WEIGHT.clone()
    stale[0, 0] += 1
    embedding = part("model.embed_tokens.weight", WEIGHT, (0, 8), (8, 6))
    fresh = rank(embedding, part("lm_head.weight", WEIGHT, (0, 8), (8, 6)))
    old = rank(embedding, part("lm_head.weight", stale, (0, 8), (8, 6)))
    tied = merge_ranks([fresh], {}, tied=True, quantization=None)
    assert tied.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert "lm_head.weight" not in tied.tensors
    apart = merge_ranks([old], {}, tied=True, quantization=None)
    assert apart.tied == {}
    assert apart.as_dict()["tensors"]["lm_head.weight"]["sum"] == tensor_sum(stale).as_dict()["sum"]


def test_a_quantised_layer_is_told_once_with_its_method() -> None:
    why = [{"name": "model.layers.0.mlp.*", "why": "quantised: Fp8LinearMethod"}]
    found = merge_ranks([rank(not_covered=why)], {"model.layers.0.mlp.up.weight": [1]}, tied=False, quantization="fp8")
    assert found.not_covered == why
    assert found.quantization == "fp8"


def test_names_are_found_by_the_models_own_rules() -> None:
    class Mapper:
        def _map_name_with_shard(self, name: str) -> tuple[str, Any] | None:
            if "vision" in name:
                return None
            stacked = {".q_proj": "q", ".k_proj": "k", ".v_proj": "v"}
            for key, shard in stacked.items():
                if key in name:
                    return name.replace(key, ".qkv_proj").replace(".self_attn.", ".attn."), shard
            return name, None

    shapes = {"l.0.self_attn.q_proj.weight": [4, 4], "l.0.norm.weight": [4], "vision.w": [1]}
    table = NameTable(SimpleNamespace(hf_to_vllm_mapper=Mapper()), shapes)
    assert table.find("l.0.attn.qkv_proj.weight", "q") == "l.0.self_attn.q_proj.weight"
    assert table.find("l.0.norm.weight") == "l.0.norm.weight"
    assert table.find("vision.w") is None
    assert table.find("l.0.attn.qkv_proj.weight") is None


def test_without_a_checkpoint_names_come_from_the_packing_rules() -> None:
    table = NameTable(SimpleNamespace(packed_modules_mapping={"Wqkv": ["q", "k", "v"]}), {})
    assert table.find("a.Wqkv.weight", "k") == "a.k.weight"
    assert table.find("a.gate_up_proj.weight", 1) == "a.up_proj.weight"
    assert table.find("a.o_proj.weight") == "a.o_proj.weight"


def test_a_broken_safetensors_header_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")
    with pytest.raises(InputError, match="header") as caught:
        checkpoint_shapes(str(tmp_path))
    assert caught.value.value == str(path)
    path.write_bytes(b"abc")
    with pytest.raises(InputError):
        checkpoint_shapes(str(tmp_path))
