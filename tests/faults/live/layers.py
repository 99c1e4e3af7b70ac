"""Live faults of norms, MLPs, the residual stream, the head and the schedule."""

from __future__ import annotations

from tests.faults.draw import Draw
from tests.faults.live.comparison import Comparison, Side, registry
from tests.faults.patches import transformers_layers, vllm_layers

FI = "framework-implementation"
fault = registry()


@fault(
    "norm-epsilon-rollout",
    FI,
    ("norm-eps", "norm-scale"),
    ("rollout",),
    ("*layers.{layer}.*", "*norm*"),
    why="an epsilon that belongs to another model",
)
def _(draw: Draw) -> Comparison:
    layer, epsilon = draw.layer(), draw.choice([0.3, 0.5, 1.0])
    norm = draw.choice(["input_layernorm", "post_attention_layernorm"])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_layers.norm_epsilon, {"layer": layer, "norm": norm, "epsilon": epsilon})]),
        facts={"layer": layer, "epsilon": epsilon},
    )


@fault(
    "final-norm-epsilon-train",
    FI,
    ("norm-eps", "norm-scale"),
    ("train",),
    ("*norm*",),
    why="an epsilon that belongs to another model, in the last norm",
)
def _(draw: Draw) -> Comparison:
    epsilon = draw.choice([6.0, 10.0])
    return Comparison(
        draw.choice(["qwen3", "llama", "mistral"]),
        train=Side(patches=[(transformers_layers.final_norm_epsilon, {"epsilon": epsilon})]),
        facts={"epsilon": epsilon},
    )


@fault(
    "norm-without-one-rollout",
    FI,
    ("norm-offset",),
    ("rollout",),
    ("*layers.{layer}.*", "*norm*"),
    why="w for 1 + w in one of Gemma's norms",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        draw.choice(["gemma2", "gemma3"]),
        rollout=Side(patches=[(vllm_layers.norm_without_one, {"layer": layer, "norm": "pre_feedforward_layernorm"})]),
        facts={"layer": layer},
    )


@fault(
    "query-norm-rollout",
    FI,
    ("qk-norm-missing", "norm-missing"),
    ("rollout",),
    ("*layers.{layer}.*", "*q_norm*", "*k_norm*", "*norm*"),
    why="the norm of queries or keys is left out of a fused path",
)
def _(draw: Draw) -> Comparison:
    layer, norm = draw.layer(), draw.choice(["q_norm", "k_norm"])
    return Comparison(
        draw.choice(["qwen3", "qwen3-moe"]),
        rollout=Side(patches=[(vllm_layers.query_key_norm, {"layer": layer, "norm": norm})]),
        facts={"layer": layer, "norm": norm},
    )


@fault(
    "gated-half-rollout",
    FI,
    ("gate-up-swapped",),
    ("rollout",),
    ("*layers.{layer}.*", "*act*", "*mlp*", "*gate*", "*up*"),
    why="the activation gates with the wrong half",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        draw.choice(["qwen3", "llama", "mistral"]),
        rollout=Side(patches=[(vllm_layers.activation_halves, {"layer": layer})]),
        facts={"layer": layer},
    )


@fault(
    "activation-kind-rollout",
    FI,
    ("activation-kind",),
    ("rollout",),
    ("*layers.{layer}.*", "*act*", "*mlp*"),
    why="GELU for SiLU",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_layers.activation_kind, {"layer": layer})]),
        facts={"layer": layer},
    )


@fault(
    "compiled-activation-rollout",
    FI,
    ("activation-kind", "compiled-numerics"),
    ("rollout",),
    ("*act*", "*mlp*", "*compil*", "*eager*"),
    why="B49: the compiled form alone is another function",
)
def _(draw: Draw) -> Comparison:
    factor = draw.choice([1.25, 1.5])
    return Comparison(
        "qwen3",
        rollout_args={"enforce_eager": False},
        rollout=Side(patches=[(vllm_layers.compiled_activation, {"factor": factor})]),
        facts={"factor": factor},
    )


@fault(
    "reduce-twice-rollout",
    FI,
    ("reduce-twice",),
    ("rollout",),
    ("*layers.{layer}.*", "*attn_out*", "*o_proj*", "*mlp*", "*down_proj*"),
    why="B87: a block that has reduced is reduced again",
)
def _(draw: Draw) -> Comparison:
    layer, part = draw.layer(), draw.choice(["self_attn.o_proj", "mlp.down_proj"])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_layers.output_twice, {"layer": layer, "part": part})]),
        facts={"layer": layer},
    )


@fault(
    "experts-reduce-twice-rollout",
    FI,
    ("reduce-twice",),
    ("rollout",),
    ("*layers.{layer}.*", "*mlp*", "*moe*", "*expert*"),
    also=("routing",),
    why="B87: the output of an expert layer is summed twice",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        "qwen3-moe",
        rollout=Side(patches=[(vllm_layers.output_twice, {"layer": layer, "part": "mlp"})]),
        facts={"layer": layer},
    )


@fault(
    "rank-left-out-rollout",
    FI,
    ("reduce-missing",),
    ("rollout",),
    ("*layers.{layer}.*", "*mlp*", "*down_proj*", "*rank*"),
    why="one rank's part is missing in the sum",
)
def _(draw: Draw) -> Comparison:
    layer, rank = draw.layer(), draw.integer(0, 1)
    return Comparison(
        "qwen3",
        rollout_args={"tensor_parallel_size": 2},
        rollout=Side(patches=[(vllm_layers.rank_output, {"layer": layer, "rank": rank})]),
        facts={"layer": layer, "rank": rank},
    )


