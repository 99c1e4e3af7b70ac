"""Time and peak memory of reading pair files and of the token table, against the number of tokens.

    python -m benchmarks.readers [--tokens 1000000] [--folder DIR]

Each form is read in a child process of its own, so that peak memory is its alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from logdiff.case.batch import SIDES, PairBatch, PairMeta

_CHILD = """
import json, sys, time
from logdiff.case.readers import read_pairs
start = time.perf_counter()
_, batches = read_pairs([sys.argv[1]])
if sys.argv[2] == "read":
    tokens = sum(batch.tokens for batch in batches)
else:
    from logdiff.case import Case
    case = Case.create(sys.argv[3], "bench", "import", {})
    tokens = 0
    with case.open_writer() as writer:
        for batch in batches:
            writer.append(batch)
            tokens += batch.tokens
    case.close()
seconds = time.perf_counter() - start
peak = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) // 1024
print(json.dumps({"tokens": tokens, "seconds": round(seconds, 2), "peak_mib": peak}))
"""


def synthetic_batches(tokens: int, *, response: int = 1000, per_batch: int = 256, seed: int = 0) -> Iterator[PairBatch]:
    """Samples of `response` tokens that add up to `tokens`; d has a scale of 0.02 nats."""
    rng = np.random.default_rng(seed)
    done = 0
    while done < tokens:
        total = min(per_batch * response, tokens - done)
        sizes = np.full(-(-total // response), response, np.int64)
        sizes[-1] = total - int(sizes[:-1].sum())
        count = len(sizes)
        rollout = -rng.exponential(1.0, total).astype(np.float32)
        train = rollout + rng.normal(0.0, 0.02, total).astype(np.float32)
        lengths = np.stack([sizes, np.full(count, -1), sizes, sizes, np.full(count, -1)], axis=1)
        yield PairBatch(
            sample_id=[f"sample-{done // response + i}" for i in range(count)],
            step=np.zeros(count, np.int32),
            rank=np.zeros(count, np.int32),
            policy_version=np.full(count, -1, np.int64),
            pack=np.full(count, -1, np.int32),
            left_pad=np.full(count, -1, np.int32),
            prompt_offsets=np.arange(count + 1, dtype=np.int64) * 16,
            prompt_ids=rng.integers(0, 150_000, count * 16),
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            token_ids=rng.integers(0, 150_000, total),
            mask=np.ones(total, np.bool_),
            logprob={"rollout": rollout, "train": train, "rescore": np.full(total, np.nan, np.float32)},
            null={side: np.full(total, side == "rescore") for side in SIDES},
            lengths=lengths,
            train_ids=[None] * count,
        )
        done += total


def main() -> None:
    """Print one JSON line per form and size; each form at a tenth of the tokens first, for the slope."""
    from logdiff.case.readers import write_pairs

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--folder", default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for suffix in ("parquet", "jsonl", "jsonl.gz", "jsonl.zst"):
            for tokens in (arguments.tokens // 10, arguments.tokens):
                path = Path(folder) / f"pairs-{tokens}.{suffix}"
                write_pairs(path, PairMeta(), synthetic_batches(tokens))
                for what in ("read", "case"):
                    command = [sys.executable, "-c", _CHILD, str(path), what, f"{path}.case"]
                    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    size = path.stat().st_size // 1_000_000
                    print(json.dumps({"form": suffix, "what": what, "megabytes": size, **json.loads(out)}), flush=True)
                path.unlink()


if __name__ == "__main__":
    main()
