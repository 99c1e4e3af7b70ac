"""Clean models with their recognised operators, and one way to judge a changed copy of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from logdiff_kernels import models
from logdiff_kernels.check.captured import Captured
from logdiff_kernels.check.operators import Model
from logdiff_kernels.check.reference import reference
from logdiff_kernels.check.report import report
from logdiff_kernels.engines.transformers.loading import load
from logdiff_kernels.observe.boundaries.files import BoundaryFile

from tests.kernels.check.small_capture import capture

PROMPT = 12
LENGTHS = (40, 25, 60)


@dataclass
class Bench:
    """A clean model, its operators and token sequences."""

    model: Any
    clean: Model
    ids: list[list[int]]
    dtype: str
    folder: Path

    def changed(self) -> Any:
        """A copy of the model that a test may damage."""
        return copy.deepcopy(self.model)

    def captured(self, model: Any, path: Path, **options: Any) -> Captured:
        """What a model passes for the sequences."""
        samples = [(ids[:PROMPT], ids[PROMPT:]) for ids in self.ids]
        file = capture(
            model, samples, path / f"{options.get('phase', 'score')}.safetensors", dtype=self.dtype, **options
        )
        truth = {f"s{i}": ids for i, ids in enumerate(self.ids)}
        return Captured(BoundaryFile(file), truth, dict.fromkeys(truth, PROMPT))

    def report(self, model: Any, path: Path, **options: Any) -> dict[str, Any]:
        """`logdiff-operators/1` of one capture."""
        return report(self.clean, [self.captured(model, path, **options)], lambda *_: None)


@pytest.fixture(scope="session")
def bench() -> Callable[..., Bench]:
    """`bench(name, dtype)`: shared; the model itself must not be changed."""
    torch.set_num_threads(1)
    kept: dict[tuple[object, ...], Bench] = {}

    def made(name: str, dtype: str = "bfloat16", temperature: float = 1.0, lengths: tuple[int, ...] = LENGTHS) -> Bench:
        key = (name, dtype, temperature, lengths)
        if key not in kept:
            folder = models.build(name)
            generator = torch.Generator().manual_seed(11)
            ids = [torch.randint(10, 1000, (n,), generator=generator).tolist() for n in lengths]
            clean = reference(str(folder), dtype, ids[0], {"temperature": temperature})
            model = load(str(folder), dtype, {"attn_implementation": "eager"}).model
            kept[key] = Bench(model, clean, ids, dtype, folder)
        return kept[key]

    return made


def off(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Checks that are off, by boundary."""
    return {c["boundary"]: c for c in document["checks"] if c["ok"] is False}


def best(check: dict[str, Any]) -> dict[str, Any]:
    """The leading hypothesis that fits."""
    found: dict[str, Any] = next(v for v in check["variants"] if v["fits"])
    return found
