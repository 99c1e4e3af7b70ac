"""A side's boundary file, read boundary by boundary, with what the tokens should have been beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from logdiff_kernels.check.given import Rows, distinct
from logdiff_kernels.errors import InputError
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.files import BoundaryFile, Entry, picked


class Captured:
    """Rows of one file.

    Args:
        file: the boundary file.
        truth: token ids (prompt + response) by sample id.
        prompts: prompt lengths by sample id.

    Attributes:
        rows: who the R rows of the file are; `target` is the truth's next id, `position_id` the position received
            (the place, where the file doesn't know).
        first_pass: bool [R], rows that the first pass of their sample computed.
        label: "side/phase".

    Raises:
        InputError: a sample that the truth doesn't have.
    """

    def __init__(self, file: BoundaryFile, truth: dict[str, Sequence[int]], prompts: dict[str, int]) -> None:
        self.file, self.header = file, file.header
        self.label = f"{file.header.side}/{file.header.phase}"
        unknown = [name for name in file.header.sample_ids if name not in truth]
        if unknown:
            raise InputError(f"the capture has a sample that the truth hasn't: {unknown[0]!r}", value=str(file.path))
        self.truth = [torch.tensor(list(truth[name]), dtype=torch.int64) for name in file.header.sample_ids]
        self.prompts = [prompts[name] for name in file.header.sample_ids]
        sample, position = file.tensor("rows.sample").long(), file.tensor("rows.position").long()
        self.positions_known = "rows.position_id" in file
        received = file.tensor("rows.position_id").long() if self.positions_known else position
        passed = file.tensor("rows.pass").long() if "rows.pass" in file else torch.zeros_like(sample)
        ids = file.tensor("rows.input_id").long() if "rows.input_id" in file else self.expected(sample, position)
        target = self.expected(sample, position + 1)
        self.rows = Rows(sample, position, received, ids, target, passed)
        self.entries: dict[str, Entry] = {e.name: e for e in file.entries() if e.name in file}
        self.first_pass = self._first_pass()

    def _first_pass(self) -> torch.Tensor:
        first = torch.zeros(len(self.rows), dtype=torch.bool)
        for number in distinct(self.rows.sample):
            mine = self.rows.sample == number
            first[mine] = self.rows.passed[mine] == self.rows.passed[mine].min()
        return first

    def expected(self, sample: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The truth's ids at places; -1 beyond its end."""
        found = torch.full_like(position, -1)
        for number, ids in enumerate(self.truth):
            mine = (sample == number) & (position < len(ids)) & (position >= 0)
            found[mine] = ids[position[mine]]
        return found

    def names(self) -> list[str]:
        """Boundaries with rows, in execution order."""
        return sorted(self.entries, key=names.order)

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def tensor(self, name: str) -> torch.Tensor:
        """A boundary's rows [r, F]."""
        value = self.file.tensor(name)
        return value if value.ndim == 2 else value.reshape(len(value), -1)

    def index(self, name: str) -> torch.Tensor:
        """int64 [r]: which rows of the file."""
        return self.file.rows(name)

    def worst(self, index: torch.Tensor, error: torch.Tensor) -> list[dict[str, Any]]:
        """The five rows of the file, of those at `index`, whose errors [n] are largest, as reports name them."""
        rows, ids = self.rows.take(index), self.header.sample_ids
        return [
            {"sample_id": ids[int(rows.sample[i])], "position": int(rows.position[i]), "error": float(error[i])}
            for i in error.argsort(descending=True)[:5]
        ]

    def common(self, wanted: Iterable[str]) -> torch.Tensor:
        """Rows of the file that all boundaries named have, ascending."""
        found: torch.Tensor | None = None
        for name in wanted:
            index = self.index(name)
            found = index if found is None else found[torch.isin(found, index)]
        return torch.arange(len(self.rows)) if found is None else found

    def at(self, name: str, index: torch.Tensor) -> torch.Tensor:
        """A boundary's rows for rows of the file, all of which it must have."""
        have = self.index(name)
        if len(have) == len(index) and torch.equal(have, index):
            return self.tensor(name)
        return picked(self.tensor(name), have, index)
