"""What was written down instead of the value: that of another token, or one in fewer bits."""

from __future__ import annotations

import math

import numpy as np

from logdiff.verdict import values
from logdiff.verdict.features import Features
from logdiff.verdict.findings import Board, Finding, evidence
from logdiff.verdict.records import Evidence


def other_token(f: Features, board: Board) -> None:
    """The recorded value belongs to the most likely token."""
    for side in ("rollout", "train"):
        if side not in f.table.topk:
            continue
        facts = values.topk_facts(f.table, side)
        if facts["tested"] >= 8 and facts["is_top"] > 0.9:
            said: tuple[Evidence, ...] = (
                evidence(f, f"where the sampled token is not the most likely one, the {side} side's value is the most "
                         "likely one's: share", facts["is_top"], 0.9),
            )  # fmt: skip
            board.add(Finding("logprob-of-other-token", 0.95, 1.0, said, side=side))
        elif facts["known"] >= 50 and facts["agrees"] < 0.5:
            said = (
                evidence(f, f"the {side} side's value is not what its own top-k list says: share that agrees",
                         facts["agrees"], 0.5),
            )  # fmt: skip
            board.add(
                Finding(None, 0.6, 0.8, said, class_="sampling-processing", side=side, component=f"{side}_logprobs")
            )
    table = f.table
    if f.table.topk or table.tokens < 200:
        return
    for side, own, other in (("rollout", table.rollout, table.train), ("train", table.train, table.rollout)):
        far = own - other > max(6 * float(np.quantile(f.a, 0.3)), 1e-3)
        against = other - own > max(6 * float(np.quantile(f.a, 0.3)), 1e-3)
        # the value of the most likely token: never below its own position's, hence high, and one-signed
        if (
            far.mean() > 0.05
            and against.mean() < 0.03 * far.mean()
            and own.min() > -3.5
            and other.min() < own.min() - 2
        ):
            likely = float(np.mean(other[~far] > math.log(0.05)))
            if likely > 0.85 and float(own.mean()) > float(other.mean()) + 0.2:
                said = (
                    evidence(f, f"the {side} side is never the lower one, and never below that of a most likely token: "
                             "its smallest value", float(own.min()), -3.5),
                    evidence(f, "share of tokens on which it is higher", float(far.mean()), 0.05),
                )  # fmt: skip
                board.add(Finding("logprob-of-other-token", 0.7, 1.0, said, side=side))


def stored_width(f: Features, board: Board) -> None:
    """A side's values lie on the bf16 or fp16 grid."""
    table = f.table
    if table.tokens < values.FEW:
        return
    for name, bits in (("bf16", 16), ("fp16", 13)):
        on = {side: values.grid(own, bits) for side, own in (("rollout", table.rollout), ("train", table.train))}
        if max(on.values()) < 0.95:
            continue
        both = min(on.values()) > 0.95
        for side, share in on.items():
            if share < 0.95:
                continue
            explained = values.within_step(table, side, bits)
            said: tuple[Evidence, ...] = (
                evidence(f, f"values of the {side} side that lie on the {name} grid: share", share, 0.95),
                evidence(f, "tokens whose whole d that rounding explains: share", explained, 0.9),
            )
            belief = 0.95 if explained > 0.9 and not both else 0.75 if not both else 0.6
            board.add(
                Finding(
                    "logprob-rounded",
                    belief,
                    max(min(explained, 1.0), 0.3),
                    said,
                    side="both" if both else side,
                    component=f"{side}_logprobs",
                )
            )
        return
    board.exclude("values of neither side lie on a bf16 or fp16 grid", "logprob-rounded")
