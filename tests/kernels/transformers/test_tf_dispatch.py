"""What a Transformers process says of its dispatch: short in its fingerprint, and in full also when a phase fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers.models.llama.modeling_llama as llama
from logdiff_kernels.engines.transformers import adapter, tracing
from logdiff_kernels.observe.process import process_facts
from logdiff_kernels.protocol import Request


@pytest.fixture(scope="module")
def engine(model_folder: Callable[[str], Path]) -> Any:
    return adapter.create(Request(engine="transformers", side="train", model=str(model_folder("llama"))))


def quiet(*_: Any, **__: Any) -> None:
    """No progress."""


def ask(engine: Any, folder: Path, task: str, **more: Any) -> dict[str, Any]:
    output = engine.run({"task": task, "output": str(folder / f"{task}.json"), **more}, quiet)
    document: dict[str, Any] = json.loads(next(iter(output.files.values())).read_text(encoding="utf-8"))
    return document


def replaced(self: Any, x: Any) -> Any:
    raise TypeError("no grid")


def test_the_fingerprint_has_a_hash_of_what_runs_that_moves_with_one_function(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (before,) = ask(engine, tmp_path, "fingerprint")["dispatch"]["ranks"]
    assert ask(engine, tmp_path, "fingerprint")["dispatch"]["ranks"] == [before]
    target = f"{llama.__name__}.LlamaMLP.forward"
    assert target not in before["foreign"]
    monkeypatch.setattr(llama.LlamaMLP, "forward", replaced)
    (after,) = ask(engine, tmp_path, "fingerprint")["dispatch"]["ranks"]
    assert after["functions"] != before["functions"]
    assert after["entries"] == before["entries"]
    assert set(after["foreign"]) - set(before["foreign"]) == {target}


def test_a_phase_that_fails_is_told_with_its_place_and_the_process_is_looked_into_all_the_same(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts(model: Any, *, aligned: bool) -> dict[str, Any]:
        return process_facts(model, (), aligned=aligned)  # comparing all of torch with its files takes a minute

    monkeypatch.setattr(tracing, "process_facts", facts)
    monkeypatch.setattr(llama.LlamaMLP, "forward", replaced)
    found = ask(engine, tmp_path, "dispatch_trace", phases=["score", "backward"])
    assert found["failed"]["phase"] == "score"
    assert found["failed"]["pass"] == "watched"
    assert found["failed"]["error"] == "TypeError: no grid"
    inner, outer = found["failed"]["where"][:2]
    assert inner == f"{__file__[-80:]}:{replaced.__code__.co_firstlineno + 1} in replaced"
    assert outer.startswith("transformers/models/llama/modeling_llama.py:")
    assert found["phases"] == {}
    assert found["native_pass"] == {}
    assert any("replaced" in one["forward"] for one in found["modules"]["model.layers.*.mlp"])
    monkeypatch.undo()
    monkeypatch.setattr(tracing, "process_facts", facts)
    whole = ask(engine, tmp_path, "dispatch_trace", phases=["score"])
    assert whole["failed"] is None
    assert set(whole["phases"]) == {"score"}
