"""A live comparison and what a fault changes in it; writes both run files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.faults import modules
from tests.faults.draw import Draw
from tests.faults.fault import Made
from tests.faults.registry import Registry

Patch = Callable[..., None]
ModelFolder = Callable[[str, int, dict[str, Any]], str]
"""(name, seed of the weights, configuration overrides) -> path of a Hugging Face folder."""


@dataclass(slots=True)
class Side:
    """What a fault changes on one side.

    Args:
        args, env: merged over those of the stock comparison.
        patches: (patch function, its keyword arguments), each one module.
        model: makes another checkpoint from the stock one: (stock folder, folder to write) -> None.
        dtype: another dtype.
        score: merged over the stock layout.
    """

    args: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    patches: list[tuple[Patch, dict[str, Any]]] = field(default_factory=list)
    model: Callable[[Path, Path], None] | None = None
    dtype: str | None = None
    score: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Comparison:
    """A stock comparison and the changes that make it faulty.

    Args:
        model: name of a small model.
        overrides: of its configuration.
        dtype, steps, rollout_engine: of both run files.
        rollout_args, train_args, score: of the stock comparison, over the defaults.
        prompts: prompts of the run file; None: drawn.
        sampling: merged over the drawn one, in both files.
        fault_sampling: merged over it in the faulty one.
        rollout, train: the fault.
        facts: what was drawn.
    """

    model: str
    overrides: dict[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"
    steps: int = 1
    update: dict[str, Any] | None = None
    rollout_engine: str = "vllm"
    rollout_args: dict[str, Any] = field(default_factory=dict)
    train_args: dict[str, Any] = field(default_factory=dict)
    score: dict[str, Any] = field(default_factory=dict)
    prompts: dict[str, Any] | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    fault_sampling: dict[str, Any] = field(default_factory=dict)
    align: dict[str, Any] | None = None
    rollout: Side = field(default_factory=Side)
    train: Side = field(default_factory=Side)
    facts: dict[str, Any] = field(default_factory=dict)


def local_model(name: str, seed: int, overrides: dict[str, Any]) -> str:
    """Build the model once, or find it."""
    from logdiff_kernels.models import build

    return str(build(name, seed=0 if name == "smollm2" else seed, **overrides))


def write(comparison: Comparison, draw: Draw, folder: Path, models: ModelFolder = local_model) -> Made:
    """Write `run.yaml` and `stock.yaml` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    c = comparison
    model = models(c.model, draw.weights_seed(c.model), c.overrides)
    vllm = c.rollout_engine == "vllm"
    rollout_args = {"enforce_eager": True, "max_model_len": 512} if vllm else {"attn_implementation": "sdpa"}
    attention = "eager" if c.model in ("gemma2", "gpt-oss") else "sdpa"
    stock = {
        "format": "logdiff-run/1",
        "model": model,
        "dtype": c.dtype,
        "prompts": c.prompts or draw.prompts(c.model),
        "sampling": draw.sampling(c.model) | c.sampling,
        "rollout": {"engine": c.rollout_engine, "args": rollout_args | c.rollout_args},
        "train": {
            "engine": "transformers",
            "args": {"attn_implementation": attention} | c.train_args,
            "score": {"layout": "padded", "micro_batch_size": 8} | c.score,
        },
    }
    if c.steps > 1:
        stock |= {"steps": c.steps, "update": c.update or {"lr": 1e-3, "seed": 1}}
    if c.align is not None:
        stock["align"] = c.align
    faulty = stock | {"sampling": stock["sampling"] | c.fault_sampling}
    for name, side in (("rollout", c.rollout), ("train", c.train)):
        block = dict(stock[name])
        block["args"] = block["args"] | side.args
        if side.env:
            block["env"] = side.env
        if side.patches:
            block["modules"] = [str(modules.write(folder / name, *patch)) for patch in side.patches]
        if side.model is not None:
            side.model(Path(model), folder / f"{name}-model")
            block["model"] = str(folder / f"{name}-model")
        if side.dtype is not None:
            block["dtype"] = side.dtype
        if side.score:
            block["score"] = block["score"] | side.score
        faulty[name] = block
    paths = [_dump(folder / "run.yaml", faulty), _dump(folder / "stock.yaml", stock)]
    return Made([paths[0]], paths[1], c.facts)


def _dump(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def registry() -> Registry[Comparison]:
    """For the live faults of one module; `build` takes `models` too, where they get their checkpoints from."""
    return Registry("live", write)
