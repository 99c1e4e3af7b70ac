"""The dispatch table sees every replaced function, wherever it was replaced, and gives equal digests for equal code."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logdiff_kernels.observe.dispatch import MAX_BRIEF, brief, dispatch

SOURCE = """
from math import sqrt
from os.path import join


def decorated(function):
    import functools

    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)

    return call


class Norm:
    eps = 1e-6

    def forward(self, x):
        return x * 2

    @staticmethod
    def scale(x):
        return x * 3

    @property
    def width(self):
        return 4

    @decorated
    def wrapped(self, x):
        return x - 1


def free(x):
    return [y + 1 for y in x]
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    folder = tmp_path / "fake_engine_x"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "layers.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    import fake_engine_x.layers  # type: ignore[import-not-found]

    yield fake_engine_x.layers
    for name in ("fake_engine_x.layers", "fake_engine_x"):
        sys.modules.pop(name, None)


def table(registries: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    return dispatch("fake_engine_x", ["fake_engine_x.layers"], registries or {})


def theirs(self: Any, x: Any) -> Any:
    return x * 5


def test_it_is_the_same_as_long_as_nothing_is_replaced(engine: Any) -> None:
    first = table()
    assert table() == first
    assert first["foreign"] == []
    assert {"Norm.forward", "Norm.scale", "Norm.width", "Norm.wrapped", "Norm.eps", "free"} <= {
        name.removeprefix("fake_engine_x.layers.") for name in first["functions"]
    }


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("forward", theirs),
        ("scale", staticmethod(theirs)),
        ("width", property(lambda self: 5)),
        ("eps", 1e-5),
        ("wrapped", theirs),
    ],
)
def test_a_replaced_attribute_of_a_class_changes_the_digest(
    engine: Any, monkeypatch: pytest.MonkeyPatch, where: str, value: Any
) -> None:
    before = table()
    monkeypatch.setattr(engine.Norm, where, value)
    now = table()
    assert now["digest"] != before["digest"]
    if where != "eps":
        assert [f["name"] for f in now["foreign"]] == [f"fake_engine_x.layers.Norm.{where}"]
        assert now["foreign"][0]["from"].endswith("tests/kernels/observe/test_dispatch_table.py")
    monkeypatch.undo()
    assert table()["digest"] == before["digest"], "and the stock function back gives the same digest"


def test_a_wrapper_that_looks_like_the_original_is_seen(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = engine.Norm.forward

    @functools.wraps(stock)
    def quiet(self: Any, x: Any) -> Any:
        return stock(self, x)

    monkeypatch.setattr(engine.Norm, "forward", quiet)
    assert [f["name"] for f in table()["foreign"]] == ["fake_engine_x.layers.Norm.forward"]


def test_what_a_decorator_of_the_engine_wraps_counts(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = table()["digest"]
    monkeypatch.setattr(engine.Norm, "wrapped", engine.decorated(theirs))
    assert table()["digest"] != before


def test_a_replaced_function_of_a_module_is_seen_and_an_import_is_not(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "free", theirs)
    assert [f["name"] for f in table()["foreign"]] == ["fake_engine_x.layers.free"]


def test_run_time_tables_count(engine: Any) -> None:
    first = table({"ATTENTION": {"sdpa": engine.free}})
    assert table({"ATTENTION": {"sdpa": theirs}})["digest"] != first["digest"]
    assert table({"ATTENTION": {"sdpa": engine.free, "ours": theirs}})["digest"] != first["digest"]


def test_a_module_that_is_not_there_is_named(engine: Any) -> None:
    found = dispatch("fake_engine_x", ["fake_engine_x.layers", "fake_engine_x.gone"], {})
    assert "No module named" in found["absent"]["fake_engine_x.gone"]
    assert found["digest"] != table()["digest"]


def test_the_brief_form_is_short_agrees_with_the_table_and_imports_nothing(engine: Any) -> None:
    before = set(sys.modules)
    one = brief("fake_engine_x", ["fake_engine_x.layers", "fake_engine_x.absent", "this"], {})
    assert "this" not in sys.modules
    assert set(sys.modules) == before
    assert set(one) == {"functions", "entries", "foreign"}
    assert one["entries"] == table()["entries"]
    assert (
        one["functions"]
        == brief("fake_engine_x", ["this", "fake_engine_x.absent", "fake_engine_x.layers"], {})["functions"]
    )
    assert brief("fake_engine_x", ["fake_engine_x.layers"], {})["functions"] == table()["digest"][:16]


def test_the_brief_form_moves_with_one_replaced_function_and_names_it(engine: Any) -> None:
    before = brief("fake_engine_x", ["fake_engine_x.layers"], {})
    engine.Norm.forward = lambda self, x: x * 2
    after = brief("fake_engine_x", ["fake_engine_x.layers"], {})
    assert after["functions"] != before["functions"]
    assert after["foreign"] == ["fake_engine_x.layers.Norm.forward"]
    for number in range(MAX_BRIEF + 10):
        setattr(engine.Norm, f"patched{number}", lambda self, x: x)
    assert len(brief("fake_engine_x", ["fake_engine_x.layers"], {})["foreign"]) == MAX_BRIEF
