"""Logits from the model's own forward, at chosen positions, a bounded number of them at a time."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch

LOGITS_BYTES = 512 << 20
"""Bound on one block of logits."""


def keeps_positions(model: Any) -> bool:
    """Whether the model's forward takes `logits_to_keep`."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def rows_that_fit(model: Any, rows: int, length: int) -> int:
    """How many of `rows` fit the bound when the forward can only give all logits of every row."""
    if keeps_positions(model):
        return rows
    size = _vocabulary(model) * model.dtype.itemsize * length
    return max(1, min(rows, LOGITS_BYTES // int(size)))


def logits_at(model: Any, inputs: dict[str, Any], columns: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (columns, logits [B, len(columns), V]) until all `columns` (int64, ascending) are done.

    The body of the model runs once. When the logits of all columns would be larger than `LOGITS_BYTES`, the forward
    is called again for each further block with the body replaced by its recorded output, so that the head, its caps
    and whatever wraps them are always the model's own.
    """
    batch = inputs["input_ids"].shape[0]
    if not keeps_positions(model):
        yield columns, model(**inputs).logits[:, columns]
        return
    step = max(1, LOGITS_BYTES // (batch * _vocabulary(model) * model.dtype.itemsize))
    prefix = getattr(model, "base_model_prefix", "")
    body = getattr(model, prefix, None) if prefix else None
    if len(columns) <= step or body is None or body is model:
        yield columns, _select(model(**inputs, logits_to_keep=columns).logits, columns)
        return
    recorded: list[Any] = []
    handle = body.register_forward_hook(lambda _module, _args, output: recorded.append(output))
    try:
        first = model(**inputs, logits_to_keep=columns[:step]).logits
    finally:
        handle.remove()
    yield columns[:step], _select(first, columns[:step])
    del first
    with _replaced(model, prefix, _Recorded(body, recorded[-1])):
        for start in range(step, len(columns), step):
            part = columns[start : start + step]
            yield part, _select(model(**inputs, logits_to_keep=part).logits, part)


def _select(logits: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """A forward that takes the argument but gives every position is cut here."""
    return logits if logits.shape[1] == len(columns) else logits[:, columns]


def _vocabulary(model: Any) -> int:
    return int(model.config.get_text_config(decoder=True).vocab_size)


class _Recorded(torch.nn.Module):
    """Stands where the body was and gives back its recorded output; everything else is the body's."""

    def __init__(self, body: torch.nn.Module, output: Any) -> None:
        super().__init__()
        self.__dict__["_body"] = body
        self.__dict__["_output"] = output

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        return self._output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_body"], name)


@contextlib.contextmanager
def _replaced(model: Any, name: str, stand_in: torch.nn.Module) -> Iterator[None]:
    body = model._modules[name]
    model._modules[name] = stand_in
    try:
        yield
    finally:
        model._modules[name] = body
