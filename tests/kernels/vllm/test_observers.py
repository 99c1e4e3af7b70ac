"""What the observers do to a sampler and a model runner, on stand-ins, against arithmetic of our own."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from logdiff_kernels.engines.vllm.observers import FORCE, Observers  # noqa: E402
from logdiff_kernels.errors import UnsupportedError  # noqa: E402


class Sampler:
    """Draws once from every request's generator, takes the most likely token."""

    def __init__(self, generators: dict[int, Any]) -> None:
        self.generators = generators

    def sample(self, logits: Any, metadata: Any) -> tuple[Any, Any]:
        for generator in self.generators.values():
            torch.rand(1, generator=generator)
        return logits.argmax(-1), logits

    def compute_logprobs(self, logits: Any) -> Any:
        return logits.log_softmax(-1)


class Runner:
    """Three requests: one that decodes, one in the middle of its prompt, one that forces nothing."""

    def __init__(self) -> None:
        self.speculative_config = None
        self.device = torch.device("cpu")
        self.discard_request_mask = SimpleNamespace(np=np.array([False, True, False]))
        self.input_batch = SimpleNamespace(
            req_ids=["a", "b", "c"],
            num_computed_tokens_cpu=np.array([6, 0, 6]),
            num_prompt_tokens=np.array([5, 50, 5]),
            generators={row: torch.Generator().manual_seed(row) for row in (0, 1)},
        )
        self.sampler = Sampler(self.input_batch.generators)
        force = {FORCE: [40, 41, 42]}
        self.requests = {
            name: SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra))
            for name, extra in (("a", force), ("b", force), ("c", None))
        }

    def _bookkeeping_sync(self) -> list[int]:
        return [row for row in self.input_batch.generators if self.discard_request_mask.np[row]]

    def execute_model(self, scheduler_output: Any) -> str:
        return "done"


STEP = SimpleNamespace(num_scheduled_tokens={"a": 1, "b": 20, "c": 1})


def test_the_token_of_the_position_is_forced_and_nothing_else_is_touched() -> None:
    runner = Runner()
    observers = Observers(runner)
    observers.install(force=True)
    assert runner.execute_model(STEP) == "done"
    logits = torch.zeros(3, 50)
    logits[:, 7] = 1.0
    before = logits.clone()
    sampled, processed = runner.sampler.sample(logits, None)
    # a has computed 6 and computes 1 of a prompt of 5: its second response token is next
    assert sampled.tolist() == [42, 7, 7]
    assert torch.equal(logits, before)
    assert processed is logits
    observers.remove()
    assert runner.sampler.sample(logits, None)[0].tolist() == [7, 7, 7]
    assert "execute_model" not in vars(runner)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.7, 0, 1.0), (2.0, 0, 1.0), (1.0, 3, 1.0), (0.5, 0, 0.8), (1.3, 4, 0.9)]
)
def test_prompt_scores_follow_temperature_then_top_k_then_top_p(temperature: float, top_k: int, top_p: float) -> None:
    runner = Runner()
    Observers(runner).install(prompt_scores={"temperature": temperature, "top_k": top_k, "top_p": top_p})
    logits = torch.randn(6, 12, generator=torch.Generator().manual_seed(4))
    found = runner.sampler.compute_logprobs(logits.clone())
    for row, values in zip(found.tolist(), logits.double().tolist(), strict=True):
        scaled = {token: value / temperature for token, value in enumerate(values)}
        kept = sorted(scaled, key=lambda token: -scaled[token])[: top_k or None]
        weights = [math.exp(scaled[token]) for token in kept]
        total, before, inside = sum(weights), 0.0, []
        for token, weight in zip(kept, weights, strict=True):
            if before / total < top_p:
                inside.append(token)
            before += weight
        norm = sum(math.exp(scaled[token]) for token in inside)
        for token, value in enumerate(row):
            if token in inside:
                assert value == pytest.approx(scaled[token] - math.log(norm), abs=1e-5)
            else:
                assert value == -math.inf


def test_speculative_decoding_is_refused() -> None:
    runner = Runner()
    runner.speculative_config = SimpleNamespace(method="ngram")  # type: ignore[assignment]
    with pytest.raises(UnsupportedError, match="speculative"):
        Observers(runner).install(force=True)


def test_a_thrown_away_sample_costs_its_request_no_random_number() -> None:
    """Request b is in the middle of its prompt: what is drawn for it must not move its stream."""
    runner = Runner()
    observers = Observers(runner)
    observers.install()
    runner.sampler.sample(torch.zeros(3, 5), None)
    fresh = {row: torch.Generator().manual_seed(row) for row in (0, 1)}
    drawn = {row: float(torch.rand(1, generator=generator)) for row, generator in fresh.items()}
    assert float(torch.rand(1, generator=runner.input_batch.generators[1])) == drawn[1]
    assert float(torch.rand(1, generator=runner.input_batch.generators[0])) != drawn[0]
    assert runner._bookkeeping_sync() == []
    assert set(runner.input_batch.generators) == {0, 1}
    observers.remove()
    assert runner._bookkeeping_sync() == [1]
    assert "sample" not in vars(runner.sampler)
