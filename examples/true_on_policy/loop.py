"""One run: rollout, score, updates, weight sync; a line of metrics per step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from logdiff_kernels import align

from examples.true_on_policy.grpo import advantages
from examples.true_on_policy.metrics import difference, ratios, unequal_weights
from examples.true_on_policy.rollout import Rollout, Samples
from examples.true_on_policy.settings import Settings
from examples.true_on_policy.task import Task
from examples.true_on_policy.trainer import Trainer

Phase = Callable[[int, str], None]


class EvidenceError(Exception):
    """The two sides are not comparable: another mode than asked for, or other weights."""


class NotOnPolicyError(AssertionError):
    """An aligned run in which the two sides differ somewhere."""


def write_overlay(path: Path, ops: str) -> Path:
    """The overlay that `logdiff align apply` writes, for both sides."""
    names = align.parse_ops(ops)
    document = {
        "format": align.FORMAT,
        "contract": align.CONTRACT,
        "provider": align.PROVIDER,
        "id": "true-on-policy",
        "ops": [name for name in align.OPERATORS if name in names],
        "sides": list(align.SIDES),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path.absolute()


def run(settings: Settings, folder: Path, on_phase: Phase, on_step: Callable[[dict[str, Any]], None]) -> None:
    """Run all steps and write `settings.json`, `metrics.jsonl` and `fingerprint.json` into `folder`.

    An overlay that the environment names already is used; otherwise an aligned run writes its own.

    Args:
        settings: the run.
        folder: made if it is not there; metrics of an earlier run in it are replaced.
        on_phase: called with the step and what begins now.
        on_step: called with each line of metrics.

    Raises:
        NotOnPolicyError: an aligned run that is not exactly on-policy; the step's metrics are written first.
        EvidenceError: the rollout engine is not in the mode asked for; weights of the two sides differ after a sync.
    """
    from transformers import AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    if settings.mode == "stock":
        os.environ.pop(align.VARIABLE, None)
    elif not os.environ.get(align.VARIABLE):
        os.environ[align.VARIABLE] = str(write_overlay(folder / "align.json", settings.ops))
    (folder / "settings.json").write_text(json.dumps(settings.as_dict(), indent=1), encoding="utf-8")
    tokenizer_class: Any = AutoTokenizer
    task = Task(tokenizer_class.from_pretrained(settings.model), settings.letter, settings.seed)
    batches = [task.draw(settings.prompts) for _ in range(settings.steps)]
    longest = max(len(ids) for batch in batches for ids in batch)
    on_phase(0, "starting vLLM")
    with Rollout(settings, folder, longest) as rollout, (folder / "metrics.jsonl").open("w") as stream:
        fingerprint = rollout.fingerprint()
        (folder / "fingerprint.json").write_text(json.dumps(fingerprint, indent=1), encoding="utf-8")
        if (settings.mode == "aligned") != bool(fingerprint.get("aligned")):
            raise EvidenceError(f"a {settings.mode} run, but the rollout engine says {fingerprint.get('aligned')!r}")
        on_phase(0, "loading the trainer")
        trainer = Trainer(settings)
        for step, prompts in enumerate(batches):
            line = _step(settings, step, prompts, task, rollout, trainer, folder, on_phase)
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            on_step(line)
            if settings.mode == "aligned":
                require_on_policy(line)


def require_on_policy(line: dict[str, Any]) -> None:
    """Raise `NotOnPolicyError` unless every token has equal bits and every ratio of the first update is exactly 1."""
    if line["mismatched"] or line["max_abs"] or line["first_update"]["not_one"]:
        raise NotOnPolicyError(
            f"step {line['step']}: {line['mismatched']} of {line['tokens']} tokens differ (max |d| {line['max_abs']}), "
            f"{line['first_update']['not_one']} ratios of the first update are not 1"
        )


def _step(
    settings: Settings,
    step: int,
    prompts: list[list[int]],
    task: Task,
    rollout: Rollout,
    trainer: Trainer,
    folder: Path,
    on_phase: Phase,
) -> dict[str, Any]:
    clock = _Clock(step, on_phase)
    clock.phase("rollout")
    samples = rollout.sample([ids for ids in prompts for _ in range(settings.group)], step)
    rewards = [task.reward(response) for response in samples.responses]
    clock.phase("score")
    found = difference(trainer.score(samples), samples.logprobs)
    clock.phase("update")
    before = trainer.snapshot()
    gains = advantages(rewards, settings.group).tolist()
    updates = [trainer.update(samples, gains, chosen) for chosen in _parts(samples, settings.minibatches)]
    clock.phase("sync")
    trainer.save(folder / "weights")
    rollout.load(folder / "weights")
    clock.phase("check")
    checked = _checks(settings, step)
    if checked:
        wrong = unequal_weights(trainer.weights(), rollout.weights())
        if wrong:
            raise EvidenceError(f"step {step}: {len(wrong)} tensors differ after the sync, the first is {wrong[0]}")
    seconds = clock.done()
    return {
        "step": step,
        "mode": settings.mode,
        **found,
        "first_update": ratios(updates[0].ratios, settings.clip),
        "last_update": ratios(updates[-1].ratios, settings.clip),
        "reward": float(np.mean(rewards)),
        "reward_std": float(np.std(rewards)),
        "response_length": samples.tokens / len(samples.responses),
        "loss": [u.loss for u in updates],
        "grad_norm": [u.grad_norm for u in updates],
        "weights_changed": trainer.changed(before),
        "weights_checked": checked,
        "rollout_tokens_per_second": samples.tokens / seconds["rollout"],
        "seconds": seconds,
    }


def _parts(samples: Samples, count: int) -> list[list[int]]:
    """Samples with a response, dealt out in turn so that every group is in every part."""
    chosen = [i for i, response in enumerate(samples.responses) if response]
    return [part for part in (chosen[start::count] for start in range(count)) if part]


def _checks(settings: Settings, step: int) -> bool:
    every = settings.check_weights
    return step in (0, settings.steps - 1) or bool(every and step % every == 0)


class _Clock:
    """Seconds per phase; `step` is the sum without the check."""

    def __init__(self, step: int, on_phase: Phase) -> None:
        self._step, self._on_phase = step, on_phase
        self._seconds: dict[str, float] = {}
        self._name, self._since = "", 0.0

    def phase(self, name: str) -> None:
        self._close()
        self._name, self._since = name, time.monotonic()
        self._on_phase(self._step, name)

    def done(self) -> dict[str, float]:
        self._close()
        total = sum(value for name, value in self._seconds.items() if name != "check")
        return {name: round(value, 4) for name, value in self._seconds.items()} | {"step": round(total, 4)}

    def _close(self) -> None:
        if self._name:
            self._seconds[self._name] = time.monotonic() - self._since
