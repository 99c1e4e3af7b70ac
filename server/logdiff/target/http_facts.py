"""What a server tells about itself, and the one setting that has to be tried: its logprobs mode."""

from __future__ import annotations

from typing import Any

from logdiff.errors import EngineError
from logdiff.target.http_client import HttpClient
from logdiff.target.openai_completions import generate_body, read_generated

PROBE_TEMPERATURE = 0.5
PROBE_MARGIN = 0.02
"""Nats. Far above what two runs of one prompt differ by, far below what halving the temperature does."""


async def fingerprint(
    client: HttpClient,
    *,
    model: str,
    max_model_len: int | None,
    system_fingerprint: str | None,
    sampling: dict[str, Any],
) -> dict[str, Any]:
    """A `logdiff-fingerprint/1` of what the server says; what it does not say is null."""
    version = await client.call("GET", "/version", optional=True, retries=1)
    info = await client.call("GET", "/server_info?config_format=json", optional=True, retries=1)
    mode, how = await logprobs_mode(client, model)
    config = info.get("vllm_config") if isinstance(info, dict) else None
    env = info.get("vllm_env") if isinstance(info, dict) else None
    return {
        "format": "logdiff-fingerprint/1",
        "engine": {
            "name": "vllm-http",
            "version": version.get("version") if isinstance(version, dict) else None,
            "url": client.url,
            "model": model,
            "system_fingerprint": system_fingerprint,
        },
        "python": None,
        "packages": {},
        "device": None,
        "config": config if isinstance(config, dict) else None,
        "effective": {
            "temperature": sampling.get("temperature"),
            "top_p": sampling.get("top_p"),
            "top_k": sampling.get("top_k"),
            "seed": sampling.get("seed"),
            "logprobs_mode": mode,
            "logprobs_mode_how": how,
            "max_model_len": max_model_len,
        },
        "model": None,
        "env": env if isinstance(env, dict) else {},
        "modules": [],
        "quantization": None,
        "adapters": [],
        "patched": [],
        "dispatch": None,
        "chat_template": None,
        "tokenizer_size": None,
        "vocab_size": None,
        "eos_token_ids": None,
    }


async def logprobs_mode(client: HttpClient, model: str) -> tuple[str | None, str]:
    """The server's logprobs mode, found by two requests, and how it was found.

    The most likely token after the same prompt is asked for at temperature 1 and 0.5. A processed log-probability
    rises at 0.5 (unless it is 0 or the distribution is flat), a raw one stays. Positive values are logits.
    """
    base = {"max_tokens": 1, "top_p": 1.0, "top_k": -1, "seed": 0, "topk": 1}
    prompt = [1, 2, 3, 4]
    values = []
    for temperature in (1.0, PROBE_TEMPERATURE):
        body = generate_body(model, prompt, {**base, "temperature": temperature})
        try:
            scored = read_generated(await client.call("POST", "/v1/completions", body), prompt, 1)
        except EngineError as error:
            return None, f"could not be tried: {error.message}"
        if not scored.top or not scored.top[0]:
            return None, "could not be tried: the server gives no top log-probabilities by id"
        values.append(scored.top[0][0][1])
    at_one, at_half = values
    seen = f"most likely token {at_one:.4f} at temperature 1, {at_half:.4f} at {PROBE_TEMPERATURE:g}"
    if max(values) > 0:
        return ("raw_logits" if abs(at_one - at_half) < PROBE_MARGIN else "processed_logits"), seen
    if abs(at_half - at_one) < PROBE_MARGIN:
        return ("raw_logprobs", seen) if at_one < -4 * PROBE_MARGIN else (None, f"undecided: {seen}")
    return "processed_logprobs", seen
