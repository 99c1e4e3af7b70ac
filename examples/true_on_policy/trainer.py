"""The train side: Transformers with fp32 master weights and a compute copy in the rollout's dtype."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from logdiff_kernels import align

from examples.true_on_policy import fp32_gradients
from examples.true_on_policy.grpo import objective
from examples.true_on_policy.rollout import Samples
from examples.true_on_policy.settings import Settings


@dataclass(frozen=True, slots=True)
class Update:
    """One optimiser update: importance ratios of its tokens before it (fp32 [tokens]), loss, gradient norm."""

    ratios: np.ndarray[Any, np.dtype[np.float32]]
    loss: float
    grad_norm: float


class Trainer:
    """Scores and learns. Forward and backward run in the compute copy; AdamW works on the fp32 master weights.

    With `LOGDIFF_ALIGN` in the environment the model and the log-probabilities run on the aligned operators.
    """

    def __init__(self, settings: Settings) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        quiet: Any = logging.disable_progress_bar
        quiet()
        self._settings = settings
        loader: Any = AutoModelForCausalLM
        self.model: Any = loader.from_pretrained(settings.model, dtype=getattr(torch, settings.dtype)).train()
        self._spec = align.from_environment("train")
        if self._spec is not None:
            from logdiff_kernels.engines.transformers.align import apply

            apply(self.model)
        else:
            fp32_gradients.apply(self.model)
        self._copies = [p for p in self.model.parameters() if p.requires_grad]
        self._masters = [p.detach().float().requires_grad_() for p in self._copies]
        self._optimizer = torch.optim.AdamW(self._masters, lr=settings.lr, weight_decay=0.0, foreach=False)

    def score(self, samples: Samples) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
        """Log-probability of each response token under the present weights, as the rollout's are given."""
        found: list[Any] = []
        with torch.no_grad():
            for part in self._micro_batches(range(len(samples.prompts))):
                logp = self._logprobs(samples, part).numpy()
                found += np.split(logp, np.cumsum([len(samples.responses[i]) for i in part])[:-1])
        return found

    def update(self, samples: Samples, advantages: Sequence[float], chosen: Sequence[int]) -> Update:
        """One AdamW step on the clipped objective of the `chosen` samples; the old policy is the rollout's."""
        total = sum(len(samples.responses[i]) for i in chosen)
        ratios, loss_sum = [], 0.0
        for part in self._micro_batches(chosen):
            old = torch.from_numpy(np.concatenate([samples.logprobs[i] for i in part]))
            weight = torch.cat([torch.full((len(samples.responses[i]),), float(advantages[i])) for i in part])
            logp = self._logprobs(samples, part)
            loss: Any = objective(logp, old, weight, self._settings.clip) / total
            loss.backward()
            loss_sum += float(loss.detach())
            ratios.append(torch.exp(logp.detach() - old).numpy())
        norm = self._step()
        return Update(np.concatenate(ratios), loss_sum, norm)

    def save(self, folder: Path) -> None:
        """The compute copy as a checkpoint in Hugging Face names; an earlier one in `folder` goes away."""
        shutil.rmtree(folder, ignore_errors=True)
        self.model.save_pretrained(folder)

    def weights(self) -> dict[str, Any]:
        """`logdiff-weights/1` of the compute copy."""
        from logdiff_kernels.engines.transformers.tensors import weights_report

        return weights_report(self.model, lambda *_: None).as_dict()

    def snapshot(self) -> list[torch.Tensor]:
        """A copy of the compute weights, for `changed`."""
        return [p.detach().clone() for p in self._copies]

    def changed(self, before: list[torch.Tensor]) -> int:
        """How many values of the compute copy differ from `before`."""
        return sum(int((a != b.detach()).sum()) for a, b in zip(before, self._copies, strict=True))

    def _step(self) -> float:
        for master, copy in zip(self._masters, self._copies, strict=True):
            master.grad = None if copy.grad is None else copy.grad.float()
            copy.grad = None
        norm = float(torch.nn.utils.clip_grad_norm_(self._masters, 1.0, error_if_nonfinite=True, foreach=False))
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for master, copy in zip(self._masters, self._copies, strict=True):
                copy.copy_(master)
        return norm

    def _micro_batches(self, chosen: Sequence[int]) -> Iterator[list[int]]:
        for start in range(0, len(chosen), self._settings.micro_batch):
            yield list(chosen[start : start + self._settings.micro_batch])

    def _logprobs(self, samples: Samples, part: list[int]) -> torch.Tensor:
        """fp32 [response tokens of `part`] of one forward, rows padded on the right."""
        rows = [[*samples.prompts[i], *samples.responses[i]] for i in part]
        ids = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        row, column = [], []
        for place, (i, tokens) in enumerate(zip(part, rows, strict=True)):
            ids[place, : len(tokens)] = torch.tensor(tokens)
            mask[place, : len(tokens)] = 1
            columns = torch.arange(len(samples.prompts[i]), len(tokens))
            row.append(torch.full_like(columns, place))
            column.append(columns)
        rows_at, columns_at = torch.cat(row), torch.cat(column)
        first = int(columns_at.min()) - 1  # the logits of position p score the token at p + 1
        keep = torch.arange(first, ids.shape[1] - 1)
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=keep).logits
        return self._score(logits[rows_at, columns_at - 1 - first], ids[rows_at, columns_at])

    def _score(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        temperature = self._settings.temperature
        if self._spec is not None and "logprob" in self._spec:
            from logdiff_kernels import ops

            logp: torch.Tensor = ops.logprob(logits.float(), tokens, temperature=temperature)
            return logp
        scaled = logits.float() / temperature
        return torch.log_softmax(scaled, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
