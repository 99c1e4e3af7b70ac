"""Controls: comparisons on which nothing may be blamed but what is true of them."""

from __future__ import annotations

import numpy as np

from tests.faults.draw import Draw
from tests.faults.live import comparison
from tests.faults.live.comparison import Comparison, Side
from tests.faults.pairs import evidence as pair_evidence
from tests.faults.pairs import logits, variants
from tests.faults.pairs.evidence import DENSE, Evidence, evidence
from tests.faults.patches import transformers_layers, vllm_attention, vllm_layers, vllm_sampling

OP = "operator"
live = comparison.registry()
pairs = pair_evidence.registry()


@live("control-dense", OP, (), (), control=True, above=0.0, why="no fault, dense")
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama", "mistral", "gemma3"]))


@live("control-moe", OP, (), (), also=("routing",), control=True, above=0.0, why="no fault, MoE")
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3-moe", "gpt-oss"]))


@live("control-real-weights", OP, (), (), control=True, above=0.0, why="no fault, a trained model")
def _(draw: Draw) -> Comparison:
    return Comparison("smollm2", sampling={"max_tokens": 16})


@live("control-bit-equal", "none", (), (), control=True, above=0.0, why="aligned sides: no bit differs")
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama"]), align={"ops": "all"})


@live(
    "control-within-floor",
    "none",
    (),
    (),
    also=(OP,),
    control=True,
    above=0.0,
    why="one engine against itself: decode against the forward, in fp32",
)
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama"]), dtype="float32", rollout_engine="transformers-generate")


@live(
    "control-constant-offset",
    OP,
    (),
    (),
    control=True,
    above=0.0,
    why="every position counted from the same place: rotations are relative",
)
def _(draw: Draw) -> Comparison:
    off = draw.integer(3, 60)
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout=Side(patches=[(vllm_attention.all_positions, {"off": off})]),
        facts={"off": off},
    )


@live("control-never-called", OP, (), (), control=True, above=0.0, why="a patch of what this model does not have")
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama"]), rollout=Side(patches=[(vllm_layers.never_called, {})]))


@live("control-rewritten", OP, (), (), control=True, above=0.0, why="other code, the same function and casts")
def _(draw: Draw) -> Comparison:
    return Comparison(draw.choice(["qwen3", "llama"]), rollout=Side(patches=[(vllm_layers.norm_rewritten, {})]))


@live("control-below-floor", OP, (), (), control=True, above=0.0, why="a wrong epsilon that no bit of bf16 shows")
def _(draw: Draw) -> Comparison:
    values = {"layer": draw.layer(), "norm": "input_layernorm", "epsilon": 2e-6}
    return Comparison(draw.choice(["qwen3", "llama"]), rollout=Side(patches=[(vllm_layers.norm_epsilon, values)]))


@live(
    "control-two-faults",
    "framework-implementation",
    ("gate-up-swapped", "temperature-missing-rollout-raw-logprobs"),
    ("rollout", "train", "both"),
    also=("sampling-processing",),
    control=True,
    why="raw log-probabilities on one side, a wrong activation on the other: each of the two is a right lead",
)
def _(draw: Draw) -> Comparison:
    layer = draw.layer()
    return Comparison(
        draw.choice(["qwen3", "llama"]),
        rollout_args={"logprobs_mode": "processed_logprobs"},
        sampling={"temperature": 0.7},
        rollout=Side(patches=[(vllm_sampling.mode_lost, {})]),
        train=Side(patches=[(transformers_layers.activation_halves, {"layer": layer})]),
        facts={"layer": layer},
    )


@pairs("control-pair-rounding", OP, (), also=("undetermined",), control=True, above=0.0, why="real rounding, told all")
def _(draw: Draw) -> Evidence:
    return evidence(draw, draw.choice(DENSE), rescore=True)


@pairs(
    "control-pair-moe", OP, (), also=("routing", "undetermined"), control=True, above=0.0, why="real rounding of an MoE"
)
def _(draw: Draw) -> Evidence:
    return evidence(draw, "qwen3-moe")


@pairs(
    "control-pair-bare",
    "undetermined",
    (),
    also=(OP,),
    control=True,
    above=0.0,
    why="real rounding without a header: nothing but numbers",
)
def _(draw: Draw) -> Evidence:
    return evidence(draw, draw.choice(DENSE), meta="none")


@pairs(
    "control-pair-slightly-stale",
    "undetermined",
    (),
    also=("weights",),
    control=True,
    above=0.0,
    why="section 0.5: weights a little stale look like rounding, and no step or checksum tells",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE), meta="sizes")
    moved = variants.moved_weights(draw.choice([0.002, 0.003]), draw.integer(0, 9999))
    found.train(found.score(change=moved))
    return found


@pairs(
    "control-pair-masked-zeros",
    OP,
    (),
    also=("undetermined",),
    control=True,
    above=0.0,
    why="B22 done right: tool output has zeros, and the mask leaves it out",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    for row in found.rows:
        start, length = draw.integer(4, 14), draw.integer(4, 9)
        row["rollout_logprobs"][start : start + length] = [0.0] * length
        row["response_mask"] = [int(not start <= i < start + length) for i in range(len(row["response_token_ids"]))]
    return found


@pairs(
    "control-pair-all-masked",
    "invalid-evidence",
    (),
    also=("undetermined",),
    control=True,
    above=0.0,
    why="a metric over no token",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    found.set("response_mask", [[0] * len(row["response_token_ids"]) for row in found.rows])
    return found


@pairs(
    "control-pair-copied",
    "invalid-evidence",
    (),
    also=("none", "undetermined"),
    control=True,
    above=0.0,
    why="a metric that was bypassed: the trainer's column is the rollout's",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    found.set("train_logprobs", found.logprobs(found.tokens.rollout))
    return found


@pairs(
    "control-pair-offset",
    OP,
    (),
    also=("undetermined",),
    control=True,
    above=0.0,
    why="a constant offset of all positions on the trainer",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(("qwen3", "llama")), rescore=True)
    found.train(found.score(first=draw.integer(5, 40)))
    return found


@pairs(
    "control-pair-pack-positions",
    OP,
    (),
    also=("undetermined",),
    control=True,
    above=0.0,
    why="packed rows whose positions go on over the pack, kept apart by the mask: each row is only offset",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(("qwen3", "llama")))
    found.train(logits.score_packed(found.model, found.tokens, leak=False, counted_on=True))
    found.set("pack", [i // 3 for i in range(len(found.rows))])
    return found


@pairs(
    "control-pair-two-faults",
    "data",
    (),
    also=("sampling-processing",),
    control=True,
    why="B16: one place off, and a temperature on one side alone",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE), temperature=0.7)
    scored = logits.logprobs(found.plain.logits, found.tokens.responses, 1.0)
    found.set("train_logprobs", [np.roll(values, 1) for values in scored])
    return found


CONTROLS = [*live.faults, *pairs.faults]
