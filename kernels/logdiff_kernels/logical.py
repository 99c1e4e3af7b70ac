"""Splits fused tensors into the logical tensors that both sides are compared by.

Rules, on the name without its `.weight` or `.bias`:

- `qkv_proj`: rows of q, then k, then v -> `q_proj`, `k_proj`, `v_proj`;
- `gate_up_proj` of a dense layer: rows of gate, then up -> `gate_proj`, `up_proj`;
- a tensor stacked over experts, `experts.NAME` with the experts first -> `experts.0.NAME`, `experts.1.NAME`, ... in
  the checkpoint's own orientation (GPT-OSS keeps gate and up interleaved in `gate_up_proj`; they stay so).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch

_STACKED = re.compile(r"^(?P<head>.*\bexperts)\.(?P<tail>(?:gate_up_proj|gate_proj|up_proj|down_proj)[\w.]*)$")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a logical tensor: what `TensorSum(shape, ...).add(values, index)` takes.

    Args:
        name: logical name.
        values: a view where the split allows one.
        index: slices of the logical tensor that `values` fills.
        shape: full logical shape.
    """

    name: str
    values: torch.Tensor
    index: tuple[slice, ...]
    shape: tuple[int, ...]


def split_logical(name: str, tensor: torch.Tensor, config: Any, *, tp_rank: int = 0, tp_size: int = 1) -> list[Piece]:
    """The logical tensors in `tensor`, which has the checkpoint's orientation (rows = outputs).

    Args:
        name: checkpoint name, or the fused name in its place (`...self_attn.qkv_proj.weight`).
        tensor: the full tensor, or for `qkv_proj` and `gate_up_proj` the shard of one tensor-parallel rank, whose
            rows are that rank's part of each projection, one after the other.
        config: `num_attention_heads`, `num_key_value_heads`, `head_dim`, `hidden_size`.
        tp_rank: rank of the shard.
        tp_size: ranks in all. Key and value heads fewer than ranks are held by several of them; only the first of
            those returns the piece, so that pieces of all ranks cover each element once.

    Raises:
        ValueError: the rows do not divide as the configuration says.
    """
    stacked = _STACKED.match(name)
    if stacked and tensor.ndim >= 2 and _is_stack(stacked["tail"], tensor, config):
        return [
            _whole(f"{stacked['head']}.{number}.{stacked['tail']}", tensor[number]) for number in range(len(tensor))
        ]
    module, dot, kind = name.rpartition(".")
    if module.endswith("qkv_proj"):
        heads, kv_heads, size = _heads(config)
        stem = module.removesuffix("qkv_proj")
        parts = [("q_proj", heads, size), ("k_proj", kv_heads, size), ("v_proj", kv_heads, size)]
        return _rows(name, tensor, [(f"{stem}{n}{dot}{kind}", h, s) for n, h, s in parts], tp_rank, tp_size)
    if module.endswith("gate_up_proj") and ".experts." not in name:
        stem = module.removesuffix("gate_up_proj")
        half = tensor.shape[0] // 2 * tp_size
        names = [f"{stem}{n}{dot}{kind}" for n in ("gate_proj", "up_proj")]
        return _rows(name, tensor, [(n, half, 1) for n in names], tp_rank, tp_size)
    return [_whole(name, tensor)]


def _whole(name: str, tensor: torch.Tensor) -> Piece:
    return Piece(name, tensor, tuple(slice(None) for _ in tensor.shape), tuple(tensor.shape))


def _is_stack(tail: str, tensor: torch.Tensor, config: Any) -> bool:
    count = next(
        (
            value
            for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
            if isinstance(value := getattr(config, key, None), int)
        ),
        None,
    )
    return tensor.ndim == (2 if tail.endswith("bias") else 3) and (count is None or len(tensor) == count)


def _heads(config: Any) -> tuple[int, int, int]:
    heads = int(config.num_attention_heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, int(getattr(config, "num_key_value_heads", None) or heads), int(size)


def _rows(
    name: str, tensor: torch.Tensor, parts: list[tuple[str, int, int]], tp_rank: int, tp_size: int
) -> list[Piece]:
    """Cut rows by parts of (name, units, rows per unit); units are spread over ranks, or held by several of them."""
    pieces, start = [], 0
    for logical, units, size in parts:
        local = max(1, units // tp_size)
        if units % tp_size and tp_size % units:
            raise ValueError(f"{units} units of {name} do not divide among {tp_size} ranks")
        holders = max(1, tp_size // units)
        rows = local * size
        values = tensor[start : start + rows]
        if len(values) != rows:
            raise ValueError(f"{name} has {len(tensor)} rows, too few for {logical}")
        first = tp_rank // holders * rows
        if tp_rank % holders == 0:
            shape = (units * size, *tensor.shape[1:])
            pieces.append(
                Piece(logical, values, (slice(first, first + rows), *[slice(None)] * (tensor.ndim - 1)), shape)
            )
        start += rows
    if start != len(tensor):
        raise ValueError(f"{name} has {len(tensor)} rows, the configuration says {start}")
    return pieces
