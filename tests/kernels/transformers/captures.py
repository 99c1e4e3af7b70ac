"""Captures of small models, without files of requests around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from logdiff_kernels.engines.transformers import decoder
from logdiff_kernels.engines.transformers.boundaries.capture import Observer
from logdiff_kernels.engines.transformers.scorer import Scorer
from logdiff_kernels.engines.transformers.settings import Score
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.files import BoundaryFile
from logdiff_kernels.observe.boundaries.recorder import Keep, Recorder
from tf_reference import PROMPTS, RESPONSES, SAMPLE_IDS, nothing

WHOLE = [[*p, *r] for p, r in zip(PROMPTS, RESPONSES, strict=True)]


def capture(model: Any, path: Path, score: Score | None, *, order: Sequence[int] | None = None, **keep: Any) -> Any:
    """(boundary file, columns, result data) of scoring in a layout, or of decoding (`score` None)."""
    recorder = Recorder(SAMPLE_IDS, PROMPTS, RESPONSES, Keep(**keep), path.parent)
    with Observer(model, recorder) as observer:
        if score is not None:
            settings = {"temperature": 1.0, "progress": nothing, "order": order}
            columns = Scorer(model, 0).score(PROMPTS, RESPONSES, score, expect=observer.expect, **settings).columns
        else:
            rules = decoder.DecodeRules(0, frozenset(), 0, 1.0)
            places = range(len(PROMPTS)) if order is None else order
            done = decoder.follow(model, PROMPTS, RESPONSES, places, rules, 3, lambda _n: None, observer.expect)
            columns = decoder.columns_of(done)
    recorder.logprobs(columns["logprobs"])
    for note in observer.notes():
        recorder.note(note)
    side = {"engine": "transformers", "side": "train", "phase": "score", "model": "m", "dtype": "float32"}
    data = recorder.write(path, unmapped=observer.unmapped(), **side)
    recorder.close()
    return BoundaryFile(path), columns, data


def places(file: BoundaryFile, name: str) -> list[tuple[int, int]]:
    """(sample, position) of a boundary's rows."""
    at = file.rows(name)
    return list(zip(file.tensor("rows.sample")[at].tolist(), file.tensor("rows.position")[at].tolist(), strict=True))


def by_place(file: BoundaryFile, name: str) -> dict[tuple[int, int], torch.Tensor]:
    """Rows of a boundary by (sample, position)."""
    return dict(zip(places(file, name), file.tensor(name), strict=True))


def order_of(file: BoundaryFile) -> list[str]:
    """Names of its boundaries in execution order."""
    return sorted((entry.name for entry in file.entries()), key=names.order)


def first_difference(a: BoundaryFile, b: BoundaryFile) -> str | None:
    """The first boundary in execution order of which any row differs in any bit."""
    return next((n for n in order_of(a) if not torch.equal(bits(a.tensor(n)), bits(b.tensor(n)))), None)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)
