"""Samples as JSON objects, collected and checked column by column: one type check per batch, not one per token."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from logdiff.case.batch import SIDES, PairBatch
from logdiff.case.readers.columns import ExpertsColumn, Ints, ListColumn, PairColumns, TopKColumn, assemble
from logdiff.errors import InputError

NUMBERS: dict[str, tuple[int, type[np.signedinteger[Any]]]] = {
    "step": (0, np.int32),
    "rank": (0, np.int32),
    "policy_version": (-1, np.int64),
    "pack": (-1, np.int32),
    "left_pad": (-1, np.int32),
}
"""Optional whole numbers of a sample: value where absent, width."""

_LISTS = ["prompt_token_ids", "response_token_ids", "response_mask", "train_token_ids"]
_LISTS += [f"{side}_logprobs" for side in SIDES] + ["rollout_entropy", "train_entropy"]
_LISTS += ["rollout_topk", "train_topk", "rollout_experts", "train_experts"]
_NESTED = {"rollout_topk", "train_topk", "rollout_experts", "train_experts"}
FIELDS = frozenset({"sample_id", *NUMBERS, *_LISTS})
"""Every field of a sample."""
_RANGES = {key: (int(np.iinfo(width).min), int(np.iinfo(width).max)) for key, (_, width) in NUMBERS.items()}
_NONE = type(None)
_SHORT, _LONG, _MOST_NAMES = 8, 40, 100
"""A field of so few letters is too easily like another word; longer or later names of a line aren't judged."""


def misspelled(names: Iterable[str], given: Container[str]) -> tuple[str, str] | None:
    """A name that is no field but nearly one that isn't given, and that field; other fields of the user's are fine."""
    absent = [key for key in FIELDS if len(key) > _SHORT and key not in given]
    others = (name for name in names if name not in FIELDS and len(name) < _LONG)
    for name in islice(others, _MOST_NAMES):
        for meant in get_close_matches(name, absent, n=1, cutoff=0.9):
            return name, meant
    return None


@dataclass(slots=True)
class _Lists:
    """The lists of one field: which samples have one, how long each is, all elements joined."""

    samples: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


