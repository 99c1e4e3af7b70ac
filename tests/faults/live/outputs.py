"""Live faults of sampling, of what log-probabilities mean, and of the ids that a side receives; operators last."""

from __future__ import annotations

from tests.faults.draw import Draw
from tests.faults.live.comparison import Comparison, Side, registry
from tests.faults.patches import transformers_attention, transformers_layers, vllm_layers, vllm_sampling

SP, DA, OP = "sampling-processing", "data", "operator"
LOGPROB = ("*logprob*", "*temperature*", "*sampl*", "*logits*", "*top_*")
PROCESSED = {"logprobs_mode": "processed_logprobs"}
fault = registry()


def _temperature(draw: Draw) -> float:
    return draw.choice([0.6, 0.7, 1.3, 1.5])


def _processed(draw: Draw, temperature: float, *, rollout: Side | None = None, train: Side | None = None) -> Comparison:
    """Tokens sampled at a temperature, and the engine told to give the log-probabilities at it."""
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout_args=PROCESSED,
        sampling={"temperature": temperature},
        rollout=rollout or Side(),
        train=train or Side(),
        facts={"t": temperature},
    )


@fault(
    "raw-logprobs-rollout",
    SP,
    ("temperature-missing-rollout-raw-logprobs",),
    ("rollout",),
    LOGPROB,
    also=("framework-config",),
    why="B01, B05: the engine's default logprobs are those before the temperature",
)
def _(draw: Draw) -> Comparison:
    temperature = _temperature(draw)
    return Comparison(
        draw.choice(["qwen3", "llama"]), fault_sampling={"temperature": temperature}, facts={"t": temperature}
    )


@fault(
    "mode-lost-rollout",
    SP,
    ("temperature-missing-rollout-raw-logprobs",),
    ("rollout",),
    LOGPROB,
    why="B07: the configuration says processed, the values are raw",
)
def _(draw: Draw) -> Comparison:
    return _processed(draw, _temperature(draw), rollout=Side(patches=[(vllm_sampling.mode_lost, {})]))


@fault(
    "temperature-twice-rollout",
    SP,
    ("temperature-twice", "temperature-differs"),
    ("rollout",),
    LOGPROB,
    why="B08: softmax(z / T^2)",
)
def _(draw: Draw) -> Comparison:
    return _processed(draw, _temperature(draw), rollout=Side(patches=[(vllm_sampling.temperature_twice, {})]))


@fault(
    "temperature-twice-train",
    SP,
    ("temperature-twice", "temperature-differs", "logits-scale"),
    ("train",),
    LOGPROB,
    why="B04: one worker's head scales, and the common code does again",
)
def _(draw: Draw) -> Comparison:
    temperature = _temperature(draw)
    head = (transformers_layers.head_temperature, {"temperature": temperature})
    return _processed(draw, temperature, train=Side(patches=[head]))


@fault(
    "temperature-missing-train",
    SP,
    ("temperature-missing-train", "temperature-differs", "logits-scale"),
    ("train",),
    LOGPROB,
    why="B03, B04: the trainer's scores are those at temperature 1",
)
def _(draw: Draw) -> Comparison:
    temperature = _temperature(draw)
    head = (transformers_layers.head_without_temperature, {"temperature": temperature})
    return _processed(draw, temperature, train=Side(patches=[head]))


@fault(
    "truncation-rollout",
    SP,
    ("truncation-renormalised",),
    ("rollout",),
    LOGPROB,
    also=("framework-config",),
    why="B06: log-probabilities over the kept tokens alone",
)
def _(draw: Draw) -> Comparison:
    kept = draw.choice([{"top_p": 0.8}, {"top_k": 12}, {"top_p": 0.9, "top_k": 40}])
    return Comparison(
        draw.choice(["qwen3", "llama"]), rollout_args=PROCESSED, fault_sampling=kept, facts={"kept": kept}
    )


@fault(
    "first-entry-rollout",
    SP,
    ("logprob-of-other-token",),
    ("rollout",),
    LOGPROB,
    why="B09: the best token's log-probability is recorded for the sampled one",
)
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama"]), rollout=Side(patches=[(vllm_sampling.first_entry, {})]))


@fault(
    "rounded-rollout",
    SP,
    ("logprob-rounded",),
    ("rollout",),
    LOGPROB,
    why="B14: log-probabilities travel in bf16",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        dtype="float32",
        rollout=Side(patches=[(vllm_sampling.rounded_logprobs, {})]),
    )


