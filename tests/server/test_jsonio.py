"""JSON of results: plain values whatever came in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from logdiff.jsonio import dumps


def test_non_finite_numbers_are_strings_at_any_depth() -> None:
    value = {"a": [float("nan"), (np.float32("inf"),)], "b": np.array([1.5, -np.inf])}
    assert json.loads(dumps(value)) == {"a": ["nan", ["inf"]], "b": [1.5, "-inf"]}


def test_numpy_scalars_paths_and_keys_become_plain() -> None:
    assert json.loads(dumps({1: np.int64(7), "p": Path("a/b"), "t": np.bool_(True)})) == {"1": 7, "p": "a/b", "t": True}


def test_half_a_surrogate_pair_can_be_written_to_a_file(tmp_path: Path) -> None:
    text = dumps({"name\ud800": "x\udfffy", "fine": "日本"})
    (tmp_path / "f").write_text(text, encoding="utf-8")
    assert json.loads(text) == {"name\\ud800": "x\\udfffy", "fine": "日本"}
