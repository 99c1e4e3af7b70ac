"""Live faults of routers and experts."""

from __future__ import annotations

from tests.faults.draw import Draw
from tests.faults.live.comparison import Comparison, Side, registry
from tests.faults.patches import transformers_layers, vllm_layers

RT = "routing"
EXPERTS = ("*router*", "*expert*", "*moe*", "*mlp*", "*gate*")
fault = registry()


@fault(
    "renormalisation-off-rollout",
    RT,
    ("router-not-renormalised",),
    ("rollout",),
    EXPERTS,
    also=("framework-implementation",),
    why="B91, B83: chosen weights are not made to sum to one",
)
def _(draw: Draw) -> Comparison:
    return Comparison("qwen3-moe", rollout=Side(patches=[(vllm_layers.routing_weights, {"renormalise": False})]))


@fault(
    "router-precision-rollout",
    RT,
    ("router-dtype", "router-near-ties"),
    ("rollout",),
    EXPERTS,
    why="B89: the router works with fewer bits",
)
def _(draw: Draw) -> Comparison:
    bits = draw.choice([2, 3])
    return Comparison(
        draw.choice(["qwen3-moe", "gpt-oss"]),
        rollout=Side(patches=[(vllm_layers.routing_precision, {"bits": bits})]),
        facts={"bits": bits},
    )


@fault(
    "router-scores-rollout",
    RT,
    ("router-scoring",),
    ("rollout",),
    EXPERTS,
    also=("framework-implementation",),
    why="sigmoid scores for a softmax router",
)
def _(draw: Draw) -> Comparison:
    return Comparison("qwen3-moe", rollout=Side(patches=[(vllm_layers.routing_scores, {})]))


@fault(
    "experts-missing-rollout",
    RT,
    ("expert-parallel-reduce", "reduce-missing", "expert-capacity"),
    ("rollout",),
    EXPERTS,
    also=("framework-implementation",),
    why="B87, B88: the experts of other ranks never arrive",
)
def _(draw: Draw) -> Comparison:
    share = draw.choice([0.5, 0.75])
    return Comparison(
        draw.choice(["qwen3-moe", "gpt-oss"]),
        rollout=Side(patches=[(vllm_layers.missing_experts, {"share": share})]),
        facts={"share": share},
    )


@fault(
    "expert-ids-train",
    RT,
    ("expert-weights-swapped", "replay-misaligned"),
    ("train",),
    ("*layers.{layer}.*", *EXPERTS),
    also=("framework-implementation",),
    why="expert ids counted from another one in a layer",
)
def _(draw: Draw) -> Comparison:
    layer, by = draw.layer(), draw.integer(1, 5)
    return Comparison(
        "qwen3-moe",
        train=Side(patches=[(transformers_layers.expert_ids, {"layer": layer, "by": by})]),
        facts={"layer": layer},
    )


@fault(
    "routes-late-train",
    RT,
    ("replay-misaligned",),
    ("train",),
    EXPERTS,
    why="B86: routes of the token before",
)
def _(draw: Draw) -> Comparison:
    return Comparison("qwen3-moe", train=Side(patches=[(transformers_layers.expert_rows, {"by": 1})]))


@fault(
    "capacity-train",
    RT,
    ("expert-capacity",),
    ("train",),
    EXPERTS,
    also=("framework-implementation",),
    why="B90: tokens beyond an expert's capacity are dropped",
)
def _(draw: Draw) -> Comparison:
    factor = draw.choice([0.6, 0.8])
    return Comparison(
        "qwen3-moe",
        train=Side(patches=[(transformers_layers.expert_capacity, {"factor": factor})]),
        facts={"factor": factor},
    )


@fault(
    "fewer-experts-train",
    RT,
    ("experts-per-token",),
    ("train",),
    EXPERTS,
    also=("framework-implementation", "framework-config"),
    why="a default number of experts in the trainer's own router",
)
def _(draw: Draw) -> Comparison:
    count = draw.choice([2, 3])
    return Comparison(
        "qwen3-moe",
        train=Side(patches=[(transformers_layers.fewer_experts, {"count": count})]),
        facts={"count": count},
    )


FAULTS = fault.faults
