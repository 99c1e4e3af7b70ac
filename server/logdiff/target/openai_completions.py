"""Token ids and log-probabilities in and out of `/v1/completions`, by id and never by text.

Fields as vLLM 0.32 defines them (`vllm/entrypoints/openai/completion/protocol.py`): `return_token_ids`,
`return_tokens_as_token_ids` and `prompt_logprobs`.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from logdiff.errors import EngineError
from logdiff.target.engine import UnsupportedError

CLAMP = -9999.0
"""vLLM writes -inf as this number, since JSON has no infinity."""

MAX_ID = 2**63 - 1
"""Largest token id that evidence files hold."""

_TEXT_ONLY = (
    "this server gives text only; logdiff needs token ids and log-probabilities: use vLLM >= 0.10 or another server "
    "that honours return_token_ids or return_tokens_as_token_ids, and logprobs, on /v1/completions"
)


@dataclass(frozen=True, slots=True)
class Scored:
    """Ids of the response, their log-probabilities (None where the server gave none), most likely tokens."""

    ids: list[int]
    logprobs: list[float | None]
    top: list[list[tuple[int, float]]]
    system_fingerprint: str | None = None


def sample_seed(seed: int, index: int) -> int:
    """A sample's own seed (31 bits), the one that engine `vllm` takes: equal prompts give different samples."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{index}".encode()).digest()[:4], "little") >> 1


