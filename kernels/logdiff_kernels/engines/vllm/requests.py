"""Running requests through a live vLLM engine, and reading log-probabilities by token id."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


def sample_seed(seed: int, index: int) -> int:
    """A sample's own seed (31 bits), so that its tokens do not depend on what is batched with it."""
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


def starts(responses: Sequence[Sequence[int]]) -> list[int]:
    """Where each sample's tokens begin among all response tokens."""
    places, place = [], 0
    for ids in responses:
        places.append(place)
        place += len(ids)
    return places


@dataclass(frozen=True, slots=True)
class Job:
    """One request: the sample's index, its prompt and vLLM's `SamplingParams`."""

    index: int
    prompt: Sequence[int]
    params: Any


def run_jobs(llm: Any, jobs: Sequence[Job], *, batch: int | None, finished: Callable[[int, Any], None]) -> None:
    """Run jobs to their end.

    Args:
        llm: `vllm.LLM`.
        jobs: in the order in which the engine gets them.
        batch: at most so many at a time: each group runs to its end before the next one starts. None: all at once,
            and vLLM's scheduler decides.
        finished: called with (index, `RequestOutput`) as each one ends.
    """
    from vllm.inputs import tokens_input

    engine = llm.llm_engine
    size = batch or max(1, len(jobs))
    for start in range(0, len(jobs), size):
        group = jobs[start : start + size]
        names: list[str] = []
        try:
            for job in group:
                names.append(engine.add_request(str(job.index), tokens_input(list(job.prompt)), job.params))
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        finished(int(output.request_id), output)
        except BaseException:
            engine.abort_request(names, internal=True)
            raise


def resolved(llm: Any, prompt: Sequence[int], params: Any) -> Any:
    """The `SamplingParams` that the engine makes of `params` (its defaults and generation config merged in)."""
    from vllm.inputs import tokens_input

    engine = llm.llm_engine
    request = engine.input_processor.process_inputs(
        "resolve", tokens_input(list(prompt)), params, supported_tasks=engine.get_supported_tasks()
    )
    return request.params


@dataclass(slots=True)
class TokenColumns:
    """Per-token columns of all samples, filled sample by sample; see docs/architecture.md, sequence files."""

    logprobs: npt.NDArray[np.float32]
    null: npt.NDArray[np.uint8]
    topk_ids: npt.NDArray[np.int64] | None
    topk_logprobs: npt.NDArray[np.float32] | None

    @classmethod
    def empty(cls, tokens: int, topk: int) -> TokenColumns:
        """All null."""
        return cls(
            np.full(tokens, np.nan, dtype=np.float32),
            np.ones(tokens, dtype=np.uint8),
            np.full((tokens, topk), -1, dtype=np.int64) if topk else None,
            np.full((tokens, topk), -np.inf, dtype=np.float32) if topk else None,
        )

    def fill(self, start: int, ids: Sequence[int], entries: Sequence[Mapping[int, Any] | None]) -> None:
        """Put one sample's tokens at `start`. `entries`: per token vLLM's {id: Logprob}, or None.

        The value is the one under the token's own id; an id that the engine left out stays null.
        """
        for offset, (token, entry) in enumerate(zip(ids, entries, strict=True)):
            if entry is None:
                continue
            found = entry.get(token)
            if found is not None:
                self.logprobs[start + offset] = found.logprob
                self.null[start + offset] = 0
            if self.topk_ids is not None and self.topk_logprobs is not None:
                width = self.topk_ids.shape[1]
                best = sorted(entry.items(), key=lambda item: item[1].rank or 0)
                ranked = [(key, value.logprob) for key, value in best if (value.rank or 0) <= width][:width]
                for place, (key, value) in enumerate(ranked):
                    self.topk_ids[start + offset, place] = key
                    self.topk_logprobs[start + offset, place] = value

    def as_columns(self) -> dict[str, Any]:
        """Columns for `sequences.build`; `logprobs_null` only where something is null."""
        columns: dict[str, Any] = {"logprobs": self.logprobs}
        if self.null.any():
            columns["logprobs_null"] = self.null
        if self.topk_ids is not None:
            columns |= {"topk_ids": self.topk_ids, "topk_logprobs": self.topk_logprobs}
        return columns
