"""Live faults of attention, positions and the KV cache."""

from __future__ import annotations

from tests.faults.draw import Draw
from tests.faults.live.comparison import Comparison, Side, registry
from tests.faults.patches import transformers_attention, vllm_attention

ATTENTION = ("*attn*", "*attention*", "*context*", "*sliding_window*", "*mask*")
ROTATION = ("*rope*", "*rotary*", "*position*")

fault = registry()


@fault(
    "window-longer-rollout",
    "framework-implementation",
    ("window-off-by-one", "window-ignored"),
    ("rollout",),
    ATTENTION,
    also=("framework-config",),
    why="B42: an exclusive bound of the window taken for an inclusive one",
)
def _(draw: Draw) -> Comparison:
    off = draw.choice([1, 2])
    model = draw.choice(["mistral", "gemma3"])
    return Comparison(
        model, rollout=Side(patches=[(vllm_attention.attention_window, {"off": off})]), facts={"off": off}
    )


@fault(
    "window-shorter-train",
    "framework-implementation",
    ("window-off-by-one",),
    ("train",),
    ATTENTION,
    also=("framework-config",),
    why="B42 on the trainer: the current token counted twice",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["mistral", "gemma2"]),
        train=Side(patches=[(transformers_attention.attention_window, {"off": -1})]),
    )


@fault(
    "softcap-lost-rollout",
    "framework-implementation",
    ("attention-softcap-dropped",),
    ("rollout",),
    ATTENTION,
    also=("framework-config",),
    why="B44: the kernel call has no soft cap",
)
def _(draw: Draw) -> Comparison:
    layers = list(range(draw.integer(0, 1), 4))
    return Comparison(
        "gemma2",
        overrides={"attn_logit_softcapping": draw.choice([0.7, 1.0])},
        rollout=Side(patches=[(vllm_attention.attention_cap, {"layers": layers})]),
        facts={"layer": layers[0]},
    )


@fault(
    "sinks-lost-rollout",
    "framework-implementation",
    ("sinks-dropped", "attention-implementation-drops"),
    ("rollout",),
    (*ATTENTION, "*sink*"),
    also=("framework-config",),
    why="B43, mirrored: the serving backend has no sinks",
)
def _(draw: Draw) -> Comparison:
    layers = list(range(draw.integer(0, 1), 4))
    return Comparison(
        "gpt-oss",
        rollout=Side(patches=[(vllm_attention.attention_sinks, {"layers": layers})]),
        facts={"layer": layers[0]},
    )


@fault(
    "sinks-lost-train",
    "framework-implementation",
    ("sinks-dropped", "attention-implementation-drops"),
    ("train",),
    (*ATTENTION, "*sink*"),
    also=("framework-config",),
    why="B43: the trainer's attention has no sinks",
)
def _(draw: Draw) -> Comparison:
    layers = list(range(draw.integer(0, 1), 4))
    return Comparison(
        "gpt-oss",
        train=Side(patches=[(transformers_attention.attention_sinks, {"layers": layers})]),
        facts={"layer": layers[0]},
    )


@fault(
    "attention-scale-rollout",
    "framework-implementation",
    ("attention-scale",),
    ("rollout",),
    ("*layers.{layer}.*", *ATTENTION),
    why="B45: another softmax scale",
)
def _(draw: Draw) -> Comparison:
    layer, factor = draw.layer(), draw.choice([0.707, 0.8, 1.25, 1.414])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_attention.attention_scale, {"layer": layer, "factor": factor})]),
        facts={"layer": layer, "factor": factor},
    )


@fault(
    "attention-scale-train",
    "framework-implementation",
    ("attention-scale",),
    ("train",),
    ("*layers.{layer}.*", *ATTENTION),
    why="B45 as reported: the trainer's softmax scale",
)
def _(draw: Draw) -> Comparison:
    layer, factor = draw.layer(), draw.choice([0.707, 0.8, 1.25, 1.414])
    return Comparison(
        draw.choice(["qwen3", "llama", "mistral"]),
        train=Side(patches=[(transformers_attention.attention_scale, {"layer": layer, "factor": factor})]),
        facts={"layer": layer, "factor": factor},
    )


@fault(
    "rotation-layout-rollout",
    "framework-implementation",
    ("rope-layout",),
    ("rollout",),
    ROTATION,
    why="interleaved pairs for halves, as after a conversion of another checkpoint family",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["llama", "qwen3", "qwen2"]), rollout=Side(patches=[(vllm_attention.rotary_layout, {})])
    )


@fault(
    "rotation-partial-rollout",
    "framework-implementation",
    ("rope-partial",),
    ("rollout",),
    ROTATION,
    why="B41: the rotated part is taken twice",
)
def _(draw: Draw) -> Comparison:
    share = draw.choice([0.125, 0.25])
    return Comparison(
        draw.choice(["llama", "qwen3"]),
        rollout=Side(patches=[(vllm_attention.rotary_part, {"share": share})]),
        facts={"share": share},
    )