def generate_body(model: str, prompt: list[int], sampling: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """The request of the rollout of sample `index`. Penalties are given, so that no default of the server creeps in."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": sampling["max_tokens"],
        "temperature": sampling["temperature"],
        "top_p": sampling["top_p"],
        "top_k": sampling["top_k"],
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "n": 1,
        "logprobs": max(1, sampling.get("topk", 0)),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "ignore_eos": sampling.get("ignore_eos", False),
        "stream": False,
    }
    if sampling.get("seed") is not None:
        body["seed"] = sample_seed(sampling["seed"], index)
    return body


def rescore_body(model: str, ids: list[int], topk: int) -> dict[str, Any]:
    """The request that scores `ids` as a prompt; one token is generated since servers refuse none."""
    return {
        "model": model,
        "prompt": ids,
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": topk,
        "return_token_ids": True,
        "add_special_tokens": False,
        "stream": False,
    }


def read_generated(answer: Any, prompt: list[int], topk: int) -> Scored:
    """Check the answer to `generate_body`. Raises `EngineError` naming what is missing or does not fit."""
    choice = _choice(answer)
    _same_prompt(answer, choice, prompt)
    logprobs = choice.get("logprobs")
    logprobs = logprobs if isinstance(logprobs, dict) else {}
    tokens = logprobs.get("tokens")
    ids = choice.get("token_ids")
    if ids is None and isinstance(tokens, list):
        ids = [_placeholder(t) for t in tokens]
    if not isinstance(ids, list) or any(type(i) is not int or i < 0 for i in ids):
        raise EngineError("the server gave no token ids", value=sorted(choice), hint=_TEXT_ONLY)
    _in_range(ids)
    if choice.get("finish_reason") in ("abort", "error"):
        raise EngineError(
            f"the server gave up on a request (finish_reason {choice['finish_reason']})",
            value=len(ids),
            hint="see the server's log",
        )
    values = logprobs.get("token_logprobs") if ids else []
    if not isinstance(values, list):
        raise EngineError("the server gave no log-probabilities", value=sorted(choice), hint=_TEXT_ONLY)
    if len(values) != len(ids):
        raise EngineError(
            f"the server gave {len(values)} log-probabilities for {len(ids)} tokens",
            value=len(values),
            hint="its answers can't be compared token by token",
        )
    top = logprobs.get("top_logprobs")
    rows: list[list[tuple[int, float]]] = [[] for _ in ids]
    if topk and isinstance(top, list) and len(top) == len(ids):
        rows = [_top(row, topk) for row in top]
    fingerprint = answer.get("system_fingerprint")
    return Scored(
        ids=ids,
        logprobs=[_number(v) for v in values],
        top=rows,
        system_fingerprint=fingerprint if isinstance(fingerprint, str) else None,
    )


def read_rescored(answer: Any, ids: list[int], prompt_length: int, topk: int) -> Scored:
    """Check the answer to `rescore_body`: the entry of each response id is looked up by that id.

    Raises:
        UnsupportedError: a server that does not score prompts.
        EngineError: an answer that does not fit the request.
    """
    choice = _choice(answer)
    _same_prompt(answer, choice, ids)
    entries = choice.get("prompt_logprobs")
    if not isinstance(entries, list):
        raise UnsupportedError(
            "the server gave no prompt_logprobs", value=sorted(choice), hint="it can't rescore; vLLM servers can"
        )
    if len(entries) != len(ids):
        raise EngineError(
            f"the server gave {len(entries)} prompt_logprobs for {len(ids)} tokens",
            value=len(entries),
            hint="its answers can't be compared token by token",
        )
    values: list[float | None] = []
    rows: list[list[tuple[int, float]]] = []
    for token, entry in zip(ids[prompt_length:], entries[prompt_length:], strict=True):
        found = entry.get(str(token)) if isinstance(entry, dict) else None
        if not isinstance(found, dict):
            raise EngineError(
                f"prompt_logprobs has no entry of token {token}", value=token, hint="its answers can't be compared"
            )
        values.append(_number(found.get("logprob")))
        pairs = [(_id(k), _number(v.get("logprob"))) for k, v in entry.items() if isinstance(v, dict)]
        known = [(k, v) for k, v in pairs if k is not None and v is not None]
        rows.append(sorted(known, key=lambda p: (-p[1], p[0]))[:topk])
    return Scored(ids=ids[prompt_length:], logprobs=values, top=rows)


def _choice(answer: Any) -> dict[str, Any]:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineError(
            "the server's answer has no single choice", value=str(answer)[:200], hint="is /v1/completions served here?"
        )
    return choices[0]


def _same_prompt(answer: dict[str, Any], choice: dict[str, Any], prompt: list[int]) -> None:
    echoed = choice.get("prompt_token_ids")
    if isinstance(echoed, list):
        if echoed != prompt:
            raise EngineError(
                "the server changed the prompt's token ids",
                value=echoed[:8],
                hint="turn off what it adds (a begin token, truncation)",
            )
        return
    usage = answer.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if type(count) is int and count != len(prompt):
        raise EngineError(
            f"the server counted {count} prompt tokens where {len(prompt)} were sent",
            value=count,
            hint="turn off what it adds (a begin token, truncation)",
        )


def _placeholder(token: Any) -> int | None:
    """The id in vLLM's "token_id:17"; None for text, which is never looked up in a vocabulary."""
    if isinstance(token, str) and token.startswith("token_id:"):
        return _id(token[9:])
    return None


def _id(text: str) -> int | None:
    """A token id from its digits; None for what is none."""
    if not text.isdecimal() or len(text) > len(str(MAX_ID)):
        return None
    return value if (value := int(text)) <= MAX_ID else None


def _in_range(ids: list[int]) -> None:
    beyond = next((i for i in ids if i > MAX_ID), None)
    if beyond is not None:
        raise EngineError(
            "the server gave a token id of more than 64 bits", value=str(beyond)[:40], hint="is this a model server?"
        )


def _top(row: Any, topk: int) -> list[tuple[int, float]]:
    if not isinstance(row, dict):
        return []
    pairs = [(_placeholder(k), _number(v)) for k, v in row.items()]
    known = [(k, v) for k, v in pairs if k is not None and v is not None]
    return sorted(known, key=lambda p: (-p[1], p[0]))[:topk]


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise EngineError("the server gave a log-probability that is no number", value=value, hint="see its log")
    try:
        return -math.inf if value == CLAMP else float(value)
    except OverflowError:  # an integer beyond every float
        return math.inf if value > 0 else -math.inf
