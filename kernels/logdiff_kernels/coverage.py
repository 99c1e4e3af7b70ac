"""Can this interpreter run a side aligned, and what does it dispatch to now? Answered without loading any weights."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

from logdiff_kernels import align
from logdiff_kernels.errors import InputError, RunnerError
from logdiff_kernels.observe.environment import packages

ENGINES = {
    "vllm": "logdiff_kernels.engines.vllm.dispatch",
    "transformers": "logdiff_kernels.engines.transformers.dispatch",
    "transformers-generate": "logdiff_kernels.engines.transformers.dispatch",
}


def dispatch(engine: str, side: str, model: str | None) -> dict[str, Any]:
    """What `engine` runs in a process of this environment (`logdiff-dispatch/1`).

    `native` is whether no overlay is switched on for this side and no function of the engine's classes is ours.

    Raises:
        InputError: an engine that this package doesn't know, or an overlay that can't be read.
    """
    home = _home(engine)
    from logdiff_kernels.observe.dispatch import dispatch as table

    spec = align.from_environment(side)
    version = home.load()
    modules = list(home.MODULES)
    if model is not None and hasattr(home, "model_modules"):
        modules += home.model_modules(model)
    found = table(home.PACKAGE, modules, home.registries())
    ours = [f["name"] for f in found["foreign"] if "logdiff_kernels/" in f["from"]]
    return {
        "format": "logdiff-dispatch/1",
        "engine": {"name": engine, "version": version},
        "side": side,
        "native": spec is None and not ours,
        "aligned": spec.as_dict() if spec is not None else None,
        **found,
    }


def align_check(
    engine: str, side: str, model: str, dtype: str | None, args: dict[str, Any], ops: list[str]
) -> dict[str, Any]:
    """What a plan needs to know about one side.

    Args:
        engine: "vllm", "transformers" or "transformers-generate".
        side: "rollout" or "train".
        model: model folder.
        dtype: as the engine is asked for it.
        args: the engine's arguments.
        ops: operators to align.

    Returns:
        `engine` {"name", "version"}, `packages`, `model` {"sha256" of config.json, "type"}, `provider` (the registry's
        fingerprint, null with `provider_error` where the kernels can't be built), `not_covered` [{"module", "why",
        "value", "hint"}], `unchecked` (why a check could not be made, or null), `dispatch` (as `dispatch`, without
        the functions).

    Raises:
        InputError: unknown engine or operator.
    """
    home = _home(engine)
    spec = align.AlignSpec(align.parse_ops(ops))
    native = dispatch(engine, side, model)
    native.pop("functions")
    provider, provider_error = _provider()
    missing = [{"module": "provider", "why": provider_error, "value": "", "hint": ""}] if provider_error else []
    unchecked: str | None = None
    try:
        missing += _of_config(model)
        if provider_error is None:
            found, unchecked = home.not_covered(model, dtype, args, spec)
            missing += found
        else:
            unchecked = "modules: there are no kernels to check them with"
    except Exception as error:  # the check is ours or the engine's: it must not stand in the way of the engine itself
        unchecked = f"{type(error).__name__}: {error}"[:500]
    return {
        "engine": native["engine"],
        "packages": packages(),
        "model": _model(model),
        "provider": provider,
        "provider_error": provider_error,
        "not_covered": missing,
        "unchecked": unchecked,
        "dispatch": native,
    }


def _home(engine: str) -> Any:
    if engine not in ENGINES:
        raise InputError(f"no dispatch of engine {engine!r}", value=engine, hint=f"one of: {', '.join(ENGINES)}")
    return importlib.import_module(ENGINES[engine])


def _provider() -> tuple[dict[str, Any] | None, str | None]:
    try:
        from logdiff_kernels.ops import registry

        return registry.fingerprint(), None
    except RunnerError as error:
        return None, f"{error.message}; {error.hint}".rstrip("; ")


def _model(folder: str) -> dict[str, Any]:
    text = (Path(folder) / "config.json").read_bytes()
    return {"sha256": hashlib.sha256(text).hexdigest(), "type": json.loads(text).get("model_type")}


def _of_config(folder: str) -> list[dict[str, str]]:
    """What config.json alone says can't be aligned."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    found = []
    if config.get("quantization_config"):
        method = str(config["quantization_config"].get("quant_method", "unknown"))
        found.append({"module": "model", "why": "quantised weights", "value": method, "hint": "an unquantised one"})
    if (Path(folder) / "adapter_config.json").is_file():
        found.append({"module": "model", "why": "a LoRA adapter", "value": "adapter_config.json", "hint": "merge it"})
    return found
