"""Weights, configuration, gates and operator checks name the side, the component and the cause."""

from __future__ import annotations

from typing import Any

import pytest
from logdiff.localize.configuration import configuration_findings
from logdiff.localize.operators import input_findings, operator_findings
from logdiff.localize.places import component
from logdiff.localize.quantity import dtype_findings, gate_findings
from logdiff.localize.weights import weight_findings

CLASSES = {"norm-eps": "framework-implementation", "rope-theta": "framework-implementation"}


def _sums(**values: str) -> dict[str, Any]:
    entry = {"shape": [4], "dtype": "bfloat16", "how": "memory", "as": {}}
    return {"tensors": {name.replace("__", "."): {**entry, "sum": value} for name, value in values.items()}}


def test_the_side_whose_tensor_is_not_the_checkpoints_is_named() -> None:
    truth = _sums(model__layers__1__mlp__up_proj__weight="a", lm_head__weight="b")
    other = _sums(model__layers__1__mlp__up_proj__weight="x", lm_head__weight="b")
    found = weight_findings({"rollout": truth, "train": other}, truth, 0, "here")
    assert [(f.class_, f.side, f.component) for f in found] == [("weights", "train", "layers.1.mlp.up_proj.weight")]


def test_without_a_checkpoint_no_side_is_blamed() -> None:
    found = weight_findings({"rollout": _sums(a="1"), "train": _sums(a="2")}, None, 0, "here")
    assert [(f.class_, f.side) for f in found] == [("weights", "unknown")]


@pytest.mark.parametrize(("changed", "cause"), [(1, "weights-partial-sync"), (10, "weights-stale")])
def test_after_a_sync_few_tensors_are_a_partial_one_and_all_a_stale_one(changed: int, cause: str) -> None:
    names = [f"layers__{i}__w" for i in range(10)]
    truth = _sums(**dict.fromkeys(names, "new"))
    held = _sums(**{n: "old" if i < changed else "new" for i, n in enumerate(names)})
    assert weight_findings({"rollout": held}, truth, 1, "here")[0].cause == cause


@pytest.mark.parametrize(("arrived", "cause"), [((), "weights-stale"), (("a",), "weights-partial-sync")])
def test_a_sync_of_which_nothing_arrived_is_stale_even_if_the_update_left_most_tensors_alone(
    arrived: tuple[str, ...], cause: str
) -> None:
    names = ("a", "b", "c", *(f"norm{i}" for i in range(20)))
    before = _sums(**dict.fromkeys(names, "old"))
    truth = _sums(**{n: "new" if n in "abc" else "old" for n in names})
    held = _sums(**{n: "new" if n in arrived else "old" for n in names})
    assert weight_findings({"rollout": held}, truth, 1, "here", before)[0].cause == cause


def test_the_side_that_leaves_the_checkpoints_configuration_is_named() -> None:
    models = {"rollout": {"rope_theta": 1e4, "hidden_size": 8}, "train": {"rope_theta": 5e5, "hidden_size": 8}}
    found = configuration_findings(models, {"rope_theta": 1e4}, {})
    assert [(f.class_, f.side, f.component, f.cause) for f in found] == [
        ("framework-config", "train", "rope_theta", "rope-theta")
    ]


def test_an_override_names_the_side_where_the_checkpoint_is_silent() -> None:
    models = {"rollout": {"logit_scale": 1.0}, "train": {"logit_scale": 2.0}}
    found = configuration_findings(models, {}, {"rollout": {}, "train": {"logit_scale": 2.0}})
    assert [(f.side, f.cause) for f in found] == [("train", "logits-scale")]


@pytest.mark.parametrize(("window", "cause"), [(25, "window-off-by-one"), (4096, "window-ignored")])
def test_a_window_of_one_token_more_is_told_from_one_that_is_ignored(window: int, cause: str) -> None:
    models = {"rollout": {"sliding_window": window}, "train": {"sliding_window": 24}}
    assert configuration_findings(models, {"sliding_window": 24}, {})[0].cause == cause


def test_equal_configurations_are_no_finding() -> None:
    same = {"rope_theta": 10000, "text_config": {"hidden_size": 8}}
    assert not configuration_findings({"rollout": same, "train": {"rope_theta": 10000.0, "hidden_size": 8}}, same, {})


@pytest.mark.parametrize(
    ("text", "cause", "component_"),
    [
        ("raw log-probabilities at temperature 0.7 on rollout, temperature 0.7 on train",
         "temperature-missing-rollout-raw-logprobs", "logprobs_mode"),
        ("top_p 0.8 with processed_logprobs: the rollout normalises over what is left, the trainer over the full "
         "vocabulary", "truncation-renormalised", "top_p"),
        ("temperature 0.7 on rollout, temperature 1.0 on train", "temperature-differs", "temperature"),
    ],
)  # fmt: skip
def test_other_quantities_are_sampling(text: str, cause: str, component_: str) -> None:
    gate = {"gate": "config", "ok": False, "detail": text, "data": {"different": [text, "model x: 1 on rollout"]}}
    assert [(f.class_, f.cause, f.component) for f in gate_findings([gate])] == [
        ("sampling-processing", cause, component_)
    ]


def test_gates_that_hold_or_are_open_are_no_finding() -> None:
    gates = [{"gate": "ids", "ok": True, "detail": ""}, {"gate": "config", "ok": None, "detail": ""}]
    assert not gate_findings(gates)


def test_a_side_in_another_dtype_than_asked_is_named() -> None:
    found = dtype_findings({"rollout": "bfloat16", "train": "float32"}, "bfloat16")
    assert [(f.side, f.component) for f in found] == [("train", "dtype")]
    assert not dtype_findings({"rollout": "bfloat16", "train": "bfloat16"}, "bfloat16")


