"""Teacher-forced scoring agrees with a plain computation, whatever the layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from logdiff_kernels.engines.settings import order_of
from logdiff_kernels.engines.transformers import head, logprobs
from logdiff_kernels.engines.transformers.scorer import Scorer
from logdiff_kernels.engines.transformers.settings import Score
from logdiff_kernels.errors import InputError, UnsupportedError
from tf_reference import PROMPTS, RESPONSES, nothing, reference, whole_logits

FAMILIES = ["llama", "qwen2", "qwen3", "qwen3-moe", "mistral", "gemma2", "gemma3", "gpt-oss"]
PACKING = FAMILIES[:-1]
LAYOUTS = [
    Score("single"),
    Score("padded", "right", 3),
    Score("padded", "left", 4),
    Score("packed", micro_batch_size=3),
]


def scored(model: Any, score: Score, **options: Any) -> dict[str, Any]:
    settings = {"temperature": 1.0, "progress": nothing, **options}
    return Scorer(model, 0).score(PROMPTS, RESPONSES, score, **settings).columns


CASES = [(n, s) for n in FAMILIES for s in LAYOUTS if s.layout != "packed" or n in PACKING]


@pytest.mark.parametrize(("name", "score"), CASES, ids=lambda v: v if isinstance(v, str) else v.layout + v.padding_side)
def test_every_layout_agrees_with_whole_logits_of_single_sequences(
    name: str, score: Score, load_model: Callable[..., Any]
) -> None:
    model = load_model(name)
    expected, entropies = reference(model, PROMPTS, RESPONSES)
    found = scored(model, score)
    assert found["logprobs"].dtype == np.float32
    assert np.abs(found["logprobs"] - expected).max() < 2e-4
    assert np.abs(found["entropy"] - entropies).max() < 2e-4
    assert "logprobs_null" not in found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_single_row_has_the_bits_of_the_same_forward(dtype: str, load_model: Callable[..., Any]) -> None:
    model = load_model("qwen3", dtype)
    found = scored(model, Score("single"))["logprobs"]
    values = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        keep = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + response]), use_cache=False, logits_to_keep=keep).logits[0]
        values.append(logits.float().log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0])
    assert np.array_equal(found.view(np.int32), torch.cat(values).numpy().view(np.int32))


def test_scoring_twice_in_the_same_layout_is_bitwise_equal(load_model: Callable[..., Any]) -> None:
    model = load_model("qwen3-moe", "bfloat16")
    for score in LAYOUTS:
        one, two = (scored(model, score)["logprobs"].view(np.int32) for _ in range(2))
        assert np.array_equal(one, two)


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_temperature_divides_the_logits_before_the_softmax(temperature: float, load_model: Callable[..., Any]) -> None:
    model = load_model("gemma2")
    expected, entropies = reference(model, PROMPTS, RESPONSES, temperature)
    found = scored(model, Score("padded"), temperature=temperature)
    assert np.abs(found["logprobs"] - expected).max() < 5e-4
    assert np.abs(found["entropy"] - entropies).max() < 5e-4


def test_temperature_is_applied_in_the_dtype_of_the_logits_as_verl_does(load_model: Callable[..., Any]) -> None:
    model = load_model("qwen3", "bfloat16")
    found = scored(model, Score("single"), temperature=0.7)["logprobs"][: len(RESPONSES[0])]
    keep = torch.arange(len(PROMPTS[0]) - 1, len(PROMPTS[0]) + len(RESPONSES[0]) - 1)
    with torch.no_grad():
        ids = torch.tensor([PROMPTS[0] + RESPONSES[0]])
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits[0]
    narrow = (logits / 0.7).float().log_softmax(-1).gather(-1, torch.tensor(RESPONSES[0])[:, None])[:, 0]
    wide = (logits.float() / 0.7).log_softmax(-1).gather(-1, torch.tensor(RESPONSES[0])[:, None])[:, 0]
    assert np.array_equal(found, narrow.numpy())
    assert not np.array_equal(found, wide.numpy())


@pytest.mark.parametrize("name", PACKING)
def test_packed_sequences_do_not_see_each_other(name: str, load_model: Callable[..., Any]) -> None:
    model = load_model(name)
    scorer = Scorer(model, 0)
    score = Score("packed", micro_batch_size=4)
    changed = [[t + 1 for t in PROMPTS[0]], *PROMPTS[1:]]
    one, two = (
        scorer.score(p, RESPONSES, score, temperature=1.0, progress=nothing).columns["logprobs"]
        for p in (PROMPTS, changed)
    )
    own = len(RESPONSES[0])
    assert np.abs(one[:own] - two[:own]).max() > 1e-2
    if "moe" in name:  # expert batches change shape with the routing of the other sequence
        assert np.abs(one[own:] - two[own:]).max() < 1e-4
    else:
        assert np.array_equal(one[own:], two[own:])


def test_a_model_that_mixes_packed_sequences_is_refused(load_model: Callable[..., Any]) -> None:
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def unmasked(module: Any, q: Any, k: Any, v: Any, mask: Any, **kwargs: Any) -> Any:
        return sdpa_attention_forward(module, q, k, v, None, **kwargs)

    AttentionInterface.register("leaky", unmasked)
    model = load_model("llama", attn_implementation="leaky")
    with pytest.raises(UnsupportedError, match="LlamaForCausalLM with attn_implementation=leaky") as caught:
        scored(model, Score("packed"))
    assert "padded" in caught.value.hint


def test_gpt_oss_of_transformers_5_mixes_packed_sequences_and_is_refused(load_model: Callable[..., Any]) -> None:
    """Its body makes the mask without position_ids, so that a packed row is one causal sequence to it."""
    model = load_model("gpt-oss")
    ids, positions = torch.arange(12).unsqueeze(0) + 4, torch.arange(6).repeat(2).unsqueeze(0)
    other = ids.clone()
    other[0, :6] += 40
    with torch.no_grad():
        one, two = (model(input_ids=i, position_ids=positions, use_cache=False).logits[0, 6:] for i in (ids, other))
    if float((one - two).abs().max()) < 1e-3:
        pytest.skip("this transformers packs GPT-OSS")
    with pytest.raises(UnsupportedError, match="GptOssForCausalLM"):
        scored(model, Score("packed"))


def test_order_and_batch_change_no_place(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    given = scored(model, Score("single"))["logprobs"]
    for order in ("reversed", "shuffled:3"):
        assert np.array_equal(scored(model, Score("single"), order=order_of(4, order))["logprobs"], given)


def test_logits_in_blocks_are_those_of_the_models_own_head(
    load_model: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model("gemma2")  # its head caps the logits: a bare matrix product would differ
    calls: list[int] = []
    handle = model.model.register_forward_hook(lambda *_: calls.append(1))
    expected, _ = reference(model, PROMPTS, RESPONSES)
    calls.clear()
    monkeypatch.setattr(head, "LOGITS_BYTES", 4 * 1024 * 4 * 3)  # three positions of four fp32 rows
    found = scored(model, Score("padded", "left", 4))
    handle.remove()
    assert len(calls) == 1
    assert np.abs(found["logprobs"] - expected).max() < 2e-4
    assert type(model.model).__name__ == "Gemma2Model"


def test_softmax_rows_in_blocks_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, tokens = torch.randn(37, 211).bfloat16(), torch.randint(0, 211, (37,))
    whole = logprobs.score_rows(logits, tokens, topk=5)
    monkeypatch.setattr(logprobs, "FP32_BYTES", 4 * 211 * 2)
    parts = logprobs.score_rows(logits, tokens, topk=5)
    assert torch.equal(whole.logprob, parts.logprob)
    assert torch.equal(whole.entropy, parts.entropy)
    assert whole.topk_ids is not None
    assert parts.topk_ids is not None
    assert torch.equal(whole.topk_ids, parts.topk_ids)


def test_entropy_of_a_masked_distribution_is_finite() -> None:
    logits = torch.full((1, 4), float("-inf"))
    logits[0, :2] = 0.0
    found = logprobs.score_rows(logits, torch.tensor([3]))
    assert float(found.entropy) == pytest.approx(np.log(2))
    assert float(found.logprob) == -np.inf


def test_top_k_holds_the_most_likely_tokens_of_each_position(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    found = scored(model, Score("padded"), topk=3)
    logits = whole_logits(model, PROMPTS[0] + RESPONSES[0])[len(PROMPTS[0]) - 1 : -1]
    assert found["topk_ids"][: len(RESPONSES[0])].tolist() == np.argsort(-logits, -1)[:, :3].tolist()
    assert (np.diff(found["topk_logprobs"], axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("name", "score"),
    [case for case in CASES if case[0] in ("qwen3-moe", "gpt-oss")],
    ids=lambda v: v if isinstance(v, str) else v.layout + v.padding_side,
)
def test_experts_are_those_of_the_position_that_scored_the_token(
    name: str, score: Score, load_model: Callable[..., Any]
) -> None:
    model = load_model(name)
    found = scored(model, score)["experts"]
    k = model.config.num_experts_per_tok
    expected = []
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        with torch.no_grad():
            out = model.model(input_ids=torch.tensor([prompt + response]), output_router_logits=True)
        layers = torch.stack([r.topk(k, -1).indices for r in out.router_logits], 1)
        expected.append(layers[len(prompt) - 1 : len(prompt) + len(response) - 1].numpy())
    assert found.dtype == np.int32
    assert (found == np.concatenate(expected)).mean() > 0.99


def test_dense_models_have_no_experts(load_model: Callable[..., Any]) -> None:
    assert "experts" not in scored(load_model("llama"), Score("padded"))


def test_the_first_token_of_an_empty_prompt_has_no_value(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    found = Scorer(model, 0).score([[], [5]], [[7, 8], [9]], Score(), temperature=1.0, progress=nothing).columns
    assert found["logprobs_null"].tolist() == [1, 0, 0]
    assert np.isnan(found["logprobs"][0])
    expected, _ = reference(model, [[7], [5]], [[8], [9]])
    assert np.abs(found["logprobs"][1:] - expected).max() < 2e-4


def test_empty_responses_are_left_out(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    found = Scorer(model, 0).score([[3], [5], []], [[], [9], []], Score(), temperature=1.0, progress=nothing).columns
    assert found["logprobs"].shape == (1,)


@pytest.mark.parametrize("bad", [-1, 1024, 10**9])
def test_an_id_outside_the_vocabulary_is_named(bad: int, load_model: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="vocabulary of 1024") as caught:
        Scorer(load_model("llama"), 0).score([[3], [5]], [[4], [6, bad]], Score(), temperature=1.0, progress=nothing)
    assert caught.value.value == bad


def test_sequences_beyond_the_configured_positions_are_scored_and_counted(load_model: Callable[..., Any]) -> None:
    model = load_model("llama", max_position_embeddings=32)
    found = Scorer(model, 0).score(PROMPTS, RESPONSES, Score(), temperature=1.0, progress=nothing)
    assert found.facts["samples_beyond_max_positions"] == 2
    assert np.isfinite(found.columns["logprobs"]).all()


def test_a_patched_head_counts(load_model: Callable[..., Any], model_folder: Callable[[str], Any]) -> None:
    from logdiff_kernels.engines.transformers.loading import load

    model = load(str(model_folder("llama")), "float32", {}).model
    before = scored(model, Score("padded"))["logprobs"]
    plain = model.forward

    def capped(*args: Any, **kwargs: Any) -> Any:
        out = plain(*args, **kwargs)
        out.logits = 3 * torch.tanh(out.logits / 3)
        return out

    model.forward = capped
    expected, _ = reference(model, PROMPTS, RESPONSES)
    after = scored(model, Score("padded"))["logprobs"]
    assert np.abs(after - expected).max() < 2e-4
    assert np.abs(after - before).max() > 0.1


def test_autocast_runs_fp32_weights_in_bf16_as_verls_engine_does(load_model: Callable[..., Any]) -> None:
    model = load_model("llama")
    plain, cast = (scored(model, Score("padded", autocast=a))["logprobs"] for a in (None, "bfloat16"))
    assert 1e-4 < np.abs(plain - cast).max() < 1.0


def test_a_row_that_is_not_a_number_is_reported_as_it_is() -> None:
    logits = torch.zeros(2, 4)
    logits[1, 2] = float("nan")
    found = logprobs.score_rows(logits, torch.tensor([0, 0]))
    assert float(found.logprob[0]) == pytest.approx(-np.log(4))
    assert bool(found.logprob[1].isnan())
