"""How a mixture-of-experts model chooses experts and weighs them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from logdiff_kernels.errors import InputError

SCORINGS = ("softmax", "sigmoid")
CHOICES = ("scores", "logits")
GROUP_SCORES = ("max", "top2")


@dataclass(frozen=True)
class RouterSpec:
    """The rule of a router, from fp32 logits [T, E] to weights and ids [T, k].

    Attributes:
        top_k: k, experts per token, in choice order.
        scoring: `softmax` = exp1(x - max) / R64, or `sigmoid` = 1 / (1 + exp1(-x)), in fp32.
        choose_on: `scores`: score all experts, choose on the scores (plus the bias, for the choice only).
            `logits`: choose on the logits (plus bias), then score the chosen logits, in choice order.
        renormalize: divide the weights by ((w0 + w1) + w2) + ... + `renorm_eps`.
        renorm_eps: the model's epsilon in that divisor.
        scaling: factor on the weights, last; 1 is left out.
        groups, topk_groups: experts in `groups` equal consecutive groups, of which `topk_groups` may be chosen from.
        group_score: a group's score is the `max` of its experts' choice values, or the sum of its `top2` best.

    Values are ordered NaN first, then descending (-0 = +0), then by index.

    Raises:
        InputError: a rule that can't be met.
    """

    top_k: int
    scoring: str = "softmax"
    choose_on: str = "scores"
    renormalize: bool = False
    renorm_eps: float = 0.0
    scaling: float = 1.0
    groups: int = 1
    topk_groups: int = 1
    group_score: str = "max"

    def __post_init__(self) -> None:
        for name, value, legal in (
            ("scoring", self.scoring, SCORINGS),
            ("choose_on", self.choose_on, CHOICES),
            ("group_score", self.group_score, GROUP_SCORES),
        ):
            if value not in legal:
                raise InputError(f"A router's {name} is one of {', '.join(legal)}.", value=value)
        if self.top_k < 1 or self.groups < 1 or not 1 <= self.topk_groups <= self.groups:
            raise InputError("A router needs top_k >= 1 and 1 <= topk_groups <= groups.", value=self)
        if not math.isfinite(self.scaling) or not math.isfinite(self.renorm_eps):
            raise InputError("A router's scaling and renorm_eps are finite.", value=(self.scaling, self.renorm_eps))

    def check(self, experts: int) -> None:
        """Raise `InputError` if this rule can't choose among so many experts."""
        if experts % self.groups:
            raise InputError(f"{experts} experts don't divide into {self.groups} equal groups.", value=experts)
        size = experts // self.groups
        if self.top_k > self.topk_groups * size:
            raise InputError(f"top_k {self.top_k} is more than the {self.topk_groups * size} experts to choose from.")
        if self.groups > 1 and self.group_score == "top2" and size < 2:
            raise InputError("A group score of the two best needs groups of two experts at least.", value=size)
