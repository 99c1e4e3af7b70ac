"""What one run is made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Mode = Literal["stock", "aligned"]


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Args:
        mode: `stock`, or `aligned`: both sides run the aligned operators.
        model: a Hugging Face folder.
        steps: rollouts; each is followed by `minibatches` optimiser updates and a weight sync.
        prompts: prompts per step.
        group: responses per prompt (GRPO's group).
        max_tokens: longest response.
        temperature: of sampling; both sides score at it.
        minibatches: parts that a step's samples are cut into, one optimiser update each.
        micro_batch: sequences per forward.
        lr: AdamW's learning rate on the fp32 master weights.
        clip: the importance ratio is clipped to [1 - clip, 1 + clip].
        letter: a response's reward is the share of its tokens whose text has this letter.
        seed: of prompts and sampling.
        dtype: of the rollout engine and of the trainer's compute copy.
        check_weights: every so many steps both sides' weight checksums are compared (0: at the first and last only).
        ops: operators to align, `all` or names of the numeric contract joined by commas.
    """

    mode: Mode
    model: str
    steps: int = 24
    prompts: int = 4
    group: int = 4
    max_tokens: int = 16
    temperature: float = 1.0
    minibatches: int = 2
    micro_batch: int = 8
    lr: float = 2e-5
    clip: float = 0.2
    letter: str = "e"
    seed: int = 7
    dtype: str = "bfloat16"
    check_weights: int = 0
    ops: str = "all"

    def __post_init__(self) -> None:
        if self.group < 2:
            raise ValueError(f"group {self.group}: an advantage needs at least 2 responses per prompt")
        if not 1 <= self.minibatches <= self.prompts * self.group:
            raise ValueError(f"minibatches {self.minibatches}: between 1 and the {self.prompts * self.group} samples")
        if self.steps < 1 or self.prompts < 1 or self.max_tokens < 1 or self.micro_batch < 1:
            raise ValueError("steps, prompts, max_tokens and micro_batch must be at least 1")
        if not self.temperature > 0 or not self.lr > 0 or not 0 < self.clip < 1:
            raise ValueError("temperature and lr must be above 0, clip between 0 and 1")

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
