"""Which side runs with another configuration than the checkpoint's, and in which key."""

from __future__ import annotations

from typing import Any

from logdiff import model_keys
from logdiff.localize.finding import CONFIG, Finding
from logdiff.verdict.records import Evidence

CAUSES = (
    ("sliding_window", "window-ignored"), ("layer_types", "window-ignored"), ("max_window_layers", "window-ignored"),
    ("rope_theta", "rope-theta"), ("rope_local_base_freq", "rope-theta"), ("partial_rotary_factor", "rope-partial"),
    ("rope_scaling", "rope-scaling"), ("rope_parameters", "rope-scaling"), ("factor", "rope-scaling"),
    ("norm_eps", "norm-eps"), ("layer_norm_epsilon", "norm-eps"),
    ("attn_logit_softcapping", "attention-softcap-dropped"), ("final_logit_softcapping", "final-softcap-dropped"),
    ("query_pre_attn_scalar", "attention-scale"), ("attention_multiplier", "attention-scale"),
    ("hidden_act", "activation-kind"), ("hidden_activation", "activation-kind"),
    ("norm_topk_prob", "router-not-renormalised"), ("num_experts_per_tok", "experts-per-token"),
    ("experts_per_token", "experts-per-token"), ("topk_group", "group-limit"), ("n_group", "group-limit"),
    ("scoring_func", "router-scoring"), ("routed_scaling_factor", "router-scoring"),
    ("logit_scale", "logits-scale"), ("logits_scaling", "logits-scale"), ("embedding_multiplier", "embedding-scale"),
    ("residual_multiplier", "residual-scale"), ("attention_bias", "bias-missing"),
    ("tie_word_embeddings", "head-tied-stale"), ("num_hidden_layers", "layer-skipped"),
    ("use_qk_norm", "qk-norm-missing"),
)  # fmt: skip
"""Key of a model configuration -> cause, the first that the key ends with or contains."""


def configuration_findings(
    models: dict[str, dict[str, Any]], checkpoint: dict[str, Any], overrides: dict[str, dict[str, Any]]
) -> list[Finding]:
    """Findings on the model configuration that each side resolved.

    Args:
        models: side -> resolved configuration, as its fingerprint has it.
        checkpoint: config.json of the folder.
        overrides: side -> arguments of the run file that change the model's configuration, dotted keys.
    """
    truth = flat(checkpoint)
    sides = {side: flat(model) for side, model in models.items()}
    found = []
    keys = sorted({k for model in sides.values() for k in model} & {k for m in sides.values() for k in m})
    for key in keys:
        values = {side: model[key] for side, model in sides.items() if key in model}
        if len(values) < 2 or _same(values["rollout"], values["train"]):
            continue
        wrong = _wrong_side(key, values, truth, overrides)
        text = ", ".join(f"{value!r} on {side}" for side, value in values.items())
        known = f"; the checkpoint says {truth[key]!r}" if key in truth else ""
        evidence = Evidence(f"model configuration {key}: {text}{known}", text, truth.get(key), "fingerprints")
        statement, cause = f"{key} is {text}{known}", cause_of(key, list(values.values()))
        found.append(Finding("framework-config", cause, wrong, key, 0.95, CONFIG, statement, (evidence,)))
    return found


def cause_of(key: str, values: list[Any]) -> str:
    """The cause that a differing key of a model configuration belongs to."""
    if key.endswith("sliding_window") and all(isinstance(v, int) for v in values) and max(values) - min(values) == 1:
        return "window-off-by-one"
    return next((cause for part, cause in CAUSES if part in key), "model-config-differs")


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys that change the function; a nested text model counts as the model."""
    return model_keys.flat(config, same="text_config")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return float(one) == float(other)
    return bool(one == other)


def _wrong_side(key: str, values: dict[str, Any], truth: dict[str, Any], overrides: dict[str, dict[str, Any]]) -> str:
    last = key.rsplit(".", 1)[-1]
    named = [side for side in values if any(k == key or k.rsplit(".", 1)[-1] == last for k in overrides.get(side, {}))]
    if key in truth:
        wrong = [side for side, value in values.items() if not _same(value, truth[key])]
        if len(wrong) == 1:
            return wrong[0]
        if len(wrong) == 2:
            return "both"
    return named[0] if len(named) == 1 else "unknown"
