"""Checksums of the parameters that the forward reads, under the names that the checkpoint has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from logdiff_kernels.engines.base import Progress
from logdiff_kernels.logical import split_logical
from logdiff_kernels.weights import TensorSum, WeightsReport, tensor_sum

_ADAPTER = re.compile(r"\.(lora_|ia3_|lora_magnitude_vector|modules_to_save)")


def weights_report(model: Any, progress: Progress) -> WeightsReport:
    """`logdiff-weights/1` of a transformers model.

    The model's own reverse conversion (the one that `save_pretrained` uses) gives checkpoint names and layouts, one
    decoder layer at a time so that memory stays bounded; then fused projections and stacked experts are split.
    """
    report = WeightsReport(quantization=quantization(model), adapters=adapters(model))
    state = _state(model, report)
    groups = _by_layer(state)
    config = model.config.get_text_config(decoder=True)
    threads = max(1, min(8, torch.get_num_threads(), os.cpu_count() or 1))
    done = 0
    with ThreadPoolExecutor(threads) as pool:
        for names in groups:
            pieces: list[tuple[str, torch.Tensor]] = []
            for name, tensor in _checkpoint_tensors(model, {n: state[n] for n in names}, report):
                pieces += [(piece.name, piece.values) for piece in split_logical(name, tensor, config)]
            sums: list[TensorSum] = list(pool.map(lambda entry: tensor_sum(entry[1]), pieces))
            report.tensors.update(zip((name for name, _ in pieces), sums, strict=True))
            done += len(names)
            progress(done, len(state), "tensor")
    return report


def _state(model: Any, report: WeightsReport) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers, each memory once; ties and what can't be read go to the report."""
    seen: dict[tuple[Any, ...], str] = {}
    state: dict[str, torch.Tensor] = {}
    entries = sorted(model.state_dict().items(), key=lambda item: (".embed" not in item[0], item[0]))
    for raw_name, value in entries:
        name = raw_name.replace(".base_layer.", ".")
        if not isinstance(value, torch.Tensor):
            report.not_covered.append({"name": name, "why": f"no tensor but {type(value).__name__}"})
            continue
        tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
        if tensor.device.type == "meta":
            report.not_covered.append({"name": name, "why": "not in memory (offloaded)"})
            continue
        key = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() and key in seen:
            report.tied[name] = seen[key]
            continue
        seen[key] = name
        state[name] = tensor
    return state


def _by_layer(state: dict[str, torch.Tensor]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name in state:
        found = re.match(r"(.*?\.\d+)\.", name)
        groups.setdefault(found.group(1) if found else name, []).append(name)
    return list(groups.values())


def _checkpoint_tensors(
    model: Any, state: dict[str, torch.Tensor], report: WeightsReport
) -> Iterator[tuple[str, torch.Tensor]]:
    extra = {name: tensor for name, tensor in state.items() if _ADAPTER.search(name)}
    yield from extra.items()
    plain = {name: tensor for name, tensor in state.items() if name not in extra}
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5 modules were laid out as the checkpoint
        yield from plain.items()
        return
    try:
        converted: dict[str, Any] = revert_weight_conversion(model, plain) if plain else {}
    except Exception as error:
        why = f"the model's own reverse conversion failed: {type(error).__name__}: {error}"
        report.not_covered += [{"name": name, "why": why} for name in plain]
        return
    for name, tensor in converted.items():
        if isinstance(tensor, torch.Tensor):
            yield name, tensor
        else:
            report.not_covered.append({"name": name, "why": f"no tensor but {type(tensor).__name__}"})


def quantization(model: Any) -> str | None:
    """The name of the method whose quantised weights the model computes with; None for plain (or restored) weights."""
    quantizer = getattr(model, "hf_quantizer", None)
    settings = getattr(quantizer, "quantization_config", None) or getattr(model.config, "quantization_config", None)
    if settings is None:
        return None
    if getattr(settings, "dequantize", False) or (isinstance(settings, dict) and settings.get("dequantize")):
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return str(getattr(method, "value", method) or "unknown")


def adapters(model: Any) -> list[dict[str, Any]]:
    """The PEFT adapters that the model carries: name, type, rank, target modules."""
    configs = getattr(model, "peft_config", None) or {}
    found = [
        {
            "name": name,
            "type": str(getattr(getattr(c, "peft_type", None), "value", getattr(c, "peft_type", None))),
            "rank": getattr(c, "r", None),
            "targets": sorted(str(t) for t in (getattr(c, "target_modules", None) or [])),
        }
        for name, c in (configs.items() if isinstance(configs, dict) else [])
    ]
    if not found and any(_ADAPTER.search(name) for name, _ in model.named_parameters()):
        found.append({"name": "unknown", "type": "LORA", "rank": None, "targets": []})
    return found
