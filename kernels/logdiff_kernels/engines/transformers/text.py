"""Text to token ids and back, with the tokenizer of the model folder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from logdiff_kernels.errors import EngineError, InputError


class Text:
    """The tokenizer of a model folder, loaded when first used."""

    def __init__(self, folder: Path, *, trust_remote_code: bool = False) -> None:
        self._folder = folder
        self._trust = trust_remote_code
        self._tokenizer: Any = None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer. Raises `InputError` where the folder has none that can be read."""
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            try:
                self._tokenizer = AutoTokenizer.from_pretrained(self._folder, trust_remote_code=self._trust)
            except Exception as error:
                raise InputError(
                    f"no tokenizer can be read from {self._folder}: {str(error).strip() or repr(error)}",
                    value=str(self._folder),
                    hint="give prompts as token ids",
                ) from error
        return self._tokenizer

    def encode(self, texts: list[str], *, chat: bool) -> list[list[int]]:
        """Token ids per text; `chat` wraps each as one user message of the model's chat template."""
        if not all(isinstance(text, str) for text in texts):
            raise InputError("texts must be strings", value=next(t for t in texts if not isinstance(t, str)))
        tokenizer = self.tokenizer
        if not chat:
            return [[int(i) for i in tokenizer(text)["input_ids"]] for text in texts]
        if not getattr(tokenizer, "chat_template", None):
            raise InputError(
                "the tokenizer has no chat template", value=str(self._folder), hint="chat: false, or another model"
            )
        try:
            return [
                [
                    int(i)
                    for i in tokenizer.apply_chat_template(
                        [{"role": "user", "content": text}],
                        add_generation_prompt=True,
                        tokenize=True,
                        return_dict=True,
                    )["input_ids"]
                ]
                for text in texts
            ]
        except Exception as error:
            raise EngineError(f"the chat template failed: {error}", value=str(self._folder)) from error

    def decode(self, ids: list[list[int]]) -> list[list[str]]:
        """The text of every single token, for reports."""
        return [[self.tokenizer.decode([int(i)]) for i in row] for row in ids]

    def facts(self) -> dict[str, Any]:
        """`chat_template` (SHA-256 or None) and `tokenizer_size`; both None where there is no tokenizer."""
        try:
            tokenizer = self.tokenizer
        except InputError:
            return {"chat_template": None, "tokenizer_size": None}
        template = getattr(tokenizer, "chat_template", None)
        if isinstance(template, dict):
            template = repr(sorted(template.items()))
        return {
            "chat_template": hashlib.sha256(template.encode()).hexdigest() if template else None,
            "tokenizer_size": len(tokenizer),
        }
