"""Time, memory and slope of capturing a forward: boundaries of every layer of a Transformers model, scored.

    python -m benchmarks.capture [--layers 4,8,16] [--tokens 4096,8192,16384] [--level full|sketch] [--json FILE]

Each run is a process of its own: a random model of so many layers scores so many tokens without hooks, then with them.
`extra` is what the capture adds to the plain forward, in seconds of the CPU; its slope is the exponent of that time
against values, from the smallest size of a sweep on: 1 is linear. `anon_mib` is the memory that grew beyond the plain
forward and is no page of the file that is written (rows are spooled to disk), at its highest.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.result import finish

LIMITS = {"values": 100_000_000, "anon_mib": 1024, "slope": 1.3}
"""The promise that is checked: memory of captures of at least so many values, and the slope over a sweep."""

REPEATS = 2
"""The least time of so many counts."""

LENGTH = 512
"""Tokens of one sequence."""


class Anonymous(threading.Thread):
    """The most anonymous memory of this process while it runs, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self._over = 0.0, threading.Event()

    def run(self) -> None:
        """Look every 20 ms."""
        while not self._over.wait(0.02):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            self.most = max(self.most, next(int(x.split()[1]) / 1024 for x in lines if x.startswith("RssAnon")))

    def end(self) -> float:
        """Stop; the figure."""
        self._over.set()
        self.join()
        return self.most


def run(layers: int, tokens: int, level: str, folder: str) -> dict[str, Any]:
    """One capture in this process."""
    import torch
    import transformers
    from logdiff_kernels.engines.transformers.boundaries.capture import Observer
    from logdiff_kernels.engines.transformers.scorer import Scorer
    from logdiff_kernels.engines.transformers.settings import Score
    from logdiff_kernels.observe.boundaries.recorder import Keep, Recorder

    torch.set_num_threads(1)
    config = transformers.Qwen3Config(
        vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=4096,
    )  # fmt: skip
    build: Any = transformers.AutoModelForCausalLM.from_config
    model = build(config, dtype=torch.float32).eval()
    count = tokens // LENGTH
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1024, (count, LENGTH), generator=generator).tolist()
    prompts, responses = [row[: LENGTH // 2] for row in ids], [row[LENGTH // 2 :] for row in ids]
    settings: Any = {"temperature": 1.0, "progress": lambda *_args: None}
    scorer = Scorer(model, 0)

    def seconds(function: Any) -> tuple[float, float]:
        watch = Anonymous()
        watch.start()
        start = time.process_time()
        function()
        return time.process_time() - start, watch.end()

    scorer.score(prompts[:1], responses[:1], Score(micro_batch_size=4), **settings)

    def least(function: Any) -> tuple[float, float]:
        found = [seconds(function) for _ in range(REPEATS)]
        return min(time for time, _ in found), max(memory for _, memory in found)

    plain, before = least(lambda: scorer.score(prompts, responses, Score(micro_batch_size=4), **settings))
    made: dict[str, Any] = {}

    def capture() -> None:
        recorder = Recorder(
            [str(i) for i in range(count)], prompts, responses, Keep(level=level, max_bytes=1 << 40), folder
        )
        with Observer(model, recorder) as observer:
            found = scorer.score(prompts, responses, Score(micro_batch_size=4), expect=observer.expect, **settings)
        recorder.logprobs(found.columns["logprobs"])
        path = Path(folder) / "out.safetensors"
        made.update(recorder.write(path, engine="transformers", side="train", phase="score", model="", dtype="float32"))
        recorder.close()

    watched, after = least(capture)
    return {
        "layers": layers, "tokens": tokens, "level": level, "values": made["values"],
        "file_mb": made["bytes"] // 1_000_000, "plain": round(plain, 2), "captured": round(watched, 2),
        "extra": round(watched - plain, 2), "anon_mib": round(after - before),
    }  # fmt: skip


def child(layers: int, tokens: int, level: str, folder: str | None) -> dict[str, Any]:
    """One capture in a process of its own. Raises SystemExit when it fails."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        command = [sys.executable, "-m", "benchmarks.capture", "--child", f"{layers},{tokens},{level},{scratch}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the capture failed: {done.stderr[-2000:]}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> int:
    """Print a table, or write JSON; 1 where the promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="4,8,16", help="sizes at the fewest tokens, separated by commas")
    parser.add_argument("--tokens", default="4096,8192,16384", help="sizes at the fewest layers")
    parser.add_argument("--level", default="full", choices=("full", "sketch"))
    parser.add_argument("--folder", default=None, help="where files are written meanwhile")
    parser.add_argument("--json", default=None, help="also write the rows to this file (- for standard output)")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        layers, tokens, level, folder = arguments.child.split(",")
        print(json.dumps(run(int(layers), int(tokens), level, folder)))
        return 0
    layers, tokens = (sorted(int(n) for n in text.split(",")) for text in (arguments.layers, arguments.tokens))
    shown = sys.stderr if arguments.json == "-" else sys.stdout
    print(
        f"{'layers':>6} {'tokens':>7} {'values':>12} {'plain':>7} {'extra':>7} {'anon MiB':>9} {'slope':>6}", file=shown
    )
    rows: list[dict[str, Any]] = []
    for sweep in ([(n, tokens[0]) for n in layers], [(layers[0], n) for n in tokens]):
        first: dict[str, Any] | None = None
        for size in sweep:
            known = next((row for row in rows if (row["layers"], row["tokens"]) == size), None)
            row = dict(known) if known else child(*size, arguments.level, arguments.folder)
            if first is not None:
                times, values = row["extra"] / first["extra"], row["values"] / first["values"]
                row["slope"] = round(math.log(times) / math.log(values), 3)
                row["within_limit"] = size != sweep[-1] or row["slope"] < LIMITS["slope"]
            if row["values"] >= LIMITS["values"]:
                row["within_limit"] = row.get("within_limit", True) and row["anon_mib"] < LIMITS["anon_mib"]
            first = first or row
            rows.append(row)
            figures = f"{row['layers']:>6} {row['tokens']:>7,} {row['values']:>12,} {row['plain']:>7} {row['extra']:>7}"
            print(f"{figures} {row['anon_mib']:>9} {row.get('slope', ''):>6}", file=shown, flush=True)
    return finish("capture", LIMITS, rows, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
