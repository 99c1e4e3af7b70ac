"""The clean model of a checkpoint: its operators with their parameters, from its own code run in fp64."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from logdiff_kernels.check import graph
from logdiff_kernels.check.captured import Captured
from logdiff_kernels.check.clean import Clean, Operator
from logdiff_kernels.check.operators import Model
from logdiff_kernels.check.precision import widened
from logdiff_kernels.check.recognise import frequencies, recognise
from logdiff_kernels.engines.transformers.loading import load
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.files import BoundaryFile
from logdiff_kernels.observe.boundaries.recorder import Keep, Recorder

LENGTH = 72
"""Tokens that the clean model is run on: beyond the windows of small models."""

Capture = Callable[[Any, list[int], Path], Path]
"""(model, token ids, path) -> boundary file of one forward over the ids."""


def capture_clean(model: Any, ids: list[int], path: Path) -> Path:
    """Boundaries of one forward of a Transformers model over some tokens, by the hooks of the engine's own capture."""
    from logdiff_kernels.engines.transformers.boundaries.capture import Observer

    half = len(ids) // 2
    recorder = Recorder(["clean"], [ids[:half]], [ids[half:]], Keep(max_bytes=1 << 40), path.parent)
    try:
        with Observer(model, recorder) as observer:
            place = torch.arange(len(ids)).unsqueeze(0)
            observer.expect(torch.zeros_like(place), place)
            model(input_ids=torch.tensor([ids]), position_ids=place, use_cache=False)
        recorder.write(path, engine="transformers", side="clean", phase="score", model="", dtype="float64")
    finally:
        recorder.close()
    return path


def reference(
    folder: str,
    dtype: str,
    ids: list[int],
    sampling: dict[str, Any],
    capture: Capture = capture_clean,
    args: dict[str, Any] | None = None,
) -> Model:
    """Load the checkpoint without anything of a side and learn its operators.

    Args:
        folder: model folder.
        dtype: the run's; weights are rounded to it.
        ids: some token ids of the run, for the clean forward.
        sampling: `temperature`, `top_k`, `top_p`.
        capture: takes the clean model's boundaries.
        args: of the sides' engines; their numbers are candidates for what a side computes instead.

    Raises:
        InputError, EngineError: the folder can't be loaded.
    """
    loaded = load(folder, dtype, {"attn_implementation": "eager"})
    model, config = loaded.model, loaded.model.config.get_text_config(decoder=True)
    given = _tokens(ids, config)
    if any(p.ndim == 3 for p in model.parameters()):
        model.set_experts_implementation("eager")  # kernels of grouped products have no fp64
    with tempfile.TemporaryDirectory(prefix="logdiff-clean-") as scratch:
        with widened(model):
            path = capture(model, given, Path(scratch) / "clean.safetensors")
        file = BoundaryFile(path)
        sample = file.header.sample_ids[0]
        captured = Captured(file, {sample: given}, {sample: len(given) // 2})
        clean = Clean(model, captured, config)
        operators: dict[str, Operator | str] = {}
        for name in captured.names():
            entry = captured.entries[name]
            inputs = expected(name, entry.inputs, captured)
            operators[name] = recognise(clean, name, inputs, entry.where, entry.facts)
    operators["logprob"] = Operator("logprob", "logprob", ("logits",), {})
    facts = _facts(clean, operators, sampling, args or {})
    return Model(operators, getattr(torch, loaded.dtype), facts)


def expected(name: str, told: tuple[str, ...], captured: Captured) -> tuple[str, ...]:
    """Boundaries that feed an operator of the clean model: as its dataflow showed, else by the names."""
    if names.operator(name) in ("router", "experts"):  # engines order these arguments in their own ways
        return graph.sources(name, captured.__contains__)
    return told if told and "" not in told else graph.sources(name, captured.__contains__)


def _tokens(ids: list[int], config: Any) -> list[int]:
    window = getattr(config, "sliding_window", None) or 0
    length = min(max(LENGTH, window + 16 if window <= 512 else 0), 544)
    source = ids or list(range(min(1000, int(config.vocab_size))))
    return (source * (length // len(source) + 1))[:length]


def _facts(
    clean: Clean, operators: dict[str, Operator | str], sampling: dict[str, Any], args: dict[str, Any]
) -> dict[str, Any]:
    found = [o for o in operators.values() if isinstance(o, Operator)]
    attention = [o.p for o in found if o.kind == "attention"]
    windows = {int(p["window"]) for p in attention if p.get("window")}
    windows |= {int(w) for w in _named(args, ("sliding_window",)) if w > 0}
    if isinstance(window := getattr(clean.config, "sliding_window", None), int):
        windows.add(window)
    thetas, rules = _rotations(clean, _named(args, _BASES))
    temperature = float(sampling.get("temperature", 1.0) or 1.0)
    head, table = clean.model.get_output_embeddings(), clean.model.get_input_embeddings()
    embedding = operators.get("embedding")
    facts: dict[str, Any] = {
        "windows": sorted(windows),
        "thetas": thetas,
        "rope_rules": rules,
        "scales": _scales(clean.config),
        "temperature": temperature,
        "top_k": int(sampling.get("top_k") or -1),
        "top_p": float(sampling.get("top_p") or 1.0),
    }
    if head is not None and head.weight is not table.weight:
        facts["embedding_weight"] = lambda: table.weight.detach()
        facts["head_weight"] = lambda: head.weight.detach()
    if isinstance(embedding, Operator) and embedding.p["scale"] != 1.0:
        facts["embedding_scale"] = math.sqrt(embedding.p["weight"].shape[1])
    return facts


_BASES = ("rope_theta", "rope_local_base_freq")


def _named(value: Any, keys: tuple[str, ...]) -> list[float]:
    """Numbers under some keys of nested mappings."""
    found: list[float] = []
    if isinstance(value, dict):
        for key, inner in value.items():
            plain = isinstance(inner, (int, float)) and not isinstance(inner, bool)
            found += [float(inner)] if key in keys and plain else _named(inner, keys)
    return found


def _rotations(clean: Clean, more: list[float]) -> tuple[list[float], list[tuple[str, torch.Tensor, float]]]:
    """Bases named by the configuration, and the frequencies of every table and of the unscaled rule."""
    bases = [*_named(clean.config.to_dict(), _BASES), *more]
    rules: list[tuple[str, torch.Tensor, float]] = []
    for number, (inv_freq, factor) in enumerate(frequencies(clean)):
        rules.append((f"table-{number}-of-the-model", inv_freq, factor))
        share = torch.arange(len(inv_freq), dtype=torch.float64) / len(inv_freq)
        for base in dict.fromkeys(bases):
            rules.append((f"the-unscaled-rule-of-theta-{base:g}", base**-share, 1.0))
    return list(dict.fromkeys(bases)), rules


def _scales(config: Any) -> dict[str, float]:
    """Scales of scores that other readings of the configuration would give."""
    found: dict[str, float] = {}
    hidden, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    if hidden and heads:
        found["1/sqrt(hidden size / heads)"] = (hidden / heads) ** -0.5
    scalar = getattr(config, "query_pre_attn_scalar", None)
    if scalar:
        found["1/sqrt(query_pre_attn_scalar)"] = float(scalar) ** -0.5
    for part in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        size = getattr(config, part, None)
        if size:
            found[f"1/sqrt({part})"] = float(size) ** -0.5
    return found
