"""A live vLLM engine, in process: what it decodes, scores, holds and reloads, against computations of our own."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.errors import EngineError, InputError, UnsupportedError  # noqa: E402
from logdiff_kernels.protocol import Request  # noqa: E402
from logdiff_kernels.sequences import Sequences, build, read, write  # noqa: E402
from logdiff_kernels.weights import tensor_sum  # noqa: E402

SAMPLING = {"max_tokens": 12, "temperature": 0.7, "seed": 11, "topk": 3, "ignore_eos": True}
LENGTHS = (5, 41, 90, 13)


def silent(done: int, total: int | None = None, unit: str = "", message: str = "") -> None:
    return None


class Live:
    """The engine with a folder for its files."""

    def __init__(self, engine: Any, folder: Path, model: Path) -> None:
        self.engine, self.folder, self.model = engine, folder, model
        self._count = 0

    def do(self, task: str, **fields: Any) -> tuple[Any, dict[str, Any]]:
        self._count += 1
        output = self.folder / f"{self._count}-{task}"
        result = self.engine.run({"task": task, "output": str(output), **fields}, silent)
        return output, result.data

    def sequences(self, task: str, source: Path, **fields: Any) -> Sequences:
        return read(self.do(task, input=str(source), **{"sampling": SAMPLING, **fields})[0])

    def weights(self) -> dict[str, Any]:
        return json.loads(self.do("weights")[0].read_text())

    @property
    def worker(self) -> Any:
        return self.engine.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """fp32, so that an independent computation agrees to rounding; processed log-probabilities, chunked prefill."""
    from logdiff_kernels.engines.vllm.adapter import create
    from logdiff_kernels.models import build as build_model

    folder = tmp_path_factory.mktemp("vllm")
    model = build_model("qwen3-moe", out=folder / "model", dtype="float32", num_hidden_layers=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        patch.setenv("LOGDIFF_HOOKS", "")
        args = {
            "enforce_eager": True,
            "max_model_len": 128,
            "max_num_batched_tokens": 64,
            "logprobs_mode": "processed_logprobs",
        }
        engine = create(Request("vllm", "rollout", str(model), "float32", args))
        try:
            yield Live(engine, folder, Path(model))
        finally:
            engine.close()


@pytest.fixture(scope="module")
def prompts(live: Live) -> Path:
    rng = np.random.default_rng(5)
    ids = [rng.integers(3, 1024, length).tolist() for length in LENGTHS]
    return write(live.folder / "prompts", build(["a", "b", "c", "d"], ids, metadata={"step": 4}))


@pytest.fixture(scope="module")
def decoded(live: Live, prompts: Path) -> Path:
    return live.do("generate", input=str(prompts), sampling=SAMPLING)[0]


@pytest.fixture(scope="module")
def reference(live: Live) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(live.model, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def reference_logits(model: Any, prompt: list[int], response: list[int]) -> Any:
    """fp64 [response tokens, vocabulary] of a plain Transformers forward over the whole sequence."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *response]])).logits[0].double()
    return logits[len(prompt) - 1 : -1]


def expected_logprobs(model: Any, sequences: Sequences, temperature: float) -> np.ndarray[Any, Any]:
    found = []
    for prompt, response in zip(sequences.prompts, sequences.responses, strict=True):
        logits = reference_logits(model, prompt, response) / temperature
        logp = logits - logits.logsumexp(-1, keepdim=True)
        found += [float(logp[place, token]) for place, token in enumerate(response)]
    return np.array(found)


def test_generation_reports_what_an_independent_forward_gives(live: Live, decoded: Path, reference: Any) -> None:
    found = read(decoded)
    assert [len(ids) for ids in found.responses] == [12] * 4
    assert found.sample_ids == ["a", "b", "c", "d"]
    assert [len(ids) for ids in found.prompts] == list(LENGTHS)
    assert found.metadata["step"] == 4
    assert "logprobs_null" not in found.columns
    expected = expected_logprobs(reference, found, 0.7)
    assert np.abs(found.columns["logprobs"] - expected).max() < 1e-4
    assert np.abs(expected - expected_logprobs(reference, found, 1.0)).max() > 0.1  # T is really in them


