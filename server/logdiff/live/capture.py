"""Which tasks capture one step of each side, and where their files lie in the case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from logdiff.errors import EngineError, EvidenceError
from logdiff.live.layout import PROMPTS, TOKENS, generated, rescored, scored
from logdiff.live.prompts import random_prompts, sample_ids, text_prompts, token_id_prompts
from logdiff.live.session import Outcome, Session
from logdiff.live.tokens import earlier_tokens

MAX_TEXT_TOKENS = 200_000
"""Tokens whose texts are kept for reports."""


def scoring(sampling: dict[str, Any]) -> dict[str, Any]:
    """How given tokens are scored: greedy sampling (temperature 0) scores at temperature 1."""
    return {**sampling, "temperature": sampling["temperature"] or 1.0}


def capture_prompts(session: Session) -> Path:
    """Write the prompts of the run, tokenising text beside the model."""
    from logdiff.case.sequences import build_sequences, read_sequences, write_sequences
    from logdiff.live.models import vocabulary

    prompts, path = session.run.prompts, session.case.path / PROMPTS
    done = session.case.recorded_outputs("prompts")
    if done is not None:
        return path
    if session.run.align.tokens is not None:
        return _earlier_tokens(session, Path(session.run.align.tokens), path)
    folder = session.models["rollout"] or session.models["train"]
    assert folder is not None
    if prompts.text is not None:
        texts = text_prompts(Path(prompts.text))
        task = {"task": "tokenize", "texts": texts, "chat": prompts.chat}
        raw = "captures/tokenized.safetensors"
        outcome = session.do("tokenize", "rollout", session.spec("rollout"), task, output=raw)
        tokens = read_sequences(outcome.file)
        ids = [tokens.prompt(i).tolist() for i in range(len(tokens.sample_ids))]
        empty = next((i for i, p in enumerate(ids) if not p), None)
        if len(ids) != len(texts) or empty is not None:
            raise EngineError(
                "the tokenizer left a prompt without tokens", value=texts[empty or 0][:80], hint="remove that line"
            )
    elif prompts.token_ids is not None:
        ids = token_id_prompts(Path(prompts.token_ids), vocabulary(folder))
    else:
        assert prompts.random is not None
        ids = random_prompts(prompts.random, vocabulary(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sequences(path, build_sequences(sample_ids(len(ids)), ids))
    session.case.record_outputs("prompts", [path])
    return path


def _earlier_tokens(session: Session, folder: Path, path: Path) -> Path:
    """The tokens of an earlier case as this one's prompts and given responses."""
    from logdiff.case.sequences import build_sequences, write_sequences

    found = earlier_tokens(folder)
    prompts = [found.prompt(i).tolist() for i in range(len(found.sample_ids))]
    tokens = session.case.path / TOKENS
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sequences(tokens, found)
    write_sequences(path, build_sequences(found.sample_ids, prompts))
    session.case.record_outputs("prompts", [path, tokens])
    return path


def capture_rollout(session: Session, step: int, prompts: Path) -> Outcome:
    """Sample (or decode the given tokens), describe and checksum the rollout side, then rescore.

    Returns:
        the outcome of the rescore: its file, or why there is none.
    """
    spec, sampling = session.spec("rollout"), session.run.sampling.request()
    key = f"step{step}/rollout"
    source = prompts
    task: dict[str, Any] = {"task": "generate", "input": str(prompts), "sampling": sampling}
    if session.run.align.tokens is not None:
        source = session.case.path / TOKENS
        task = {"task": "force", "input": str(source), "sampling": sampling, "batch": None, "order": "given"}
    output = session.do(
        f"{key}/generate", "rollout", spec, task, output=generated(step), inputs=[source], step=step
    ).file
    _check_samples(output, prompts)
    describe(session, "rollout", step)
    return session.do(
        f"{key}/rescore",
        "rollout",
        spec,
        {"task": "rescore", "input": str(output), "sampling": scoring(sampling), "batch": None, "order": "given"},
        output=rescored(step),
        inputs=[output],
        step=step,
    )


def capture_train(session: Session, step: int) -> Path:
    """Score the rollout's tokens, checksum and describe the train side; token texts at the first step."""
    spec, tokens = session.spec("train"), session.case.path / generated(step)
    path = session.do(
        f"step{step}/train/score",
        "train",
        spec,
        score_task(tokens, session.run.sampling.request(), spec.score),
        output=scored(step),
        inputs=[tokens],
        step=step,
    ).file
    describe(session, "train", step)
    if step == 0:
        _token_texts(session, tokens)
    return path


def score_task(tokens: Path, sampling: dict[str, Any], score: dict[str, Any], order: str = "given") -> dict[str, Any]:
    """A `score` task of the runner protocol."""
    return {"task": "score", "input": str(tokens), "sampling": scoring(sampling), "score": score, "order": order}


def describe(session: Session, side: str, step: int) -> None:
    """Weights of this step and, once, the fingerprint."""
    spec = session.spec(side)
    if step == 0:
        session.do(
            f"step{step}/{side}/fingerprint",
            side,
            spec,
            {"task": "fingerprint"},
            output=f"sides/{side}/fingerprint.json",
            step=step,
        )
    session.do(
        f"step{step}/{side}/weights",
        side,
        spec,
        {"task": "weights"},
        output=f"sides/{side}/weights-step{step}.json",
        step=step,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A document that a runner wrote. Raises `EngineError` where it is none."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise EngineError(f"a runner left no JSON: {error}", value=str(path), hint="see its log") from None
    if not isinstance(data, dict):
        raise EngineError("a runner left something else than an object", value=str(path), hint="see its log")
    return data


def setting(fingerprint: dict[str, Any], name: str) -> Any:
    """An effective setting of a `logdiff-fingerprint/1`, wherever the engine keeps it; None where it is unknown."""
    config = fingerprint.get("config")
    config = config if isinstance(config, dict) else {}
    sections = [v for v in config.values() if isinstance(v, dict)]
    for source in (fingerprint.get("effective") or {}, config, *sections):
        if source.get(name) is not None:
            return source[name]
    return None


def _check_samples(path: Path, prompts: Path) -> None:
    from logdiff.case.sequences import read_sequences

    given, got = read_sequences(prompts), read_sequences(path)
    same = given.sample_ids == got.sample_ids and given.prompt_ids.tolist() == got.prompt_ids.tolist()
    if not same or given.prompt_offsets.tolist() != got.prompt_offsets.tolist():
        raise EngineError("the rollout engine answered other prompts", value=str(path), hint="see its log")
    if got.tokens == 0:
        raise EvidenceError(
            "the rollout made no token", value=str(path), hint="raise max_tokens, or set sampling.ignore_eos: true"
        )


def _token_texts(session: Session, tokens: Path) -> None:
    """Texts of the first samples' tokens, for reports; a model without a tokenizer has none."""
    from logdiff.case.sequences import read_sequences

    sequences = read_sequences(tokens)
    ids: list[list[int]] = []
    total = 0
    for i in range(len(sequences.sample_ids)):
        one = sequences.response(i).tolist()
        total += len(one)
        if total > MAX_TEXT_TOKENS:
            break
        ids.append(one)
    session.do(
        "step0/rollout/text",
        "train",
        session.spec("train"),
        {"task": "decode_text", "ids": ids},
        output="sides/rollout/token_text.json",
        inputs=[tokens],
        optional=True,
    )
