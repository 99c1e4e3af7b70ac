"""Samples as strips of tokens coloured by |d|."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from logdiff.report.extremes import SampleStrip
from logdiff.report.wording import bits, number, visible

LEVELS: list[tuple[str, str]] = [
    ("l0", "exactly 0"),
    ("l1", "below 0.0001"),
    ("l2", "0.0001 to 0.001"),
    ("l3", "0.001 to 0.01"),
    ("l4", "0.01 to 0.1"),
    ("l5", "0.1 to 1"),
    ("l6", "1 and more"),
    ("lx", "not finite"),
    ("lm", "masked"),
    ("ln", "missing"),
]
"""CSS class and meaning of each colour; |d| in nats."""

TOKEN_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class Cell:
    """One token: shown text, CSS class of its level, and the line that hovering shows."""

    text: str
    level: str
    detail: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One sample ready to print; `note` says which part of a long response is shown."""

    title: str
    facts: str
    note: str
    label: str
    cells: list[Cell]


def level(d: float, masked: bool, missing: bool) -> str:
    """CSS class of a token."""
    if masked:
        return "lm"
    if missing:
        return "ln"
    if not math.isfinite(d):
        return "lx"
    size = abs(d)
    if size == 0:
        return "l0"
    return f"l{1 + sum(size >= border for border in (1e-4, 1e-3, 1e-2, 1e-1, 1.0))}"


def token_text(token_id: int, texts: dict[int, str]) -> str:
    """The token's text with its white space visible, else its id in brackets."""
    text = texts.get(token_id)
    if text is None:
        return f"[{token_id}]"
    if not text:
        return "∅"
    return visible(text, TOKEN_CHARACTERS).replace(" ", "·")


def strip(sample: SampleStrip, texts: dict[int, str], sides: tuple[str, str]) -> Strip:
    """Format one sample; `sides` are the names of the first and second side."""
    columns = zip(
        sample.token_ids.tolist(),
        sample.mask.tolist(),
        sample.first.tolist(),
        sample.second.tolist(),
        sample.first.view(np.uint32).tolist(),
        sample.second.view(np.uint32).tolist(),
        sample.first_null.tolist(),
        sample.second_null.tolist(),
        sample.d.tolist(),
        strict=True,
    )
    cells = []
    for offset, (token, mask, a, b, a_bits, b_bits, a_null, b_null, d) in enumerate(columns):
        missing = a_null or b_null
        text = token_text(token, texts)
        parts = [f"position {sample.start + offset}", f"id {token}"]
        for side, value, value_bits, null in ((sides[0], a, a_bits, a_null), (sides[1], b, b_bits, b_null)):
            parts.append(f"{side} missing" if null else f"{side} {value:.9g} ({bits(value_bits)})")
        if not missing:
            parts.append(f"d {number(d)}")
        if not mask:
            parts.append("masked")
        cells.append(Cell(text, level(d, not mask, missing), " | ".join(parts)))
    stop = sample.start + len(cells)
    whole = len(cells) == sample.total
    note = "" if whole else f"Positions {sample.start:,} to {stop - 1:,} of {sample.total:,}, around the worst token."
    facts = f"max |d| {number(sample.max_abs)}, mean |d| {number(sample.mean_abs)} over {sample.compared:,} tokens"
    if sample.nonfinite:
        facts += f", {sample.nonfinite:,} not finite"
    title = f"{visible(sample.sample_id, 100)}"
    where = f"step {sample.step}, rank {sample.rank}"
    label = f"Sample {title}, {where}: {facts}. Worst token at position {sample.worst_position}."
    return Strip(title, f"{where}: {facts}", note, label, cells)
