"""Where two sides part, and the budget of time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from logdiff_kernels.check.divergence import divergence
from logdiff_kernels.check.report import report
from logdiff_kernels.observe.boundaries import names

from tests.kernels.check.conftest import Bench


def _folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path / "a", tmp_path / "b"


def test_sides_part_where_one_was_changed_and_not_before(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama", "float32")
    model = one.changed()
    model.model.layers[2].mlp.up_proj.weight.data *= 1.01
    first, second = _folders(tmp_path)
    a, b = one.captured(model, first, side="rollout"), one.captured(one.model, second)
    found = list(divergence(a, b, "prefill-score"))
    order = [names.order(entry["boundary"]) for entry in found]
    assert order == sorted(order)
    by_name = {entry["boundary"]: entry for entry in found}
    assert by_name["layers.2.gate"]["bits_differ"] == 0.0
    assert by_name["layers.2.up"]["relative"] == pytest.approx(0.01, rel=0.01)
    assert by_name["layers.2.up"]["first_row"] == {"sample_id": "s0", "position": 0}
    assert by_name["logits"]["bits_differ"] > 0.99


def test_without_time_nothing_is_called_right(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama", "float32")
    document = report(one.clean, [one.captured(one.model, tmp_path)], lambda *_: None, seconds=0.0)
    coverage = document["coverage"]["train/score"]
    assert document["checks"] == []
    assert coverage["judged"] == 0
    assert len(coverage["not_reached"]) == coverage["mapped"]


def test_layers_where_sides_part_are_judged_first(bench: Callable[..., Bench], tmp_path: Path) -> None:
    one = bench("llama", "float32")
    model = one.changed()
    model.model.layers[2].mlp.up_proj.weight.data *= 1.3
    first, second = _folders(tmp_path)
    captures = [one.captured(model, first, side="rollout", phase="decode"), one.captured(one.model, second)]
    seen: list[str] = []
    report(one.clean, captures, lambda _d, _t, _u, words: seen.append(words), seconds=600.0)
    assert "layers.2." in seen[0]
