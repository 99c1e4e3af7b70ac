"""What a request asks of scoring, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from logdiff_kernels.engines.settings import known_keys, whole_number
from logdiff_kernels.errors import InputError

LAYOUTS = ("single", "padded", "packed")
DEFAULT_BATCH = 8


@dataclass(frozen=True, slots=True)
class Score:
    """How sequences are laid out for teacher-forced scoring.

    Args:
        layout: `single` (one sequence per forward), `padded` (`micro_batch_size` rows of one length), `packed` (one
            row that holds `micro_batch_size` sequences one after the other, positions restarting).
        padding_side: `right` or `left`; `padded` only.
        micro_batch_size: sequences per forward; `single` takes no notice of it.
        autocast: dtype name for `torch.autocast` around the forward, as verl's FSDP engine runs fp32 masters; or None.
    """

    layout: str = "padded"
    padding_side: str = "right"
    micro_batch_size: int = DEFAULT_BATCH
    autocast: str | None = None

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Score:
        """Check `score` of a request or task. Raises `InputError` with the key and value."""
        known_keys(settings, cls, "score")
        score = cls(**settings)
        if score.layout not in LAYOUTS:
            raise InputError(f"unknown layout {score.layout!r}", value=score.layout, hint=f"one of: {LAYOUTS}")
        if score.padding_side not in ("left", "right"):
            raise InputError("padding_side must be left or right", value=score.padding_side)
        whole_number(score.micro_batch_size, "micro_batch_size", 1)
        return score

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