@fault(
    "bias-left-out-rollout",
    FI,
    ("bias-missing",),
    ("rollout",),
    ("*layers.{layer}.*", "*attn*", "*.q", "*.k", "*.v", "*qkv*", "*o_proj*"),
    why="a fused projection is called without its bias",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        draw.choice(["qwen2", "gpt-oss"]),
        rollout=Side(patches=[(vllm_layers.bias_left_out, {"layer": layer, "projection": "qkv_proj"})]),
        facts={"layer": layer},
    )


@fault(
    "skipped-steps-rollout",
    FI,
    ("layer-skipped", "graph-stale", "residual-missing"),
    ("rollout",),
    ("*layers.{layer}.*", "*layer*"),
    why="intermittent: every n-th decode step replays without one layer",
)
def _(draw: Draw) -> Comparison:
    layer, every = draw.layer(1), draw.choice([3, 4, 5])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_layers.skipped_steps, {"layer": layer, "every": every})]),
        facts={"layer": layer, "every": every},
    )


@fault(
    "wide-steps-rollout",
    FI,
    ("reduce-twice", "batch-variance", "residual-scale", "graph-stale"),
    ("rollout",),
    ("*layers.{layer}.*", "*mlp*", "*batch*"),
    why="B66: only steps of a large batch take the broken path",
)
def _(draw: Draw) -> Comparison:
    layer, factor = draw.layer(), draw.choice([1.5, 2.0])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_layers.wide_steps, {"layer": layer, "rows": 4, "factor": factor})]),
        facts={"layer": layer, "factor": factor},
    )


@fault(
    "embedding-scale-rollout",
    FI,
    ("embedding-scale",),
    ("rollout",),
    ("*embed*", "*normalizer*"),
    also=("weights",),
    why="Gemma's embedding scale of another width",
)
def _(draw: Draw) -> Comparison:
    factor = draw.choice([0.5, 1.414, 2.0])
    return Comparison(
        draw.choice(["gemma2", "gemma3"]),
        rollout=Side(patches=[(vllm_layers.embedding_scale, {"factor": factor})]),
        facts={"factor": factor},
    )


@fault(
    "head-cap-rollout",
    FI,
    ("final-softcap-dropped",),
    ("rollout",),
    ("*logits*", "*lm_head*", "*softcap*", "*head*"),
    also=("framework-config",),
    why="the last soft cap is lost",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        "gemma2",
        overrides={"final_logit_softcapping": draw.choice([14.0, 16.0, 18.0])},
        rollout=Side(patches=[(vllm_layers.head_cap, {})]),
    )


@fault(
    "head-scale-rollout",
    FI,
    ("logits-scale", "temperature-differs"),
    ("rollout",),
    ("*logits*", "*lm_head*", "*head*"),
    also=("sampling-processing",),
    why="a multiplier of the logits that belongs to another model",
)
def _(draw: Draw) -> Comparison:
    factor = draw.choice([0.8, 0.9, 1.15])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_layers.head_scale, {"factor": factor})]),
        facts={"factor": factor},
    )


@fault(
    "gated-half-train",
    FI,
    ("gate-up-swapped",),
    ("train",),
    ("*layers.{layer}.*", "*act*", "*mlp*", "*gate*", "*up*"),
    why="the trainer's fused activation gates with the wrong projection",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        train=Side(patches=[(transformers_layers.activation_halves, {"layer": layer})]),
        facts={"layer": layer},
    )


@fault(
    "dropout-train",
    FI,
    ("dropout-active",),
    ("train",),
    ("*layers.{layer}.*", "*mlp*", "*dropout*"),
    why="B69: the pass that scores runs in training mode",
)
def _(draw: Draw) -> Comparison:
    layer, rate = draw.layer(), draw.choice([0.1, 0.2])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        train=Side(patches=[(transformers_layers.active_dropout, {"layer": layer, "rate": rate})]),
        facts={"layer": layer, "rate": rate},
    )


@fault(
    "residual-factor-train",
    FI,
    ("residual-scale",),
    ("train",),
    ("*layers.{layer}.*", "*residual*"),
    why="a residual multiplier that belongs to another model",
)
def _(draw: Draw) -> Comparison:
    layer, factor = draw.layer(0, 2), draw.choice([0.7, 1.4])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        train=Side(patches=[(transformers_layers.residual_factor, {"layer": layer, "factor": factor})]),
        facts={"layer": layer, "factor": factor},
    )


@fault(
    "later-rows-train",
    FI,
    ("batch-variance", "residual-scale", "reduce-twice", "norm-scale"),
    ("train",),
    ("*layers.{layer}.*", "*mlp*", "*batch*"),
    why="right alone, wrong in a batch: rows past the first of a micro-batch",
)
def _(draw: Draw) -> Comparison:
    layer, factor = draw.layer(), draw.choice([0.5, 1.6])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        score={"micro_batch_size": 3},
        train=Side(patches=[(transformers_layers.later_rows, {"layer": layer, "factor": factor})]),
        facts={"layer": layer, "factor": factor},
    )


FAULTS = fault.faults
