"""An error of vLLM's says in which of its files and lines it was raised."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

from logdiff_kernels.engines.vllm import launch, tracing
from logdiff_kernels.engines.vllm.adapter import VllmEngine
from logdiff_kernels.errors import EngineError, UnsupportedError

SOURCE = """
class EngineDeadError(Exception):
    pass

def kernel(kind):
    raise kind("no grid")

def layer(kind):
    kernel(kind)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Any:
    """A module in a site-packages folder whose `layer(kind)` raises that error two calls below."""
    home = tmp_path / "site-packages" / "vllm"
    home.mkdir(parents=True)
    (home / "layers.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("vllm_layers_of_a_test", home / "layers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "words", "fatal"),
    [
        (TypeError, "vLLM refused: TypeError: no grid", False),
        (RuntimeError, "vLLM failed: RuntimeError: no grid", False),
        (None, "vLLM failed: EngineDeadError: no grid", True),
    ],
)
def test_a_failed_task_names_the_innermost_frames(engine: Any, kind: Any, words: str, fatal: bool) -> None:
    adapter: Any = object.__new__(VllmEngine)
    adapter._generate = lambda task, progress: engine.layer(kind or engine.EngineDeadError)
    with pytest.raises(EngineError) as caught:
        adapter.run({"task": "generate"}, None)
    assert (caught.value.message, caught.value.fatal) == (words, fatal)
    assert caught.value.hint.startswith("raised at vllm/layers.py:6 in kernel, called from vllm/layers.py:9 in layer")
    assert len(caught.value.hint) < 600


def test_a_refused_start_names_them_after_its_own_hint(engine: Any) -> None:
    with pytest.raises(ValueError, match="no grid") as caught:
        engine.layer(ValueError)
    error = launch._refusal(caught.value, {"model": "m"})
    assert error.hint.startswith("the arguments go to vllm.LLM")
    assert "; raised at vllm/layers.py:6 in kernel" in error.hint


class Engine:
    """Stands in for the adapter: its steps raise, its workers answer."""

    def __init__(self, seen: Any, error: Exception | None = None) -> None:
        self.llm = self
        self._seen = seen
        self.asked: list[str] = []
        self.error = error

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def ask_workers(self, operation: str, **_: Any) -> list[tuple[Any, bytes]]:
        self.asked.append(operation)
        if operation == "trace_end" and self.error is not None:
            raise self.error
        return [(self._seen, b"")]


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("logdiff_kernels.engines.vllm.requests.run_jobs", run)


def one_pass(engine: Engine, phase: str | None = None) -> Any:
    return tracing._one_pass(engine, [[1, 2]], phase, 1, False, native=True)


def test_a_pass_that_fails_ends_its_trace_and_names_the_phase_that_it_had_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, TypeError("no grid"))
    for seen, asked, expected in (
        ({"prefill": {}, "decode": {}}, None, "decode"), ({}, None, "prefill"), ({}, "score", "score"),
    ):  # fmt: skip
        engine = Engine(seen)
        with pytest.raises(tracing._PassError) as caught:
            one_pass(engine, asked)
        assert (caught.value.phase, caught.value.native) == (expected, True)
        assert isinstance(caught.value.error, TypeError)
        assert engine.asked == ["trace_begin", "trace_end"]


def test_of_an_engine_that_died_its_own_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("EngineCore died"))
    with pytest.raises(RuntimeError, match="EngineCore died"):
        one_pass(Engine({}, error=OSError("no such process")))


def test_what_the_engine_can_not_do_is_no_failed_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, UnsupportedError("not on this runner"))
    with pytest.raises(UnsupportedError):
        one_pass(Engine({}))
