"""Patched functions are told from stock ones by comparison with the source file, whatever they are called."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logdiff_kernels.observe.patched import Inventory, Record, inventory

LAYERS = """
import contextlib
import functools
from math import sqrt
from fake_stock.other import shared

LIMIT = 8


def deco(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)
    return call


class Base:
    def scale(self, x):
        return x + 1


class Norm(Base):
    eps = 1e-6

    def forward(self, x, dim=-1):
        return sqrt(x) * 2

    def forward_native(self, x, dim=-1):
        return x / 3

    @deco
    def wrapped(self, x):
        return x - 1

    @staticmethod
    def shape(x):
        return x

    @property
    def width(self):
        return 4

    @functools.lru_cache
    def kept(self):
        return 1

    alias = forward

    @contextlib.contextmanager
    def held(self):
        yield self


def free(x):
    return [y + 1 for y in x]


made = functools.partial(free, [1])
TABLE = {"free": free, "norm": Norm}
"""
OTHER = """
def shared(x):
    return x


def other_one(x):
    return x * 7
"""


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    folder = tmp_path / "fake_stock"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "other.py").write_text(OTHER)
    (folder / "layers.py").write_text(LAYERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    import fake_stock.layers  # type: ignore[import-not-found]

    yield fake_stock.layers
    for name in ("fake_stock.layers", "fake_stock.other", "fake_stock"):
        sys.modules.pop(name, None)


@pytest.fixture
def look(tmp_path: Path) -> Any:
    def call() -> Inventory:
        return inventory(["fake_stock"], cache=str(tmp_path / "cache"))

    return call


def theirs(self: Any, x: Any, dim: int = -1) -> Any:
    return x * 5


@contextlib.contextmanager
def their_hold(self: Any) -> Iterator[Any]:
    yield None


def one(found: Inventory) -> Record:
    assert len(found.findings) == 1, [r.as_dict() for r in found.findings]
    return found.findings[0]


def test_a_package_as_installed_has_no_records(stock: Any, look: Any) -> None:
    found = look()
    assert found.records == []
    assert found.unreadable == {}
    assert found.checked["classes"] == 2
    assert found.checked["functions"] >= 9


def test_a_package_that_is_not_loaded_is_said_to_be_absent(tmp_path: Path) -> None:
    assert inventory(["no_such_package_x"], cache="").absent == ["no_such_package_x"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("forward", theirs),
        ("shape", staticmethod(theirs)),
        ("width", property(lambda self: 5)),
        ("wrapped", theirs),
        ("kept", theirs),
        ("scale", theirs),  # inherited: the class itself has none
    ],
)
def test_a_method_from_another_file_is_replaced(
    stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    before = look().digest
    monkeypatch.setattr(stock.Norm, name, value)
    record = one(look())
    assert (record.kind, record.target) == ("replaced", f"fake_stock.layers.Norm.{name}")
    assert Path(record.live.rpartition(":")[0]) == Path(__file__)
    assert look().digest != before
    monkeypatch.undo()
    assert look().digest == before


def test_a_wrapper_that_looks_like_the_original_is_named(
    stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = stock.Norm.forward

    @functools.wraps(original)
    def quiet(self: Any, x: Any) -> Any:
        return original(self, x)

    monkeypatch.setattr(stock.Norm, "forward", quiet)
    record = one(look())
    assert (record.kind, record.target) == ("wrapped", "fake_stock.layers.Norm.forward")


def test_a_wrapper_around_a_decorated_function_is_named(stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    original = stock.Norm.wrapped

    def quiet(self: Any, x: Any) -> Any:
        return original(self, x)

    monkeypatch.setattr(stock.Norm, "wrapped", quiet)
    assert one(look()).kind == "wrapped"


def test_two_functions_of_the_package_exchanged_are_named(
    stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock.Norm, "forward", stock.Norm.forward_native)
    record = next(r for r in look().findings if r.target.endswith("Norm.forward"))
    assert record.kind == "rebound"
    assert "forward_native" in record.detail


def test_code_exchanged_in_place_is_edited(stock: Any, look: Any) -> None:
    function = stock.free
    before = function.__code__
    function.__code__ = (lambda x: [y + 2 for y in x]).__code__
    try:
        found = {r.target: r.kind for r in look().findings}
        assert found["fake_stock.layers.free"] == "edited"
    finally:
        function.__code__ = before


def test_code_that_claims_the_stock_file_is_edited(stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, Any] = {}
    exec(compile("def free(x):\n    return x\n", stock.__file__, "exec"), space)
    monkeypatch.setattr(stock, "free", space["free"])
    assert one(look()).kind == "edited"


def test_a_default_argument_changed_in_place_is_edited(stock: Any, look: Any) -> None:
    function = stock.Norm.forward_native
    function.__defaults__ = (0,)
    record = one(look())
    assert record.kind == "edited"
    assert "-1" in record.detail


def test_a_file_edited_after_the_import_is_seen(stock: Any, look: Any) -> None:
    path = Path(stock.__file__)
    path.write_text(LAYERS.replace("return sqrt(x) * 2", "return sqrt(x) * 3"))
    assert one(look()).target == "fake_stock.layers.Norm.forward"


def test_an_imported_name_that_was_rebound_is_named_and_a_plain_import_is_not(
    stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "shared", theirs)
    record = one(look())
    assert (record.kind, record.target) == ("rebound", "fake_stock.layers.shared")


def test_a_class_that_was_replaced_is_named(stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "Norm", type("Norm", (), {"forward": theirs}))
    assert {r.target for r in look().findings} == {"fake_stock.layers.Norm"}


def test_an_entry_of_a_table_that_was_replaced_is_named(stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stock.TABLE, "free", theirs)
    assert one(look()).target == "fake_stock.layers.TABLE['free']"


def test_constants_are_told_but_are_no_findings(stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock.Norm, "eps", 1e-5)
    found = look()
    assert found.findings == []
    assert [(r.kind, r.target) for r in found.records] == [("value", "fake_stock.layers.Norm.eps")]


def test_a_new_name_that_nothing_looks_up_is_no_finding(stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock.Norm, "probe", theirs, raising=False)
    found = look()
    assert found.findings == []
    assert found.records[0].kind == "added"


def test_a_module_from_elsewhere_under_the_packages_name_is_named(
    stock: Any, look: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "impostor.py"
    file.write_text("def shared(x):\n    return 0\n")
    fake = types.ModuleType("fake_stock.third")
    fake.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "fake_stock.third", fake)
    assert one(look()).kind == "module"


def test_the_cache_gives_the_same_records(stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "free", theirs)
    assert look().digest == look().digest == inventory(["fake_stock"], cache="").digest


def test_looking_runs_no_code_of_lazy_objects(stock: Any, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise AssertionError("the table was filled")

        @property
        def __class__(self) -> Any:
            raise AssertionError("the object was asked what it is")

    monkeypatch.setattr(stock, "TABLE", Lazy())
    assert look().findings == []


def test_another_function_inside_of_the_same_standard_decorator_is_named(stock: types.ModuleType, look: Any) -> None:
    assert not look().findings
    stock.Norm.held = their_hold
    found = one(look())
    assert (found.kind, found.target) == ("replaced", "fake_stock.layers.Norm.held")
    assert "their_hold" in found.detail
