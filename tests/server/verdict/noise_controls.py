"""Pair records with rounding noise alone, of many sizes, shapes and side facts: no fault may be found in them."""

from __future__ import annotations

from typing import Any

import numpy as np


def noise_control(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header facts and records: noise that grows with surprise, light or heavy tails, packs, pads, steps, ranks."""
    rng = np.random.default_rng(seed)
    samples, longest = int(rng.choice([6, 10, 16, 32, 64])), int(rng.choice([16, 40, 100, 200]))
    size, decay = 10 ** rng.uniform(-6, -1.2), float(rng.choice([0.3, 1, 3]))
    steps, ranks = int(rng.choice([1, 1, 3, 5])), int(rng.choice([1, 1, 4]))
    packed, padded, shared = rng.random() < 0.3, rng.random() < 0.3, rng.random() < 0.3
    heavy, growing = rng.random() < 0.4, rng.random() < 0.3
    prompts = [rng.integers(0, 1000, int(rng.integers(3, 60))) for _ in range(samples)]
    rows = []
    for i in range(samples):
        n = int(rng.integers(max(4, longest // 3), longest))
        x = -rng.gamma(0.6, decay, n)
        e = rng.standard_t(4, n) if heavy else rng.normal(0, 1, n)
        width = size * (np.abs(x) if growing else np.sqrt(1 - np.exp(x))) * np.exp(rng.normal(0, 0.25))
        row = {
            "sample_id": str(i),
            "prompt_token_ids": prompts[i // 4 * 4 if shared else i].tolist(),
            "response_token_ids": rng.integers(0, 1000, n).tolist(),
            "rollout_logprobs": np.float32(x).astype(float).tolist(),
            "train_logprobs": np.float32(np.minimum(x + width * e, 0)).astype(float).tolist(),
            "step": i * steps // samples,
            "rank": i % ranks,
        }
        if packed:
            row["pack"] = i // 3
        if padded:
            row["left_pad"] = int(rng.integers(0, 3) * 10)
        rows.append(row)
    known = {"vocab_size": 1000, "temperature": 1.0, "dtype": "bfloat16", "sliding_window": 32, "chunk_size": 64}
    return ({**known, "moe": bool(seed % 4 == 0)} if seed % 2 == 0 else {}), rows
