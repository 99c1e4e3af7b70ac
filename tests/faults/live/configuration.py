"""Live faults that are only configuration: arguments, environment and dtypes of a run file."""

from __future__ import annotations

from tests.faults.draw import Draw
from tests.faults.live.comparison import Comparison, Side, registry
from tests.faults.patches import transformers_layers

FC = "framework-config"
fault = registry()


@fault(
    "window-argument-train",
    FC,
    ("window-off-by-one", "model-config-differs"),
    ("train",),
    ("*sliding_window*", "*attn*", "*attention*", "*context*"),
    why="B42 as an override: W handed on as W + 1",
)
def _(draw: Draw) -> Comparison:
    off = draw.choice([-1, 1])
    return Comparison("mistral", train=Side(args={"sliding_window": 24 + off}), facts={"off": off})


@fault(
    "rotation-base-argument-rollout",
    FC,
    ("rope-theta", "model-config-differs"),
    ("rollout",),
    ("*rope*", "*rotary*", "*theta*"),
    why="the serving command overrides the base of the rotation",
)
def _(draw: Draw) -> Comparison:
    base = draw.choice([1e6, 5e4, 5e5])
    return Comparison(
        draw.choice(["llama", "mistral"]),
        rollout=Side(args={"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": base}}}),
        facts={"base": base},
    )


@fault(
    "rotation-scaling-argument-train",
    FC,
    ("rope-scaling", "model-config-differs"),
    ("train",),
    ("*rope*", "*rotary*", "*scal*"),
    why="B40: long-context scaling on one side",
)
def _(draw: Draw) -> Comparison:
    factor = draw.choice([2.0, 4.0])
    return Comparison(
        draw.choice(["llama", "qwen2"]),
        train=Side(args={"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": factor}}),
        facts={"factor": factor},
    )


@fault(
    "epsilon-argument-rollout",
    FC,
    ("norm-eps", "model-config-differs"),
    ("rollout",),
    ("*rms_norm_eps*", "*norm*", "*eps*"),
    why="an override of the norms' epsilon",
)
def _(draw: Draw) -> Comparison:
    epsilon = draw.choice([0.1, 0.2])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(args={"hf_overrides": {"rms_norm_eps": epsilon}}),
        facts={"epsilon": epsilon},
    )


@fault(
    "cap-dropped-by-attention-train",
    FC,
    ("attention-implementation-drops", "attention-softcap-dropped"),
    ("train",),
    ("*attn*", "*attention*", "*context*", "*softcap*"),
    also=("framework-implementation",),
    why="B43, B44: an attention implementation that ignores the soft cap without a word",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        "gemma2",
        overrides={"attn_logit_softcapping": draw.choice([0.7, 1.0])},
        train=Side(args={"attn_implementation": "sdpa"}),
    )


@fault(
    "head-cap-argument-rollout",
    FC,
    ("final-softcap-dropped", "model-config-differs"),
    ("rollout",),
    ("*softcap*", "*logits*", "*head*"),
    why="an override of the last soft cap",
)
def _(draw: Draw) -> Comparison:
    cap = draw.choice([8.0, 60.0])
    return Comparison(
        "gemma2",
        overrides={"final_logit_softcapping": 16.0},
        rollout=Side(args={"hf_overrides": {"final_logit_softcapping": cap}}),
        facts={"cap": cap},
    )


@fault(
    "cache-dtype-rollout",
    FC,
    ("kv-cache-dtype",),
    ("rollout",),
    ("*kv_cache*", "*cache*", "*attn*", "*context*", "*attention*"),
    why="an 8-bit KV cache on one side",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]), rollout=Side(args={"kv_cache_dtype": draw.choice(["fp8", "fp8_e5m2"])})
    )


@fault(
    "renormalisation-argument-train",
    FC,
    ("router-not-renormalised", "model-config-differs"),
    ("train",),
    ("*norm_topk_prob*", "*router*", "*expert*", "*moe*", "*mlp*"),
    also=("routing",),
    why="B91: a missing key read as false",
)
def _(draw: Draw) -> Comparison:
    return Comparison("qwen3-moe", train=Side(args={"norm_topk_prob": False}))


@fault(
    "experts-argument-rollout",
    FC,
    ("experts-per-token", "model-config-differs"),
    ("rollout",),
    ("*num_experts_per_tok*", "*router*", "*expert*", "*moe*", "*mlp*"),
    also=("routing",),
    why="fewer experts per token on one side",
)
def _(draw: Draw) -> Comparison:
    count = draw.choice([2, 3, 6])
    return Comparison(
        "qwen3-moe", rollout=Side(args={"hf_overrides": {"num_experts_per_tok": count}}), facts={"count": count}
    )


@fault(
    "autocast-train",
    FC,
    ("autocast-differs", "dtype-differs"),
    ("train",),
    ("*dtype*", "*autocast*", "*"),
    also=("operator", "framework-implementation"),
    why="B62: an autocast around the scoring pass of an fp32 run",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]), dtype="float32", train=Side(patches=[(transformers_layers.autocast, {})])
    )


@fault(
    "dtype-train",
    FC,
    ("dtype-differs",),
    ("train", "both"),
    ("*dtype*", "*"),
    above=0.0,
    why="the trainer keeps fp32 where the engine serves bf16: no more than rounding, but by configuration",
)
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama"]), train=Side(dtype="float32"))


FAULTS = fault.faults