def test_top_log_probabilities_are_the_largest_of_the_independent_forward(
    live: Live, decoded: Path, reference: Any
) -> None:
    found = read(decoded)
    logits = reference_logits(reference, found.prompts[0], found.responses[0]) / 0.7
    best = (logits - logits.logsumexp(-1, keepdim=True)).topk(3)
    assert found.columns["topk_ids"][:12].tolist() == best.indices.tolist()
    assert np.abs(found.columns["topk_logprobs"][:12] - best.values.numpy()).max() < 1e-4


def test_sampled_tokens_do_not_depend_on_the_batch(live: Live, prompts: Path, decoded: Path) -> None:
    alone = live.sequences("generate", prompts, batch=1, order="reversed")
    assert alone.responses == read(decoded).responses


def test_forced_decoding_repeats_the_sampled_run_bit_for_bit(live: Live, decoded: Path) -> None:
    sampled, forced = read(decoded), live.sequences("force", decoded)
    for column in ("logprobs", "topk_ids", "topk_logprobs", "experts"):
        assert forced.columns[column].tobytes() == sampled.columns[column].tobytes(), column
    assert forced.responses == sampled.responses


def test_forced_decoding_follows_tokens_that_the_engine_would_not_choose(
    live: Live, decoded: Path, reference: Any
) -> None:
    sampled = read(decoded)
    strange = [[2, 1023, 2, 7, 500], [1], [], [9, 9, 9]]  # 2 is the end-of-sequence token
    path = write(live.folder / "strange", build(sampled.sample_ids, sampled.prompts, strange))
    forced = live.sequences("force", path, batch=2, order="shuffled:3")
    assert forced.responses == strange
    assert np.abs(forced.columns["logprobs"] - expected_logprobs(reference, forced, 0.7)).max() < 1e-4


def test_rescoring_applies_the_temperature_that_vllm_leaves_out(live: Live, decoded: Path, reference: Any) -> None:
    path, data = live.do("rescore", input=str(decoded), sampling=SAMPLING)
    found = read(path)
    assert data["temperature_applied"] == 0.7
    assert data["logprobs_mode"] == "processed_logprobs"
    assert np.abs(found.columns["logprobs"] - expected_logprobs(reference, found, 0.7)).max() < 1e-4
    plain = live.sequences("rescore", decoded, sampling={**SAMPLING, "temperature": 1.0})
    assert np.abs(plain.columns["logprobs"] - expected_logprobs(reference, plain, 1.0)).max() < 1e-4


def test_a_temperature_that_vllm_raises_is_the_one_scored(live: Live, decoded: Path, reference: Any) -> None:
    """vLLM decodes at 0.01 whatever is asked between 0 and that; the rescore must mean the same."""
    for task in ("force", "rescore"):
        path, data = live.do(task, input=str(decoded), sampling={**SAMPLING, "temperature": 1e-6, "topk": 0})
        assert data["temperature_applied"] == 0.01
        found = read(path)
        expected = expected_logprobs(reference, found, 0.01)
        assert expected.min() < -20
        assert np.allclose(found.columns["logprobs"], expected, rtol=1e-4, atol=1e-2), task


def test_rescoring_filters_as_decoding_does(live: Live, decoded: Path, reference: Any) -> None:
    """With top-k, processed log-probabilities are over the k best tokens; others are minus infinity."""
    sampling = {**SAMPLING, "top_k": 5, "topk": 0}
    found = live.sequences("rescore", decoded, sampling=sampling).columns["logprobs"]
    forced = live.sequences("force", decoded, sampling=sampling).columns["logprobs"]
    expected = []
    source = read(decoded)
    for prompt, response in zip(source.prompts, source.responses, strict=True):
        logits = reference_logits(reference, prompt, response) / 0.7
        kept = logits.masked_fill(logits < logits.topk(5).values[:, -1:], -math.inf)
        logp = kept - kept.logsumexp(-1, keepdim=True)
        expected += [float(logp[place, token]) for place, token in enumerate(response)]
    inside = np.isfinite(expected)
    assert 0 < inside.sum() < len(expected)
    for values in (found, forced):
        assert np.array_equal(np.isneginf(values), ~inside)
        assert np.abs(values[inside] - np.array(expected)[inside]).max() < 1e-4


def test_rescoring_leaves_the_engine_as_it_was(live: Live, prompts: Path, decoded: Path) -> None:
    live.do("rescore", input=str(decoded), sampling=SAMPLING)
    runner = live.worker.model_runner
    assert "compute_logprobs" not in vars(runner.sampler)
    assert "sample" not in vars(runner.sampler)
    assert "execute_model" not in vars(runner)
    assert "_bookkeeping_sync" not in vars(runner)
    again = live.sequences("generate", prompts)
    assert again.columns["logprobs"].tobytes() == read(decoded).columns["logprobs"].tobytes()


