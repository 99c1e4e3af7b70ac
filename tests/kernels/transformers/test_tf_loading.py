"""A model is loaded as asked, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from logdiff_kernels.engines.transformers.loading import load
from logdiff_kernels.errors import EngineError, InputError
from safetensors.torch import load_file, save_file


@pytest.fixture
def copy(model_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_folder("llama"), tmp_path / "model"))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_loaded_model_is_in_evaluation_mode_and_of_the_dtype(copy: Path) -> None:
    loaded = load(str(copy), "float32", {})
    assert not loaded.model.training
    assert loaded.model.dtype == torch.float32
    assert load(str(copy), None, {}).model.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["bf17", "int8", "nn"])
def test_a_wrong_dtype_is_named(copy: Path, name: str) -> None:
    with pytest.raises(InputError) as caught:
        load(str(copy), name, {})
    assert caught.value.value == name


def test_a_missing_folder_configuration_or_weights_are_told_apart(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        load(str(tmp_path / "absent"), None, {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no config\.json"):
        load(str(tmp_path / "empty"), None, {})
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no weights"):
        load(str(copy), None, {})


def test_an_argument_that_transformers_does_not_know_is_its_own_refusal(copy: Path) -> None:
    with pytest.raises(EngineError, match="unexpected keyword argument 'atn_implementation'") as caught:
        load(str(copy), None, {"atn_implementation": "eager"})
    assert "atn_implementation" in caught.value.hint


@pytest.mark.parametrize("key", ["low_cpu_mem_usage", "_fast_init", "dtype", "torch_dtype", "state_dict"])
def test_an_argument_that_would_change_nothing_is_refused(copy: Path, key: str) -> None:
    with pytest.raises(InputError) as caught:
        load(str(copy), None, {key: False})
    assert caught.value.value == key


def test_configuration_overrides_reach_the_model(copy: Path) -> None:
    loaded = load(str(copy), None, {"rms_norm_eps": 0.5, "attn_implementation": "eager"})
    assert loaded.model.config.rms_norm_eps == 0.5
    assert loaded.model.model.layers[0].input_layernorm.variance_epsilon == 0.5
    assert loaded.model.config._attn_implementation == "eager"


def test_an_override_that_is_lost_on_the_way_is_an_error(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig

    plain = LlamaConfig.from_dict.__func__  # type: ignore[attr-defined]

    def forgetful(cls: Any, config: Any, **kwargs: Any) -> Any:
        kwargs.pop("rms_norm_eps", None)
        return plain(cls, config, **kwargs)

    monkeypatch.setattr(LlamaConfig, "from_dict", classmethod(forgetful))
    with pytest.raises(EngineError, match="'rms_norm_eps' had no effect"):
        load(str(copy), None, {"rms_norm_eps": 0.5})


def test_an_unknown_attention_is_refused_in_transformers_words(copy: Path) -> None:
    with pytest.raises(EngineError, match="magic"):
        load(str(copy), None, {"attn_implementation": "magic"})


def test_missing_weights_are_never_made_up(copy: Path) -> None:
    edit_weights(copy, lambda w: w.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(EngineError, match="would be random") as caught:
        load(str(copy), None, {})
    assert caught.value.value == "model.layers.1.mlp.up_proj.weight"


def test_left_over_weights_are_told(copy: Path) -> None:
    edit_weights(copy, lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(256)}))
    with pytest.raises(EngineError, match="no place in the model") as caught:
        load(str(copy), None, {})
    assert caught.value.value == "model.layers.0.self_attn.q_proj.bias"


def test_layers_cut_by_the_configuration_are_noted(copy: Path) -> None:
    loaded = load(str(copy), None, {"num_hidden_layers": 2})
    assert len(loaded.model.model.layers) == 2
    assert loaded.notes == ["18 weights of layers beyond num_hidden_layers were left out"]


def test_a_weight_of_another_shape_is_an_error(copy: Path) -> None:
    edit_weights(copy, lambda w: w.update({"model.norm.weight": torch.zeros(128)}))
    with pytest.raises(EngineError):
        load(str(copy), None, {})


def test_a_broken_weight_file_is_an_engine_error(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(EngineError):
        load(str(copy), None, {})


def test_a_configuration_of_an_unknown_family_is_an_engine_error(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "abacus"}), encoding="utf-8")
    with pytest.raises(EngineError, match="abacus"):
        load(str(copy), None, {})
