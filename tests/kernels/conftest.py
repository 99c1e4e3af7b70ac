"""Small models, built once per machine (in the cache) and loaded once per session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def model_folder() -> Callable[[str], Path]:
    """Folder of a small model by name."""
    from logdiff_kernels import models

    return models.build


@pytest.fixture(scope="session")
def load_model(model_folder: Callable[[str], Path]) -> Callable[..., Any]:
    """`load_model(name, dtype, **arguments)`: a loaded model, shared; tests must not change it."""
    import torch
    from logdiff_kernels.engines.transformers.loading import load

    torch.set_num_threads(1)  # faster than two for models of this size
    kept: dict[Any, Any] = {}

    def loaded(name: str, dtype: str = "float32", **arguments: Any) -> Any:
        key = (name, dtype, tuple(sorted(arguments.items())))
        if key not in kept:
            kept[key] = load(str(model_folder(name)), dtype, arguments).model
        return kept[key]

    return loaded