def test_greedy_decoding_is_scored_at_temperature_one(live: Live, prompts: Path, reference: Any) -> None:
    sampling = {**SAMPLING, "temperature": 0}
    path, data = live.do("generate", input=str(prompts), sampling=sampling)
    found = read(path)
    assert data["temperature_applied"] == 1.0
    assert np.abs(found.columns["logprobs"] - expected_logprobs(reference, found, 1.0)).max() < 1e-4
    best = reference_logits(reference, found.prompts[1], found.responses[1]).argmax(-1)
    assert best.tolist() == found.responses[1]


def test_experts_are_those_of_the_position_before_the_token(live: Live, decoded: Path, reference: Any) -> None:
    found = read(decoded)
    chosen: list[Any] = []
    gates = [layer.mlp.gate for layer in reference.model.layers]

    def keep(module: Any, inputs: Any, output: Any) -> None:
        weight = module.weight
        chosen.append((inputs[0].reshape(-1, weight.shape[1]) @ weight.T).topk(4).indices)

    handles = [gate.register_forward_hook(keep) for gate in gates]
    prompt, response = found.prompts[2], found.responses[2]
    reference_logits(reference, prompt, response)
    for handle in handles:
        handle.remove()
    expected = torch.stack(chosen, dim=1)[len(prompt) - 1 : -1]
    first = sum(len(ids) for ids in found.responses[:2])
    got = found.columns["experts"][first : first + len(response)]
    assert got.tolist() == expected.tolist()


def test_a_response_that_fills_the_context_loses_its_last_score_only(live: Live) -> None:
    rng = np.random.default_rng(1)
    prompt, response = rng.integers(3, 1024, 120).tolist(), rng.integers(3, 1024, 8).tolist()
    path = write(live.folder / "long", build(["x"], [prompt], [response]))
    output, data = live.do("rescore", input=str(path), sampling=SAMPLING)
    assert read(output).columns["logprobs_null"].tolist() == [0] * 7 + [1]
    assert data["beyond_max_model_len"] == 1


def checkpoint(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    for path in folder.glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


def test_weights_are_the_checkpoints_although_vllm_packs_them_away(live: Live) -> None:
    found, expected = live.weights(), checkpoint(live.model)
    layer = live.worker.model_runner.model.model.layers[0]
    assert found["not_covered"] == []
    assert set(found["tensors"]) == set(expected)
    for name, values in expected.items():
        assert found["tensors"][name]["sum"] == tensor_sum(values).as_dict()["sum"], name
        assert found["tensors"][name]["shape"] == list(values.shape)
    if layer.self_attn.o_proj.weight.numel() == 0:
        assert found["tensors"]["model.layers.0.self_attn.q_proj.weight"]["how"] == "unpacked"


def test_one_changed_element_in_packed_memory_is_seen(live: Live) -> None:
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    before = live.weights()["tensors"]
    layer = live.worker.model_runner.model.model.layers[1]
    experts = layer.mlp.experts.routed_experts
    place = experts.w2_weight.data[3].view(-1)[77:78]
    original = place.clone()
    place += 0.5
    linear = layer.self_attn.o_proj
    values = checkpoint(live.model)["model.layers.1.self_attn.o_proj.weight"]
    kept, emptied = linear.cpu_linear, linear.weight
    changed = values.clone()
    changed[100, 3] += 0.5
    linear.weight = torch.nn.Parameter(changed, requires_grad=False)
    dispatch_cpu_unquantized_gemm(linear, remove_weight=True)
    after = live.weights()["tensors"]
    place.copy_(original)
    linear.cpu_linear, linear.weight = kept, emptied
    differing = {name for name in before if before[name]["sum"] != after[name]["sum"]}
    assert differing == {"model.layers.1.mlp.experts.3.down_proj.weight", "model.layers.1.self_attn.o_proj.weight"}
    assert after["model.layers.1.self_attn.o_proj.weight"]["sum"] == tensor_sum(changed).as_dict()["sum"]
    assert live.weights()["tensors"] == before


def test_a_reload_puts_the_new_checkpoint_into_the_memory_that_kernels_read(
    live: Live, prompts: Path, decoded: Path
) -> None:
    from safetensors.torch import save_file

    other = live.folder / "other"
    shutil.copytree(live.model, other)
    generator = torch.Generator().manual_seed(3)
    tensors = checkpoint(live.model)
    changed = {name: v + 0.02 * torch.randn(v.shape, generator=generator) for name, v in tensors.items()}
    save_file(changed, other / "model.safetensors", metadata={"format": "pt"})
    before = read(decoded)
    live.engine.run({"task": "reload", "path": str(other)}, silent)
    found = live.weights()
    assert found["not_covered"] == []
    for name, values in changed.items():
        assert found["tensors"][name]["sum"] == tensor_sum(values).as_dict()["sum"], name
    forced = live.sequences("force", decoded)
    from transformers import AutoModelForCausalLM

    fresh = AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32, attn_implementation="eager").eval()
    assert np.abs(forced.columns["logprobs"] - expected_logprobs(fresh, forced, 0.7)).max() < 1e-4
    assert np.abs(forced.columns["logprobs"] - before.columns["logprobs"]).max() > 0.01
    live.engine.run({"task": "reload", "path": str(live.model)}, silent)
    back = live.sequences("force", decoded)
    assert back.columns["logprobs"].tobytes() == before.columns["logprobs"].tobytes()


