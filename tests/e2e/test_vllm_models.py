"""Every small model on vLLM through the runner: bf16 and fp32, one and two ranks, one process and several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels import models  # noqa: E402
from logdiff_kernels.sequences import Sequences, build, read, write  # noqa: E402
from logdiff_kernels.weights import tensor_sum  # noqa: E402

MODELS = ["llama", "qwen2", "qwen3", "qwen3-moe", "mistral", "gemma2", "gemma3", "gpt-oss"]
MODELS += ["deepseek-v2", "deepseek-v3"]
SAMPLING = {"max_tokens": 10, "temperature": 1.0, "seed": 3, "topk": 2, "ignore_eos": True}
ARGS = {
    "enforce_eager": True,
    "max_model_len": 256,
    "block_size": 32,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "max_num_batched_tokens": 48,
    "max_num_seqs": 8,
}


LATENT = {**ARGS, "compilation_config": {"custom_ops": ["all", "-rotary_embedding"]}}
"""For DeepSeek: vLLM's CPU kernel for rotations, which eager engines take, takes a query's heads for tokens."""


def start_runner(folder: Path, request: dict[str, Any], env: dict[str, str]) -> tuple[int, list[dict[str, Any]], str]:
    """(exit status, events, end of the log) of a runner whose standard input stays open until it ends."""
    path = folder / "request.json"
    path.write_text(json.dumps({"format": "logdiff-request/1", "engine": "vllm", "side": "rollout", **request}))
    output, log = folder / "events.jsonl", folder / "log.txt"
    command = [sys.executable, "-m", "logdiff_kernels.runner", str(path)]
    with output.open("wb") as events, log.open("wb") as errors:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=events, stderr=errors, env={**os.environ, **env}
        )
        try:
            status = child.wait(timeout=600)
        finally:
            child.kill()
            child.communicate()
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    return status, lines, log.read_text(errors="replace")[-4000:]


def run(folder: Path, request: dict[str, Any], env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Run a request to its end; every event, and no process left behind."""
    marker = f"LOGDIFF_TEST_{os.getpid()}_{abs(hash(folder))}"
    status, events, log = start_runner(folder, request, {"OMP_NUM_THREADS": "2", marker: "1", **(env or {})})
    assert status == 0, f"{events[-1]}\n{log}"
    deadline = time.monotonic() + 20  # a killed process is listed until its memory is given back
    while left_behind(marker) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left_behind(marker) == []
    return events


