"""What the server reads of a model folder: that it is one, its vocabulary, and its special ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logdiff.errors import InputError

WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
MAX_JSON = 256 << 20


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Size of the logits' last dimension, the tokenizer's number of ids (None: no tokenizer), and its special ids."""

    size: int
    tokenizer_size: int | None
    special: frozenset[int]


def check_model_folder(path: Path, *, needs_weights: bool = True) -> None:
    """Raise `InputError` where `path` is no Hugging Face model folder with weights, before an engine is started."""
    if not path.is_dir():
        raise InputError(
            "no such model folder",
            value=str(path),
            hint="give a Hugging Face model folder (download a hub model first) or builtin:NAME",
        )
    if not (path / "config.json").is_file():
        raise InputError("model folder has no config.json", value=str(path), hint="give a Hugging Face model folder")
    if needs_weights and not any(next(path.glob(pattern), None) for pattern in WEIGHT_PATTERNS):
        raise InputError(
            "model folder has no weights",
            value=str(path),
            hint=f"no {', '.join(WEIGHT_PATTERNS)} in it; download or build it again",
        )


def vocabulary(path: Path) -> Vocabulary:
    """Read sizes and special ids from the JSON files of a model folder.

    Special are the bos, eos and pad ids of `config.json` (nested configurations included) and of
    `generation_config.json`, and every added token of the tokenizer files.

    Raises:
        InputError: no usable `vocab_size`.
    """
    config = _json(path / "config.json")
    configs = [config, *(v for v in config.values() if isinstance(v, dict))]
    size = next((c["vocab_size"] for c in configs if type(c.get("vocab_size")) is int and c["vocab_size"] > 0), None)
    if size is None:
        raise InputError("config.json has no vocab_size", value=str(path), hint="give the prompts as token_ids")
    special: set[int] = set()
    for source in (*configs, _json(path / "generation_config.json")):
        for key in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
            special |= _ids(source.get(key))
    added = _json(path / "tokenizer_config.json").get("added_tokens_decoder")
    if isinstance(added, dict):
        special |= {int(k) for k in added if str(k).isdecimal()}
    tokenizer = _json(path / "tokenizer.json")
    tokens = tokenizer.get("added_tokens")
    added_ids = (
        {i for t in tokens if isinstance(t, dict) for i in _ids(t.get("id"))} if isinstance(tokens, list) else set()
    )
    special |= added_ids
    return Vocabulary(size, _tokenizer_size(tokenizer, added_ids), frozenset(i for i in special if 0 <= i < size))


def _tokenizer_size(tokenizer: dict[str, Any], added: set[int]) -> int | None:
    model = tokenizer.get("model")
    words = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(words, dict):
        used = {v for v in words.values() if type(v) is int}
    elif isinstance(words, list):
        used = set(range(len(words)))
    else:
        return None
    return max(used | added, default=-1) + 1


def _ids(value: Any) -> set[int]:
    values = value if isinstance(value, list) else [value]
    return {v for v in values if type(v) is int}


def _json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no such file."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise InputError("model file is too large", value=str(path), hint=f"at most {MAX_JSON} bytes")
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"model file can't be read: {error}", value=str(path), hint="download it again") from None
    if not isinstance(data, dict):
        raise InputError("model file holds no JSON object", value=str(path), hint="download it again")
    return data
