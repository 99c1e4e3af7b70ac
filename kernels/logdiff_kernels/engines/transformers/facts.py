"""What this engine adds to `logdiff-fingerprint/1`."""

from __future__ import annotations

from typing import Any

from logdiff_kernels.engines.settings import Sampling
from logdiff_kernels.engines.transformers.loading import Loaded
from logdiff_kernels.engines.transformers.settings import Score
from logdiff_kernels.protocol import Request


def engine_facts(loaded: Loaded, request: Request, score: Score, sampling: Sampling) -> dict[str, Any]:
    """The engine, its effective configuration, the model as resolved, and what sampling really used."""
    import transformers

    from logdiff_kernels.engines.transformers.tensors import adapters, quantization

    model = loaded.model
    config = model.config
    text = config.get_text_config(decoder=True)
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})
    return {
        "engine": {"name": request.engine, "version": transformers.__version__},
        "config": {
            "class": f"{type(model).__module__}.{type(model).__qualname__}",
            "dtype": loaded.dtype,
            "parameter_dtypes": dtypes,
            "device": str(model.device),
            "device_map": getattr(model, "hf_device_map", None),
            "attn_implementation": getattr(config, "_attn_implementation", None),
            "experts_implementation": getattr(config, "_experts_implementation", None),
            "training_mode": bool(model.training),
            "score": score.as_dict(),
            "args": request.args,
            "notes": loaded.notes,
        },
        "effective": {
            "temperature": sampling.temperature,
            "scored_temperature": sampling.scored_temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "seed": sampling.seed,
            "max_model_len": getattr(text, "max_position_embeddings", None),
        },
        "model": config.to_dict(),
        "vocab_size": getattr(text, "vocab_size", None),
        "quantization": quantization(model),
        "adapters": adapters(model),
    }