def left_behind(marker: str) -> list[str]:
    """Living processes whose environment holds the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text())
        except OSError:
            continue
    return found


def prompts(folder: Path) -> Path:
    """Five prompts of which three share their first 64 tokens, so that the prefix cache has something to find."""
    rng = np.random.default_rng(8)
    shared = rng.integers(3, 1024, 64).tolist()
    ids = [rng.integers(3, 1024, n).tolist() for n in (4, 100)]
    ids += [[*shared, *rng.integers(3, 1024, n).tolist()] for n in (9, 1, 30)]
    return write(folder / "prompts", build([str(i) for i in range(5)], ids))


def expected_logprobs(model: Any, found: Sequences) -> np.ndarray[Any, Any]:
    values = []
    for prompt, response in zip(found.prompts, found.responses, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]])).logits[0].double()[len(prompt) - 1 : -1]
        logp = logits - logits.logsumexp(-1, keepdim=True)
        values += [float(logp[place, token]) for place, token in enumerate(response)]
    return np.array(values)


def expected_sums(folder: Path) -> dict[str, str]:
    """Checksums of the checkpoint itself; a stack of experts (GPT-OSS) one expert at a time."""
    from safetensors.torch import load_file

    sums = {}
    for path in folder.glob("*.safetensors"):
        for name, values in load_file(path).items():
            head, _, leaf = name.rpartition(".")
            if head.endswith(".experts"):
                for expert, part in enumerate(values):
                    sums[f"{head}.{expert}.{leaf}"] = tensor_sum(part).as_dict()["sum"]
            else:
                sums[name] = tensor_sum(values).as_dict()["sum"]
    return sums


def tasks(folder: Path) -> list[dict[str, Any]]:
    def task(name: str, **fields: Any) -> dict[str, Any]:
        return {"id": name, "task": name, "sampling": SAMPLING, "output": str(folder / name), **fields}

    return [
        task("generate", input=str(prompts(folder))),
        task("force", input=str(folder / "generate")),
        task("rescore", input=str(folder / "generate"), batch=2),
        task("weights"),
        task("fingerprint"),
    ]


def check(folder: Path, model: Path, dtype: str) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    found, forced, rescored = (read(folder / name) for name in ("generate", "force", "rescore"))
    assert [len(ids) for ids in found.responses] == [10] * 5
    expected = expected_logprobs(reference, found)
    assert expected.std() > 0.1
    # What bfloat16 alone costs on these tokens; where it flips a router's choice, that is much for any engine.
    own = np.abs(expected_logprobs(reference.to(torch.bfloat16), found) - expected).mean()
    config = json.loads((model / "config.json").read_text())
    latent = "kv_lora_rank" in config
    for side in (found, rescored, forced):
        values = side.columns["logprobs"]
        assert "logprobs_null" not in side.columns
        assert values.shape == (50,)
        difference = np.abs(values - expected)
        if dtype == "float32":
            assert difference.max() < 2e-3
        else:
            assert difference.mean() < 3 * own
    if not latent:  # whose products of a batch depend on its size, and with it on when requests arrive
        assert forced.columns["logprobs"].tobytes() == found.columns["logprobs"].tobytes()
    weights = json.loads((folder / "weights").read_text())
    assert weights["not_covered"] == []
    sums = expected_sums(model)
    assert {name: entry["sum"] for name, entry in weights["tensors"].items()} == sums
    if config.get("tie_word_embeddings"):
        assert weights["tied"] == {"lm_head.weight": "model.embed_tokens.weight"}
    fingerprint: dict[str, Any] = json.loads((folder / "fingerprint").read_text())
    return fingerprint


@pytest.mark.slow(alone=True, seconds=60)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_decodes_scores_and_holds_what_it_should(name: str, dtype: str, ranks: int, tmp_path: Path) -> None:
    model = models.build(name)
    latent = name.startswith("deepseek")
    args = {**(LATENT if latent else ARGS), "tensor_parallel_size": ranks}
    events = run(tmp_path, {"model": str(model), "dtype": dtype, "args": args, "tasks": tasks(tmp_path)})
    assert [event["event"] for event in events if event["event"] in ("ready", "error", "done")] == ["ready", "done"]
    fingerprint = check(tmp_path, Path(model), dtype)
    assert fingerprint["config"]["parallel_config"]["tensor_parallel_size"] == ranks
    assert fingerprint["config"]["cache_config"]["enable_prefix_caching"] is not latent  # which vLLM turns off for it
    assert fingerprint["effective"]["dtype"] == dtype
    assert len(fingerprint["config"]["workers"]) == ranks


@pytest.mark.slow(alone=True, seconds=120)
def test_separate_engine_processes_load_the_modules_and_give_the_same_answers(tmp_path: Path) -> None:
    """vLLM's own default: engine core and worker in processes of their own; compiled, not eager."""
    module = tmp_path / "patch.py"
    module.write_text(f"import os, pathlib\npathlib.Path({str(tmp_path)!r}, f'ran-{{os.getpid()}}').touch()\n")
    model = models.build("qwen3", num_hidden_layers=2)
    args = {key: value for key, value in ARGS.items() if key != "enforce_eager"}
    request = {"model": str(model), "dtype": "float32", "args": args, "modules": [str(module)]}
    run(tmp_path, {**request, "tasks": tasks(tmp_path)}, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    fingerprint = check(tmp_path, Path(model), "float32")
    assert fingerprint["modules"][0]["path"] == str(module)
    assert (tmp_path / f"ran-{fingerprint['config']['workers'][0]['pid']}").exists()
    assert len(list(tmp_path.glob("ran-*"))) == 3


@pytest.mark.slow(alone=True, seconds=120)
@pytest.mark.parametrize(("name", "ranks", "eager"), [("qwen3-moe", 2, True), ("gemma2", 1, True), ("qwen3", 1, False)])
def test_a_reload_equals_a_fresh_start(name: str, ranks: int, eager: bool, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    old, new = models.build(name), tmp_path / "new"
    new.mkdir()
    for path in Path(old).iterdir():
        if path.suffix != ".safetensors":
            (new / path.name).write_bytes(path.read_bytes())
    generator = torch.Generator().manual_seed(1)
    for path in Path(old).glob("*.safetensors"):
        changed = {
            key: (value.float() * (1 + 0.1 * torch.randn(value.shape, generator=generator))).to(value.dtype)
            for key, value in load_file(path).items()
        }
        save_file(changed, new / path.name, metadata={"format": "pt"})
    args = {**ARGS, "tensor_parallel_size": ranks, "enforce_eager": eager}
    steps = tasks(tmp_path)
    reload = {"id": "reload", "task": "reload", "path": str(new)}
    request = {"model": str(old), "dtype": "float32", "args": args, "tasks": [reload, *steps]}
    run(tmp_path, request)
    check(tmp_path, new, "float32")


@pytest.mark.slow(alone=True, seconds=30)
def test_an_unknown_argument_is_vllms_own_refusal(tmp_path: Path) -> None:
    model = models.build("qwen3")
    request = {"model": str(model), "args": {"no_such_thing": 1}, "tasks": []}
    status, events, _ = start_runner(tmp_path, request, {})
    error = events[-1]["error"]
    assert status == 2
    assert error["type"] == "EngineError"
    assert "no_such_thing" in error["message"]
    assert error["value"] == {"no_such_thing": 1}


@pytest.mark.slow(alone=True, seconds=60)
def test_experts_that_vllms_reload_never_reaches_are_an_error_not_stale_weights(tmp_path: Path) -> None:
    model = models.build("gpt-oss")
    reload = {"id": "reload", "task": "reload", "path": str(model)}
    request = {"model": str(model), "dtype": "bfloat16", "args": ARGS, "tasks": [reload]}
    status, events, _ = start_runner(tmp_path, request, {"OMP_NUM_THREADS": "2"})
    assert status == 2
    assert events[-1]["fatal"] is True
    assert events[-1]["error"]["type"] == "EngineError"
    assert "experts" in events[-1]["error"]["message"]
    assert "start the engine again" in events[-1]["error"]["hint"]
