"""The rollout side: vLLM in a process of its own, driven through logdiff's runner (files, no pickle)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from logdiff.target import EngineSpec, start
from logdiff_kernels import sequences

from examples.true_on_policy.settings import Settings


@dataclass(frozen=True, slots=True)
class Samples:
    """What the policy sampled: ids per sample, and the log-probability it gave each response token, fp32 [tokens]."""

    prompts: list[list[int]]
    responses: list[list[int]]
    logprobs: list[npt.NDArray[np.float32]]

    @property
    def tokens(self) -> int:
        """Response tokens in all."""
        return sum(map(len, self.responses))


class Rollout:
    """A running vLLM. It inherits this process's environment, `LOGDIFF_ALIGN` included."""

    def __init__(self, settings: Settings, folder: Path, longest_prompt: int) -> None:
        self._settings = settings
        self._folder = folder
        arguments = {
            "enforce_eager": True,
            "max_model_len": longest_prompt + settings.max_tokens + 8,
            "max_num_seqs": settings.prompts * settings.group,
            "logprobs_mode": "processed_logprobs",
        }
        spec = EngineSpec("vllm", "rollout", settings.model, settings.dtype, args=arguments)
        self._engine = start(spec, log=folder / "rollout.log")

    def __enter__(self) -> Rollout:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._engine.close()

    def sample(self, prompts: list[list[int]], step: int) -> Samples:
        """One response to each prompt. Every sample has its own seed, so tokens do not depend on the batch.

        Raises:
            ValueError: a token without a log-probability.
        """
        source = self._folder / "prompts.safetensors"
        names = [f"{step}.{i}" for i in range(len(prompts))]
        sequences.write(source, sequences.build(names, prompts))
        sampling = {
            "max_tokens": self._settings.max_tokens,
            "temperature": self._settings.temperature,
            "seed": self._settings.seed * 100_003 + step,
        }
        output = self._folder / "samples.safetensors"
        task = {"task": "generate", "input": str(source), "output": str(output), "sampling": sampling}
        found = sequences.read(self._engine.run(task).files["sequences"])
        logprobs = found.columns["logprobs"]
        if not np.isfinite(logprobs).all():
            raise ValueError(f"step {step}: {int((~np.isfinite(logprobs)).sum())} tokens without a log-probability")
        assert found.response_offsets is not None
        return Samples(found.prompts, found.responses, np.split(logprobs, found.response_offsets[1:-1]))

    def load(self, checkpoint: Path) -> None:
        """Weight sync: vLLM's own reload from a folder of safetensors; the prefix cache is emptied."""
        self._engine.run({"task": "reload", "path": str(checkpoint)})

    def weights(self) -> dict[str, Any]:
        """`logdiff-weights/1`: checksums of the weights in the engine's memory."""
        return self._json("weights")

    def fingerprint(self) -> dict[str, Any]:
        """`logdiff-fingerprint/1`: what really runs."""
        return self._json("fingerprint")

    def _json(self, task: str) -> dict[str, Any]:
        path = self._folder / f"rollout-{task}.json"
        self._engine.run({"task": task, "output": str(path)})
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document
