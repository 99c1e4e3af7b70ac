"""What comparisons of two aligned engines share: an overlay, prompts, engine arguments, and the bits that differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from logdiff_kernels.sequences import Sequences, build, read, write

ARGS = {
    "enforce_eager": True,
    "max_model_len": 512,
    "block_size": 32,
    "enable_prefix_caching": False,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 16,
}
SAMPLING = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "topk": 0, "ignore_eos": True}


def overlay(path: Path, ops: Any = "all", sides: tuple[str, ...] = ("rollout", "train")) -> Path:
    """Write an overlay file; `ops` is "all" or a list of operator names."""
    from logdiff_kernels.align import OPERATORS

    names = list(OPERATORS) if ops == "all" else list(ops)
    body = {"format": "logdiff-overlay/1", "contract": "aligned/1", "provider": "aligned-cpu", "id": "test"}
    path.write_text(json.dumps({**body, "ops": names, "sides": list(sides)}))
    return path


def prompts(path: Path, lengths: tuple[int, ...], vocabulary: int = 1024, seed: int = 5, shared: int = 0) -> Path:
    """Random prompts of these lengths; the first `shared` tokens are the same in all that are longer."""
    rng = np.random.default_rng(seed)
    head = rng.integers(3, vocabulary, shared).tolist()
    ids = []
    for length in lengths:
        own = rng.integers(3, vocabulary, length).tolist()
        ids.append([*head, *own[shared:]] if length > shared else own)
    return write(path, build([str(i) for i in range(len(ids))], ids))


def differing(one: Path | Sequences, other: Path | Sequences) -> tuple[int, int, float]:
    """(tokens whose log-probabilities differ in any bit, tokens, largest difference) of the same tokens."""
    a, b = (read(side) if not isinstance(side, Sequences) else side for side in (one, other))
    assert a.responses == b.responses
    assert a.prompts == b.prompts
    x, y = (side.columns["logprobs"].astype(np.float32) for side in (a, b))
    assert len(x) > 0
    assert np.isfinite(x).all()
    assert np.isfinite(y).all()
    return int((x.view(np.uint32) != y.view(np.uint32)).sum()), len(x), float(np.abs(x - y).max())
