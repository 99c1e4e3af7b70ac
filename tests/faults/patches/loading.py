"""Where a user's module gets hold of a model: after either engine has loaded it, or while weights are read.

Patch functions call these; `tests.faults.modules` writes the source of both into one self-contained file.
"""

from __future__ import annotations


def on_vllm_model(change):
    """Call `change(model)` when vLLM has loaded the weights and processed them."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    stock = BaseModelLoader.load_model

    def load_model(self, *arguments, **named):
        model = stock(self, *arguments, **named)
        change(model)
        return model

    BaseModelLoader.load_model = load_model


def on_vllm_weights(change):
    """Call `change(model)` when vLLM has filled the parameters, before it packs them."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    stock = DefaultModelLoader.load_weights

    def load_weights(self, model, *arguments, **named):
        loaded = stock(self, model, *arguments, **named)
        change(model)
        return loaded

    DefaultModelLoader.load_weights = load_weights


def on_transformers_model(change):
    """Call `change(model)` on what `from_pretrained` gives."""
    from transformers import PreTrainedModel

    stock = PreTrainedModel.from_pretrained.__func__

    def from_pretrained(cls, *arguments, **named):
        loaded = stock(cls, *arguments, **named)
        change(loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded

    PreTrainedModel.from_pretrained = classmethod(from_pretrained)


def vllm_decodes():
    """Whether vLLM's step in work decodes only: one query token per request."""
    from vllm.forward_context import get_forward_context

    metadata = get_forward_context().attn_metadata
    if not metadata:
        return False
    return all(m.max_query_len == 1 for m in metadata.values())
