"""What a model's module tree says: its decoder layers, the blocks around experts, its embedding's scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


def decoder_layers(model: Any, kinds: Mapping[str, str]) -> dict[str, int]:
    """Qualified name -> index of the decoder layers: members of the list of modules most of which hold attention."""
    attention = [name for name, kind in kinds.items() if kind == "attention"]
    best: dict[str, int] = {}
    most = 0
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList):
            continue
        members = {f"{name}.{key}": index for index, key in enumerate(dict(module.named_children()))}
        held = sum(any(one.startswith(f"{member}.") for one in attention) for member in members)
        if held > most:
            best, most = members, held
    return best


def expert_blocks(kinds: Mapping[str, str]) -> list[str]:
    """Names of the modules that hold stacked experts."""
    return sorted({name.rpartition(".")[0] for name, kind in kinds.items() if kind == "experts" and "." in name})


def embedding_scale(model: Any, config: Any) -> float | None:
    """The factor on embeddings that a module or the configuration keeps; None: none is known."""
    owners: Iterable[Any] = (model.get_input_embeddings(), config)
    for owner in owners:
        for key in ("embed_scale", "embedding_multiplier"):
            value = getattr(owner, key, None)
            if isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1):
                return float(value)
    return None


def tensors(values: Any) -> Iterator[torch.Tensor]:
    """The tensors with at least one axis among values."""
    return (value for value in values if isinstance(value, torch.Tensor) and value.ndim > 0)


def hidden_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The hidden state among the arguments of a layer."""
    named = kwargs.get("hidden_states")
    found = [named] if isinstance(named, torch.Tensor) else list(tensors([*args, *kwargs.values()]))
    return next((value for value in found if value.is_floating_point()), None)


def rotation_layout(given: torch.Tensor, left: torch.Tensor, size: int, width: int) -> str:
    """ "halves" or "interleaved": which elements a rotation by any angle pairs, told by the lengths that it keeps.

    "deinterleaved": pairs lie side by side before, in halves after. Rows are heads of `size` features, of which the
    first `width` are rotated.
    """
    if not width or width % 2 or given.shape[1] % size or not len(given):
        return "halves"
    x, y = (t[-4:].double().view(min(4, len(t)), -1, size)[..., :width] for t in (given, left))
    half = width // 2

    def halves(t: torch.Tensor) -> torch.Tensor:
        return (t[..., :half].square() + t[..., half:].square()).sqrt()

    def pairs(t: torch.Tensor) -> torch.Tensor:
        return (t[..., 0::2].square() + t[..., 1::2].square()).sqrt()

    away = {
        "halves": _away(halves(x), halves(y)),
        "interleaved": _away(pairs(x), pairs(y)),
        "deinterleaved": _away(pairs(x), halves(y)),
    }
    return min(away, key=lambda name: away[name])


def _away(a: torch.Tensor, b: torch.Tensor) -> float:
    """How far lengths differ, free of one common factor (some rotations scale too)."""
    factor = (a * b).sum() / a.square().sum().clamp(min=1e-30)
    return float((a * factor - b).square().sum())
