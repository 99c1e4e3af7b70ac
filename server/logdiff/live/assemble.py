"""From captured files to pairs, header facts and what the gates need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logdiff.live.capture import read_json, setting
from logdiff.live.layout import generated, rescored, scored
from logdiff.live.models import Vocabulary, vocabulary
from logdiff.live.session import Session
from logdiff.target.redact import redacted

if TYPE_CHECKING:
    from logdiff.case.batch import PairBatch, PairMeta
    from logdiff.measure import RunFacts


def batches(case: Path, steps: int) -> Iterator[PairBatch]:
    """The pairs of all steps, one step's files in memory at a time."""
    from logdiff.case.sequences import pair_batches, read_sequences

    for step in range(steps):
        rescore = case / rescored(step)
        yield from pair_batches(
            read_sequences(case / generated(step)),
            read_sequences(case / scored(step)),
            read_sequences(rescore) if rescore.is_file() else None,
            step=step,
            policy_version=step,
        )


def facts(case: Path, steps: int, unavailable: dict[str, str]) -> RunFacts:
    """Fingerprints and checksums of both sides as the runners wrote them; what is missing was not measured."""
    from logdiff.measure import RunFacts

    fingerprints = {}
    weights: dict[int, dict[str, dict[str, Any]]] = {}
    for side in ("rollout", "train"):
        path = case / "sides" / side / "fingerprint.json"
        if path.is_file():
            fingerprints[side] = read_json(path)
        for step in range(steps):
            path = case / "sides" / side / f"weights-step{step}.json"
            if path.is_file():
                weights.setdefault(step, {})[side] = read_json(path)
    return RunFacts(fingerprints=fingerprints, weights=weights, unavailable=unavailable)


def meta(session: Session, known: RunFacts) -> PairMeta:
    """Header facts of the run, as a pair file would carry them."""
    from logdiff.case.batch import PairMeta

    run = session.run
    folder = session.models["train"] or session.models["rollout"]
    found = _vocabulary(folder)
    config = read_json(folder / "config.json") if folder is not None else {}
    rollout = known.fingerprints.get("rollout", {})
    nested = config.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else {}

    def of_config(*keys: str) -> Any:
        return next((c[k] for c in (config, text) for k in keys if c.get(k) is not None), None)

    facts: dict[str, Any] = {
        "model": run.model,
        "vocab_size": found.size if found else None,
        "tokenizer_size": found.tokenizer_size if found else None,
        "temperature": run.sampling.temperature,
        "top_p": run.sampling.top_p,
        "top_k": run.sampling.top_k,
        "seed": run.sampling.seed,
        "max_tokens": run.sampling.max_tokens,
        "logprobs_mode": setting(rollout, "logprobs_mode"),
        "dtype": run.dtype,
        "moe": of_config("num_experts", "num_local_experts", "n_routed_experts") is not None,
        "sliding_window": of_config("sliding_window"),
        "block_size": setting(rollout, "block_size"),
        "chunk_size": setting(rollout, "max_num_batched_tokens"),
        "steps": run.steps,
        "prompts": run.prompts.model_dump(exclude_none=True),
    }
    for side in ("rollout", "train"):
        spec = run.spec(side)
        engine = known.fingerprints.get(side, {}).get("engine") or {}
        facts[side] = {
            "engine": spec.engine,
            "version": engine.get("version"),
            "model": spec.model if session.models[side] is not None else None,
            "dtype": spec.dtype if spec.engine != "vllm-http" else None,
            "args": redacted(spec.args),
            "modules": spec.modules,
        }
        if spec.engine.startswith("transformers"):
            facts[side]["score"] = spec.score
    return PairMeta(facts={k: v for k, v in facts.items() if v is not None}, source=str(session.case.path))


def _vocabulary(folder: Path | None) -> Vocabulary | None:
    return vocabulary(folder) if folder is not None else None
