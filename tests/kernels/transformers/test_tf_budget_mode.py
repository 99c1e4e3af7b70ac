"""A Transformers engine whose operators are switched between tasks gives the bits of one that was started so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from logdiff_kernels.align import OPERATORS  # noqa: E402
from logdiff_kernels.errors import UnsupportedError  # noqa: E402
from logdiff_kernels.protocol import Request  # noqa: E402
from logdiff_kernels.sequences import build, read, write  # noqa: E402

SAMPLING = {"max_tokens": 6, "temperature": 0.7, "seed": 3, "topk": 0, "ignore_eos": True}
SUBSETS: dict[str, list[str]] = {"none": [], "all": list(OPERATORS), "some": ["attention", "add_rms_norm", "logprob"]}


def silent(*_: Any, **__: Any) -> None:
    return None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from logdiff_kernels.models import build as build_model

    folder = tmp_path_factory.mktemp("switched")
    return Path(build_model("qwen3-moe", out=folder / "model", num_hidden_layers=2, mlp_only_layers=[0]))


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    generator = torch.Generator().manual_seed(4)
    ids = [torch.randint(3, 1024, (n,), generator=generator).tolist() for n in (5, 30, 17)]
    return write(folder / "tokens", build(["0", "1", "2"], [i[:4] for i in ids], [i[4:] for i in ids]))


def adapter(model: Path, side: str) -> Any:
    from logdiff_kernels.engines.transformers.adapter import create

    engine = "transformers" if side == "train" else "transformers-generate"
    return create(Request(engine, side, str(model), "bfloat16", {"attn_implementation": "sdpa"}, sampling=SAMPLING))


def bits(engine: Any, tokens: Path, folder: Path) -> bytes:
    task = "score" if "score" in engine.tasks and "force" not in engine.tasks else "force"
    path = folder / "bits"
    engine.run({"task": task, "input": str(tokens), "output": str(path)}, silent)
    return bytes(read(path).columns["logprobs"].tobytes())


@pytest.mark.parametrize("side", ["train", "rollout"])
def test_every_switch_has_the_bits_of_an_engine_that_was_started_so(
    model: Path, tokens: Path, side: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {}
    for name, ops in SUBSETS.items():
        overlay = {"format": "logdiff-overlay/1", "contract": "aligned/1", "provider": "aligned-cpu", "id": "test"}
        (tmp_path / "align.json").write_text(json.dumps({**overlay, "ops": ops, "sides": ["rollout", "train"]}))
        monkeypatch.setenv("LOGDIFF_ALIGN", str(tmp_path / "align.json") if ops else "")
        engine = adapter(model, side)
        known[name] = bits(engine, tokens, tmp_path)
        engine.close()
    assert len(set(known.values())) == len(known)
    monkeypatch.setenv("LOGDIFF_ALIGN", "")
    live = adapter(model, side)
    for name in ("all", "none", "some", "all", "none"):
        done = live.run({"task": "realign", "ops": SUBSETS[name]}, silent).data
        assert done["ops"] == [op for op in OPERATORS if op in SUBSETS[name]]
        assert done["bytes"] == 0
        assert bits(live, tokens, tmp_path) == known[name], name
    absent = {"all_reduce", "reduce_scatter"}
    assert live.run({"task": "realign", "ops": "all"}, silent).data["operators"] == [
        op for op in OPERATORS if op not in absent
    ]
    live.close()


def test_a_compiled_model_is_refused_and_stays_stock(model: Path, tokens: Path, tmp_path: Path) -> None:
    engine = adapter(model, "train")
    before = bits(engine, tokens, tmp_path)
    engine.run({"task": "realign", "ops": ["linear"]}, silent)
    layer = engine._model.model.layers[0]
    layer._compiled_call_impl = layer._call_impl
    with pytest.raises(UnsupportedError, match="compiled"):
        engine.run({"task": "realign", "ops": ["rope"]}, silent)
    layer._compiled_call_impl = None
    assert bits(engine, tokens, tmp_path) == before


def test_a_task_brings_its_own_alignment(model: Path, tokens: Path, tmp_path: Path) -> None:
    """Through the runner's process: `align` of a task switches first, and a task without it changes nothing."""
    tasks = [
        {"task": "score", "input": str(tokens), "output": str(tmp_path / "stock")},
        {"task": "score", "input": str(tokens), "output": str(tmp_path / "all"), "align": "all"},
        {"task": "score", "input": str(tokens), "output": str(tmp_path / "again"), "align": "all"},
        {"task": "score", "input": str(tokens), "output": str(tmp_path / "kept")},
        {"task": "score", "input": str(tokens), "output": str(tmp_path / "back"), "align": []},
    ]
    request = {"format": "logdiff-request/1", "engine": "transformers", "side": "train", "model": str(model)}
    body = {**request, "dtype": "bfloat16", "sampling": SAMPLING, "tasks": tasks, "interactive": False}
    (tmp_path / "request.json").write_text(json.dumps(body))
    command = [sys.executable, "-m", "logdiff_kernels.runner", str(tmp_path / "request.json")]
    env = {**os.environ, "LOGDIFF_ALIGN": ""}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as runner:
        assert runner.stdout is not None
        events = [json.loads(line) for line in runner.stdout]
    assert runner.returncode == 0
    results = [event["data"] for event in events if event["event"] == "result"]
    assert [len(r["aligned"]["ops"]) if "aligned" in r else None for r in results] == [None, 14, 14, None, 0]
    found = {name: read(tmp_path / name).columns["logprobs"].tobytes() for name in ("stock", "all", "again", "kept")}
    assert found["all"] == found["again"] == found["kept"] != found["stock"]
    assert read(tmp_path / "back").columns["logprobs"].tobytes() == found["stock"]
