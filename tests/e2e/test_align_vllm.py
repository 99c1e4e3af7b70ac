"""vLLM aligned: its log-probabilities have the bits that aligned Transformers gives, however the engine is run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.errors import UnsupportedError  # noqa: E402
from logdiff_kernels.protocol import Request  # noqa: E402
from logdiff_kernels.sequences import read  # noqa: E402
from logdiff_kernels.weights import tensor_sum  # noqa: E402

from tests.kernels.vllm.aligned_sides import ARGS, SAMPLING, differing, overlay, prompts  # noqa: E402

LENGTHS = (5, 41, 90, 13)
TOKENS = 12


def silent(*_: Any, **__: Any) -> None:
    return None


class Engine:
    """An engine in this process, with a folder for its files."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine, self.folder, self._count = engine, folder, 0
        self.name = type(engine).__name__

    def do(self, task: str, source: Path | None = None, **fields: Any) -> Path:
        self._count += 1
        output = self.folder / f"{self.name}-{self._count}-{task}"
        if source is not None:
            fields["input"] = str(source)
        self.engine.run({"task": task, "output": str(output), **fields}, silent)
        return output

    def document(self, task: str) -> dict[str, Any]:
        return dict(json.loads(self.do(task).read_text()))

    @property
    def model(self) -> Any:
        core = self.engine.llm.llm_engine.engine_core.engine_core
        return core.model_executor.driver_worker.worker.model_runner.get_model()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    """Environment of in-process engines; afterwards vLLM is native again."""
    from logdiff_kernels.engines.vllm import align

    with pytest.MonkeyPatch.context() as found:
        found.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        found.setenv("LOGDIFF_HOOKS", "")
        yield found
    align.restore()


def rollout(folder: Path, model: Path | str, *, dtype: str = "bfloat16", sampling: Any = None, **args: Any) -> Engine:
    from logdiff_kernels.engines.vllm.adapter import create

    request = Request("vllm", "rollout", str(model), dtype, {**ARGS, **args}, sampling=sampling or SAMPLING)
    return Engine(create(request), folder)


def train(folder: Path, model: Path | str, *, dtype: str = "bfloat16", sampling: Any = None) -> Engine:
    from logdiff_kernels.engines.transformers.adapter import create

    args = {"attn_implementation": "eager"}
    return Engine(
        create(Request("transformers", "train", str(model), dtype, args, sampling=sampling or SAMPLING)), folder
    )


def use(patch: pytest.MonkeyPatch, folder: Path, ops: Any = "all") -> None:
    """Align the engines that are built from here on; None: native."""
    from logdiff_kernels.engines.vllm import align

    align.restore()
    if ops is None:
        patch.delenv("LOGDIFF_ALIGN", raising=False)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        patch.setenv("LOGDIFF_ALIGN", str(overlay(folder / "align.json", ops)))


def bits(path: Path) -> bytes:
    return bytes(read(path).columns["logprobs"].tobytes())


# One engine for the default suite: a dense and a mixture-of-experts layer, chunks of 64, prefixes, temperature 0.7.

