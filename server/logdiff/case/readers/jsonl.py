"""JSON Lines that people dump themselves: fields found by common names or by a mapping, one object per sample."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from logdiff.case.batch import PairBatch, PairMeta
from logdiff.case.batching import MAX_TOKENS
from logdiff.case.readers.lines import iter_lines, parse_object
from logdiff.case.readers.pairs import check_header, collect
from logdiff.errors import InputError

NAMES: dict[str, tuple[str, ...]] = {
    "sample_id": ("sample_id", "uid", "id", "request_id", "sample_index", "index"),
    "prompt_token_ids": ("prompt_token_ids", "prompt_ids", "prompts"),
    "response_token_ids": ("response_token_ids", "response_ids", "completion_ids", "output_ids", "responses"),
    "input_ids": ("input_ids", "token_ids", "tokens"),
    "prompt_length": ("prompt_length", "prompt_len", "num_prompt_tokens"),
    "response_length": ("response_length", "response_len", "completion_length"),
    "attention_mask": ("attention_mask",),
    "response_mask": ("response_mask", "loss_mask", "completion_mask"),
    "rollout_logprobs": ("rollout_logprobs", "rollout_log_probs", "sampling_per_token_logps", "generation_logprobs"),
    "train_logprobs": ("train_logprobs", "train_log_probs", "old_log_probs", "old_per_token_logps", "prev_logprobs"),
    "rescore_logprobs": ("rescore_logprobs", "rescore_log_probs"),
    "rollout_entropy": ("rollout_entropy",),
    "train_entropy": ("train_entropy",),
    "train_token_ids": ("train_token_ids",),
    "rollout_topk": ("rollout_topk",),
    "train_topk": ("train_topk",),
    "rollout_experts": ("rollout_experts", "rollout_routed_experts"),
    "train_experts": ("train_experts",),
    "step": ("step", "global_step", "global_steps"),
    "policy_version": ("policy_version", "weight_version"),
    "rank": ("rank",),
    "pack": ("pack",),
    "left_pad": ("left_pad",),
}
"""Fields that a mapping may set, each with the names under which it is looked for otherwise, first match first."""

_PER_TOKEN = (
    "response_mask",
    "rollout_logprobs",
    "train_logprobs",
    "rescore_logprobs",
    "rollout_entropy",
    "train_entropy",
)
_SIDES = ("rollout_logprobs", "train_logprobs")
_ABSENT = object()


def read_jsonl(
    paths: Iterable[str | os.PathLike[str]], mapping: Mapping[str, str] | None = None, *, max_tokens: int = MAX_TOKENS
) -> tuple[PairMeta, Iterator[PairBatch]]:
    """Stream JSON Lines of any field names (plain, gzip or zstd) as pair batches.

    Args:
        paths: files; a `logdiff-pair/1` header as first line is taken, but not needed.
        mapping: field of `NAMES` -> where it stands in the line. `a.b` descends, `a.0` takes an element, `a.*.b`
            takes `b` of every element.

    Token ids are either prompt and response apart, or `input_ids` with `prompt_length` or `response_length`. With
    `attention_mask` (as long as `input_ids`) padding is taken out. Per-token lists may be as long as the response, as
    `input_ids`, or one shorter than `input_ids` (entry i belongs to token i + 1, as trainers store shifted values).

    Raises:
        InputError: an unknown field, a mapped field that a line lacks, ids or a side that can't be found.
    """
    wanted = dict(mapping or {})
    for field in wanted:
        if field not in NAMES:
            raise InputError("the mapping sets an unknown field", value=field, hint=f"one of {', '.join(NAMES)}")
    files = [Path(path) for path in paths]
    if not files:
        raise InputError("no file was given", value=[], hint="give one file or more")
    facts: dict[str, Any] = {}
    for path in files:
        lines = iter_lines(path)
        number, line = next(lines, (0, b""))
        lines.close()
        if not number:
            raise InputError(f"{path}: the file is empty", value=str(path), hint="write one object per line")
        first = parse_object(line, f"{path}: line {number}")
        if _is_header(first):
            facts |= check_header(first, f"{path}: line {number}")
        else:
            _require_sides(_Row(first, wanted, f"{path}: line {number}").fields, first, f"{path}: line {number}")
    batches = (batch for path in files for batch in collect(_rows(path, wanted), str(path), max_tokens))
    return PairMeta(facts, source=", ".join(map(str, files))), batches


def _rows(path: Path, wanted: dict[str, str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in iter_lines(path):
        where = f"{path}: line {number}"
        row = parse_object(line, where)
        if _is_header(row):
            continue
        sample = _Row(row, wanted, where)
        yield number, sample.as_pair(f"{path.name}:{number}")


def _is_header(row: dict[str, Any]) -> bool:
    return str(row.get("format", "")).startswith("logdiff-pair/") and "meta" in row


def _require_sides(fields: dict[str, Any], row: dict[str, Any], where: str) -> None:
    for side in _SIDES:
        if side not in fields:
            raise InputError(
                f"{where}: no field holds {side}", value=sorted(row)[:40], hint=f"say which: --map {side}=FIELD"
            )


class _Row:
    """One line: the fields that it holds, by the names of `NAMES`."""

    def __init__(self, row: dict[str, Any], wanted: dict[str, str], where: str) -> None:
        self._row = row
        self._where = where
        self.fields: dict[str, Any] = {}
        for field, names in NAMES.items():
            if field in wanted:
                value = _find(row, wanted[field])
                if value is _ABSENT:
                    raise self._error(f"{wanted[field]} (mapped to {field}) is missing", sorted(row)[:40])
                self.fields[field] = value
            else:
                found = next((name for name in names if name in row), None)
                if found is not None:
                    self.fields[field] = row[found]

    def as_pair(self, default_id: str) -> dict[str, Any]:
        """The sample in the field names of a pair file."""
        out = {k: v for k, v in self.fields.items() if k not in ("input_ids", "prompt_length", "response_length")}
        name = out.get("sample_id", default_id)
        out["sample_id"] = str(name) if type(name) is int else name
        if "response_token_ids" not in out:
            self._split(out)
        out.pop("attention_mask", None)
        out.setdefault("prompt_token_ids", [])
        return out

    def _split(self, out: dict[str, Any]) -> None:
        ids = self.fields.get("input_ids")
        if ids is None:
            raise self._error("no field holds the response's token ids", sorted(self._row)[:40])
        if type(ids) is not list:
            raise self._error("input_ids must be a list", str(ids)[:80])
        start = self._prompt_length(len(ids))
        keep = self._attended(len(ids))
        stop = len(ids)
        if keep is not None:
            stop = start + sum(keep[start:])
            if not all(keep[start:stop]):
                raise self._error("attention_mask has holes in the response", keep[start:][:40])
        for field in _PER_TOKEN:
            values = out.get(field)
            if type(values) is list and len(values) != stop - start:
                shift = {len(ids): 0, len(ids) - 1: 1, len(ids) - start: start}.get(len(values))
                if shift is not None:
                    out[field] = values[start - shift : stop - shift]
        out["prompt_token_ids"] = [t for i, t in enumerate(ids[:start]) if keep is None or keep[i]]
        out["response_token_ids"] = ids[start:stop]
        if keep is not None:
            out.setdefault("left_pad", next((i for i, k in enumerate(keep) if k), len(keep)))

    def _prompt_length(self, total: int) -> int:
        for field in ("prompt_length", "response_length"):
            length = self.fields.get(field)
            if length is None:
                continue
            if type(length) is not int or not 0 <= length <= total:
                raise self._error(f"{field} must lie between 0 and the {total} input_ids", str(length)[:80])
            return length if field == "prompt_length" else total - length
        raise self._error("input_ids needs prompt_length or response_length", sorted(self._row)[:40])

    def _attended(self, total: int) -> list[int] | None:
        keep = self.fields.get("attention_mask")
        if keep is None:
            return None
        if (
            type(keep) is not list
            or len(keep) != total
            or any(type(k) not in (int, bool) or k not in (0, 1) for k in keep)
        ):
            raise self._error("attention_mask must hold 0 or 1 for each of the input_ids", str(keep)[:80])
        return keep

    def _error(self, what: str, value: Any) -> InputError:
        return InputError(
            f"{self._where}: {what}",
            value=value,
            hint="map fields with --map FIELD=NAME, for example --map rollout_logprobs=old.logp",
        )


def _find(value: Any, path: str) -> Any:
    if isinstance(value, dict) and path in value:
        return value[path]
    head, _, rest = path.partition(".")
    if head == "*" and isinstance(value, list):
        found = [_find(item, rest) if rest else item for item in value]
        return _ABSENT if any(item is _ABSENT for item in found) else found
    if isinstance(value, list) and head.isdecimal() and int(head) < len(value):
        inner = value[int(head)]
    elif isinstance(value, dict) and head in value:
        inner = value[head]
    else:
        return _ABSENT
    return _find(inner, rest) if rest else inner