def _check(boundary: str, *, ok: bool | None, phase: str = "decode", **more: Any) -> dict[str, Any]:
    return {"side": "rollout", "phase": phase, "boundary": boundary, "operator": "norm", "ok": ok, "error": 0.1,
            "clean_error": 0.002, "ratio": 50.0, "variants": [], **more}  # fmt: skip


def _fit(variant: str, cause: str) -> dict[str, Any]:
    return {"variant": variant, "cause": cause, "fits": True, "beta": 1.0, "statement": f"it is {variant}"}


def test_one_variant_in_many_layers_is_one_finding() -> None:
    checks = [_check(f"layers.{i}.input_norm", ok=False, variants=[_fit("eps", "norm-eps")]) for i in range(3)]
    found = operator_findings({"checks": checks}, CLASSES, "again")
    assert [(f.cause, f.component, f.side) for f in found] == [("norm-eps", "layers.*.input_layernorm", "rollout")]


def test_two_variants_are_two_findings() -> None:
    checks = [
        _check("layers.0.input_norm", ok=False, variants=[_fit("eps", "norm-eps")]),
        _check("layers.0.q_rope", ok=False, variants=[_fit("theta", "rope-theta")]),
    ]
    assert {f.cause for f in operator_findings({"checks": checks}, CLASSES, "")} == {"norm-eps", "rope-theta"}


def test_an_operator_that_is_right_in_prefill_says_so() -> None:
    checks = [_check("layers.1.context", ok=False), _check("layers.1.context", ok=True, phase="prefill")]
    found = operator_findings({"checks": checks}, {}, "")
    assert "right in prefill" in found[0].statement
    assert found[0].cause is None


def test_an_operator_that_only_rounds_more_is_operator() -> None:
    coarse = {"checks": [_check("layers.0.input_norm", ok=False, error=0.01)], "dtype": "bfloat16"}
    other = {"checks": [_check("layers.0.input_norm", ok=False, error=0.1)], "dtype": "bfloat16"}
    found = [operator_findings(report, {"norm-rounding": "operator"}, "")[0] for report in (coarse, other)]
    assert [(f.class_, f.cause) for f in found] == [("operator", "norm-rounding"), ("framework-implementation", None)]


def test_other_weights_in_an_operator_whose_tensors_are_sound_are_an_implementation() -> None:
    check = _check("layers.0.q", ok=False, operator="linear", variants=[_fit("weights", "weights-changed")])
    classes = {"weights-changed": "weights"}
    blamed = operator_findings({"checks": [check]}, classes, "")[0]
    proven = operator_findings({"checks": [check]}, classes, "", frozenset({"rollout"}))[0]
    assert (blamed.class_, proven.class_) == ("weights", "framework-implementation")


def test_what_holds_or_was_not_judged_is_no_finding() -> None:
    checks = [_check("layers.1.q", ok=True), _check("layers.1.k", ok=None)]
    assert not operator_findings({"checks": checks}, {}, "")


def test_other_ids_are_data_and_other_positions_are_not() -> None:
    entries = [
        {"side": "train", "phase": "score", "what": "ids", "ok": False, "detail": "3 rows", "rows_off": 0.1},
        {"side": "rollout", "phase": "decode", "what": "positions", "ok": False, "detail": "a jump", "rows_off": 0.5},
        {"side": "rollout", "phase": "prefill", "what": "positions", "ok": True, "detail": "", "rows_off": 0},
    ]
    found = input_findings({"inputs": entries}, {}, "")
    assert {(f.class_, f.side, f.component) for f in found} == {
        ("data", "train", "input_ids"), ("framework-implementation", "rollout", "positions"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["layers.2.q"], "layers.2.self_attn.q_proj"),
        (["layers.0.q_rope", "layers.3.k_rope"], "layers.*.self_attn.rope"),
        (["final_norm"], "norm"),
    ],
)
def test_components_are_what_a_reader_finds_in_the_model(names: list[str], expected: str) -> None:
    assert component(names) == expected


@pytest.mark.parametrize(
    ("factor", "temperature", "class_", "cause"),
    [
        (0.7, 0.7, "sampling-processing", "temperature-missing-train"),
        (1 / 0.7, 0.7, "sampling-processing", "temperature-twice"),
        (0.7, 1.0, "framework-implementation", "logits-scale"),
        (0.9, 0.7, "framework-implementation", "logits-scale"),
    ],
)
def test_logits_scaled_by_the_temperature_are_a_temperature(
    factor: float, temperature: float, class_: str, cause: str
) -> None:
    fit = {**_fit("scaled", "logits-scale"), "parameters": {"factor": factor}}
    check = _check("logits", ok=False, operator="lm_head", variants=[fit], side="train")
    classes = {"logits-scale": "framework-implementation"}
    found = operator_findings({"checks": [check]}, classes, "", frozenset(), temperature)[0]
    assert (found.class_, found.cause) == (class_, cause)


@pytest.mark.parametrize(("parts", "cause"), [(("gate", "up"), "gate-up-swapped"), (("gate",), "weights-changed")])
def test_gate_and_up_that_use_each_others_weights_are_swapped(parts: tuple[str, ...], cause: str) -> None:
    fit = _fit("weights-of-other", "weights-changed")
    checks = [_check(f"layers.2.{part}", ok=False, operator="linear", variants=[fit]) for part in parts]
    assert operator_findings({"checks": checks}, {}, "")[0].cause == cause
