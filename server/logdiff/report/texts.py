"""Texts of tokens, from the texts of the first responses (`sides/rollout/token_text.json`)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logdiff.case import Case

FILE = "sides/rollout/token_text.json"
FILE_LIMIT = 64 << 20


def read_texts(case: Case, problems: list[str]) -> dict[int, str]:
    """Token id -> text; empty where the case holds none.

    The file holds a list of texts per response of the first samples, in the order of the token table. What
    contradicts the table is told in `problems` and not used.
    """
    value = _load(case.path / FILE, problems)
    if isinstance(value, list):
        return _aligned(value, _responses(case), problems)
    if value is not None:
        problems.append(f"{FILE} holds {type(value).__name__}, not a list, and was not used.")
    return {}


def _load(path: Path, problems: list[str]) -> Any:
    try:
        if path.stat().st_size > FILE_LIMIT:
            problems.append(f"{FILE} is larger than {FILE_LIMIT >> 20} MiB and was not read.")
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{FILE} can't be read: {type(error).__name__}: {error}")
        return None


def _responses(case: Case) -> Iterator[list[int]]:
    from logdiff.errors import CaseError

    try:
        for batch in case.batches():
            bounds = batch.offsets.tolist()
            for start, stop in itertools.pairwise(bounds):
                yield batch.token_ids[start:stop].tolist()
    except CaseError:
        return  # told where the tokens themselves are read


def _aligned(texts: list[Any], responses: Iterable[list[int]], problems: list[str]) -> dict[int, str]:
    found: dict[int, str] = {}
    for row, ids in zip(texts, responses, strict=False):
        if not isinstance(row, list) or len(row) != len(ids):
            problems.append(f"{FILE} doesn't fit the responses of the token table and was not used.")
            return {}
        for token, text in zip(ids, row, strict=True):
            if not isinstance(text, str) or found.setdefault(token, text) != text:
                problems.append(f"{FILE} gives token {token} more than one text and was not used.")
                return {}
    return found
