"""Prompts as token ids: drawn at random, read from a file, or text to be tokenised beside the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from logdiff.errors import InputError
from logdiff.live.models import Vocabulary
from logdiff.live.runfile import RandomPrompts

MAX_FILE = 1 << 30


def sample_ids(count: int) -> list[str]:
    """Stable names of samples in the order of the prompts: p0000, p0001, ..."""
    width = max(4, len(str(count - 1)))
    return [f"p{i:0{width}d}" for i in range(count)]


def random_prompts(spec: RandomPrompts, vocabulary: Vocabulary) -> list[list[int]]:
    """`count` lists of ids, uniform over [0, vocabulary) without special ids and ids that the tokenizer lacks.

    `numpy.random.Generator(PCG64(seed))`, one draw per prompt in order, so the same seed gives the same prompts
    and a longer list starts with a shorter one.
    """
    import numpy as np

    allowed = np.arange(min(vocabulary.size, vocabulary.tokenizer_size or vocabulary.size), dtype=np.int64)
    allowed = np.setdiff1d(allowed, np.array(sorted(vocabulary.special), dtype=np.int64))
    if not len(allowed):
        raise InputError("every id of the vocabulary is special", value=vocabulary.size, hint="give token_ids")
    generator = np.random.Generator(np.random.PCG64(spec.seed))
    lengths = [spec.lengths[i % len(spec.lengths)] for i in range(spec.count)]
    return [allowed[generator.integers(0, len(allowed), size=n)].tolist() for n in lengths]


def token_id_prompts(path: Path, vocabulary: Vocabulary | None) -> list[list[int]]:
    """Prompts of a JSON file: a list of lists of ids. Raises `InputError` naming the prompt at fault."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise InputError("prompts file is too large", value=str(path), hint=f"at most {MAX_FILE} bytes")
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"prompts file can't be read: {error}", value=str(path), hint="a JSON list of lists of token ids"
        ) from None
    if not isinstance(data, list) or not data:
        raise InputError("prompts file holds no list", value=str(path), hint="a JSON list of lists of token ids")
    for i, ids in enumerate(data):
        if not isinstance(ids, list) or not ids:
            raise InputError(f"prompt {i} is no list of token ids", value=ids, hint=f"see {path}")
        for token in ids:
            if type(token) is not int or token < 0:
                raise InputError(
                    f"prompt {i} holds a token id that is no integer >= 0", value=token, hint=f"see {path}"
                )
            if vocabulary is not None and token >= vocabulary.size:
                raise InputError(
                    f"prompt {i} holds a token id beyond the vocabulary of {vocabulary.size}",
                    value=token,
                    hint="use the ids of this model's tokenizer",
                )
    return data


def text_prompts(path: Path) -> list[str]:
    """Prompts of a text file, one per line; empty lines are left out."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise InputError("prompts file is too large", value=str(path), hint=f"at most {MAX_FILE} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"prompts file can't be read: {error}", value=str(path), hint="UTF-8 text, one prompt per line"
        ) from None
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise InputError("prompts file holds no prompt", value=str(path), hint="UTF-8 text, one prompt per line")
    return texts
