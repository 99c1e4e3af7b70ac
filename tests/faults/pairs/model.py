"""Pair-file faults of the computation: positions, masks, packing, attention, precision, configuration."""

from __future__ import annotations

import numpy as np
import torch

from tests.faults.draw import Draw
from tests.faults.pairs import logits, variants
from tests.faults.pairs.evidence import DENSE, Evidence, evidence, registry

FI, FC, OP = "framework-implementation", "framework-config", "operator"
fault = registry()


@fault(
    "pair-window",
    FC,
    ("window-off-by-one", "window-ignored"),
    ("train", "unknown"),
    also=(FI,),
    open=True,
    why="B42: zero-like up to the window, then spread",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(["mistral", "gemma2"]))
    found.train(found.score(change=variants.window(draw.choice([1, 2, 4096]))))
    return found


@fault(
    "pair-window-configured",
    FC,
    ("window-off-by-one", "model-config-differs"),
    ("train", "rollout", "unknown"),
    also=(FI,),
    why="B42 with both sides' configuration in the header",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, "mistral")
    found.train(found.score(change=variants.window(1)))
    size = found.model.config.sliding_window
    found.meta["rollout"] = {"engine": "vllm", "config": {"sliding_window": size}}
    found.meta["train"] = {"engine": "megatron", "config": {"sliding_window": size + 1}}
    return found


@fault(
    "pair-rotation-configured",
    FC,
    ("rope-theta", "rope-scaling", "model-config-differs"),
    ("train", "rollout", "unknown"),
    also=(FI,),
    why="B40: two bases of the rotation in the header",
)
def _(draw: Draw) -> Evidence:
    found, factor = evidence(draw, draw.choice(["llama", "qwen2"])), draw.choice([0.1, 50.0])
    found.train(found.score(change=variants.rotation_base(factor)))
    theta = found.model.config.rope_parameters["rope_theta"]
    found.meta["rollout"] = {"engine": "vllm", "config": {"rope_theta": theta}}
    found.meta["train"] = {"engine": "megatron", "config": {"rope_theta": theta * factor}}
    return found


@fault(
    "pair-dtype-configured",
    FC,
    ("dtype-differs", "autocast-differs"),
    ("train", "rollout", "both", "unknown"),
    above=0.0,
    why="B62: the two sides' headers name two dtypes",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    folder = found.model.config._name_or_path
    model = type(found.model).from_pretrained(folder, dtype=torch.float32).eval()
    found.train(logits.score(model, found.tokens))
    found.meta["rollout"] = {"engine": "vllm", "config": {"dtype": "bfloat16"}}
    found.meta["train"] = {"engine": "fsdp", "config": {"dtype": "float32"}}
    return found


@fault(
    "pair-sinks",
    FC,
    ("sinks-dropped", "attention-implementation-drops"),
    ("train", "unknown"),
    also=(FI,),
    open=True,
    why="B43: the trainer's attention implementation has no sinks",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, "gpt-oss")
    found.train(found.score(change=variants.no_sinks()))
    found.meta["train"] = {"engine": "fsdp", "config": {"attn_implementation": "sdpa"}}
    return found


@fault(
    "pair-pack-leak",
    FI,
    ("packing-leak", "position-per-pack"),
    ("train",),
    why="B27, B28: the first row of each pack is clean",
)
def _(draw: Draw) -> Evidence:
    found, pack = evidence(draw, draw.choice(DENSE[:3])), draw.choice([3, 4])
    found.train(logits.score_packed(found.model, found.tokens, leak=True, pack=pack))
    found.set("pack", [i // pack for i in range(len(found.rows))])
    return found


@fault(
    "pair-prompt-mask",
    FI,
    ("prompt-mask-wrong",),
    ("train", "unknown"),
    open=True,
    why="B29: the attention mask is built from the loss mask",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE[:3]))
    found.train(found.score(hidden=lambda prompt, length: np.arange(length) >= min(prompt, length - prompt)))
    return found


@fault(
    "pair-left-padding",
    FI,
    ("left-padding-wrong", "position-offset"),
    ("train",),
    why="B30: rows with padding on the left are wrong, in proportion to it",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE[:3]))
    rows, batch = [[*p, *r] for p, r in zip(found.tokens.prompts, found.tokens.responses, strict=True)], 4
    groups = [max(map(len, rows[i : i + batch])) for i in range(0, len(rows), batch)]
    pads = [groups[i // batch] - len(row) for i, row in enumerate(rows)]
    found.train(found.score(ids=[[0] * pad + row for pad, row in zip(pads, rows, strict=True)], batch=batch))
    found.set("left_pad", pads)
    return found


@fault(
    "pair-decode-state",
    FI,
    ("decode-state", "kv-cache-corrupt", "kv-cache-stale", "graph-stale"),
    ("rollout",),
    why="B60: some prompts' decode is wrong, the engine's own prefill is not",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE[:3]), rescore=True)
    broken = logits.decode(
        found.model,
        found.tokens.prompts,
        tokens=32,
        temperature=1.0,
        seed=draw.integer(0, 9999),
        prompt_change=variants.rotation_base(0.01),
    )
    hit = sorted({draw.integer(0, 11) for _ in range(4)})
    responses = [broken.responses[i] if i in hit else r for i, r in enumerate(found.tokens.responses)]
    rollout = [broken.rollout[i] if i in hit else r for i, r in enumerate(found.tokens.rollout)]
    found.tokens = logits.Tokens(found.tokens.prompts, responses, rollout, 1.0)
    found.set("response_token_ids", responses)
    found.set("rollout_logprobs", found.logprobs(rollout))
    found.train(found.score())
    found.set("rescore_logprobs", found.logprobs(found.score(batch=1).logits))
    return found


@fault(
    "pair-dropout",
    FI,
    ("dropout-active",),
    ("train", "unknown"),
    open=True,
    why="B69: the same rows scored twice get two values",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE[:3]))
    torch.manual_seed(draw.integer(0, 9999))
    found.train(found.score(change=variants.dropped))
    again = found.logprobs(found.score(change=variants.dropped).logits)
    found.rows = [
        row | {"sample_id": f"{row['sample_id']}-{n}", "train_logprobs": values}
        for row, second in zip(found.rows, again, strict=True)
        for n, values in enumerate((row["train_logprobs"], second.tolist()))
    ]
    return found


@fault(
    "pair-nan",
    OP,
    ("nan-kernel",),
    ("rollout",),
    also=("invalid-evidence", FI),
    above=0.0,
    why="B66: NaN at a few decode steps",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE))
    for row in found.rows[::3]:
        row["rollout_logprobs"][draw.integer(0, 31)] = float("nan")
    return found


