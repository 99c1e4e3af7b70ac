"""Where the files of a live run lie in its case."""

from __future__ import annotations

PROMPTS = "captures/prompts.safetensors"
TOKENS = "captures/tokens.safetensors"
"""Prompts and responses of an earlier case, where the run scores those instead of sampling."""
CHECKPOINTS = ".work"
"""Folder of checkpoints between steps: hidden, so that it is no evidence, and removed when the case is sealed."""


def generated(step: int) -> str:
    """The rollout's tokens and log-probabilities."""
    return f"captures/step{step}/generate.safetensors"


def rescored(step: int) -> str:
    """The rollout engine's prefill log-probabilities of the same tokens."""
    return f"captures/step{step}/rescore.safetensors"


def scored(step: int) -> str:
    """The train side's log-probabilities of the same tokens."""
    return f"captures/step{step}/score.safetensors"


def floor_axis(side: str, name: str, value: object) -> str:
    """What a side gave when `name` was `value`, for the floor; `side` as in `logdiff.live.floor.Axis`."""
    return f"captures/step0/floor/{side}-{name}-{str(value).replace(':', '-')}.safetensors"
