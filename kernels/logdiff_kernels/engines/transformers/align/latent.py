"""Multi-head latent attention in absorbed form: the seam is where a model expands its cached latents.

Transformers keeps latents in its cache and expands them to keys and values of every head just before its attention
interface (`expand_kv`). Aligned layers hand the latents on as they are: one key head, [latent, rotated part]. The
implementation behind the interface then takes the up-projection into the query and into the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch

from logdiff_kernels.engines.transformers.align.guard import plain_weight
from logdiff_kernels.engines.transformers.align.scene import Scene, refuse
from logdiff_kernels.engines.transformers.align.stand_in import attempt, close, own_class, stand_in
from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.ops.attention_latent import absorbed_query, expanded_output, per_head

MARK = "_logdiff_latent"
"""Entry of an aligned layer's dictionary: its `Latent`."""

_SEAM = "expand_kv"
_SIZES = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


@dataclass(frozen=True)
class Latent:
    """Sizes of one layer: the latent, and of each head the parts without and with position and the values."""

    rank: int
    nope: int
    rope: int
    value: int

    def projections(self, module: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The up-projection's parts of this call, as `per_head` gives them."""
        weight = plain_weight(module.kv_b_proj, "weight")
        return per_head(weight, weight.shape[0] // (self.nope + self.value), self.nope)


def find(name: str, module: torch.nn.Module, scene: Scene) -> Latent | None:
    """Plan the absorbed form of one attention layer.

    Returns:
        Its sizes; None for attention without latents.

    Raises:
        UnsupportedError: latents that are expanded by a rule that isn't the plain up-projection, or elsewhere in the
            layer's code; sparse attention over an indexer's choice.
    """
    children = dict(module.named_children())
    if not hasattr(own_class(module), _SEAM):
        if "kv_b_proj" in children:
            raise refuse(name, module, f"its latents are expanded in its own code, without {_SEAM}")
        return None
    if any("indexer" in child for child in children):
        raise refuse(name, module, "it attends to the keys that an indexer chooses")
    found = recognise(module, scene)
    if found is None:
        raise refuse(name, module, "its latents aren't expanded by one plain product per head")
    scene.steps.append(lambda: scene.patches.attribute(module, _SEAM, MethodType(_joined, module)))
    scene.steps.append(lambda: scene.patches.attribute(module, MARK, found))
    scene.steps.append(lambda: scene.patches.names.append(f"{name}.{_SEAM} -> attention"))
    return found


def recognise(module: torch.nn.Module, scene: Scene) -> Latent | None:
    """What a layer's expansion computes, found by running it on random values; None if it isn't the plain product."""
    projection = getattr(module, "kv_b_proj", None)
    sizes = [getattr(module, size, None) for size in _SIZES]
    if not isinstance(projection, torch.nn.Linear) or projection.bias is not None:
        return None
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    latent = Latent(*sizes)
    head = latent.nope + latent.value
    heads, rest = divmod(projection.out_features, head)
    if rest or projection.in_features != latent.rank:
        return None
    generator = scene.generator()
    weight = torch.randn(heads * head, latent.rank, generator=generator)
    plain = torch.nn.Linear(latent.rank, heads * head, bias=False)
    plain.weight = torch.nn.Parameter(weight)
    shadow = stand_in(module, generator=generator, children={"kv_b_proj": plain})
    c = torch.randn(2, 1, 3, latent.rank, generator=generator)
    r = torch.randn(2, 1, 3, latent.rope, generator=generator)
    answer = attempt(getattr(own_class(module), _SEAM), shadow, c, r)
    if not isinstance(answer, tuple) or len(answer) != 2:
        return None
    each = torch.einsum("blk,hdk->bhld", c[:, 0].double(), weight.double().unflatten(0, (heads, head)))
    keys = torch.cat((each[..., : latent.nope], r.double().expand(-1, heads, -1, -1)), dim=-1)
    return latent if close(answer[0], keys) and close(answer[1], each[..., latent.nope :]) else None


def _joined(self: Any, kv_nope: torch.Tensor, k_rot: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Key and value of the one latent head: [B, 1, K, L + R] and its first L elements."""
    key = torch.cat((kv_nope, k_rot), dim=-1)
    return key, key[..., : kv_nope.shape[-1]]


def query(module: Any, q: torch.Tensor) -> torch.Tensor:
    """Queries [T, H, nope + R] of an aligned layer as its attention takes them; those of other layers as they are."""
    latent: Latent | None = module.__dict__.get(MARK)
    if latent is None:
        return q
    keys, _ = latent.projections(module)
    if q.shape[1:] != (keys.shape[0], latent.nope + latent.rope):
        raise UnsupportedError(
            f"{type(module).__name__} has queries of shape {list(q.shape)}, its latents are for "
            f"{keys.shape[0]} heads of {latent.nope + latent.rope}",
            value=list(q.shape),
        )
    return absorbed_query(q, keys)


def output(module: Any, out: torch.Tensor) -> torch.Tensor:
    """What attention gave, [T, H, D], as the layer's values."""
    latent: Latent | None = module.__dict__.get(MARK)
    return out if latent is None else expanded_output(out, latent.projections(module)[1])
