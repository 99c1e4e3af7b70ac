"""What a process reads of its overlay: inert without one, and never native by mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from logdiff_kernels.align import CONTRACT, OPERATORS, PROVIDER, from_environment, parse_ops
from logdiff_kernels.contract import CONTRACT as OF_THE_CONTRACT
from logdiff_kernels.contract import OPERATORS as IN_THE_CONTRACT
from logdiff_kernels.errors import InputError

GOOD: dict[str, Any] = {
    "format": "logdiff-overlay/1", "contract": CONTRACT, "provider": PROVIDER, "id": "p1", "ops": ["rope", "linear"],
    "sides": ["rollout"],
}  # fmt: skip


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def write(**changes: Any) -> None:
        file = tmp_path / "align.json"
        file.write_text(json.dumps({**GOOD, **changes}))
        monkeypatch.setenv("LOGDIFF_ALIGN", str(file))

    return write


def test_the_switch_and_the_contract_name_the_same_things() -> None:
    assert CONTRACT == OF_THE_CONTRACT
    assert set(OPERATORS) == set(IN_THE_CONTRACT)


@pytest.mark.parametrize("value", [None, ""])
def test_without_the_variable_nothing_is_aligned(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGDIFF_ALIGN", raising=False)
    if value is not None:
        monkeypatch.setenv("LOGDIFF_ALIGN", value)
    assert from_environment() is None
    assert from_environment("train") is None


def test_a_side_that_is_not_named_stays_native(overlay: Any) -> None:
    overlay()
    assert from_environment("train") is None
    spec = from_environment("rollout")
    assert spec is not None
    assert (spec.ops, spec.id, spec.complete) == (frozenset({"linear", "rope"}), "p1", False)
    assert "rope" in spec
    assert "attention" not in spec
    assert spec.as_dict()["ops"] == ["linear", "rope"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "logdiff-overlay/2"}, "not a logdiff-overlay/1"),
        ({"contract": "aligned/0"}, "numeric contract"),
        ({"provider": "cuda"}, "no provider"),
        ({"ops": ["atention"]}, "unknown operator"),
        ({"ops": []}, "no operator"),
        ({"ops": "all"}, "list of operator names"),
        ({"sides": []}, "sides"),
        ({"sides": ["judge"]}, "sides"),
    ],
)
def test_an_overlay_that_can_not_be_followed_is_an_error(overlay: Any, changes: dict[str, Any], words: str) -> None:
    overlay(**changes)
    with pytest.raises(InputError, match=words):
        from_environment("rollout")


def test_an_overlay_that_is_gone_is_an_error_and_not_native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGDIFF_ALIGN", str(tmp_path / "gone.json"))
    with pytest.raises(InputError, match="can't be read"):
        from_environment("rollout")


@pytest.mark.parametrize(
    "content",
    [b"", bytes(range(256)), b"[" * 100_000, b'{"format": ' + b"9" * 10_000 + b"}"],
    ids=["empty", "binary", "deep", "digits"],
)
def test_garbage_is_an_error_and_not_native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    (tmp_path / "align.json").write_bytes(content)
    monkeypatch.setenv("LOGDIFF_ALIGN", str(tmp_path / "align.json"))
    with pytest.raises(InputError, match="can't be read"):
        from_environment("rollout")


def test_operator_names_are_read_from_text_and_lists() -> None:
    assert parse_ops("all") == frozenset(OPERATORS)
    assert parse_ops("rope, linear") == parse_ops(["linear", "rope"]) == frozenset({"linear", "rope"})