@fault(
    "pair-head-steps",
    OP,
    ("head-rounding", "head-dtype"),
    ("train", "rollout", "both", "unknown"),
    also=(FC,),
    open=True,
    why="B52: the head's logits rounded to bf16 before an fp32 denominator; some log-probabilities are above 0",
)
def _(draw: Draw) -> Evidence:
    sharp = draw.choice([4, 6])
    found = evidence(draw, draw.choice(["qwen3", "llama"]), temperature=1 / sharp)
    found.meta["temperature"] = 1.0  # a model with confident tokens, sampled as it is
    values = []
    for rows, ids in zip(found.plain.logits, found.tokens.responses, strict=True):
        wide = torch.as_tensor(rows) * sharp
        chosen = wide.to(torch.bfloat16).float().gather(-1, torch.tensor(ids)[:, None])[:, 0]
        values.append((chosen - wide.logsumexp(-1)).numpy())
    found.set("train_logprobs", values)
    return found


@fault(
    "pair-partial-sums",
    OP,
    ("linear-rounding", "reduction-topology", "operator-rounding"),
    also=("undetermined",),
    above=0.0,
    open=True,
    why="B55: the trainer's projections are summed in parts, each rounded",
)
def _(draw: Draw) -> Evidence:
    from tests.faults.patches.transformers_layers import partial_sums

    found = evidence(draw, draw.choice(DENSE[:3]), rescore=True)
    found.train(found.score(change=variants.patched(partial_sums, parts=draw.choice([4, 8]))))
    found.meta["train"] = {"engine": "megatron", "config": {"tensor_model_parallel_size": 4}}
    return found


@fault(
    "pair-batch",
    OP,
    ("batch-variance", "operator-rounding"),
    ("train", "both", "unknown"),
    also=("undetermined",),
    above=0.0,
    open=True,
    why="B54: the same samples scored in micro-batches of two sizes",
)
def _(draw: Draw) -> Evidence:
    found = evidence(draw, draw.choice(DENSE[:3]))
    found.set("rollout_logprobs", found.logprobs(found.score(batch=1).logits))
    found.meta["rollout"] = {"engine": "fsdp", "config": {"log_prob_micro_batch_size": 1}}
    found.meta["train"] = {"engine": "fsdp", "config": {"micro_batch_size": 8}}
    return found


FAULTS = fault.faults
