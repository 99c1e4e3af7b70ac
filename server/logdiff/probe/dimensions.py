"""The sizes of a model's operators, read from its `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logdiff.errors import InputError

MAX_BYTES = 16 << 20
LARGEST = 1 << 24
"""No dimension of a model is larger than this."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What decides operator shapes; 0 where the model has no such thing.

    `experts`, `top_k`, `expert_width`: of its mixtures; `window`, `softcap`, `sinks`: of its attention. `latent`: keys
    and values are made from a latent vector, so that heads have no one size.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    window: int = 0
    softcap: int = 0
    sinks: int = 0
    latent: bool = False


def read_dimensions(folder: Path) -> Dimensions:
    """The dimensions of a model folder.

    Raises:
        InputError: no `config.json`, one that can't be read, or one without a size that is needed; the key is named.
    """
    path = folder / "config.json" if folder.is_dir() else folder
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError("config.json is too large", value=str(path), hint=f"at most {MAX_BYTES} bytes")
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no config.json there", value=str(path), hint="give a Hugging Face model folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"config.json can't be read: {error}", value=str(path), hint="download it again") from None
    if not isinstance(config, dict):
        raise InputError("config.json holds no JSON object", value=str(path), hint="download it again")
    text = config.get("text_config")
    return _dimensions({**config, **text} if isinstance(text, dict) else config, path)


def _dimensions(config: dict[str, Any], path: Path) -> Dimensions:
    def size(*names: str, default: int | None = None) -> int:
        for name in names:
            value = config.get(name)
            if value is None:
                continue
            if type(value) is not int or not 0 <= value <= LARGEST:
                raise InputError(
                    f"{name} in config.json is no size", value=value, hint=f"{path}: a whole number up to {LARGEST}"
                )
            return value
        if default is None:
            raise InputError(
                f"config.json has no {names[0]}", value=str(path), hint="shapes can be given with --shape instead"
            )
        return default

    hidden, heads = size("hidden_size", "n_embd"), size("num_attention_heads", "n_head")
    if not hidden or not heads:
        raise InputError("hidden_size and num_attention_heads must be above 0", value=str(path))
    kv_heads = size("num_key_value_heads", default=heads) or heads
    if heads % kv_heads:
        raise InputError("num_key_value_heads does not divide num_attention_heads", value=(heads, kv_heads))
    window = size("sliding_window", default=0) if config.get("use_sliding_window") is not False else 0
    cap = config.get("attn_logit_softcapping")
    return Dimensions(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=size("head_dim", default=max(1, hidden // heads)),
        intermediate=size("intermediate_size", "n_inner", default=4 * hidden),
        vocabulary=size("vocab_size"),
        experts=size("num_experts", "num_local_experts", "n_routed_experts", default=0),
        top_k=size("num_experts_per_tok", "experts_per_token", "num_experts_per_token", default=0),
        expert_width=size("moe_intermediate_size", "intermediate_size", default=0),
        window=window,
        softcap=int(cap) if isinstance(cap, (int, float)) and 0 < cap <= LARGEST else 0,
        sinks=int(config.get("model_type") == "gpt_oss"),
        latent=bool(config.get("kv_lora_rank")),
    )
