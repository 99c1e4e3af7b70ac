"""Where an engine failed: its own innermost frames, few and short, and what passes calls on left out."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from logdiff_kernels import frames
from logdiff_kernels.engines.dispatching import failure

SOURCE = """
import torch

def kernel(x):
    return {}["grid"]

def mean(x):
    return kernel(x)

class Norm(torch.nn.Module):
    def forward(self, x):
        return mean(x)

norm = Norm()

def step(x):
    return norm(x)
"""


@pytest.fixture
def step(tmp_path: Path) -> Callable[[Any], Any]:
    """A function of a package that is installed in a site-packages folder and fails four calls below."""
    home = tmp_path / "lib" / "site-packages" / "engine"
    home.mkdir(parents=True)
    (home / "model.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("engine.model", home / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.step  # type: ignore[no-any-return]


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def test_the_innermost_frames_come_first_and_torchs_are_left_out(step: Callable[[Any], Any]) -> None:
    error = raised(lambda: step(torch.zeros(2)))
    lines = SOURCE.splitlines()

    def line(text: str) -> int:
        return next(number for number, found in enumerate(lines, 1) if text in found)

    assert frames.places(error, 9)[:4] == [
        f"engine/model.py:{line('grid')} in kernel",
        f"engine/model.py:{line('return kernel')} in mean",
        f"engine/model.py:{line('return mean')} in Norm.forward",
        f"engine/model.py:{line('return norm(x)')} in step",
    ]
    assert len(frames.places(error)) == frames.MOST
    assert frames.hint(error).startswith(f"raised at engine/model.py:{line('grid')} in kernel, called from engine/")


def test_an_error_of_this_package_and_the_library_alone_names_no_place() -> None:
    error = raised(lambda: failure(json.loads("{"), "prefill", native=False))
    ours = [place for place in frames.places(error) if not place.startswith(__file__)]
    assert ours == []
    assert frames.hint(ValueError("never raised")) == ""


def test_long_words_names_and_chains_are_bounded(step: Callable[[Any], Any]) -> None:
    def deep(depth: int) -> Any:
        return deep(depth - 1) if depth else step(torch.zeros(1))

    deep.__code__ = deep.__code__.replace(co_qualname="f" * 5000) if hasattr(deep.__code__, "co_qualname") else (
        deep.__code__.replace(co_name="f" * 5000)
    )  # fmt: skip
    error = raised(lambda: deep(200))
    error.args = ("w" * 100_000,)
    found = failure(error, "decode", native=True)
    assert (found["phase"], found["pass"]) == ("decode", "native")
    assert len(found["error"]) < 500
    assert len(found["where"]) == frames.MOST
    assert all(len(place) <= frames.LONGEST for place in frames.places(error, 500))
