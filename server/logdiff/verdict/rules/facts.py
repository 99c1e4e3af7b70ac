"""What the header says of both sides: configurations that are known to make them differ."""

from __future__ import annotations

from typing import Any

from logdiff.verdict.features import Features
from logdiff.verdict.findings import Board, Finding, evidence

_NO_SINKS = {"eager", "sdpa", "flash_attention_2", "flash_attn_2", "flash", "local", "fused", "unfused"}
_NOT_FUNCTION = {
    "engine", "version", "name", "host", "port", "seed", "tp", "tensor_parallel_size", "dtype", "python", "path",
    "gpu_memory_utilization", "model", "device", "temperature", "top_p", "top_k", "logprobs_mode",
    "scored_temperature",
}  # fmt: skip


def header(f: Features, board: Board) -> None:
    """Weak hints alone, strong ones beside a difference that fits them. Needs the size of d, never the header alone."""
    if f.mean_abs < 1e-4:
        return
    rollout, train = f.config("rollout"), f.config("train")
    _truncation_gate(f, board)
    _dtype(f, board, rollout, train)
    _quantised(f, board, rollout, train)
    _sinks(f, board, train)
    _conversion(f, board, train)
    _different(f, board, rollout, train)


def _large(f: Features) -> bool:
    return f.mean_abs > 1.2 * f.rounding


def _truncation_gate(f: Features, board: Board) -> None:
    """The config gate names two quantities that differ, and d is of a size that this would make."""
    gate = f.gate("config")
    if gate is None or gate.ok is not False or not _large(f):
        return
    text = gate.detail.lower()
    if board.findings and board.explained > 0.5:
        return
    cause = "model-config-differs"
    if "logits" in text:
        cause = "logprob-not-normalised"
    elif "temperature" in text:
        cause = "temperature-missing-rollout-raw-logprobs" if "raw" in text else "temperature-differs"
    elif "penalt" in text:
        cause = "penalty-one-side"
    elif "normalises over what is left" in text:
        cause = "truncation-renormalised"
    board.add(Finding(cause, 0.62, 0.6, (evidence(f, f"effective configuration: {gate.detail}"),), side="rollout"))


def _dtype(f: Features, board: Board, rollout: dict[str, Any], train: dict[str, Any]) -> None:
    names = [str(c.get("dtype") or "").removeprefix("torch.").lower() for c in (rollout, train)]
    quiet = f.top1_share < 0.15 and f.bias_ratio < 0.2 and board.explained < 0.5
    if all(names) and names[0] != names[1] and "auto" not in names and quiet and f.mean_abs < 0.3:
        said = (evidence(f, f"dtype {names[0]} on rollout, {names[1]} on train"),)
        board.add(Finding("dtype-differs", 0.7, 0.8, said, component="dtype"))
    elif f.dtype == "float32" and quiet and 1e-3 < f.mean_abs < 0.1 and f.places.get("step late") is None:
        said = (
            evidence(
                f, "both sides are said to run in float32, whose rounding is far smaller: mean abs d", f.mean_abs, 1e-4
            ),
        )
        board.add(Finding("autocast-differs", 0.5, 0.8, said))


def _quantised(f: Features, board: Board, rollout: dict[str, Any], train: dict[str, Any]) -> None:
    given = [c.get("quantization") or c.get("quantization_config") or c.get("fp8") for c in (rollout, train)]
    if bool(given[0]) != bool(given[1]) and f.table.tokens:
        side = "rollout" if given[0] else "train"
        said = (evidence(f, f"only the {side} side is quantised: {given[0] or given[1]}"),)
        if board.explained < 0.5 and f.mean_abs < 1.0:
            board.add(Finding("quantised-one-side", 0.6, 0.8, said, side=side))
    cache = str(rollout.get("kv_cache_dtype") or "auto").lower()
    if cache not in ("auto", "", "none", f.dtype or "bfloat16") and board.explained < 0.5:
        said = (evidence(f, f"the rollout engine's KV cache is kept as {cache}"),)
        board.add(Finding("kv-cache-dtype", 0.5, 0.7, said, side="rollout"))


def _sinks(f: Features, board: Board, train: dict[str, Any]) -> None:
    model = str(f.meta.get("model") or "").lower().replace("_", "-")
    kind = str(train.get("attn_implementation") or train.get("attention_backend") or "").lower()
    if ("gpt-oss" in model or f.meta.get("attention_sinks") or f.meta.get("sinks")) and _large(f):
        said = (
            evidence(
                f,
                f"the model has attention sinks; the trainer's attention is {kind or 'not known'}",
                f.mean_abs,
                f.rounding,
            ),
        )
        belief = 0.7 if kind in _NO_SINKS else 0.4
        if not any(g.belief > 0.7 for g in board.findings):
            board.add(Finding("sinks-dropped", belief, 0.8, said, side="train" if kind in _NO_SINKS else "unknown"))


def _conversion(f: Features, board: Board, train: dict[str, Any]) -> None:
    mode = str(train.get("megatron_to_hf_mode") or f.meta.get("megatron_to_hf_mode") or "").lower()
    if mode == "raw" and f.mean_abs > 2 * f.rounding and board.explained < 0.5:
        said = (evidence(f, "weights are converted in raw mode, and all tokens are far off", f.mean_abs, f.rounding),)
        board.add(Finding("qkv-layout", 0.62, 0.9, said, side="rollout"))


def _different(f: Features, board: Board, rollout: dict[str, Any], train: dict[str, Any]) -> None:
    """Keys that both configurations have with other values."""
    keys = [
        k for k in sorted(rollout.keys() & train.keys())
        if k not in _NOT_FUNCTION and isinstance(rollout[k], (int, float, str, bool)) and rollout[k] != train[k]
    ]  # fmt: skip
    if not keys or not _large(f) or board.explained > 0.5:
        return
    shown = "; ".join(f"{k}: {rollout[k]} on rollout, {train[k]} on train" for k in keys[:6])
    cause = "model-config-differs"
    if any("window" in k for k in keys):
        cause = "window-ignored"
    elif any(k.startswith("rope") for k in keys):
        cause = "model-config-differs"
    said = (evidence(f, f"the header's configurations differ: {shown}"),)
    board.add(Finding(cause, 0.6, 0.8, said, component=keys[0]))