@fault(
    "rotation-base-train",
    "framework-implementation",
    ("rope-theta",),
    ("train",),
    ROTATION,
    also=("framework-config",),
    why="a default base where the checkpoint names another",
)
def _(draw: Draw) -> Comparison:
    factor = draw.choice([0.01, 0.1, 50.0])
    return Comparison(
        draw.choice(["llama", "qwen3", "mistral"]),
        train=Side(patches=[(transformers_attention.rotary_base, {"factor": factor})]),
        facts={"factor": factor},
    )


@fault(
    "decode-positions-rollout",
    "framework-implementation",
    ("position-offset",),
    ("rollout",),
    (*ROTATION, *ATTENTION),
    why="decode counts from the prompt's length instead of its last index",
)
def _(draw: Draw) -> Comparison:
    off = draw.choice([1, 2])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_attention.decode_positions, {"off": off})]),
        facts={"off": off},
    )


@fault(
    "value-heads-rollout",
    "framework-implementation",
    ("kv-heads-permuted",),
    ("rollout",),
    ("*layers.{layer}.*", *ATTENTION),
    why="the merge of attention parts writes heads in another order (B57)",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_attention.value_heads, {"layer": layer})]),
        facts={"layer": layer},
    )


@fault(
    "key-heads-train",
    "framework-implementation",
    ("kv-heads-permuted",),
    ("train",),
    ATTENTION,
    why="grouped heads tiled where they must be repeated",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama", "mistral"]), train=Side(patches=[(transformers_attention.key_heads, {})])
    )


@fault(
    "cache-writes-rollout",
    "framework-implementation",
    ("kv-cache-corrupt", "kv-cache-stale"),
    ("rollout",),
    ("*layers.{layer}.*", *ATTENTION, "*cache*"),
    why="B60, B68: only the engine's decode is wrong",
)
def _(draw: Draw) -> Comparison:
    layer, every = draw.layer(0, 2), draw.choice([2, 3])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_attention.cache_writes, {"layer": layer, "every": every})]),
        facts={"layer": layer},
    )


@fault(
    "cache-scale-rollout",
    "framework-implementation",
    ("kv-cache-scale", "kv-cache-corrupt"),
    ("rollout",),
    (*ATTENTION, "*cache*"),
    why="B82: values come back from the cache with a stale scale",
)
def _(draw: Draw) -> Comparison:
    factor = draw.choice([0.5, 1.5, 2.0])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_attention.cache_scale, {"factor": factor})]),
        facts={"factor": factor},
    )


@fault(
    "long-context-scale-rollout",
    "framework-implementation",
    ("attention-scale", "split-kv-merge", "kv-cache-corrupt"),
    ("rollout",),
    ATTENTION,
    why="B57: another decode kernel beyond a length; short rows are clean",
)
def _(draw: Draw) -> Comparison:
    factor = draw.choice([0.6, 1.6])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_attention.long_context_scale, {"beyond": 64, "factor": factor})]),
        facts={"factor": factor},
    )


@fault(
    "pack-leak-train",
    "framework-implementation",
    ("packing-leak",),
    ("train",),
    (*ATTENTION, "*pack*", "*layout*"),
    why="B27, B28: long packed rows attend across their samples",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        score={"layout": "packed", "micro_batch_size": 3},
        train=Side(patches=[(transformers_attention.long_packs, {"beyond": 48})]),
    )


@fault(
    "padding-seen-train",
    "framework-implementation",
    ("left-padding-wrong", "prompt-mask-wrong", "mask-not-causal"),
    ("train",),
    (*ATTENTION, "*padding*", "*layout*"),
    why="B30: left padding is attended to",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama", "qwen2"]),
        score={"padding_side": "left", "micro_batch_size": 6},
        train=Side(patches=[(transformers_attention.padding_seen, {})]),
    )


@fault(
    "first-row-mask-train",
    "framework-implementation",
    ("left-padding-wrong", "prompt-mask-wrong", "batch-variance"),
    ("train",),
    (*ATTENTION, "*padding*", "*layout*"),
    why="one row's mask for a whole micro-batch: alone, each row is right",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        score={"padding_side": "left", "micro_batch_size": 6},
        train=Side(patches=[(transformers_attention.first_row_mask, {})]),
    )


@fault(
    "positions-clamped-train",
    "framework-implementation",
    ("position-offset", "rope-scaling"),
    ("train",),
    ROTATION,
    why="a rotation table that ends too early: only long rows are wrong",
)
def _(draw: Draw) -> Comparison:
    last = draw.integer(56, 64)
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        train=Side(patches=[(transformers_attention.clamped_positions, {"last": last})]),
        facts={"last": last},
    )


FAULTS = fault.faults
