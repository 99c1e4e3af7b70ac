"""What a gate says, and how a gate takes samples out of the statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import SIDES, PairBatch

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Gate:
    """Result of one gate.

    Args:
        gate: its name.
        ok: True holds, False fails, None could not be judged.
        detail: one or two sentences with the values at fault.
        data: the same in structured form (counts, names), small.
    """

    gate: str
    ok: bool | None
    detail: str
    data: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """`{gate, ok, detail}` and, where there is more to say, `data`."""
        shown: dict[str, Any] = {"gate": self.gate, "ok": self.ok, "detail": self.detail}
        if self.data:
            shown["data"] = self.data
        return shown


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Samples [S] of one batch that have no part in the statistics: at all, or where one side is concerned."""

    sample: Bools
    side: dict[str, Bools]

    @classmethod
    def none(cls, samples: int) -> Exclusion:
        """Nothing excluded yet."""
        return cls(np.zeros(samples, dtype=bool), {side: np.zeros(samples, dtype=bool) for side in SIDES})

    def of_pair(self, first: str, second: str) -> Bools:
        """Samples without a part in the pair of these sides."""
        return self.sample | self.side[first] | self.side[second]


class TokenGate(Protocol):
    """A gate that reads the stream of batches."""

    def see(self, batch: PairBatch, out: Exclusion) -> None:
        """Take a batch; mark what must be left out of the statistics in `out`."""
        ...

    def result(self) -> Gate:
        """The gate after the last batch."""
        ...


def name_of(batch: PairBatch, row: int) -> str:
    """How a message names a sample."""
    name = f"sample {batch.sample_id[row]!r}"
    if batch.step[row] or batch.rank[row]:
        name += f" (step {int(batch.step[row])}, rank {int(batch.rank[row])})"
    return name


def row_of(batch: PairBatch, token: int) -> tuple[int, int]:
    """Sample number and 0-based response position of a token of the batch."""
    row = int(np.searchsorted(batch.offsets, token, side="right")) - 1
    return row, token - int(batch.offsets[row])


def rows_with(batch: PairBatch, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sample numbers (repeats possible) of token indices."""
    return np.searchsorted(batch.offsets, tokens, side="right") - 1


def counted(number: int, what: str) -> str:
    """`1 sample`, `2 samples`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
