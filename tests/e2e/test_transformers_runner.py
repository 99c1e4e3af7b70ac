"""The Transformers engines through their runner: the tasks of a whole comparison, as the server asks for them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logdiff_kernels import models, sequences

SAMPLING = {"max_tokens": 10, "temperature": 1.0, "seed": 7, "ignore_eos": True}


class Side:
    """One interactive runner."""

    def __init__(self, folder: Path, **request: Any) -> None:
        body = {"format": "logdiff-request/1", "sampling": SAMPLING, "interactive": True, **request}
        path = folder / f"request-{request['side']}-{os.urandom(3).hex()}.json"
        path.write_text(json.dumps(body), encoding="utf-8")
        self.child = subprocess.Popen(
            [sys.executable, "-m", "logdiff_kernels.runner", str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / f"{path.stem}.log").open("wb"),
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def wait(self, *names: str) -> dict[str, Any]:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            event = dict(json.loads(line))
            if event["event"] in names:
                return event
        raise AssertionError(f"the runner ended ({self.child.wait(timeout=20)}) before {names}")

    def run(self, name: str, **fields: Any) -> dict[str, Any]:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps({"id": name, "task": name, **fields}) + "\n")
        self.child.stdin.flush()
        event = self.wait("result", "error")
        assert event["event"] == "result", event
        return event

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(timeout=20)
        for stream in (self.child.stdin, self.child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[Callable[..., Side]]:
    started: list[Side] = []

    def start(**request: Any) -> Side:
        started.append(Side(tmp_path, **request))
        return started[-1]

    yield start
    for side in started:
        side.close()


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(1)
    ids = [rng.integers(4, 1024, n).tolist() for n in (7, 33, 60)]
    folder = tmp_path_factory.mktemp("prompts")
    return str(
        sequences.write(folder / "p.safetensors", sequences.build(["a", "b", "c"], ids, metadata={"step": 3, "x": 1}))
    )


def logprobs(path: str) -> Any:
    return sequences.read(path).columns["logprobs"].view(np.int32)


def test_transformers_against_itself_in_equal_shapes_is_exactly_equal(
    sides: Callable[..., Side], prompts: str, tmp_path: Path
) -> None:
    common = {"engine": "transformers", "model": str(models.build("moe")), "dtype": "bfloat16"}
    score = {"layout": "padded", "padding_side": "left", "micro_batch_size": 2}
    rollout, train = sides(side="rollout", score=score, **common), sides(side="train", score=score, **common)
    made, again = str(tmp_path / "rollout"), str(tmp_path / "train")
    rollout.run("generate", input=prompts, sampling=SAMPLING, output=made)
    train.run("score", input=made, sampling=SAMPLING, score=score, output=again)
    one, two = sequences.read(made), sequences.read(again)
    assert one.tokens == 30
    assert one.responses == two.responses
    facts = {"task": "score", "step": 3, "logprobs_mode": "processed_logprobs"}  # its own, not those of its input
    assert {**two.metadata, "sampling": None} == {**facts, "sampling": None}
    assert np.array_equal(logprobs(made), logprobs(again))
    assert np.array_equal(one.columns["experts"], two.columns["experts"])
    sums = []
    for side in (rollout, train):
        path = side.run("weights", output=str(tmp_path / f"w{len(sums)}.json"))["files"]["weights"]
        sums.append(json.loads(Path(path).read_text(encoding="utf-8")))
    assert sums[0] == sums[1]
    assert len(sums[0]["tensors"]) == 4 * (9 + 3 * 16) + 3


def test_a_step_of_training_reaches_the_rollout_side(sides: Callable[..., Side], prompts: str, tmp_path: Path) -> None:
    model = str(models.build("dense"))
    rollout = sides(engine="transformers-generate", side="rollout", model=model, dtype="bfloat16")
    train = sides(engine="transformers", side="train", model=model, dtype="bfloat16")
    made, step = str(tmp_path / "made"), str(tmp_path / "step1")
    rollout.run("generate", input=prompts, sampling=SAMPLING, output=made)
    rollout.run("force", input=made, sampling=SAMPLING, output=str(tmp_path / "forced"), batch=None, order="given")
    assert np.array_equal(logprobs(made), logprobs(str(tmp_path / "forced")))
    rollout.run("rescore", input=made, sampling=SAMPLING, output=str(tmp_path / "rescored"))
    assert (
        0 < np.abs(logprobs(made).view(np.float32) - logprobs(str(tmp_path / "rescored")).view(np.float32)).max() < 0.5
    )
    data = train.run("update", input=made, lr=1e-3, seed=5, output=step)["data"]
    assert data["changed"] > 0

    def sums(side: Side, name: str) -> Any:
        path = side.run("weights", output=str(tmp_path / name))["files"]["weights"]
        return json.loads(Path(path).read_text(encoding="utf-8"))["tensors"]

    before, trained = sums(rollout, "w0"), sums(train, "w1")
    assert before != trained
    rollout.run("reload", path=step)
    assert sums(rollout, "w2") == trained
    rollout.run("force", input=made, sampling=SAMPLING, output=str(tmp_path / "moved"))
    assert not np.array_equal(logprobs(made), logprobs(str(tmp_path / "moved")))


def test_modules_change_the_model_and_stand_in_the_fingerprint_and_text_comes_back(
    sides: Callable[..., Side], prompts: str, tmp_path: Path
) -> None:
    patch = tmp_path / "capped.py"
    patch.write_text(
        "from transformers.models.qwen3 import modeling_qwen3 as m\n"
        "plain = m.Qwen3ForCausalLM.forward\n"
        "def forward(self, *args, **kwargs):\n"
        "    out = plain(self, *args, **kwargs)\n"
        "    out.logits = 0 * out.logits\n"
        "    return out\n"
        "m.Qwen3ForCausalLM.forward = forward\n",
        encoding="utf-8",
    )
    side = sides(
        engine="transformers",
        side="train",
        model=str(models.build("dense")),
        dtype="bfloat16",
        modules=[str(patch)],
        args={"attn_implementation": "eager"},
    )
    given = sequences.read(prompts)
    given.response_ids, given.response_offsets = np.array([7, 8, 9]), np.array([0, 1, 2, 3])
    made = str(sequences.write(tmp_path / "given", given))
    side.run("score", input=made, sampling=SAMPLING, output=str(tmp_path / "scored"))
    found = sequences.read(tmp_path / "scored").columns["logprobs"]
    assert np.allclose(found, -np.log(1024), atol=1e-5)
    path = side.run("fingerprint", output=str(tmp_path / "f.json"))["files"]["fingerprint"]
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    assert [m["path"] for m in document["modules"]] == [str(patch)]
    assert document["config"]["attn_implementation"] == "eager"
    assert document["effective"]["temperature"] == 1.0
    assert document["vocab_size"] == document["tokenizer_size"] == 1024
    assert document["eos_token_ids"] == [2]
    side.run("tokenize", texts=["the cat", "sat"], chat=False, output=str(tmp_path / "t"))
    side.run("decode_text", ids=sequences.read(tmp_path / "t").prompts, output=str(tmp_path / "text.json"))
    strings = json.loads((tmp_path / "text.json").read_text(encoding="utf-8"))
    assert ["".join(row) for row in strings] == ["the cat", "sat"]


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"args": {"no_such_argument": 1}}, "EngineError", "no_such_argument"),
        ({"model": "/nowhere"}, "InputError", "/nowhere"),
    ],
)
def test_what_cannot_start_says_why_and_leaves_no_process(
    sides: Callable[..., Side], change: dict[str, Any], kind: str, words: str
) -> None:
    base = {"engine": "transformers", "side": "train", "model": str(models.build("dense")), "dtype": "bfloat16"}
    side = sides(**{**base, **change})
    event = side.wait("error")
    assert event["fatal"] is True
    assert event["error"]["type"] == kind
    assert words in event["error"]["message"]
    assert side.child.wait(timeout=20) == 2
