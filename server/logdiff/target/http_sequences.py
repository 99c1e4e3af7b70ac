"""What a server answered, as sequence files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logdiff.case.sequences import Sequences, build_sequences, read_sequences, write_sequences
from logdiff.errors import InputError
from logdiff.target.openai_completions import Scored


class Source:
    """A sequence file with its prompts and responses as lists of ids."""

    def __init__(self, sequences: Sequences) -> None:
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.sequences.sample_ids)

    def prompt(self, i: int) -> list[int]:
        """Prompt ids of sample `i`."""
        ids: list[int] = self.sequences.prompt(i).tolist()
        return ids

    def response(self, i: int) -> list[int]:
        """Response ids of sample `i`."""
        ids: list[int] = self.sequences.response(i).tolist()
        return ids


def read_input(path: Path) -> Source:
    """Read a sequence file. Raises `InputError`."""
    return Source(read_sequences(path))


def order_of(order: str, count: int) -> list[int]:
    """Indices 0..count-1 as given, reversed, or shuffled by `shuffled:SEED`. Raises `InputError`."""
    import numpy as np

    if order == "given":
        return list(range(count))
    if order == "reversed":
        return list(range(count - 1, -1, -1))
    kind, _, seed = order.partition(":")
    if kind == "shuffled" and seed.isdecimal():
        shuffled: list[int] = np.random.Generator(np.random.PCG64(int(seed))).permutation(count).tolist()
        return shuffled
    raise InputError("unknown order", value=order, hint="given, reversed or shuffled:SEED")


def write_output(path: Path, source: Source, scored: list[Scored], task: str, topk: int) -> dict[str, Any]:
    """Write responses and log-probabilities.

    Returns:
        `fp32_exact`: whether every number is one of fp32, as an engine computes them. A server that rounds is seen.
    """
    import numpy as np

    values = [v for s in scored for v in s.logprobs]
    wide = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    null = np.array([v is None for v in values], dtype=np.uint8)
    columns: dict[str, Any] = {"logprobs": wide.astype(np.float32)}
    if null.any():
        columns["logprobs_null"] = null
    if topk:
        rows = [row for s in scored for row in s.top]
        ids = np.full((len(values), topk), -1, dtype=np.int64)
        logprobs = np.full((len(values), topk), np.nan, dtype=np.float32)
        for i, row in enumerate(rows):
            for k, (token, value) in enumerate(row[:topk]):
                ids[i, k], logprobs[i, k] = token, value
        columns |= {"topk_ids": ids, "topk_logprobs": logprobs}
    exact = bool(np.array_equal(wide, wide.astype(np.float32).astype(np.float64), equal_nan=True))
    write_sequences(
        path,
        build_sequences(
            source.sequences.sample_ids,
            [source.prompt(i) for i in range(len(source))],
            [s.ids for s in scored],
            columns=columns,
            metadata={**source.sequences.metadata, "task": task, "fp32_exact": exact},
        ),
    )
    return {"fp32_exact": exact}


def write_prompts(path: Path, prompts: list[list[int]]) -> None:
    """Write a sequence file of prompts alone, named by their place."""
    write_sequences(path, build_sequences([str(i) for i in range(len(prompts))], prompts))
