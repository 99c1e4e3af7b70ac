"""Teacher-forced scoring of given tokens: log-probabilities, entropy, top-k and routed experts.

Temperature is applied as verl's FSDP engine does it (`logits.div_(temperature)` in `prepare_model_outputs` of
verl/workers/engine/fsdp/transformer_impl.py): a division in the dtype of the logits, before the fp32 log-softmax.
With the contract's `logprob` it is a division in fp32 inside that operator.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from logdiff_kernels.engines.base import Progress
from logdiff_kernels.engines.transformers.head import logits_at, rows_that_fit
from logdiff_kernels.engines.transformers.layout import Expect, MicroBatch, micro_batches, rows_of
from logdiff_kernels.engines.transformers.loading import dtype_of
from logdiff_kernels.engines.transformers.logprobs import score_rows, score_rows_aligned
from logdiff_kernels.engines.transformers.packing import require_packing
from logdiff_kernels.engines.transformers.routing import RoutingRecorder
from logdiff_kernels.engines.transformers.settings import Score
from logdiff_kernels.errors import InputError


@dataclass(slots=True)
class Scores:
    """Columns of a sequence file over T response tokens, and what is to be known about them."""

    columns: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)


class Scorer:
    """Scores sequences with one model; checks once whether it can pack.

    Args:
        model: a causal language model of transformers.
        filler: token id under padding.
        aligned: log-probabilities by the contract's operator.
    """

    def __init__(self, model: Any, filler: int, *, aligned: bool = False) -> None:
        self._model = model
        self._filler = filler
        self._aligned = aligned
        self._packs = False

    def score(
        self,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        score: Score,
        *,
        temperature: float,
        progress: Progress,
        order: Sequence[int] | None = None,
        topk: int = 0,
        with_experts: bool = True,
        expect: Expect | None = None,
    ) -> Scores:
        """Score every response token given everything before it.

        Args:
            prompts: token ids per sample; an empty prompt leaves the first response token without a value.
            responses: token ids per sample.
            score: layout.
            temperature: above 0.
            progress: told response tokens.
            order: the order in which samples enter the micro-batches; results stand in the given order.
            topk: number of most likely tokens to keep.
            with_experts: record routed experts where the model has routers.
            expect: told before each micro-batch who its rows are.

        Raises:
            InputError: a token id outside the vocabulary.
            UnsupportedError: `packed` on a model that lets sequences see each other.
        """
        model = self._model
        check_ids(model, prompts, responses)
        if score.layout == "packed" and not self._packs:
            require_packing(model)
            self._packs = True
        begin = time.monotonic()
        lengths = np.array([len(r) for r in responses], dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        total = int(offsets[-1])
        table = _Table(total, topk)
        sequences = [[*p, *r] for p, r in zip(prompts, responses, strict=True)]
        wanted = [i for i in (range(len(sequences)) if order is None else order) if lengths[i] > 0]
        size = rows_that_fit(model, score.micro_batch_size, max((len(s) for s in sequences), default=1))
        if score.layout == "padded" and size < score.micro_batch_size:
            score = Score(score.layout, score.padding_side, size, score.autocast)
        done = 0
        with torch.no_grad(), _autocast(model, score), RoutingRecorder(model) as recorder:
            for batch in micro_batches(sequences, wanted, score, self._filler):
                if expect is not None:
                    shape = (int(batch.input_ids.shape[0]), int(batch.input_ids.shape[1]))
                    expect(*rows_of(batch.places, [len(s) for s in sequences], shape))
                targets = _targets(batch, prompts, responses, offsets)
                self._micro_batch(batch, targets, table, temperature, recorder if with_experts else None)
                done += int(sum(lengths[sample] for sample, _, _ in batch.places))
                progress(done, total, "token")
        facts: dict[str, Any] = {
            "tokens": total,
            "seconds": round(time.monotonic() - begin, 3),
            "score": score.as_dict(),
            "temperature": temperature,
            "experts_missing": recorder.missing,
        }
        limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
        if limit is not None:
            facts["samples_beyond_max_positions"] = sum(len(s) > limit for s in sequences)
        return Scores(table.columns(), facts)

    def _micro_batch(
        self,
        batch: MicroBatch,
        targets: _Targets,
        table: _Table,
        temperature: float,
        recorder: RoutingRecorder | None,
    ) -> None:
        model, device = self._model, self._model.device
        inputs: dict[str, Any] = {
            "input_ids": batch.input_ids.to(device),
            "position_ids": batch.position_ids.to(device),
            "use_cache": False,
        }
        if batch.attention_mask is not None:
            inputs["attention_mask"] = batch.attention_mask.to(device)
        columns = torch.unique(targets.column)
        experts: torch.Tensor | None = None
        for number, (part, logits) in enumerate(logits_at(model, inputs, columns.to(device))):
            if number == 0 and recorder is not None:
                experts = recorder.take(*batch.input_ids.shape)
            here = part.cpu()
            inside = torch.isin(targets.column, here)
            row, column = targets.row[inside], targets.column[inside]
            place_of = logits.device  # the last of them, where layers are spread over devices
            picked = logits[row.to(place_of), torch.searchsorted(here, column).to(place_of)]
            del logits
            token = targets.token[inside].to(place_of)
            if self._aligned:
                scored = score_rows_aligned(picked, token, temperature, topk=table.topk)
            else:
                if temperature != 1.0:
                    picked.div_(temperature)
                scored = score_rows(picked, token, topk=table.topk)
            place = targets.place[inside].numpy()
            table.put("logprobs", place, scored.logprob)
            table.put("entropy", place, scored.entropy)
            if scored.topk_ids is not None and scored.topk_logprobs is not None:
                table.put("topk_ids", place, scored.topk_ids)
                table.put("topk_logprobs", place, scored.topk_logprobs)
        if experts is not None:
            table.put("experts", targets.place.numpy(), experts[targets.row, targets.column])


@dataclass(frozen=True, slots=True)
class _Targets:
    """The response tokens of one micro-batch: where their logits are, their id, where their value goes. int64 [n]."""

    row: torch.Tensor
    column: torch.Tensor
    token: torch.Tensor
    place: torch.Tensor


def _targets(
    batch: MicroBatch, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], offsets: Any
) -> _Targets:
    rows, columns, tokens, places = [], [], [], []
    for sample, row, first in batch.places:
        skip = 0 if len(prompts[sample]) else 1  # nothing predicts the very first token
        count = len(responses[sample]) - skip
        rows.append(torch.full((count,), row, dtype=torch.int64))
        columns.append(torch.arange(count) + first + max(len(prompts[sample]) - 1, 0))
        tokens.append(torch.tensor(responses[sample][skip:], dtype=torch.int64))
        places.append(torch.arange(count) + int(offsets[sample]) + skip)
    return _Targets(torch.cat(rows), torch.cat(columns), torch.cat(tokens), torch.cat(places))


class _Table:
    """The columns under construction."""

    def __init__(self, tokens: int, topk: int) -> None:
        self._tokens = tokens
        self.topk = topk
        self._columns: dict[str, Any] = {}

    def put(self, name: str, place: Any, values: torch.Tensor) -> None:
        array = values.cpu().numpy()
        if name not in self._columns:
            fill = {"topk_ids": -1, "experts": -1}.get(name, np.nan)
            dtype = {"topk_ids": np.int64, "experts": np.int32}.get(name, np.float32)
            self._columns[name] = np.full((self._tokens, *array.shape[1:]), fill, dtype=dtype)
            self._columns.setdefault("logprobs_null", np.ones(self._tokens, dtype=np.uint8))
        self._columns[name][place] = array
        if name == "logprobs":
            self._columns["logprobs_null"][place] = 0

    def columns(self) -> dict[str, Any]:
        found = dict(self._columns)
        found.setdefault("logprobs", np.full(self._tokens, np.nan, dtype=np.float32))
        if not found.get("logprobs_null", np.zeros(0)).any():
            found.pop("logprobs_null", None)
        return found


def check_ids(model: Any, *groups: Sequence[Sequence[int]]) -> None:
    """Raise `InputError` for a token id that the embedding has no row for; the id is named."""
    rows = model.get_input_embeddings().weight.shape[0]
    for group in groups:
        for number, ids in enumerate(group):
            array = np.asarray(ids, dtype=np.int64)
            bad = array[(array < 0) | (array >= rows)]
            if len(bad):
                raise InputError(
                    f"token id {int(bad[0])} of sample {number} is outside the vocabulary of {rows}",
                    value=int(bad[0]),
                    hint="ids made by this model's tokenizer",
                )


def _autocast(model: Any, score: Score) -> Any:
    if score.autocast is None:
        return contextlib.nullcontext()
    return torch.autocast(device_type=model.device.type, dtype=dtype_of(score.autocast))
