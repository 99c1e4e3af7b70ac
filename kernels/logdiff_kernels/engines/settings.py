"""What a request asks of sampling and order, checked once; shared by the engines."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from logdiff_kernels.errors import InputError, UnsupportedError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 is greedy and is scored at 1. `seed` None: one from the system."""

    max_tokens: int = 64
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int | None = None
    topk: int = 0
    ignore_eos: bool = False
    n: int = 1

    @classmethod
    def parse(cls, settings: dict[str, Any]) -> Sampling:
        """Check `sampling` of a request or task. Raises `InputError` with the key and value."""
        known_keys(settings, cls, "sampling")
        sampling = cls(**{key: value for key, value in settings.items() if value is not None or key == "seed"})
        whole_number(sampling.max_tokens, "max_tokens", 1)
        whole_number(sampling.topk, "topk", 0)
        whole_number(sampling.top_k, "top_k", -1)
        for name in ("temperature", "top_p"):
            value = getattr(sampling, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InputError(f"{name} must be a number", value=value)
        if not 0 <= sampling.temperature < float("inf"):
            raise InputError("temperature must be 0 or more", value=sampling.temperature)
        if not 0 < sampling.top_p <= 1:
            raise InputError("top_p must be in (0, 1]", value=sampling.top_p)
        if sampling.n != 1:
            raise UnsupportedError(
                "one response per prompt only", value=sampling.n, hint="repeat the prompt under other sample ids"
            )
        if sampling.seed is None:
            return cls(**{**sampling.as_dict(), "seed": int.from_bytes(os.urandom(4), "big")})
        whole_number(sampling.seed, "seed", None)
        return sampling

    @property
    def scored_temperature(self) -> float:
        """The temperature that log-probabilities are taken at."""
        return float(self.temperature) if self.temperature > 0 else 1.0

    @property
    def truncates(self) -> bool:
        """Whether top-k or top-p cuts the distribution that tokens are drawn from."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def order_of(count: int, order: str) -> list[int]:
    """Positions of the samples in the order asked for: `given`, `reversed` or `shuffled:SEED`.

    Raises:
        InputError: another order.
    """
    if order == "given":
        return list(range(count))
    if order == "reversed":
        return list(range(count))[::-1]
    kind, _, seed = order.partition(":")
    if kind != "shuffled" or not seed.lstrip("-").isdigit():
        raise InputError("unknown order", value=order, hint="given, reversed or shuffled:SEED")
    import numpy as np

    return [int(i) for i in np.random.default_rng(abs(int(seed))).permutation(count)]


def known_keys(settings: dict[str, Any], kind: type, what: str) -> None:
    """Raise `InputError` for a key of `settings` that is no field of the dataclass `kind`."""
    names = {field.name for field in fields(kind)}
    for key in settings:
        if key not in names:
            raise InputError(f"unknown key {key!r} in {what}", value=key, hint=f"known: {', '.join(sorted(names))}")


def whole_number(value: Any, name: str, least: int | None) -> None:
    """Raise `InputError` where `value` is no whole number of at least `least` (None: any)."""
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        floor = "" if least is None else f" of {least} or more"
        raise InputError(f"{name} must be a whole number{floor}", value=value)
