"""The tokens of an earlier case, for a run that scores them again instead of sampling new ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from logdiff.case.files import sha256_file
from logdiff.errors import CaseError, EvidenceError, InputError
from logdiff.live.layout import generated

if TYPE_CHECKING:
    from logdiff.case import Case
    from logdiff.case.sequences import Sequences


def tokens_digest(case: Path) -> str:
    """SHA-256 of the file that holds the case's tokens. Raises `CaseError` where there is none."""
    return sha256_file(_tokens_file(case))


def _tokens_file(case: Path) -> Path:
    for name in (generated(0), "tokens.parquet"):
        if (case / name).is_file():
            return case / name
    raise CaseError("the case holds no tokens", value=str(case), hint="give a case that run, measure or import wrote")


def earlier_tokens(folder: Path) -> Sequences:
    """Prompts and responses of the first step of a case, without log-probabilities.

    Raises:
        CaseError: no case, or one without tokens.
        EvidenceError: no response token, or samples of one name (several ranks).
        InputError: a sample without a prompt.
    """
    from logdiff.case import Case
    from logdiff.case.sequences import build_sequences, read_sequences

    file = _tokens_file(folder)
    with Case.open(folder, verify=False) as case:
        if file == folder / generated(0):
            found = read_sequences(file)
            rows = range(len(found.sample_ids))
            names = list(found.sample_ids)
            prompts = [found.prompt(i).tolist() for i in rows]
            responses = [found.response(i).tolist() for i in rows]
        else:
            names, prompts, responses = _of_table(case)
    if not any(responses):
        raise EvidenceError("the case has no response token", value=str(folder), hint="give another case")
    if len(set(names)) < len(names):
        raise EvidenceError(
            "samples of the case share a name (several ranks?)", value=str(folder), hint="give a case of one rank"
        )
    empty = next((name for name, prompt in zip(names, prompts, strict=True) if not prompt), None)
    if empty is not None:
        raise InputError("a sample of the case has no prompt, so it can't be scored", value=empty, hint="another case")
    return build_sequences(names, prompts, responses)


def _of_table(case: Case) -> tuple[list[str], list[list[int]], list[list[int]]]:
    """Names, prompts and responses of the lowest step in the token table."""
    first: int | None = None
    names: list[str] = []
    prompts: list[list[int]] = []
    responses: list[list[int]] = []
    for batch in case.batches():
        for i in range(batch.samples):
            step = int(batch.step[i])
            if first is None or step < first:
                first, names, prompts, responses = step, [], [], []
            if step > first:
                continue
            names.append(batch.sample_id[i])
            prompts.append(batch.prompt_ids[batch.prompt_offsets[i] : batch.prompt_offsets[i + 1]].tolist())
            responses.append(batch.token_ids[batch.offsets[i] : batch.offsets[i + 1]].tolist())
    return names, prompts, responses
