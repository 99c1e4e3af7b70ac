"""One-sided toggles: a side started again without something of its own, on the same tokens. What moves is the cause."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logdiff.diagnose.limits import Limits
from logdiff.errors import LogdiffError
from logdiff.live.capture import scoring
from logdiff.live.layout import generated, scored
from logdiff.live.session import Session
from logdiff.target import EngineSpec

START_SECONDS = {"vllm": 45.0, "transformers": 15.0, "transformers-generate": 15.0}

PLAIN_ARGS = frozenset(
    {
        *("max_model_len", "gpu_memory_utilization", "cpu_offload_gb", "swap_space", "trust_remote_code", "revision"),
        *("tokenizer", "tokenizer_mode", "skip_tokenizer_init", "tokenizer_revision", "load_format", "download_dir"),
        *("disable_log_stats", "max_num_seqs", "seed", "logprobs_mode", "max_logprobs", "distributed_executor_backend"),
        *("device_map", "max_memory", "low_cpu_mem_usage", "token", "subfolder", "cache_dir", "local_files_only"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enforce_eager", "block_size"),
        *("kv_cache_memory_bytes", "num_gpu_blocks_override", "worker_extension_cls", "limit_mm_per_prompt"),
        *("max_num_batched_tokens", "enable_prefix_caching", "enable_chunked_prefill"),
    }
)
"""Arguments that say where and how much, not what is computed: a plain start keeps them."""


@dataclass(frozen=True, slots=True)
class Toggle:
    """What one restart without something showed.

    Args:
        side: the side that was started again.
        kind: "modules", "env", "args", or several joined by "+".
        removed: what it was started without, in words.
        before, after: mean d squared of decode against train, nats squared.
        z: change of d squared, token by token, over its standard error; positive where it fell.
        columns: column -> sequence file of the plain side ("decode", "prefill" or "train").
    """

    side: str
    kind: str
    removed: str
    before: float
    after: float
    z: float
    columns: dict[str, Path]

    @property
    def share(self) -> float:
        """Share of mean d squared that went away; negative where it grew."""
        return 1.0 - self.after / self.before if self.before > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "side": self.side, "kind": self.kind, "removed": self.removed, "before_ms": self.before, "z": self.z,
            "after_ms": self.after, "share": self.share,
        }  # fmt: skip


def removable(spec: EngineSpec) -> dict[str, Any]:
    """What a plain start of a side would leave out: `modules`, `env` and `args`, those that are there."""
    args = {key: value for key, value in spec.args.items() if key not in PLAIN_ARGS}
    env = {key: value for key, value in spec.env.items() if key != "LOGDIFF_ALIGN"}
    parts = {"modules": spec.modules, "env": env, "args": args}
    return {name: part for name, part in parts.items() if part}


def toggle(session: Session, side: str, kinds: list[str], step: int, limits: Limits) -> Toggle | str:
    """Start a side without `kinds` of what is its own and measure the same tokens; a reason where that can't be."""
    spec = session.spec(side)
    if spec.engine == "vllm-http":
        return "a running server is not started from here"
    parts = {name: part for name, part in removable(spec).items() if name in kinds}
    if not parts:
        return f"the {side} side has nothing of its own to leave out"
    why = limits.allow(START_SECONDS.get(spec.engine, 30.0), 1)
    if why is not None:
        return why
    plain = replace(
        spec,
        modules=[] if "modules" in parts else spec.modules,
        env={k: v for k, v in spec.env.items() if "env" not in parts or k == "LOGDIFF_ALIGN"},
        args={k: v for k, v in spec.args.items() if "args" not in parts or k not in parts["args"]},
    )
    words = "; ".join(f"{name} {_words(part)}" for name, part in parts.items())
    kind = "+".join(parts)
    try:
        columns = _columns(session, side, f"{side}-without-{kind}", plain, step)
    except LogdiffError as error:
        session.check_cancel()
        session.case.journal.append("experiment_failed", task=f"toggle/{side}/{kind}", error=error.message[:2000])
        return f"the {side} side without {words} could not be measured: {error.message}"
    base = session.case.path
    old = {"rollout": base / generated(step), "train": base / scored(step)}
    new = {**old, side: columns["train" if side == "train" else "decode"]}
    before, after, z = change(squares(old["rollout"], old["train"]), squares(new["rollout"], new["train"]))
    return Toggle(side, kind, words, before, after, z, columns)


def _columns(session: Session, side: str, name: str, spec: EngineSpec, step: int) -> dict[str, Path]:
    tokens, sampling = session.case.path / generated(step), session.run.sampling.request()
    folder = f"captures/step{step}/toggles"
    jobs: dict[str, dict[str, Any]]
    try:
        if side == "train":
            jobs = {"train": {"task": "score", "sampling": scoring(sampling), "score": spec.score}}
        else:
            jobs = {
                "decode": {"task": "force", "sampling": sampling, "batch": None},
                "prefill": {"task": "rescore", "sampling": scoring(sampling), "batch": None},
            }
        found = {}
        for column, task in jobs.items():
            outcome = session.do(
                f"step{step}/{name}/{column}", name, spec, {**task, "input": str(tokens), "order": "given"},
                output=f"{folder}/{name}-{column}.safetensors", inputs=[tokens], step=step,
            )  # fmt: skip
            if outcome.path is not None:
                found[column] = outcome.path
            elif column != "prefill":
                outcome.file  # noqa: B018  raises with the reason
        return found
    finally:
        session.close(name)


def squares(rollout: Path, train: Path) -> Any:
    """d squared [T] of two sequence files, NaN where a side has no value."""
    from logdiff.case.sequences import read_sequences

    return (read_sequences(train).values() - read_sequences(rollout).values()) ** 2


def change(before: Any, after: Any) -> tuple[float, float, float]:
    """(mean before, mean after, change over its standard error) of d squared [T] over tokens with both values."""
    import numpy as np

    kept = np.isfinite(before) & np.isfinite(after)
    if not kept.any():
        return float("inf"), float("inf"), 0.0
    one, other = before[kept], after[kept]
    difference = one - other
    error = float(difference.std(ddof=1)) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
    mean = float(difference.mean())
    z = mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0
    return float(one.mean()), float(other.mean()), z


def _words(part: Any) -> str:
    if isinstance(part, dict):
        return ", ".join(sorted(part))
    return ", ".join(Path(item).name for item in part)
