"""Shapes from a model's configuration, and what a user gets wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logdiff.errors import InputError
from logdiff.probe import make_plan, parse_shapes
from logdiff.probe.plan import MOST_ELEMENTS, ROWS

QWEN = {
    "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}  # fmt: skip


def folder(tmp_path: Path, **changes: Any) -> Path:
    config = {k: v for k, v in {**QWEN, **changes}.items() if v is not None}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_a_models_products_are_its_projections(tmp_path: Path) -> None:
    plan = make_plan(["linear", "linear_row"], model=folder(tmp_path))
    assert {(s["k"], s["n"]) for s in plan.shapes["linear"]} == {(2048, 4096), (2048, 512), (2048, 12288)}
    assert {(s["k"], s["n"]) for s in plan.shapes["linear_row"]} == {(4096, 2048), (6144, 2048)}
    assert {s["rows"] for s in plan.shapes["linear"]} == set(ROWS)


def test_rows_and_lengths_lie_around_the_sizes_where_kernels_change() -> None:
    for size in (64, 512, 4096):
        assert {size - 1, size, size + 1} <= set(ROWS)


def test_attention_has_the_models_groups_windows_caps_and_sinks(tmp_path: Path) -> None:
    model = folder(tmp_path, sliding_window=128, attn_logit_softcapping=50.0, model_type="gpt_oss")
    shapes = make_plan(["attention"], model=model).shapes["attention"]
    assert {(s["heads"], s["kv_heads"], s["head_dim"], s["softcap"], s["sinks"]) for s in shapes} == {
        (32, 4, 128, 50, 1)
    }
    assert {s["window"] for s in shapes} == {0, 128}


def test_a_window_that_is_switched_off_is_none(tmp_path: Path) -> None:
    model = folder(tmp_path, sliding_window=128, use_sliding_window=False)
    assert {s["window"] for s in make_plan(["attention"], model=model).shapes["attention"]} == {0}


def test_matrices_too_large_to_probe_are_cut_like_a_ranks(tmp_path: Path) -> None:
    plan = make_plan(["lm_head", "moe"], model=folder(tmp_path, hidden_size=7168, moe_intermediate_size=2048))
    assert {s["n"] for s in plan.shapes["lm_head"]} == {151936 // 32}  # the first power of two that fits 2^26 elements
    assert 151936 // 16 * 7168 > MOST_ELEMENTS >= 151936 // 32 * 7168
    assert all(
        s["experts"] * 2 * s["inter"] * s["hidden"] <= MOST_ELEMENTS or s["experts"] == 8 for s in plan.shapes["moe"]
    )


def test_what_is_too_large_even_so_is_told(tmp_path: Path) -> None:
    plan = make_plan(["sum"], model=folder(tmp_path, hidden_size=1 << 23, num_attention_heads=64))
    assert plan.left_out
    assert {entry["reason"] for entry in plan.left_out} == {"larger than a probe may be"}
    assert all(s["rows"] * s["n"] <= MOST_ELEMENTS for s in plan.shapes["sum"])


def test_an_operator_that_the_model_lacks_keeps_its_familys_shapes(tmp_path: Path) -> None:
    plan = make_plan(["router", "linear"], model=folder(tmp_path, num_experts=None, num_experts_per_tok=None))
    assert "router" not in plan.shapes
    assert "linear" in plan.shapes


def test_a_nested_text_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "text_config": QWEN}), encoding="utf-8")
    assert make_plan(["rms_norm"], model=tmp_path).shapes["rms_norm"][0]["n"] == 2048


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "2048"}, "hidden_size"),
        ({"hidden_size": 1 << 30}, "hidden_size"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"num_key_value_heads": 5}, "num_key_value_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
    ],
)
def test_a_configuration_that_can_not_be_used_names_the_key(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        make_plan(["linear"], model=folder(tmp_path, **changes))


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_a_broken_configuration_is_an_input_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.json"):
        make_plan(["linear"], model=tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        {"ops": []},
        {"ops": ["linear"], "dtype": "int8"},
        {"ops": ["linear"], "device": "tpu"},
        {"ops": ["linear"], "seconds": -1.0},
        {"ops": ["linear"], "seconds": float("nan")},
        {"ops": ["linear"], "seed": -1},
        {"ops": ["linear", "sum"], "shapes": [{"rows": 2}]},
        {"ops": ["all"], "shapes": [{"rows": 2}]},
        {"ops": ["linear"], "model": Path("/no/such/model")},
    ],
)
def test_wrong_arguments_are_input_errors_before_anything_is_started(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        make_plan(**arguments)


def test_shapes_are_read_as_they_are_written() -> None:
    assert parse_shapes(["rows=2,k=64,n=32"]) == [{"rows": 2, "k": 64, "n": 32}]
    for wrong in ("rows", "rows=", "rows=x", "rows=-1", "rows=1.5"):
        with pytest.raises(InputError):
            parse_shapes([wrong])


def test_latent_attention_and_odd_sizes_are_told_not_guessed(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "kv_lora_rank": 512}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "attn_logit_softcapping": float("inf")}))
    plan = make_plan(["attention", "rms_norm"], model=tmp_path)
    assert plan.shapes["attention"] == []
    assert plan.shapes["rms_norm"]
    assert plan.left_out[0]["reason"] == "no shape of latent attention"


@pytest.mark.parametrize(
    "shape",
    [
        {"rows": 1 << 16, "k": 1 << 16, "n": 4},
        {"rows": 1 << 40},
        {
            "batch": 1, "length": 1 << 18, "heads": 8, "kv_heads": 1, "head_dim": 32, "window": 0, "softcap": 0,
            "sinks": 0,
        },
    ],
)  # fmt: skip
def test_a_shape_that_no_memory_holds_is_refused(shape: dict[str, int]) -> None:
    with pytest.raises(InputError, match="larger than a probe may be"):
        make_plan(["linear"], shapes=[shape])


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="not a number of seconds"):
        make_plan(["linear"], seconds=seconds)