@fault(
    "denominator-rollout",
    SP,
    ("logprob-not-normalised", "truncation-renormalised"),
    ("rollout",),
    LOGPROB,
    why="a denominator over part of the vocabulary",
)
def _(draw: Draw) -> Comparison:
    best = draw.choice([8, 16])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_sampling.part_of_the_vocabulary, {"best": best})]),
        facts={"best": best},
    )


@fault(
    "first-logprob-rollout",
    DA,
    ("placeholder-logprobs",),
    ("rollout",),
    LOGPROB,
    also=("sampling-processing",),
    above=1.5,
    why="B22: a placeholder stands where a log-probability was lost",
)
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama"]), rollout=Side(patches=[(vllm_sampling.first_logprob, {})]))


@fault(
    "prompt-start-rollout",
    DA,
    ("ids-differ", "template-differs", "retokenised"),
    ("rollout",),
    ("*id*", "*token*", "*prompt*", "*embedding*"),
    why="the engine puts a start token before prompts that have one already",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]), rollout=Side(patches=[(vllm_sampling.prompt_start, {"token": 1})])
    )


@fault(
    "prompt-ids-rollout",
    DA,
    ("retokenised", "ids-differ"),
    ("rollout",),
    ("*id*", "*token*", "*prompt*", "*embedding*"),
    why="B23, B25: the engine's prompt went through text",
)
def _(draw: Draw) -> Comparison:
    values = {"every": draw.integer(3, 6), "shift": draw.integer(1, 300), "low": 4, "vocabulary": 1024}
    return Comparison(
        draw.choice(["qwen3", "llama"]), rollout=Side(patches=[(vllm_sampling.prompt_ids, values)]), facts=values
    )


@fault(
    "other-ids-train",
    DA,
    ("ids-differ", "retokenised"),
    ("train",),
    ("*id*", "*token*", "*prompt*", "*embedding*"),
    why="B23 on the trainer: some ids of a row are others",
)
def _(draw: Draw) -> Comparison:
    values = {"every": draw.integer(4, 9), "shift": draw.integer(1, 300), "low": 4, "vocabulary": 1024}
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        train=Side(patches=[(transformers_layers.other_ids, values)]),
        facts=values,
    )


@fault(
    "shifted-logits-train",
    DA,
    ("shifted-by-one",),
    ("train",),
    LOGPROB,
    why="B17: a token is scored by the logits of another position",
)
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama"]), train=Side(patches=[(transformers_layers.shifted_logits, {})]))


@fault(
    "coarse-norms-rollout",
    OP,
    ("norm-rounding", "operator-rounding", "low-precision-state"),
    ("rollout", "both"),
    ("*norm*", "*"),
    above=0.0,
    why="B50, B51: a fused norm that keeps low-precision intermediates",
)
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama"]), rollout=Side(patches=[(vllm_layers.coarse_norms, {})]))


@fault(
    "coarse-norms-train",
    OP,
    ("norm-rounding", "operator-rounding", "low-precision-state"),
    ("train", "both"),
    ("*norm*", "*"),
    above=0.0,
    why="B49: the trainer's norm without its fp32 part",
)
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "mistral"]), train=Side(patches=[(transformers_layers.coarse_norms, {})]))


@fault(
    "partial-sums-train",
    OP,
    ("linear-rounding", "reduction-topology", "operator-rounding"),
    ("train", "both"),
    ("*attn_out*", "*mlp_out*", "*linear*", "*o_proj*", "*down_proj*", "*"),
    above=0.0,
    why="B55: parts of a sum rounded one by one, as over ranks",
)
def _(draw: Draw) -> Comparison:
    parts = draw.choice([4, 8, 16])
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        train=Side(patches=[(transformers_layers.partial_sums, {"parts": parts})]),
        facts={"parts": parts},
    )


@fault(
    "coarse-softmax-train",
    OP,
    ("attention-rounding", "operator-rounding"),
    ("train", "both"),
    ("*context*", "*attn*", "*attention*", "*"),
    above=0.0,
    why="attention weights that never leave bf16",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]), train=Side(patches=[(transformers_attention.coarse_softmax, {})])
    )


@fault(
    "coarse-rotation-train",
    OP,
    ("rope-rounding", "operator-rounding"),
    ("train",),
    ("*rope*", "*rotary*", "*"),
    why="B46: cosines and sines through half precision in an fp32 run",
)
def _(draw: Draw) -> Comparison:
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        dtype="float32",
        train=Side(patches=[(transformers_attention.coarse_rotation, {})]),
    )


FAULTS = fault.faults
