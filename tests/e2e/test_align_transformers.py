"""Aligned Transformers engines through their runners: decoding and scoring agree in every bit, also after a sync."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logdiff_kernels import models, sequences
from logdiff_kernels.align import OPERATORS
from test_transformers_runner import Side

from tests.kernels.vllm.aligned_sides import differing, overlay

SAMPLING = {"max_tokens": 12, "temperature": 0.7, "seed": 7, "ignore_eos": True}


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Callable[..., Side]]:
    started: list[Side] = []

    def start(**request: Any) -> Side:
        side = Side(tmp_path, sampling=SAMPLING, **request)
        started.append(side)
        assert side.wait("ready", "error")["event"] == "ready"
        return side

    yield start
    for side in started:
        side.close()


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def write(ops: list[str], aligned: tuple[str, ...]) -> None:
        monkeypatch.setenv("LOGDIFF_ALIGN", str(overlay(tmp_path / "align.json", ops, aligned)))

    return write


def fingerprint(side: Side, path: Path) -> dict[str, Any]:
    side.run("fingerprint", output=str(path))
    return dict(json.loads(path.read_text(encoding="utf-8")))


def prompts(folder: Path) -> str:
    rng = np.random.default_rng(1)
    ids = [[int(t) for t in rng.integers(3, 1024, n)] for n in (7, 33, 12, 20)]
    return str(sequences.write(folder / "prompts.safetensors", sequences.build(list("abcd"), ids)))


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe", "gpt-oss"])
def test_decoding_and_scoring_agree_in_every_bit_before_and_after_an_update(
    name: str, sides: Callable[..., Side], use: Callable[..., None], tmp_path: Path
) -> None:
    use(list(OPERATORS), ("rollout", "train"))
    folder = str(models.build(name))
    rollout = sides(engine="transformers-generate", side="rollout", model=folder, dtype="bfloat16")
    train = sides(engine="transformers", side="train", model=folder, dtype="bfloat16", score={"micro_batch_size": 3})
    given = prompts(tmp_path)
    for step in range(2):
        made = tmp_path / f"generate-{step}.safetensors"
        rollout.run("generate", input=given, output=str(made))
        scored = tmp_path / f"score-{step}.safetensors"
        for score in ({}, {"layout": "packed"}, {"padding_side": "left", "micro_batch_size": 4}):
            train.run("score", input=str(made), output=str(scored), score=score)
            assert differing(made, scored)[0] == 0, (step, score)
            scored.unlink()
        if step == 0:
            target = tmp_path / "checkpoint"
            train.run("update", input=str(made), output=str(target), lr=1e-3)
            assert "logdiff" not in (target / "config.json").read_text(encoding="utf-8")
            rollout.run("reload", path=str(target))
    blocks = [fingerprint(side, tmp_path / f"{i}.json") for i, side in enumerate((rollout, train))]
    assert blocks[0]["aligned"] == blocks[1]["aligned"]
    assert blocks[0]["aligned"]["ops"] == list(OPERATORS)
    assert {entry["why"] for entry in blocks[0]["patched"]} == {"aligned operators"}


@pytest.mark.slow(seconds=40)
def test_a_side_that_the_overlay_leaves_out_stays_native(
    sides: Callable[..., Side], use: Callable[..., None], tmp_path: Path
) -> None:
    use(["linear", "attention"], ("train",))
    folder = str(models.build("qwen3"))
    rollout = sides(engine="transformers-generate", side="rollout", model=folder, dtype="bfloat16")
    train = sides(engine="transformers", side="train", model=folder, dtype="bfloat16")
    native, aligned = fingerprint(rollout, tmp_path / "r.json"), fingerprint(train, tmp_path / "t.json")
    assert native["aligned"] is None
    assert native["patched"] is None
    assert native["config"]["attn_implementation"] == "sdpa"
    assert aligned["aligned"]["ops"] == ["linear", "attention"]
    made, scored = tmp_path / "generate.safetensors", tmp_path / "score.safetensors"
    rollout.run("generate", input=prompts(tmp_path), output=str(made))
    train.run("score", input=str(made), output=str(scored))
    assert differing(made, scored)[0] > 0


@pytest.mark.slow(seconds=10)
def test_a_model_that_is_not_covered_ends_the_runner_with_its_module(use: Callable[..., None], tmp_path: Path) -> None:
    import torch
    import transformers

    use(list(OPERATORS), ("train",))
    config = transformers.CohereConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    auto: Any = transformers.AutoModelForCausalLM
    auto.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "model")
    side = Side(tmp_path, engine="transformers", side="train", model=str(tmp_path / "model"), dtype="float32")
    try:
        event = side.wait("ready", "error")
        assert event["event"] == "error"
        assert event["error"]["type"] == "UnsupportedError"
        assert event["error"]["value"] == "model.layers.0.input_layernorm"
    finally:
        side.close()