class SampleCollector:
    """Collects the objects of one file until `build` turns them into a batch.

    `tokens` counts response tokens, `values` all list elements, nested ones too, so that the caller can bound both.

    Args:
        source: the file, for messages.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self.clear()

    def clear(self) -> None:
        """Forget all samples."""
        self.sample_id: list[str] = []
        self.tokens = 0
        self.values = 0
        self._line: list[int] = []
        self._numbers: dict[str, dict[int, int]] = {name: {} for name in NUMBERS}  # sample -> number
        self._lists: dict[str, _Lists] = {name: _Lists() for name in _LISTS}

    def add(self, row: dict[str, Any], line: int) -> None:
        """Take one sample. Raises InputError when a field has the wrong type; list elements are checked by `build`."""
        name = row.get("sample_id")
        if type(name) is not str:
            raise self._error(line, None, "sample_id", "must be a string", name)
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError:
                raise self._error(line, repr(name), "sample_id", "is no valid Unicode text", repr(name)) from None
        ids = row.get("response_token_ids")
        if type(ids) is not list:
            raise self._error(line, name, "response_token_ids", "must be a list of token ids", ids)
        sample = len(self.sample_id)
        # Walk what the line holds, not what it might: most samples have a few fields of many.
        for key, given in row.items():
            if given is None:
                continue
            if key in self._lists:
                if type(given) is not list:
                    raise self._error(line, name, key, "must be a list", given)
                lists = self._lists[key]
                lists.samples.append(sample)
                lists.counts.append(len(given))
                lists.values.extend(given)
                self.values += len(given) + (_nested_values(given) if key in _NESTED else 0)
            elif key in self._numbers:
                low, high = _RANGES[key]
                if type(given) is not int or not low <= given <= high:
                    raise self._error(line, name, key, f"must be a whole number of {NUMBERS[key][1].__name__}", given)
                self._numbers[key][sample] = given
        self.sample_id.append(name)
        self._line.append(line)
        self.tokens += len(ids)

    def build(self) -> PairBatch:
        """The batch of all samples taken, then empty again. Raises InputError naming line, sample, field and value."""
        columns = PairColumns(
            sample_id=self.sample_id,
            numbers={key: self._number_column(key) for key in NUMBERS},
            prompt=self._int_column("prompt_token_ids"),
            ids=self._int_column("response_token_ids"),
            mask=self._mask_column(),
            logprobs={side: self._float_column(f"{side}_logprobs") for side in SIDES},
            train_ids=self._int_column("train_token_ids"),
            entropy={
                side: self._float_column(f"{side}_entropy")
                for side in ("rollout", "train")
                if self._present(f"{side}_entropy")
            },
            topk={
                side: self._topk_column(f"{side}_topk")
                for side in ("rollout", "train")
                if self._present(f"{side}_topk")
            },
            experts={
                side: self._experts_column(f"{side}_experts")
                for side in ("rollout", "train")
                if self._present(f"{side}_experts")
            },
        )
        self.clear()
        return assemble(columns)

    def _present(self, key: str) -> bool:
        return bool(self._lists[key].samples)

    def _sizes(self, key: str) -> Ints:
        sizes = np.full(len(self.sample_id), -1, np.int64)
        sizes[self._lists[key].samples] = self._lists[key].counts
        return sizes

    def _number_column(self, key: str) -> Ints:
        numbers = np.full(len(self.sample_id), NUMBERS[key][0], np.int64)
        given = self._numbers[key]
        numbers[list(given)] = list(given.values())
        return numbers

    def _int_column(self, key: str) -> ListColumn:
        return ListColumn(self._sizes(key), self._integers(key, self._lists[key].values, np.int64, None))

    def _float_column(self, key: str) -> ListColumn:
        values, null = self._reals(key, self._lists[key].values, None)
        return ListColumn(self._sizes(key), values, null)

    def _mask_column(self) -> ListColumn:
        key = "response_mask"
        values = self._lists[key].values
        wrong = [v for v in set(values) if v not in (0, 1)] if self._hashable(values) else [None]
        if wrong or not set(map(type, values)) <= {int, bool, float}:
            at = next(i for i, v in enumerate(values) if type(v) not in (int, bool, float) or v not in (0, 1))
            raise self._element_error(key, at, "must be 0 or 1", values[at], None)
        return ListColumn(self._sizes(key), np.array(values, np.bool_))

    @staticmethod
    def _hashable(values: list[Any]) -> bool:
        return not {list, dict} & set(map(type, values))

    def _topk_column(self, key: str) -> TopKColumn:
        entries, pairs, owner = self._open_lists(key, self._lists[key].values, None, "a list of [id, logprob] pairs")
        at = next((i for i, pair in enumerate(pairs) if type(pair) is not list or len(pair) != 2), None)
        if at is not None:
            raise self._element_error(key, at, "must be a pair [id, logprob]", pairs[at], owner)
        ids = self._integers(key, [pair[0] for pair in pairs], np.int64, owner)
        logprobs, _ = self._reals(key, [pair[1] for pair in pairs], owner)
        return TopKColumn(self._sizes(key), entries, ids, logprobs)

    def _experts_column(self, key: str) -> ExpertsColumn:
        layers, rows, owner = self._open_lists(key, self._lists[key].values, None, "a list of layers")
        slots, experts, owner = self._open_lists(key, rows, owner, "a list of expert ids")
        return ExpertsColumn(self._sizes(key), layers, slots, self._integers(key, experts, np.int32, owner))

    def _open_lists(
        self, key: str, lists: list[Any], owner: Ints | None, what: str
    ) -> tuple[Ints, list[Any], npt.NDArray[np.int64]]:
        """Take one level of lists apart: sizes, elements, and for each element the token that it belongs to."""
        if not set(map(type, lists)) <= {list, _NONE}:
            at = next(i for i, v in enumerate(lists) if type(v) not in (list, _NONE))
            raise self._element_error(key, at, f"must be {what}", lists[at], owner)
        sizes = np.array([0 if v is None else len(v) for v in lists], np.int64)
        outer = np.arange(len(lists)) if owner is None else owner
        return sizes, list(chain.from_iterable(v for v in lists if v is not None)), np.repeat(outer, sizes)

    def _integers(self, key: str, values: list[Any], width: type[Any], owner: Ints | None) -> npt.NDArray[Any]:
        if not set(map(type, values)) <= {int}:
            at = next(i for i, v in enumerate(values) if type(v) is not int)
            raise self._element_error(key, at, "must be a whole number", values[at], owner)
        try:
            return np.array(values, width)
        except OverflowError:
            low, high = np.iinfo(width).min, np.iinfo(width).max
            at = next(i for i, v in enumerate(values) if not low <= v <= high)
            raise self._element_error(key, at, f"does not fit {np.dtype(width).name}", values[at], owner) from None

    def _reals(
        self, key: str, values: list[Any], owner: Ints | None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_] | None]:
        kinds = set(map(type, values))
        if not kinds <= {float, int, _NONE}:
            at = next(i for i, v in enumerate(values) if type(v) not in (float, int, _NONE))
            raise self._element_error(key, at, "must be a number or null", values[at], owner)
        null = np.fromiter((v is None for v in values), np.bool_, len(values)) if _NONE in kinds else None
        try:
            wide = np.array(values, np.float64)
        except OverflowError:
            at = next(i for i, v in enumerate(values) if type(v) is int and abs(v) > 1 << 1000)
            raise self._element_error(key, at, "is too large for a number", values[at], owner) from None
        with np.errstate(over="ignore"):  # a value beyond fp32 becomes infinite and fails the finite-values gate
            return wide.astype(np.float32), null

    def _element_error(self, key: str, at: int, what: str, value: Any, owner: Ints | None) -> InputError:
        token = at if owner is None else int(owner[at])
        ends = np.cumsum(np.maximum(self._sizes(key), 0))
        sample = int(np.searchsorted(ends, token, side="right"))
        place = token - (int(ends[sample - 1]) if sample else 0)
        return self._error(self._line[sample], self.sample_id[sample], f"{key}[{place}]", what, value)

    def _error(self, line: int, sample: str | None, where: str, what: str, value: Any) -> InputError:
        of = "" if sample is None else f", sample {sample[:80]}"
        return InputError(
            f"{self._source}: line {line}{of}: {where} {what}",
            value=_shown(value),
            hint=f"write {where.split('[')[0]} as logdiff-pair/1 says",
        )


def _nested_values(tokens: list[Any]) -> int:
    """Values below the lists of each token: the pairs or layers, and what the first of each token holds, times them."""
    count = 0
    for rows in tokens:
        if type(rows) is list and rows:
            first = rows[0]
            count += len(rows) * (1 + (len(first) if type(first) is list else 0))
    return count


def _shown(value: Any) -> Any:
    """The value itself when it is short, else the start of it."""
    if value is None or isinstance(value, (bool, float)) or (isinstance(value, int) and abs(value) < 1 << 64):
        return value
    if isinstance(value, int):
        return f"a number of {value.bit_length()} bits"
    text = str(value[:8] if isinstance(value, list) else value)
    return text if len(text) <= 80 else f"{text[:77]}..."
