"""Weights are checksummed as the model holds them; an update changes them and the checkpoint carries that over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from logdiff_kernels.engines.transformers.loading import load
from logdiff_kernels.engines.transformers.tensors import quantization, weights_report
from logdiff_kernels.engines.transformers.update import policy_gradient_step, save_checkpoint
from logdiff_kernels.errors import EngineError, InputError
from logdiff_kernels.weights import tensor_sum
from safetensors.torch import load_file
from tf_reference import PROMPTS, RESPONSES, nothing, reference

FAMILIES = ["llama", "qwen2", "qwen3", "qwen3-moe", "mistral", "gemma2", "gemma3", "gpt-oss"]


def report(model: Any) -> dict[str, Any]:
    return weights_report(model, nothing).as_dict()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_of_the_checkpoint_is_covered_under_its_own_name(
    name: str, model_folder: Callable[[str], Path], load_model: Callable[..., Any]
) -> None:
    found = report(load_model(name, "bfloat16"))
    expected = {}
    for key, values in load_file(model_folder(name) / "model.safetensors").items():
        if ".experts." in key and not key.endswith(".weight"):  # stacked in the checkpoint itself
            head, _, tail = key.partition(".experts.")
            expected |= {f"{head}.experts.{i}.{tail}": v for i, v in enumerate(values)}
        else:
            expected[key] = values
    assert set(found["tensors"]) == set(expected)
    for key, values in expected.items():
        entry = found["tensors"][key]
        assert entry["sum"] == tensor_sum(values.clone()).as_dict()["sum"], key
        assert (entry["shape"], entry["dtype"], entry["how"]) == (list(values.shape), "bfloat16", "memory")
    assert found["not_covered"] == []
    assert found["quantization"] is None
    assert found["adapters"] == []
    tied = {"lm_head.weight": "model.embed_tokens.weight"} if name.startswith("gemma") else {}
    assert found["tied"] == tied


def test_an_fp32_copy_agrees_with_the_bf16_checkpoint(load_model: Callable[..., Any]) -> None:
    narrow, wide = report(load_model("qwen3-moe", "bfloat16")), report(load_model("qwen3-moe", "float32"))
    for name, entry in narrow["tensors"].items():
        assert wide["tensors"][name]["sum"] == entry["sum"]
        assert wide["tensors"][name]["as"]["bfloat16"] == entry["sum"]


def test_a_weight_changed_in_memory_is_seen_alone(model_folder: Callable[[str], Path]) -> None:
    model = load(str(model_folder("qwen3-moe")), "bfloat16", {}).model
    before = report(model)["tensors"]
    with torch.no_grad():
        model.model.layers[2].mlp.experts.gate_up_proj[5, -1, -1] += 1  # last row: the up half
    after = report(model)["tensors"]
    assert [k for k in before if before[k] != after[k]] == ["model.layers.2.mlp.experts.5.up_proj.weight"]


def test_adapters_are_named_and_their_base_keeps_its_name(model_folder: Callable[[str], Path]) -> None:
    model = load(str(model_folder("llama")), "bfloat16", {}).model
    plain = set(report(model)["tensors"])

    class Lora(torch.nn.Module):
        def __init__(self, base: torch.nn.Module) -> None:
            super().__init__()
            self.base_layer = base
            self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(256, 4, bias=False)})

    model.model.layers[0].self_attn.q_proj = Lora(model.model.layers[0].self_attn.q_proj)
    found = report(model)
    assert set(found["tensors"]) == plain | {"model.layers.0.self_attn.q_proj.lora_A.default.weight"}
    assert found["adapters"][0]["type"] == "LORA"


def updated(folder: Path, seed: int = 1, lr: float = 1e-3) -> tuple[Any, dict[str, Any]]:
    model = load(str(folder), "bfloat16", {}).model
    facts = policy_gradient_step(
        model, PROMPTS, RESPONSES, lr=lr, seed=seed, micro_batch_size=3, filler=0, progress=nothing
    )
    return model, facts


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe", "gemma2"])
def test_a_saved_update_is_what_the_model_goes_on_with(
    name: str, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model, facts = updated(model_folder(name))
    assert facts["changed"] > facts["parameters"] // 10
    save_checkpoint(model, model_folder(name), tmp_path / "step1")
    before, now = report(load(str(model_folder(name)), "bfloat16", {}).model), report(model)
    saved = report(load(str(tmp_path / "step1"), "bfloat16", {}).model)
    assert saved == now
    changed = sum(before["tensors"][k] != now["tensors"][k] for k in now["tensors"])
    assert changed > 0.8 * len(now["tensors"])
    assert (tmp_path / "step1" / "tokenizer.json").read_bytes() == (model_folder(name) / "tokenizer.json").read_bytes()


def test_equal_seeds_give_equal_updates(model_folder: Callable[[str], Path]) -> None:
    one, same, other = (report(updated(model_folder("llama"), seed)[0]) for seed in (1, 1, 4))
    assert one == same
    assert one != other


def test_the_step_goes_down_the_policy_gradient_loss(model_folder: Callable[[str], Path]) -> None:
    folder = model_folder("llama")
    model = load(str(folder), "float32", {}).model
    weights = np.repeat(np.random.default_rng(1).integers(0, 2, 4) * 2 - 1, [len(r) for r in RESPONSES])
    before, _ = reference(model, PROMPTS, RESPONSES)
    facts = policy_gradient_step(
        model, PROMPTS, RESPONSES, lr=1e-4, seed=1, micro_batch_size=2, filler=0, progress=nothing
    )
    after, _ = reference(model, PROMPTS, RESPONSES)
    assert facts["loss"] == pytest.approx(-(weights * before).mean(), rel=1e-4)
    assert -(weights * after).mean() < -(weights * before).mean() - 1e-3
    assert all(p.grad is None for p in model.parameters())


def test_a_step_that_changes_nothing_is_an_error(model_folder: Callable[[str], Path]) -> None:
    with pytest.raises(EngineError, match="changed no weight"):
        updated(model_folder("llama"), lr=1e-12)


def test_nothing_to_learn_from_is_an_input_error(load_model: Callable[..., Any]) -> None:
    options: dict[str, Any] = {"seed": 0, "micro_batch_size": 1, "filler": 0, "progress": nothing}
    with pytest.raises(InputError, match="no response token"):
        policy_gradient_step(load_model("llama"), [[1]], [[]], lr=1e-3, **options)
    with pytest.raises(InputError, match="lr"):
        policy_gradient_step(load_model("llama"), [[1]], [[2]], lr=0.0, **options)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"bits": 8}, "unknown"),
        ({"quant_method": "gguf", "dequantize": True}, None),
        (None, None),
    ],
)
def test_a_quantised_model_is_named_unless_its_weights_were_restored(settings: Any, name: str | None) -> None:
    model = SimpleNamespace(config=SimpleNamespace(quantization_config=settings))
    assert quantization(model) == name
