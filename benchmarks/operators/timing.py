"""Ours against the reference, and timed against peers in turns: what else the machine does falls on all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

Call = Callable[[], Any]


def check(ours: Tensor, reference: Tensor, bound: float = 1e-2) -> None:
    """Raise `AssertionError` where the largest error is not below `bound` of the reference's largest value."""
    error = (ours.double() - reference).abs().max() / reference.abs().max()
    if not error < bound:
        raise AssertionError(f"far from the reference: {float(error)}")


def compare(
    case: str, shape: str, ours: Call, peers: Mapping[str, Call], *, seconds: float | None = 0.4, rounds: int = 15
) -> list[dict[str, Any]]:
    """One row per peer: {case, ours_ms, peer, peer_ms, ratio, spread, shape}.

    In each round every call is repeated for about `seconds / rounds / calls`; `seconds=None`: called once, for calls
    that take seconds. Times are medians over rounds, `ratio` is the median of the rounds' ratios (peer time / our
    time) and `spread` half their 10 to 90 percent range, relative.
    """
    calls = {"": ours, **peers}
    share = None if seconds is None else seconds / rounds / len(calls)
    repeats = {name: 1 if share is None else _repeats(call, share) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        names = list(calls)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            times[name].append(_time(calls[name], repeats[name]))
    rows = []
    for name in peers:
        ratios = sorted(peer / mine for mine, peer in zip(times[""], times[name], strict=True))
        middle = statistics.median(ratios)
        low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
        rows.append(
            {
                "case": case,
                "ours_ms": statistics.median(times[""]) * 1e3,
                "peer": name,
                "peer_ms": statistics.median(times[name]) * 1e3,
                "ratio": middle,
                "spread": (high - low) / 2 / middle,
                "shape": shape,
            }
        )
    return rows


def _time(call: Call, repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats


def _repeats(call: Call, seconds: float) -> int:
    for _ in range(3):
        call()
    once = max(_time(call, 3), 1e-7)
    return max(1, int(seconds / once))
