"""A byte-level BPE tokenizer that covers a whole small vocabulary, made without any download."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
"""Ids 0 to 3. Byte-level text never needs the last; some tokenizer classes add their own when there is none."""

_LETTERS = "etaoinshrdlucmfywgpbvkxqzj"


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write `tokenizer.json` and its configuration with exactly `vocabulary` entries into `folder`.

    Entries: the special tokens, the 256 bytes, then merges of pairs and triples of lower-case letters (with and
    without a leading space), most frequent letters first, until the vocabulary is full.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    entries = {token: i for i, token in enumerate((*SPECIAL, *bytes_))}
    merges: list[tuple[str, str]] = []
    heads = ["\u0120", *_LETTERS]  # U+0120 stands for the space byte
    pairs = list(itertools.product(heads, _LETTERS))
    triples = [(a + b, c) for (a, b), c in itertools.product(pairs, _LETTERS)]
    for left, right in itertools.chain(pairs, triples):
        if len(entries) >= vocabulary:
            break
        entries[left + right] = len(entries)
        merges.append((left, right))
    if len(entries) != vocabulary:
        raise ValueError(f"a vocabulary of {vocabulary} can't be filled, {len(entries)} entries fit")
    tokenizer = Tokenizer(models.BPE(vocab=entries, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer_class: Any = PreTrainedTokenizerFast
    fast = tokenizer_class(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        bos_token=SPECIAL[1],
        eos_token=SPECIAL[2],
        unk_token=SPECIAL[3],
    )
    fast.save_pretrained(folder)
