"""Observers of one task in a vLLM worker: forced tokens, prompt scores at a temperature, routed experts.

One repair stands among them: on a CPU, vLLM 0.32 fails in chunked prefill when a request has a seed, because it
rewinds the request's generator by an offset that CPU generators do not have.

All of them replace attributes of live objects (the model runner, its sampler, the routers) and put the old state
back in `remove`; no class is changed.
"""

from __future__ import annotations

from typing import Any

from logdiff_kernels.engines.vllm.routing import ExpertCapture
from logdiff_kernels.errors import UnsupportedError

_ABSENT = object()

FORCE = "logdiff_force"
"""Key in `SamplingParams.extra_args`: the token ids that a request must decode."""


class Observers:
    """What is installed on one model runner."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._replaced: list[tuple[Any, str, Any]] = []
        self._scheduled: dict[str, int] = {}
        self._experts: ExpertCapture | None = None

    def install(
        self,
        *,
        force: bool = False,
        prompt_scores: dict[str, Any] | None = None,
        experts: bool = False,
    ) -> dict[str, Any]:
        """Install observers.

        Args:
            force: requests that carry `FORCE` decode exactly those tokens.
            prompt_scores: {"temperature", "top_k", "top_p"} to apply to the logits of prompt log-probabilities.
            experts: keep the experts that every router chose, by request and position.

        Returns:
            {"experts": reason why they can't be captured, or null}.

        Raises:
            UnsupportedError: a sampler that is not the plain one.
        """
        reason = None
        if (force or prompt_scores) and self._runner.speculative_config is not None:
            raise UnsupportedError(
                "with speculative decoding one step yields several tokens, so given tokens can't be forced",
                value=str(getattr(self._runner.speculative_config, "method", None)),
                hint="leave speculative_config out of the args",
            )
        if experts:
            self._experts = ExpertCapture(self._runner)
            reason = self._experts.install()
            if reason is not None:
                self._experts = None
        if force or self._experts is not None:
            self._watch_steps()
        if self._runner.device.type == "cpu":
            self._rewind_by_state()
        if force:
            self._force()
        if prompt_scores is not None:
            self._score_prompts(**prompt_scores)
        return {"experts": reason}

    def remove(self) -> None:
        """Put everything back."""
        for owner, name, previous in reversed(self._replaced):
            if previous is _ABSENT:
                delattr(owner, name)
            else:
                object.__setattr__(owner, name, previous)
        self._replaced.clear()
        if self._experts is not None:
            self._experts.remove()

    def collected(self) -> tuple[dict[str, Any], bytes]:
        """What was seen: an index and the bytes it points into."""
        return self._experts.collected() if self._experts is not None else ({}, b"")

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._replaced.append((owner, name, vars(owner).get(name, _ABSENT)))
        object.__setattr__(owner, name, value)  # an instance attribute before the class's method

    def _watch_steps(self) -> None:
        runner, execute = self._runner, self._runner.execute_model

        def execute_model(scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
            self._scheduled = dict(scheduler_output.num_scheduled_tokens)
            if self._experts is not None:
                self._experts.begin_step(self._scheduled)
            result = execute(scheduler_output, *arguments, **named)
            if self._experts is not None:
                self._experts.end_step()
            return result

        self._replace(runner, "execute_model", execute_model)

    def _rewind_by_state(self) -> None:
        """Rewind the generators of samples that are thrown away (a chunk of a prompt) by their saved state."""
        runner = self._runner
        sample, bookkeep = runner.sampler.sample, runner._bookkeeping_sync

        def thrown_away() -> dict[int, Any]:
            generators, mask = runner.input_batch.generators, runner.discard_request_mask.np
            return {row: generator for row, generator in generators.items() if mask[row]}

        def rewound(*arguments: Any, **named: Any) -> Any:
            states = [(generator, generator.get_state()) for generator in thrown_away().values()]
            result = sample(*arguments, **named)
            for generator, state in states:
                generator.set_state(state)
            return result

        def bookkeeping(*arguments: Any, **named: Any) -> Any:
            held = thrown_away()
            for row in held:
                del runner.input_batch.generators[row]
            try:
                return bookkeep(*arguments, **named)
            finally:
                runner.input_batch.generators.update(held)

        self._replace(runner.sampler, "sample", rewound)
        self._replace(runner, "_bookkeeping_sync", bookkeeping)

    def _force(self) -> None:
        """Replace the sampled ids by the given ones, after sampling and before their log-probability is gathered.

        The logits are not touched, so every logprobs mode reports what it would report for these tokens, and the
        random state advances as it does in a sampled run.
        """
        runner = self._runner
        sample = runner.sampler.sample

        def forced(logits: Any, sampling_metadata: Any, *arguments: Any, **named: Any) -> Any:
            sampled, processed = sample(logits, sampling_metadata, *arguments, **named)
            batch = runner.input_batch
            for row, request in enumerate(batch.req_ids[: len(sampled)]):
                given = (runner.requests[request].sampling_params.extra_args or {}).get(FORCE)
                if given is None:
                    continue
                position = (
                    int(batch.num_computed_tokens_cpu[row])
                    + self._scheduled.get(request, 0)
                    - int(batch.num_prompt_tokens[row])
                )
                if 0 <= position < len(given):  # below 0: a chunk of the prompt, whose sample is thrown away
                    sampled[row] = given[position]
            return sampled, processed

        self._replace(runner.sampler, "sample", forced)

    def _score_prompts(self, temperature: float, top_k: int = 0, top_p: float = 1.0) -> None:
        """Apply the sampling transform to prompt logits, in the order of vLLM's `Sampler` in processed mode."""
        import torch
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        stock = self._runner.sampler.compute_logprobs

        def compute_logprobs(logits: Any) -> Any:
            scaled = logits.to(torch.float32) / torch.tensor(temperature, dtype=torch.float32, device=logits.device)
            rows = len(scaled)
            k = torch.full((rows,), top_k, dtype=torch.int64, device=logits.device) if top_k > 0 else None
            p = torch.full((rows,), top_p, dtype=torch.float32, device=logits.device) if top_p < 1.0 else None
            return stock(apply_top_k_top_p(scaled, k, p))

        self._replace(self._runner.sampler, "compute_logprobs", compute_logprobs)
