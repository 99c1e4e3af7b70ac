"""Builds a small local model once and finds it again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from logdiff_kernels.errors import InputError
from logdiff_kernels.models import smollm2
from logdiff_kernels.models.recipes import ALIASES, RECIPES, Recipe

REVISION = 1
"""Raised when the way of building changes, so that an older cached model is not taken for a new one."""

DTYPES = ("bfloat16", "float16", "float32")


def catalogue() -> list[dict[str, Any]]:
    """What can be built: `{"name", "about", "aliases", "cached": path or null}` of the default build of each."""
    abouts = {name: recipe.about for name, recipe in RECIPES.items()}
    abouts[smollm2.NAME] = "SmolLM2-135M-Instruct: real weights, chat template"
    found = []
    for name, about in abouts.items():
        folder = _cached(name, 0, "bfloat16", {})
        found.append(
            {
                "name": name,
                "about": about,
                "aliases": [alias for alias, target in ALIASES.items() if target == name],
                "cached": str(folder) if folder.is_dir() else None,
            }
        )
    return found


def build(
    name: str, out: str | os.PathLike[str] | None = None, *, seed: int = 0, dtype: str = "bfloat16", **overrides: Any
) -> Path:
    """Build a model, or find the one built before.

    Args:
        name: a name or alias of `catalogue`.
        out: folder to make, which must not hold anything yet; None: the cache (`$LOGDIFF_CACHE`, else
            `$XDG_CACHE_HOME/logdiff`, else `~/.cache/logdiff`), under `models/`.
        seed: of the random weights; no meaning for `smollm2`.
        dtype: of the saved weights.
        overrides: keyword arguments of the configuration (`num_hidden_layers=2`); none for `smollm2`.

    Returns:
        The folder: config.json, safetensors, tokenizer.

    Raises:
        InputError: an unknown name, dtype or override, a package that is missing, an output folder in use.
    """
    name = ALIASES.get(name, name)
    if name not in RECIPES and name != smollm2.NAME:
        known = ", ".join([*RECIPES, smollm2.NAME, *ALIASES])
        raise InputError(f"unknown model {name!r}", value=name, hint=f"one of: {known}")
    if dtype not in DTYPES:
        raise InputError(f"unknown dtype {dtype!r}", value=dtype, hint=f"one of: {', '.join(DTYPES)}")
    if name == smollm2.NAME and overrides:
        raise InputError("smollm2 takes no overrides", value=sorted(overrides))
    target = _cached(name, seed, dtype, overrides) if out is None else Path(out).absolute()
    if out is None and (target / "config.json").is_file():
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is in use", value=str(target), hint="name a new or empty folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        if name == smollm2.NAME:
            smollm2.write_checkpoint(temporary, dtype)
        else:
            _write_random(RECIPES[name], temporary, seed, dtype, overrides)
        temporary.chmod(0o755)
        try:
            temporary.replace(target)
        except OSError:
            if not (target / "config.json").is_file():  # not another process that built the same
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def cache_folder() -> Path:
    """Where built models are kept."""
    root = os.environ.get("LOGDIFF_CACHE")
    if root:
        return Path(root) / "models"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logdiff" / "models"


def _cached(name: str, seed: int, dtype: str, overrides: dict[str, Any]) -> Path:
    recipe: Any = asdict(RECIPES[name]) if name in RECIPES else smollm2.PACKAGE
    versions = {package: _version(package) for package in ("torch", "transformers", smollm2.PACKAGE)}
    if name != smollm2.NAME:
        versions.pop(smollm2.PACKAGE)
    key = json.dumps([REVISION, recipe, seed, dtype, overrides, versions], sort_keys=True, default=str)
    return cache_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _write_random(recipe: Recipe, folder: Path, seed: int, dtype: str, overrides: dict[str, Any]) -> None:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise InputError(f"the model {recipe.name} needs {error.name}", hint="install logdiff[cpu]") from error
    from logdiff_kernels.models.random_weights import fill, scale_to_entropy
    from logdiff_kernels.models.tokenizer import write_tokenizer

    config_class = getattr(transformers, recipe.config_class, None)
    if config_class is None:
        raise InputError(
            f"transformers {transformers.__version__} has no {recipe.config_class}",
            value=recipe.name,
            hint="a newer transformers",
        )
    settings = recipe.config | overrides
    unknown = [key for key in overrides if not hasattr(config_class(), key)]
    if unknown:
        raise InputError(f"{recipe.config_class} has no {', '.join(unknown)}", value=unknown)
    config = config_class(**settings)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32).eval()
    fill(model, seed=seed, std=recipe.init_std, norm_offset=recipe.norm_offset)
    scale_to_entropy(model, seed=seed, norm_offset=recipe.norm_offset)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    write_tokenizer(folder, config.vocab_size)