def test_the_fingerprint_tells_what_the_engine_resolved(live: Live, prompts: Path) -> None:
    live.do("generate", input=str(prompts), sampling={**SAMPLING, "top_p": 0.9})
    found = json.loads(live.do("fingerprint")[0].read_text())
    assert found["format"] == "logdiff-fingerprint/1"
    assert found["engine"]["name"] == "vllm"
    assert found["effective"]["temperature"] == 0.7
    assert found["effective"]["top_p"] == 0.9
    assert found["effective"]["logprobs_mode"] == "processed_logprobs"
    assert found["effective"]["max_model_len"] == 128
    assert found["config"]["scheduler_config"]["enable_chunked_prefill"] is True
    assert found["config"]["scheduler_config"]["max_num_batched_tokens"] == 64
    assert found["config"]["cache_config"]["enable_prefix_caching"] is True
    assert found["config"]["parallel_config"]["tensor_parallel_size"] == 1
    assert found["config"]["workers"][0]["attention_backends"]
    assert found["config"]["arguments"]["max_num_batched_tokens"] == 64
    assert found["config"]["defaults_applied"].get("VLLM_CPU_KVCACHE_SPACE") in ("1", None)
    assert found["model"]["model_type"] == "qwen3_moe"
    assert found["model"]["hidden_size"] == 256
    assert found["vocab_size"] == 1024
    assert found["eos_token_ids"] == [2]
    (rank,) = found["dispatch"]["ranks"]
    assert set(rank) == {"functions", "entries", "foreign"}
    assert rank["entries"] > 500
    assert rank["foreign"] == []
    assert "dispatch" not in found["config"]["workers"][0]
    assert [entry["target"] for entry in found["patched"]][-1:] == ["CPUModelRunner._bookkeeping_sync"]
    assert os.environ.get("VLLM_CPU_KVCACHE_SPACE")


def test_what_the_engine_refuses_comes_in_its_words_and_leaves_it_usable(live: Live, prompts: Path) -> None:
    path = write(live.folder / "far", build(["x"], [[1023 + 500]]))
    with pytest.raises(EngineError, match="1523"):
        live.do("generate", input=str(path), sampling=SAMPLING)
    path = write(live.folder / "overlong", build(["x", "y"], [[5], list(range(3, 203))]))
    with pytest.raises(InputError, match="sample y has 200 tokens, and max_model_len is 128"):
        live.do("generate", input=str(path), sampling=SAMPLING)
    with pytest.raises(InputError, match="order"):
        live.do("force", input=str(prompts), sampling=SAMPLING, order="sideways")
    with pytest.raises(UnsupportedError):
        live.do("generate", input=str(prompts), sampling={**SAMPLING, "n": 2})
    assert live.sequences("generate", prompts).tokens == 48


def test_text_goes_through_the_models_tokenizer(live: Live) -> None:
    path, data = live.do("tokenize", texts=["ab", "c"], chat=False)
    ids = read(path).prompts
    assert data["samples"] == 2
    texts = json.loads(live.do("decode_text", ids=ids)[0].read_text())
    assert [len(row) for row in texts] == [len(row) for row in ids]
