"""Each operator alone does something, and leaves everything else stock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from align_models import COVERED, make
from logdiff_kernels.align import AlignSpec, parse_ops
from logdiff_kernels.engines.transformers.align import apply

IDS = torch.tensor([[5, 9, 170, 31, 8, 77, 120, 3, 44, 44, 61, 199, 10, 11, 12, 13, 14, 90, 91, 92]])
VISIBLE = [
    "linear",
    "linear_row",
    "rms_norm",
    "add_rms_norm",
    "rope",
    "swiglu",
    "attention",
    "router",
    "moe",
    "lm_head",
]
"""Operators whose stock form has other bits. The stock embedding copies rows too, and `logprob` is the scorer's."""


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits.float()
    return found


def mixture() -> Any:
    """In fp32, where no rounding to a narrow dtype hides the order of a sum, and wide enough to have one."""
    kind, more = COVERED["glm4-moe"]
    return make(kind, more | {"hidden_size": 768, "intermediate_size": 640, "moe_intermediate_size": 640})


@pytest.mark.parametrize("op", VISIBLE)
def test_leaving_one_operator_stock_changes_bits(op: str) -> None:
    model = mixture()
    handle = apply(model, AlignSpec())
    aligned = logits(model)
    handle.restore()
    apply(model, AlignSpec(parse_ops("all") - {op}))
    assert not torch.equal(logits(model), aligned)


@pytest.mark.parametrize("op", [*VISIBLE, "embedding"])
def test_one_operator_alone_replaces_its_own_modules_only(op: str) -> None:
    model = mixture()
    native = logits(model)
    handle = apply(model, AlignSpec(frozenset({op})))
    replaced = handle.patched()
    assert replaced
    assert {line.rsplit(" ", 1)[1] for line in replaced} == {op}
    changed = {name for name, module in model.named_modules() if "forward" in module.__dict__}
    assert changed == {line.split(".forward ->")[0] for line in replaced if ".forward ->" in line}
    assert torch.equal(logits(model), native) == (op == "embedding")
    handle.restore()
    assert torch.equal(logits(model), native)


def test_norms_are_told_by_whether_a_residual_was_added_before() -> None:
    """Gemma 2 norms the outputs of its blocks as well as their inputs; only inputs (and the end) are sums."""
    model = make("Gemma2Config", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16})
    sums = apply(model, AlignSpec(frozenset({"add_rms_norm"})))
    found = {line.split(".forward")[0] for line in sums.patched()}
    sums.restore()
    expected = {"model.norm", "model.layers.1.input_layernorm"}
    expected |= {f"model.layers.{i}.pre_feedforward_layernorm" for i in range(2)}
    assert found == expected
    others = apply(model, AlignSpec(frozenset({"rms_norm"})))
    rest = {line.split(".forward")[0] for line in others.patched()}
    assert rest == {name for name, m in model.named_modules() if "RMSNorm" in type(m).__name__} - expected


def test_a_subset_does_not_refuse_what_it_does_not_touch() -> None:
    model = make("CohereConfig", {})
    native = logits(model)
    handle = apply(model, AlignSpec(frozenset({"linear", "linear_row"})))
    assert not torch.equal(logits(model), native)
    handle.restore()
    assert torch.equal(logits(model), native)
