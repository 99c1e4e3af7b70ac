"""Live faults of weights: another tensor, another layout, another moment, or a cache that outlives them."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.faults.draw import Draw
from tests.faults.live.comparison import Comparison, Side, registry
from tests.faults.patches import transformers_layers, vllm_attention, vllm_weights

WT = "weights"
fault = registry()


@fault(
    "tensor-changed-rollout",
    WT,
    ("weights-changed", "weights-stale", "weights-partial-sync"),
    ("rollout",),
    ("*layers.{layer}.*",),
    why="one tensor is not the checkpoint's",
)
def _(draw: Draw) -> Comparison:
    layer, relative = draw.layer(), draw.choice([0.2, 0.3])
    part = draw.choice(["self_attn.o_proj", "mlp.down_proj", "mlp.gate_up_proj"])
    values = {"name": f"model.layers.{layer}.{part}.weight", "relative": relative, "seed": draw.integer(0, 999)}
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_weights.tensor_noise, values)]),
        facts={"layer": layer, "relative": relative},
    )


@fault(
    "tensor-changed-train",
    WT,
    ("weights-changed", "weights-stale", "weights-partial-sync"),
    ("train",),
    ("*layers.{layer}.*",),
    why="the trainer's copy of one tensor went another way",
)
def _(draw: Draw) -> Comparison:
    layer, relative = draw.layer(), draw.choice([0.3, 0.4])
    part = draw.choice(["self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj"])
    values = {"name": f"model.layers.{layer}.{part}.weight", "relative": relative, "seed": draw.integer(0, 999)}
    return Comparison(
        draw.choice(["qwen3", "llama", "mistral"]),
        train=Side(patches=[(transformers_layers.tensor_noise, values)]),
        facts={"layer": layer, "relative": relative},
    )


@fault(
    "query-heads-cut-rollout",
    WT,
    ("qkv-layout",),
    ("rollout",),
    ("*layers.{layer}.*", "*qkv*", "*q_proj*"),
    why="B71: the fused q, k, v cut in another order",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_weights.query_heads, {"layer": layer, "group": 2})]),
        facts={"layer": layer},
    )


@fault(
    "expert-halves-rollout",
    WT,
    ("expert-weights-swapped", "gate-up-swapped"),
    ("rollout",),
    ("*layers.{layer}.*", "*expert*"),
    why="B72: gate and up of fused experts the other way round",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        "qwen3-moe",
        rollout=Side(patches=[(vllm_weights.expert_halves, {"layer": layer})]),
        facts={"layer": layer},
    )


@fault(
    "expert-order-rollout",
    WT,
    ("expert-weights-swapped",),
    ("rollout",),
    ("*layers.{layer}.*", "*expert*"),
    also=("routing",),
    why="a layer's experts are stored in another order",
)
def _(draw: Draw) -> Comparison:
    layer, by = draw.layer(), draw.integer(1, 7)
    return Comparison(
        "qwen3-moe",
        rollout=Side(patches=[(vllm_weights.expert_order, {"layer": layer, "by": by})]),
        facts={"layer": layer},
    )


@fault(
    "quantised-rollout",
    WT,
    ("quantised-one-side", "quant-scale"),
    ("rollout",),
    ("*",),
    also=("framework-config",),
    why="the served weights have gone through small integers",
)
def _(draw: Draw) -> Comparison:
    bits = draw.choice([3, 4])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_weights.quantised, {"bits": bits})]),
        facts={"bits": bits},
    )


def _older(relative: float, seed: int, source: Path, target: Path) -> None:
    """Another moment of the same training: every tensor moved a little."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    for path in target.glob("*.safetensors"):
        moved = {}
        for name, tensor in load_file(path).items():
            noise = torch.randn(tensor.shape, generator=generator) * tensor.float().std() * relative
            moved[name] = (tensor.float() + noise).to(tensor.dtype)
        save_file(moved, path, metadata={"format": "pt"})


@fault(
    "older-checkpoint-rollout",
    WT,
    ("weights-stale", "weights-changed"),
    ("rollout",),
    ("*",),
    why="B74: the engine serves an earlier checkpoint",
)
def _(draw: Draw) -> Comparison:
    relative, seed = draw.choice([0.05, 0.08]), draw.integer(0, 999)

    def older(source: Path, target: Path) -> None:
        _older(relative, seed, source, target)

    return Comparison(draw.choice(["qwen3", "llama"]), rollout=Side(model=older), facts={"relative": relative})


@fault(
    "nothing-synced-rollout",
    WT,
    ("weights-stale",),
    ("rollout",),
    ("*",),
    why="B74, B78: right at step 0, the sync copies nothing",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        steps=2,
        rollout=Side(patches=[(vllm_weights.stale_after_sync, {"pattern": "."})]),
    )


@fault(
    "head-not-synced-rollout",
    WT,
    ("head-tied-stale", "cache-of-head-stale", "weights-partial-sync"),
    ("rollout",),
    ("*head*", "*logits*"),
    why="B77: a cached copy of the head outlives the sync",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        steps=2,
        update={"lr": 4e-3, "seed": draw.integer(0, 99)},
        rollout=Side(patches=[(vllm_weights.stale_after_sync, {"pattern": "lm_head"})]),
    )


@fault(
    "layers-not-synced-rollout",
    WT,
    ("weights-partial-sync", "weights-stale"),
    ("rollout",),
    ("*layers.{layer}.*", "*layers.*"),
    why="B73: some tensors stay at version 0",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer(0, 2)
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        steps=2,
        update={"lr": 4e-3, "seed": draw.integer(0, 99)},
        rollout=Side(patches=[(vllm_weights.stale_after_sync, {"pattern": rf"layers\.[{layer}{layer + 1}]\."})]),
        facts={"layer": layer},
    )


@fault(
    "halves-swapped-by-sync-rollout",
    WT,
    ("gate-up-swapped", "expert-weights-swapped", "weights-partial-sync"),
    ("rollout",),
    ("*layers.{layer}.*", "*gate*", "*up*"),
    why="B72: the second load lands in another layout than the first",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        steps=2,
        rollout=Side(patches=[(vllm_weights.swapped_after_sync, {"layer": layer})]),
        facts={"layer": layer},
    )


@fault(
    "prefix-outlives-sync-rollout",
    WT,
    ("kv-cache-stale",),
    ("rollout",),
    ("*cache*", "*context*", "*attn*"),
    also=("framework-implementation",),
    why="B80: prompts' keys and values of the old weights are used with the new ones",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        steps=2,
        update={"lr": 4e-3, "seed": draw.integer(0, 99)},
        rollout_args={"enable_prefix_caching": True, "block_size": 32},
        prompts={"random": {"count": 6, "lengths": [80, 110], "seed": draw.integer(0, 9999)}},
        rollout=Side(patches=[(vllm_attention.prefix_kept, {})]),
    )


FAULTS = fault.faults