MIXED = {**SAMPLING, "max_tokens": TOKENS, "temperature": 0.7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("aligned")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    from logdiff_kernels.models import build

    return Path(build("qwen3-moe", out=folder / "model", num_hidden_layers=2, mlp_only_layers=[0]))


@pytest.fixture(scope="module")
def live(folder: Path, model: Path, patch: pytest.MonkeyPatch) -> Iterator[Engine]:
    use(patch, folder)
    args = {"max_num_batched_tokens": 64, "enable_prefix_caching": True, "logprobs_mode": "processed_logprobs"}
    with rollout(folder, model, sampling=MIXED, **args) as engine:
        yield engine


@pytest.fixture(scope="module")
def decoded(live: Engine, folder: Path) -> Path:
    return live.do("generate", prompts(folder / "prompts", LENGTHS, shared=35), sampling=MIXED)


def test_decoding_has_the_bits_of_aligned_transformers(live: Engine, decoded: Path, folder: Path, model: Path) -> None:
    with train(folder, model, sampling=MIXED) as side:
        scored = side.do("score", decoded, sampling=MIXED)
    assert differing(decoded, scored)[:2] == (0, len(LENGTHS) * TOKENS)


def test_prefill_chunks_batches_and_orders_have_the_bits_of_decoding(live: Engine, decoded: Path) -> None:
    for task, more in (("rescore", {}), ("rescore", {"batch": 1}), ("force", {"batch": 1, "order": "reversed"})):
        again = live.do(task, decoded, sampling=MIXED, **more)
        assert differing(decoded, again)[0] == 0, (task, more)


def test_the_numbers_are_right_besides_being_equal(decoded: Path, model: Path) -> None:
    from transformers import AutoModelForCausalLM

    found = read(decoded)

    def independent(dtype: Any) -> Any:
        net = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager").eval()
        values = []
        for prompt, response in zip(found.prompts, found.responses, strict=True):
            with torch.no_grad():
                logits = net(torch.tensor([[*prompt, *response]])).logits[0, len(prompt) - 1 : -1].double() / 0.7
            logp = logits.log_softmax(-1)
            values += [float(row[token]) for row, token in zip(logp, response, strict=True)]
        return np.array(values)

    exact = independent(torch.float32)
    ours = np.abs(found.columns["logprobs"] - exact).mean()
    stock = np.abs(independent(torch.bfloat16) - exact).mean()
    assert exact.std() > 0.1
    assert ours < 1.5 * stock + 0.01


def test_the_fingerprint_names_contract_kernels_tables_and_replacements(live: Engine) -> None:
    found = live.document("fingerprint")
    aligned = found["aligned"]
    assert (aligned["contract"], aligned["provider"], aligned["id"]) == ("aligned/1", "aligned-cpu", "test")
    assert len(aligned["ops"]) == 14
    assert len(aligned["rope"]) == 1
    (provider,) = (one for one in aligned["providers"] if one["name"] == aligned["provider"])
    assert len(provider["binary_hash"]) == 64
    targets = {entry["target"] for entry in found["patched"]}
    assert set(aligned["replaced"]) <= targets
    assert "vllm.v1.sample.sampler.Sampler.compute_logprobs" in targets


def test_weights_stay_readable_and_a_reload_reaches_them(
    live: Engine, decoded: Path, folder: Path, model: Path
) -> None:
    from safetensors.torch import load_file, save_file

    other = folder / "other"
    shutil.copytree(model, other)
    generator = torch.Generator().manual_seed(3)
    tensors = load_file(model / "model.safetensors")
    changed = {name: (v + 0.02 * torch.randn(v.shape, generator=generator)).to(v.dtype) for name, v in tensors.items()}
    save_file(changed, other / "model.safetensors", metadata={"format": "pt"})
    for path, expected in ((other, changed), (model, tensors)):
        live.engine.run({"task": "reload", "path": str(path)}, silent)
        found = live.document("weights")
        assert found["not_covered"] == []
        for name, values in expected.items():
            assert found["tensors"][name]["sum"] == tensor_sum(values).as_dict()["sum"], name
        forced = live.do("force", decoded, sampling=MIXED)
        with train(folder, path, sampling=MIXED) as side:
            scored = side.do("score", decoded, sampling=MIXED)
        assert differing(forced, scored)[0] == 0
        assert (bits(forced) == bits(decoded)) == (path == model)


@pytest.mark.parametrize("place", ["model.norm.weight", "lm_head.weight", "model.layers.0.mlp.down_proj.weight"])
def test_one_bit_of_one_weight_is_seen(live: Engine, decoded: Path, place: str) -> None:
    weight = live.model.get_parameter(place).data
    flat = weight.view(-1)
    if place == "lm_head.weight":
        flat = weight[read(decoded).responses[0][0]]
    largest = int(flat.abs().argmax())
    kept = flat[largest].clone()
    flat[largest : largest + 1].view(torch.int16).bitwise_xor_(1)
    try:
        changed = live.do("force", decoded, sampling=MIXED)
    finally:
        flat[largest] = kept
    assert differing(decoded, changed)[0] > 0
    assert differing(decoded, live.do("force", decoded, sampling=MIXED))[0] == 0


# The matrix: every model, dtype, batch, cache, compilation and rank.


def compare(folder: Path, model: Path | str, *, lengths: tuple[int, ...] = LENGTHS, **more: Any) -> tuple[int, int]:
    """(differing, all) tokens of an aligned rollout against aligned training, and of its own prefill."""
    shared, dtype = more.pop("shared", 0), more.pop("dtype", "bfloat16")
    sampling = {**SAMPLING, "max_tokens": TOKENS, "temperature": more.pop("temperature", 1.0)}
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    source = prompts(folder / "prompts", lengths, vocabulary, shared=shared)
    with rollout(folder, model, dtype=dtype, sampling=sampling, **more) as engine:
        found = engine.do("generate", source, sampling=sampling)
        assert differing(found, engine.do("rescore", found, sampling=sampling))[0] == 0
        assert differing(found, engine.do("force", found, sampling=sampling, batch=1))[0] == 0
    with train(folder, model, dtype=dtype, sampling=sampling) as side:
        return differing(found, side.do("score", found, sampling=sampling))[:2]


MODELS = ["llama", "qwen2", "qwen3", "qwen3-moe", "mistral", "gemma2", "gemma3", "gpt-oss"]
MODELS += ["deepseek-v2", "deepseek-v3", "smollm2"]


@pytest.mark.slow(seconds=40, alone=True)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_zero(name: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    from logdiff_kernels.models import build

    use(patch, tmp_path)
    assert compare(tmp_path, build(name)) == (0, len(LENGTHS) * TOKENS)


AXES: dict[str, tuple[str, dict[str, Any]]] = {
    "fp16": ("qwen3", {"dtype": "float16"}),
    "fp32": ("qwen3-moe", {"dtype": "float32"}),
    "one request at a time": ("gemma3", {"max_num_seqs": 1}),
    "64 requests": ("qwen3", {"max_num_seqs": 64, "lengths": tuple(range(3, 67))}),
    "chunks of 32": ("mistral", {"max_num_batched_tokens": 32, "max_num_seqs": 4}),
    "prefix cache": ("gpt-oss", {"enable_prefix_caching": True, "shared": 40, "max_num_seqs": 2}),
    "block 16": ("qwen3", {"block_size": 16}),
    "block 128": ("gemma2", {"block_size": 128}),
    "temperature": ("qwen2", {"logprobs_mode": "processed_logprobs", "temperature": 0.7}),
    "around 512": ("qwen3", {"max_model_len": 1100, "lengths": (511, 512, 513, 1030)}),
    "around 4096": ("qwen3", {"max_model_len": 4608, "lengths": (4095, 4097), "max_num_batched_tokens": 1024}),
    "compiled": ("qwen3", {"enforce_eager": False}),
    "compiled experts": ("gpt-oss", {"enforce_eager": False}),
    "compiled Gemma": ("gemma3", {"enforce_eager": False}),
    "two ranks": ("qwen3-moe", {"tensor_parallel_size": 2}),
    "two ranks with sinks": ("gpt-oss", {"tensor_parallel_size": 2}),
    "two expert ranks": ("qwen3-moe", {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
    "two ranks, compiled": ("qwen3-moe", {"tensor_parallel_size": 2, "enforce_eager": False}),
    "two ranks, tied head": ("gemma2", {"tensor_parallel_size": 2}),
}


@pytest.mark.slow(seconds=45, alone=True)
@pytest.mark.parametrize("axis", AXES)
def test_every_axis_is_zero(axis: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    from logdiff_kernels.models import build

    name, more = AXES[axis]
    use(patch, tmp_path)
    count = len(more.get("lengths", LENGTHS)) * TOKENS
    longest = more.get("max_model_len", 0)
    model = build(name, out=tmp_path / "model", max_position_embeddings=longest) if longest > 4096 else build(name)
    assert compare(tmp_path, model, **more) == (0, count)


YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
ODD = {"q_lora_rank": 40, "kv_lora_rank": 72, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40}
LATENT_AXES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "queries without latents": ({"q_lora_rank": None}, {}),
    "other sizes": (ODD, {}),
    "YaRN": ({"rope_parameters": YARN}, {}),
    "fp32": ({}, {"dtype": "float32"}),
    "around 512": ({}, {"max_model_len": 1100, "lengths": (511, 512, 513, 1030)}),
    "chunks of 32": ({}, {"max_num_batched_tokens": 32, "max_num_seqs": 4}),
    "prefix cache": ({}, {"enable_prefix_caching": True, "shared": 40, "max_num_seqs": 2}),
    "compiled": ({}, {"enforce_eager": False}),
    "two ranks": ({}, {"tensor_parallel_size": 2}),
    "two expert ranks": ({}, {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
}


@pytest.mark.slow(seconds=45, alone=True)
@pytest.mark.parametrize("axis", LATENT_AXES)
def test_every_axis_of_latent_attention_is_zero(axis: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    """vLLM turns chunks and prefixes off for latents on a CPU, whose stock kernels know neither; ours do."""
    from logdiff_kernels.models import build
    from vllm.platforms.cpu import CpuPlatform

    sizes, more = LATENT_AXES[axis]
    stock = CpuPlatform.check_and_update_config.__func__
    seen = []

    def keep(cls: Any, config: Any) -> None:
        stock(cls, config)
        config.scheduler_config.enable_chunked_prefill = "max_num_batched_tokens" in more
        config.scheduler_config.max_num_batched_tokens = more.get("max_num_batched_tokens", 2048)
        config.cache_config.enable_prefix_caching = more.get("enable_prefix_caching", False)
        seen.append(config)

    use(patch, tmp_path)
    count = len(more.get("lengths", LENGTHS)) * TOKENS
    with pytest.MonkeyPatch.context() as local:
        local.setattr(CpuPlatform, "check_and_update_config", classmethod(keep))
        assert compare(tmp_path, build("deepseek-v3", num_hidden_layers=2, **sizes), **more) == (0, count)
    assert seen


@pytest.mark.slow(seconds=45, alone=True)
@pytest.mark.parametrize("seed", range(6))
def test_random_combinations_are_zero(seed: int, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    from logdiff_kernels.models import build

    rng = np.random.default_rng(seed)

    def pick(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    more = {
        "dtype": pick("bfloat16", "bfloat16", "float16", "float32"),
        "max_num_seqs": pick(1, 3, 16, 64),
        "max_num_batched_tokens": pick(64, 100, 512, 4096),
        "enable_prefix_caching": pick(True, False),
        "block_size": pick(16, 32, 128),
        "enforce_eager": pick(True, True, False),
        "shared": pick(0, 33),
        "lengths": tuple(int(n) for n in rng.integers(1, 400, 5)),
    }
    if pick(True, False):
        more |= {"logprobs_mode": "processed_logprobs", "temperature": 0.7}
    name = pick(*MODELS[:-1])
    if name.startswith(("gemma", "deepseek")) and more["dtype"] == "float16":  # vLLM refuses that, or aligned vLLM
        more["dtype"] = "bfloat16"
    use(patch, tmp_path)
    result = compare(tmp_path, build(name), **more)
    assert result == (0, 5 * TOKENS), (name, more)


@pytest.mark.slow(seconds=60, alone=True)
@pytest.mark.parametrize("name", ["qwen3", "gpt-oss", "gemma2", "deepseek-v3"])
def test_weights_that_come_by_reload_give_the_bits_of_a_fresh_engine(
    name: str, tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    """Three reloads, also of experts that load past vLLM's loaders and of tied heads; then in place, as verl does."""
    from logdiff_kernels.models import build
    from safetensors.torch import load_file

    use(patch, tmp_path)
    folders = [Path(build(name, out=tmp_path / f"m{seed}", seed=seed)) for seed in (0, 1)]
    source = prompts(tmp_path / "prompts", LENGTHS)
    with rollout(tmp_path, folders[0]) as engine:
        first = engine.do("generate", source, sampling=SAMPLING)
        for path in (folders[1], folders[0], folders[1]):
            engine.engine.run({"task": "reload", "path": str(path)}, silent)
            forced = engine.do("force", first, sampling=SAMPLING)
        assert engine.document("weights")["not_covered"] == []
        engine.model.load_weights(iter(load_file(folders[0] / "model.safetensors").items()))
        back = engine.do("force", first, sampling=SAMPLING)
    assert differing(first, back)[0] == 0
    assert differing(first, forced)[0] > 0
    with train(tmp_path, folders[1]) as side:
        assert differing(forced, side.do("score", first, sampling=SAMPLING))[0] == 0


CONTROLS = {
    "linear": "qwen3",
    "linear_row": "qwen3",
    "rms_norm": "qwen3",
    "add_rms_norm": "qwen3",
    "rope": "qwen3",
    "swiglu": "qwen3",
    "attention": "qwen3",
    "router": "qwen3-moe",
    "moe": "qwen3-moe",
    "lm_head": "qwen3",
    "logprob": "qwen3",
}


LATENT_CONTROLS = {"latent attention": ("attention", "deepseek-v3"), "sigmoid router": ("router", "deepseek-v3")}


@pytest.mark.slow(seconds=30, alone=True)
@pytest.mark.parametrize("part", [*CONTROLS, *LATENT_CONTROLS])
def test_one_operator_left_stock_is_not_zero(part: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    from logdiff_kernels.align import OPERATORS
    from logdiff_kernels.models import build

    op, name = LATENT_CONTROLS[part] if part in LATENT_CONTROLS else (part, CONTROLS[part])
    model = build(name)
    source = prompts(tmp_path / "prompts", LENGTHS)
    use(patch, tmp_path)
    with rollout(tmp_path, model) as engine:
        whole = engine.do("generate", source, sampling=SAMPLING)
    use(patch, tmp_path, [other for other in OPERATORS if other != op])
    with rollout(tmp_path, model) as engine:
        assert differing(whole, engine.do("force", whole, sampling=SAMPLING))[0] > 0


@pytest.mark.slow(seconds=30, alone=True)
def test_after_restore_an_engine_has_the_native_bits(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    from logdiff_kernels.models import build

    model, source = build("qwen3"), prompts(tmp_path / "prompts", LENGTHS)
    use(patch, tmp_path, None)
    with rollout(tmp_path, model, enforce_eager=False) as engine:
        before = engine.do("generate", source, sampling=SAMPLING)
        assert engine.document("fingerprint")["aligned"] is None
    use(patch, tmp_path)
    with rollout(tmp_path, model, enforce_eager=False) as engine:
        assert differing(before, engine.do("force", before, sampling=SAMPLING))[0] > 0
    use(patch, tmp_path, None)
    with rollout(tmp_path, model, enforce_eager=False) as engine:
        assert differing(before, engine.do("force", before, sampling=SAMPLING))[0] == 0


@pytest.mark.slow(seconds=30, alone=True)
def test_compiled_graphs_hold_aligned_operators_and_no_arithmetic_of_their_own(
    tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as inductor
    from logdiff_kernels.models import build

    seen: set[str] = set()

    def record(graph: Any) -> None:
        seen.update(str(node.target) for node in graph.nodes if node.op == "call_function")

    use(patch, tmp_path)
    with pytest.MonkeyPatch.context() as local:
        local.setattr(inductor, "post_grad_custom_post_pass", record)
        local.setattr(inductor, "force_disable_caches", True)
        local.setenv("VLLM_DISABLE_COMPILE_CACHE", "1")
        with rollout(tmp_path, build("qwen3"), enforce_eager=False):
            pass
    ours = {name.split(".")[1] for name in seen if name.startswith("logdiff.")}
    assert {"linear", "linear_row", "rms_norm", "add_rms_norm", "rope", "glu", "embedding"} <= ours
    inexact = ("mm", "bmm", "addmm", "mean", "rsqrt", "pow", "sigmoid", "exp", "_softmax", "sum", "mul")
    assert not {name for name in seen if name.split(".")[0] == "aten" and name.split(".")[1] in inexact}, seen


@pytest.mark.slow(seconds=40, alone=True)
@pytest.mark.parametrize(
    ("what", "args", "words"),
    [
        ("qwen3", {"kv_cache_dtype": "fp8"}, "KV cache"),
        ("qwen3", {"enable_lora": True}, "LoRA"),
        ("qwen3", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative"),
    ],
)
def test_engine_features_that_are_not_covered_are_refused_by_name(
    what: str, args: dict[str, Any], words: str, tmp_path: Path, patch: pytest.MonkeyPatch
) -> None:
    from logdiff_kernels.models import build

    use(patch, tmp_path)
    with pytest.raises(UnsupportedError, match=words) as refused:
        rollout(tmp_path, build(what), **args)
    assert refused.value.fatal


@pytest.mark.slow(seconds=60, alone=True)
def test_smollm2_for_thousands_of_tokens(tmp_path: Path, patch: pytest.MonkeyPatch) -> None:
    from logdiff_kernels.models import build

    model = build("smollm2")
    sampling = {**SAMPLING, "max_tokens": int(os.environ.get("LOGDIFF_TEST_TOKENS", "256"))}
    source = prompts(tmp_path / "prompts", (7, 33, 128, 20) * 4, 49152)
    use(patch, tmp_path)
    with rollout(tmp_path, model, sampling=sampling, max_model_len=1024) as engine:
        found = engine.do("generate", source, sampling=sampling)
    with train(tmp_path, model, sampling=sampling) as side:
        assert differing(found, side.do("score", found, sampling=sampling))[:2] == (0, 16 * sampling["max_tokens"])
