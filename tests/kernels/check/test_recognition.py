"""The formulas reproduce the clean model in fp64, and clean captures are never called wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from logdiff_kernels.check.clean import Operator
from logdiff_kernels.check.precision import widened
from logdiff_kernels.check.reference import reference
from logdiff_kernels.models.recipes import RECIPES

from tests.kernels.check.conftest import off

FAMILIES = [*RECIPES, "smollm2"]
PLAIN = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "gpt-oss", "qwen3-moe"]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_boundary_of_a_model_has_a_formula_that_gives_its_fp64_values(
    name: str, model_folder: Callable[[str], Path]
) -> None:
    found = reference(str(model_folder(name)), "bfloat16", list(range(10, 80)), {}).operators
    without = [n for n, o in found.items() if not isinstance(o, Operator) and not n.endswith("expert_ids")]
    assert without == []
    layers = {n.split(".")[1] for n in found if n.startswith("layers.")}
    assert {f"layers.{i}.context" for i in layers} <= set(found)


@pytest.mark.parametrize(
    ("name", "part", "parameter", "value"),
    [
        ("gemma2", "context", "softcap", 50.0),
        ("gemma3", "input_norm", "offset", 1.0),
        ("mistral", "context", "window", 24),
        ("gpt-oss", "experts_out", "limit", 7.0),
        ("deepseek-v3", "expert_weights", "scaling", 2.5),
        ("deepseek-v2", "q_rope", "interleaved", True),
    ],
)
def test_parameters_are_those_of_the_configuration(
    name: str, part: str, parameter: str, value: object, model_folder: Callable[[str], Path]
) -> None:
    found = reference(str(model_folder(name)), "bfloat16", list(range(10, 80)), {}).operators
    layer = 2 if name == "gemma2" else 1 if name.startswith("deepseek") else 0
    operator = found[f"layers.{layer}.{part}"]
    assert isinstance(operator, Operator)
    assert operator.p[parameter] == value


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", PLAIN)
def test_a_clean_capture_has_no_operator_off(name: str, dtype: str, bench, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    one = bench(name, dtype)
    document = one.report(one.model, tmp_path)
    assert off(document) == {}
    assert all(i["ok"] for i in document["inputs"])
    assert {c["ok"] for c in document["checks"]} == {True}


def test_clean_decoding_is_explained_by_the_keys_that_were_written(bench, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    one = bench("mistral")
    document = one.report(one.model, tmp_path, phase="decode", side="rollout")
    assert off(document) == {}
    assert [i["ok"] for i in document["inputs"] if i["what"] == "cache"] == [True]


def test_widened_weights_are_put_back(bench) -> None:  # type: ignore[no-untyped-def]
    model = bench("qwen3").model
    before = {n: (p.data_ptr(), p.dtype) for n, p in model.named_parameters()}
    with widened(model):
        logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    assert logits.dtype == torch.float64
    assert {n: (p.data_ptr(), p.dtype) for n, p in model.named_parameters()} == before
