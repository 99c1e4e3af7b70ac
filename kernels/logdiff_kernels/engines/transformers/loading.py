"""Loads a model so that nothing that was asked for is silently dropped and nothing is silently made up."""

from __future__ import annotations

import enum
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from logdiff_kernels.errors import EngineError, InputError

IGNORED_ARGUMENTS = ("mirror", "_fast_init", "low_cpu_mem_usage", "from_tf", "from_flax", "offload_state_dict")
"""Arguments that `PreTrainedModel.from_pretrained` drops without a word (transformers 5)."""

RESERVED_ARGUMENTS = {
    "dtype": "the run file's `dtype`",
    "torch_dtype": "the run file's `dtype`",
    "output_loading_info": "nothing: it is always asked for",
    "pretrained_model_name_or_path": "the run file's `model`",
    "state_dict": "a model folder with these weights",
    "config": "single configuration keys in `args`",
}

_OWN_CHECK = ("quantization_config", "generation_config")
"""Arguments that transformers rebuilds into objects of its own, and refuses itself when they are wrong."""


@dataclass(slots=True)
class Loaded:
    """A model ready to score: evaluation mode, every weight from the checkpoint."""

    model: Any
    folder: Path
    dtype: str
    notes: list[str]


def dtype_of(name: str | None) -> Any:
    """The torch dtype of a name such as `bfloat16`; None means the checkpoint's own. Raises `InputError`."""
    if name is None or name == "auto":
        return "auto"
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise InputError(f"unknown dtype {name!r}", value=name, hint="bfloat16, float16 or float32")
    return found


def load(folder: str, dtype: str | None, arguments: dict[str, Any]) -> Loaded:
    """Load with `AutoModelForCausalLM.from_pretrained(folder, dtype=..., **arguments)`.

    Raises:
        InputError: no such folder, no configuration or weights in it, a bad dtype, a reserved or dropped argument.
        EngineError: transformers refused (its words), weights are missing or left over, an argument had no effect.
    """
    path = Path(folder)
    _check_folder(path, arguments)
    _check_arguments(arguments)
    torch_dtype = dtype_of(dtype)
    try:
        import transformers
    except ImportError as error:
        raise EngineError(f"{error}", hint="install transformers in this side's `python`") from error
    logging.getLogger("transformers").setLevel(logging.WARNING)
    try:
        auto: Any = transformers.AutoModelForCausalLM
        model, info = auto.from_pretrained(folder, dtype=torch_dtype, output_loading_info=True, **arguments)
    except Exception as error:
        words = str(error).strip() or repr(error)
        raise EngineError(f"{type(error).__name__}: {words}", value=folder, hint=_hint(words, arguments)) from error
    notes = _check_loading(model, info, arguments)
    _check_effect(model, arguments)
    model.eval()
    return Loaded(model, path, str(model.dtype).removeprefix("torch."), notes)


def _check_folder(path: Path, arguments: dict[str, Any]) -> None:
    if not path.is_dir():
        raise InputError(f"{path} is no folder", value=str(path), hint="`model` is a Hugging Face model folder")
    if "gguf_file" in arguments:
        return
    folder = path / arguments.get("subfolder", "")
    if not (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        raise InputError(f"{path} holds no config.json", value=str(path), hint="`model` is a Hugging Face model folder")
    patterns = ("*.safetensors", "*.bin", "*.index.json")
    if not any(next(folder.glob(pattern), None) for pattern in patterns):
        raise InputError(
            f"{path} holds a configuration but no weights", value=str(path), hint="a folder with *.safetensors"
        )


def _check_arguments(arguments: dict[str, Any]) -> None:
    for key in arguments:
        if key in IGNORED_ARGUMENTS:
            raise InputError(f"the argument {key!r} has no effect in this transformers", value=key, hint="remove it")
        if key in RESERVED_ARGUMENTS:
            raise InputError(f"{key!r} can't be given in args", value=key, hint=f"use {RESERVED_ARGUMENTS[key]}")


def _hint(words: str, arguments: dict[str, Any]) -> str:
    if "unexpected keyword argument" in words:
        return f"args were: {', '.join(sorted(arguments))}"
    return "see the log of this side"


def _check_loading(model: Any, info: dict[str, Any], arguments: dict[str, Any]) -> list[str]:
    """Raise for weights that are not the checkpoint's; return what was left out knowingly."""
    missing = sorted(info["missing_keys"])
    mismatched = sorted(str(entry[0]) for entry in info["mismatched_keys"])
    if missing or mismatched:
        names = missing + mismatched
        raise EngineError(
            f"{len(names)} weights are not in the checkpoint and would be random: {_few(names)}",
            value=names[0],
            hint="a checkpoint that fits the configuration",
        )
    layers = getattr(_text_config(model), "num_hidden_layers", None)
    beyond: list[str] = []
    unexpected: list[str] = []
    for key in sorted(info["unexpected_keys"]):
        number = re.search(r"\.layers\.(\d+)\.", key)
        cut = "num_hidden_layers" in arguments and number and layers is not None and int(number.group(1)) >= layers
        (beyond if cut else unexpected).append(key)
    if unexpected:
        raise EngineError(
            f"{len(unexpected)} weights of the checkpoint have no place in the model: {_few(unexpected)}",
            value=unexpected[0],
            hint="a configuration that fits the checkpoint",
        )
    return [f"{len(beyond)} weights of layers beyond num_hidden_layers were left out"] if beyond else []


def _check_effect(model: Any, arguments: dict[str, Any]) -> None:
    """Raise for a configuration override that the model does not carry afterwards."""
    for key, value in arguments.items():
        if key in _OWN_CHECK:
            continue
        for owner in (model.config, _text_config(model)):
            name = f"_{key}" if key in ("attn_implementation", "experts_implementation") else key
            if hasattr(owner, name):
                found = getattr(owner, name)
                if not _same(value, found):
                    raise EngineError(
                        f"the argument {key!r} had no effect: asked for {value!r}, the model has {found!r}",
                        value=key,
                        hint="the loader may have changed it: see the log of this side",
                    )
                break


def _same(asked: Any, found: Any) -> bool:
    if isinstance(found, torch.dtype):
        return str(found).removeprefix("torch.") == str(asked)
    if isinstance(found, enum.Enum):
        return asked in (found, found.value)
    if isinstance(asked, dict) and not isinstance(found, dict):
        to_dict = getattr(found, "to_dict", None)
        return to_dict is None or _same(asked, to_dict())
    if isinstance(asked, dict):
        return all(key in found and _same(value, found[key]) for key, value in asked.items())
    if isinstance(asked, (list, tuple)) and isinstance(found, (list, tuple)):
        return list(asked) == list(found)
    return bool(asked == found)


def _text_config(model: Any) -> Any:
    return model.config.get_text_config(decoder=True)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
