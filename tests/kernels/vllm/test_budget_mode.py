"""Budget mode: operators switched in a running vLLM give the bits of engines that were started that way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.align import OPERATORS  # noqa: E402
from logdiff_kernels.engines.vllm import align  # noqa: E402
from logdiff_kernels.errors import InputError, UnsupportedError  # noqa: E402
from logdiff_kernels.protocol import Request  # noqa: E402
from logdiff_kernels.sequences import read  # noqa: E402

from tests.kernels.vllm.aligned_sides import ARGS, SAMPLING, overlay, prompts  # noqa: E402

LENGTHS = (5, 41, 90)
ARGUMENTS = {**ARGS, "logprobs_mode": "processed_logprobs"}
MIXED = {**SAMPLING, "max_tokens": 10, "temperature": 0.7}
SUBSETS: dict[str, list[str]] = {
    "none": [],
    "all": list(OPERATORS),
    "some": ["attention", "add_rms_norm", "logprob"],
    "products": ["linear", "linear_row", "lm_head", "rope", "swiglu", "moe"],
    "routing": ["router", "linear"],
}


def silent(*_: Any, **__: Any) -> None:
    return None


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as found:
        found.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        found.setenv("LOGDIFF_HOOKS", "")
        found.delenv("LOGDIFF_ALIGN", raising=False)
        found.delenv("LOGDIFF_BUDGET", raising=False)
        yield found
    align.restore()


class Bits:
    """Decoding and rescoring of the same tokens, as fp32 bits."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tokens, self._count = folder, folder / "tokens", 0

    def sample(self, engine: Any) -> None:
        given = prompts(self.folder / "prompts", LENGTHS, shared=20)
        engine.run({"task": "generate", "input": str(given), "output": str(self.tokens), "sampling": MIXED}, silent)

    def of(self, engine: Any) -> tuple[bytes, ...]:
        found = []
        for task in ("force", "rescore"):
            self._count += 1
            path = self.folder / f"{self._count}-{task}"
            engine.run({"task": task, "input": str(self.tokens), "output": str(path), "sampling": MIXED}, silent)
            found.append(read(path).columns["logprobs"].tobytes())
        return tuple(found)


def started(model: Path, **args: Any) -> Any:
    from logdiff_kernels.engines.vllm.adapter import create

    return create(Request("vllm", "rollout", str(model), "bfloat16", {**ARGUMENTS, **args}, sampling=MIXED))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense and two mixture-of-experts layers, tied embeddings off, biases on the projections of attention."""
    from logdiff_kernels.models import build

    folder = tmp_path_factory.mktemp("budget-model")
    return Path(build("qwen3-moe", out=folder / "model", num_hidden_layers=3, mlp_only_layers=[0], attention_bias=True))


@pytest.fixture(scope="module")
def fresh(
    model: Path, patch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Bits, dict[str, tuple[bytes, ...]]]:
    """What engines give that were started with each subset, without budget mode."""
    folder = tmp_path_factory.mktemp("budget-bits")
    bits, found = Bits(folder), {}
    for name, ops in SUBSETS.items():
        align.restore()
        if ops:
            patch.setenv("LOGDIFF_ALIGN", str(overlay(folder / f"{name}.json", ops)))
        engine = started(model)
        try:
            if not ops:
                bits.sample(engine)
            found[name] = bits.of(engine)
        finally:
            engine.close()
            align.restore()
            patch.delenv("LOGDIFF_ALIGN", raising=False)
    return bits, found


@pytest.fixture(scope="module")
def live(model: Path, patch: pytest.MonkeyPatch, fresh: tuple[Bits, dict[str, tuple[bytes, ...]]]) -> Iterator[Any]:
    patch.setenv("LOGDIFF_BUDGET", "1")
    engine = started(model)
    yield engine
    engine.close()
    align.restore()
    patch.delenv("LOGDIFF_BUDGET", raising=False)


@pytest.mark.slow(seconds=150)
def test_every_switch_has_the_bits_of_an_engine_that_was_started_so(live: Any, fresh: Any) -> None:
    bits, known = fresh
    assert len(set(known.values())) == len(known)  # each subset shows in the numbers
    assert bits.of(live) == known["none"]
    for name in ("all", "none", "some", "products", "all", "routing", "none"):
        done = live.run({"task": "realign", "ops": SUBSETS[name]}, silent)
        assert set(done.data["ops"]) == set(SUBSETS[name])
        assert bits.of(live) == known[name], name


@pytest.mark.slow(seconds=5)
def test_the_switch_names_the_operators_of_the_model_and_the_bytes_that_it_costs(live: Any) -> None:
    live.run({"task": "realign", "ops": []}, silent)
    model = live.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.get_model()
    kept = model.__dict__["logdiff_kept"]
    report = live.run({"task": "realign", "ops": []}, silent).data
    absent = {"all_reduce", "reduce_scatter"}
    assert report["operators"] == [op for op in OPERATORS if op not in absent]
    packed = [one for one in kept if one.operator in ("linear", "linear_row", "router", "moe")]
    whole = sum(t.nbytes for one in packed for _, t in one.raw.values() if t.dim() >= 2)
    assert report["bytes"] == whole
    aligned = live.run({"task": "realign", "ops": "all"}, silent).data
    assert aligned["bytes"] == whole  # the same, whichever of the two is in use
    assert aligned["layers"] >= len(packed)


@pytest.mark.slow(seconds=5)
def test_an_engine_in_budget_mode_is_native_until_it_is_switched(live: Any, tmp_path: Path) -> None:
    live.run({"task": "realign", "ops": []}, silent)
    live.run({"task": "fingerprint", "output": str(tmp_path / "stock.json")}, silent)
    stock = json.loads((tmp_path / "stock.json").read_text())
    assert stock["aligned"] is None
    assert not [entry for entry in stock["patched"] if "aligned" in entry["why"]]
    live.run({"task": "realign", "ops": ["rope"]}, silent)
    live.run({"task": "fingerprint", "output": str(tmp_path / "rope.json")}, silent)
    assert json.loads((tmp_path / "rope.json").read_text())["aligned"]["ops"] == ["rope"]
    live.run({"task": "realign", "ops": []}, silent)


@pytest.mark.slow(seconds=5)
def test_a_switch_that_is_refused_leaves_the_engine_stock(
    live: Any, fresh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logdiff_kernels.engines.vllm.align import checks

    bits, known = fresh
    live.run({"task": "realign", "ops": "all"}, silent)

    def refuse(*_: Any) -> None:
        raise UnsupportedError("not this one")

    monkeypatch.setattr(checks, "prepare_model", refuse)
    with pytest.raises(UnsupportedError, match="not this one"):
        live.run({"task": "realign", "ops": ["linear"]}, silent)
    assert bits.of(live) == known["none"]
    with pytest.raises(InputError, match="unknown operator"):
        live.run({"task": "realign", "ops": ["lineal"]}, silent)
    with pytest.raises(UnsupportedError, match="budget mode"):
        live.run({"task": "reload", "path": str(live.model)}, silent)


def test_budget_mode_and_an_overlay_exclude_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from logdiff_kernels.align import budget_mode

    monkeypatch.delenv("LOGDIFF_ALIGN", raising=False)
    monkeypatch.delenv("LOGDIFF_BUDGET", raising=False)
    assert not budget_mode()
    monkeypatch.setenv("LOGDIFF_BUDGET", "1")
    assert budget_mode()
    monkeypatch.setenv("LOGDIFF_ALIGN", str(overlay(tmp_path / "align.json")))
    with pytest.raises(InputError, match="exclude"):
        budget_mode()
