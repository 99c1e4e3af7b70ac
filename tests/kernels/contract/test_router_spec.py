"""Rules that a router can't meet are refused when they are written down, not when a token comes."""

from __future__ import annotations

from typing import Any

import pytest
from logdiff_kernels.contract.router import RouterSpec
from logdiff_kernels.errors import InputError


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_k": 0},
        {"scoring": "tanh"},
        {"choose_on": "bias"},
        {"group_score": "mean"},
        {"groups": 2, "topk_groups": 3},
        {"topk_groups": 0},
        {"scaling": float("inf")},
    ],
)
def test_a_rule_without_meaning_raises(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        RouterSpec(**{"top_k": 2, **wrong})


@pytest.mark.parametrize(
    ("rule", "experts"),
    [
        (RouterSpec(9), 8),
        (RouterSpec(2, groups=3, topk_groups=1), 8),
        (RouterSpec(5, groups=4, topk_groups=2), 8),
        (RouterSpec(1, groups=8, topk_groups=1, group_score="top2"), 8),
    ],
)
def test_a_rule_that_these_experts_cannot_meet_raises(rule: RouterSpec, experts: int) -> None:
    with pytest.raises(InputError):
        rule.check(experts)


def test_rules_of_real_models_are_met() -> None:
    RouterSpec(8, renormalize=True).check(128)  # Qwen3-MoE
    RouterSpec(4, choose_on="logits").check(32)  # GPT-OSS
    RouterSpec(8, "sigmoid", renormalize=True, renorm_eps=1e-20, scaling=2.5, groups=8, topk_groups=4,
               group_score="top2").check(256)  # fmt: skip  # DeepSeek-V3
