"""Rotary embedding by tables of the contract, built from the Hugging Face configuration once the model is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from logdiff_kernels import ops
from logdiff_kernels.align import AlignSpec
from logdiff_kernels.contract.rope import RopeSpec, table
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError

HASH = "logdiff_rope_hash"
"""Attribute of a rotary module: hash of its table's rule, set when the model has been loaded."""

_CLOSE = 0.02
"""vLLM's own table is bf16, from fp32 angles: that far from ours, in the first positions, it follows another rule."""

_COMPARED = 64

_RENAMED = ("deepseek_yarn", "deepseek_llama_scaling")


def apply(patches: Patches, spec: AlignSpec) -> None:
    """Replace `forward` of vLLM's rotary embeddings over one position axis."""
    if "rope" not in spec:
        return
    for kind in covered():

        def forward(
            self: Any,
            positions: torch.Tensor,
            query: torch.Tensor,
            key: torch.Tensor | None = None,
            offsets: torch.Tensor | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor | None]:
            if offsets is not None:
                raise UnsupportedError("RoPE at positions with an offset", value=type(self).__name__)
            at = positions.flatten()
            cos, sin = self.logdiff_cos.index_select(0, at), self.logdiff_sin.index_select(0, at)
            return _rotated(self, query, cos, sin), None if key is None else _rotated(self, key, cos, sin)

        patches.replace(kind, "forward", forward)


def covered() -> tuple[type, ...]:
    """The rotary classes that are replaced; their subclasses must stand here themselves."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding
    from vllm.model_executor.layers.rotary_embedding.deepseek_scaling_rope import DeepseekScalingRotaryEmbedding
    from vllm.model_executor.layers.rotary_embedding.dynamic_ntk_scaling_rope import DynamicNTKScalingRotaryEmbedding
    from vllm.model_executor.layers.rotary_embedding.linear_scaling_rope import LinearScalingRotaryEmbedding
    from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding
    from vllm.model_executor.layers.rotary_embedding.yarn_scaling_rope import YaRNScalingRotaryEmbedding

    return (
        RotaryEmbedding,
        LinearScalingRotaryEmbedding,
        DynamicNTKScalingRotaryEmbedding,
        Llama3RotaryEmbedding,
        YaRNScalingRotaryEmbedding,
        DeepseekScalingRotaryEmbedding,
    )


def prepare(name: str, rotary: Any, config: Any, layer: int | None, length: int) -> None:
    """Give a rotary module its tables, cos and sin fp32 [length, R/2].

    Args:
        name: of the module, for errors.
        rotary: the vLLM module; layers of the same rule share it.
        config: the Hugging Face text configuration.
        layer: index of the decoder layer, where rules differ by layer type.
        length: positions that this engine can reach (`max_model_len`).

    Raises:
        UnsupportedError: vLLM rotates by another rule than the configuration says.
    """
    types = getattr(config, "layer_types", None)
    kind = types[layer] if types and layer is not None and layer < len(types) else None
    latent = getattr(config, "qk_rope_head_dim", None) == rotary.head_size
    spec = RopeSpec.from_hf(_as_transformers(config), kind, head_dim=rotary.head_size if latent else None)
    if getattr(rotary, HASH, None) == spec.hash() and rotary.logdiff_cos.shape[0] >= length:
        return
    if hasattr(rotary, HASH) and getattr(rotary, HASH) != spec.hash():
        raise UnsupportedError(f"{name}: vLLM shares one RoPE between layers of different rules", value=kind)
    interleaved = getattr(config, "rope_interleave", None)
    if interleaved is not None and bool(interleaved) == bool(rotary.is_neox_style):
        raise UnsupportedError(
            f"{name}: vLLM rotates {'halves' if rotary.is_neox_style else 'interleaved pairs'}, the configuration says "
            f"rope_interleave = {interleaved}",
            value=name,
            hint="the two engines run different models",
        )
    if spec.rotary_dim != rotary.rotary_dim:
        raise UnsupportedError(
            f"{name}: vLLM rotates {rotary.rotary_dim} elements, the configuration says {spec.rotary_dim}", value=name
        )
    cos, sin = table(spec, np.arange(length))
    theirs = rotary.cos_sin_cache[: min(_COMPARED, length)].float()
    ours = torch.cat((torch.from_numpy(cos), torch.from_numpy(sin)), dim=-1)[: len(theirs)]
    if theirs.shape != ours.shape or float((theirs - ours).abs().max()) > _CLOSE * max(1.0, spec.attention_factor):
        raise UnsupportedError(
            f"{name}: vLLM's RoPE follows another rule than the model's configuration",
            value=type(rotary).__name__,
            hint="leave rope out of the aligned operators",
        )
    rotary.logdiff_cos, rotary.logdiff_sin = torch.from_numpy(cos), torch.from_numpy(sin)
    setattr(rotary, HASH, spec.hash())


def _as_transformers(config: Any) -> Any:
    """The configuration with the name of its scaling rule that Transformers knows; vLLM's DeepSeek code renames it."""
    rule = getattr(config, "rope_parameters", None)
    if not isinstance(rule, dict) or rule.get("rope_type") not in _RENAMED:
        return config
    return {**config.to_dict(), "rope_parameters": {**rule, "rope_type": "yarn"}}


def _rotated(rotary: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    heads = x if x.dim() == 3 else x.view(cos.shape[0], -1, rotary.head_size)
    return ops.rope(heads, cos, sin, interleaved=not rotary.is_neox_style).reshape(x.shape)
