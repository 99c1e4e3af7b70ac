"""Starting and ending vLLM: the user's arguments as they are, plus the few defaults without which it does not run."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logdiff_kernels import frames
from logdiff_kernels.engines.settings import Sampling
from logdiff_kernels.engines.vllm.plugin import HOOKS, METHOD
from logdiff_kernels.errors import EngineError, InputError, RunnerError
from logdiff_kernels.protocol import Request

PLUGIN = "logdiff"
"""Name of our entry point in the group `vllm.general_plugins`."""

_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "spiece.model",
    "tekken.json",
    "*.tiktoken",
)
_KV_CACHE_GIB = "1"
_WEIGHT_WORDS = (
    "weights were not initialized",
    "safetensors",
    "deserializing header",
    "size of tensor",
    "dimension size",
    ".weight",
)
"""In vLLM's words when a checkpoint does not fit the model."""


@dataclass(frozen=True, slots=True)
class Started:
    """A running `vllm.LLM`, the arguments it was built with, and the defaults that were added to the user's."""

    llm: Any
    arguments: dict[str, Any]
    defaults: dict[str, Any] = field(default_factory=dict)
    tokenizer: bool = True


def start(request: Request) -> Started:
    """Build the engine of a request.

    Raises:
        InputError: a model folder that can't hold a model.
        EngineError: vLLM's own refusal, in its words.
        UnsupportedError: the engine is asked to be aligned and has a part that no aligned operator covers.
    """
    model = str(request.model)
    if "model" in request.args:
        raise InputError(
            "'model' can't be given in args", value=request.args["model"], hint="use the run file's `model`"
        )
    arguments = {"model": model, **request.args}
    _check_folder(model, request.args)
    defaults: dict[str, Any] = {}
    if request.dtype is not None:
        arguments.setdefault("dtype", request.dtype)
    if not has_tokenizer(model) and not {"tokenizer", "skip_tokenizer_init"} & set(arguments):
        arguments["skip_tokenizer_init"] = defaults["skip_tokenizer_init"] = True
    wanted = Sampling.parse({"topk": request.sampling.get("topk") or 0}).topk
    if wanted > 20 and "max_logprobs" not in arguments:  # 20 is vLLM's own bound
        arguments["max_logprobs"] = defaults["max_logprobs"] = wanted
    os.environ[HOOKS] = "1"
    defaults |= _environment(arguments)
    from logdiff_kernels.engines.vllm.plugin import register

    try:
        from vllm import LLM

        register()
        llm = LLM(**arguments)
    except RunnerError as error:
        error.fatal = True
        raise
    except Exception as error:
        raise _refusal(error, arguments) from error
    started = Started(llm, arguments, defaults, tokenizer=not arguments.get("skip_tokenizer_init", False))
    _check_workers(started)
    return started


def stop(started: Started) -> None:
    """End the engine and its processes; frees the process for another engine."""
    core = started.llm.llm_engine.engine_core
    core.shutdown()
    with contextlib.suppress(Exception):  # nothing to destroy where all workers were other processes
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


def has_tokenizer(folder: str) -> bool:
    """Whether a local model folder holds tokenizer files; True for what is no local folder."""
    path = Path(folder)
    return not path.is_dir() or any(next(path.glob(pattern), None) for pattern in _TOKENIZER_FILES)


def _check_folder(model: str, arguments: dict[str, Any]) -> None:
    path = Path(model)
    if not path.exists():
        raise InputError("no such model folder", value=model, hint="a folder with config.json and weights")
    if not path.is_dir():
        return  # a GGUF file, for one: vLLM's to judge
    if not (path / "config.json").is_file() and not (path / "params.json").is_file():
        raise InputError("the model folder has no config.json", value=model, hint="a Hugging Face model folder")
    if "load_format" not in arguments and not any(next(path.glob(pattern), None) for pattern in _WEIGHT_FILES):
        raise InputError(
            "the model folder holds no weights", value=model, hint=f"expected one of {', '.join(_WEIGHT_FILES)}"
        )


def _environment(arguments: dict[str, Any]) -> dict[str, Any]:
    """Set what vLLM needs and the user left open. Returns what was set."""
    added: dict[str, Any] = {}

    def default(name: str, value: str) -> None:
        if not os.environ.get(name):
            os.environ[name] = added[name] = value

    plugins = os.environ.get("VLLM_PLUGINS")
    if plugins is not None and PLUGIN not in plugins.split(","):
        os.environ["VLLM_PLUGINS"] = added["VLLM_PLUGINS"] = ",".join(filter(None, [plugins, PLUGIN]))
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        if "kv_cache_memory_bytes" not in arguments:
            default("VLLM_CPU_KVCACHE_SPACE", _KV_CACHE_GIB)
        size = _count(arguments, "tensor_parallel_size") * _count(arguments, "pipeline_parallel_size")
        if size > 1 and _memory_nodes() < size:
            default("VLLM_CPU_OMP_THREADS_BIND", _threads(size))
        if size == 1 and _count(arguments, "data_parallel_size") == 1:
            # One process: a worker of its own would start two more interpreters and leave one core unused.
            default("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    return added


def _count(arguments: dict[str, Any], name: str) -> int:
    """A number of processes; what is no such number is left for vLLM to refuse."""
    value = arguments.get(name, 1)
    return value if type(value) is int and value > 0 else 1


def _memory_nodes() -> int:
    return max(1, len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))))


def _threads(workers: int) -> str:
    """The allowed CPUs in equal parts, as VLLM_CPU_OMP_THREADS_BIND wants them; shared where there are too few."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < workers:
        return "nobind"
    share = len(cpus) // workers
    return "|".join(",".join(map(str, cpus[i * share : (i + 1) * share])) for i in range(workers))


def _refusal(error: Exception, arguments: dict[str, Any]) -> EngineError:
    words = str(error).strip() or repr(error)
    named = [key for key in arguments if f"'{key}'" in words or f"`{key}`" in words]
    hint = "the arguments go to vllm.LLM as they are; see its documentation"
    if "KV cache" in words:
        hint = "give max_model_len, kv_cache_memory_bytes, or VLLM_CPU_KVCACHE_SPACE (GiB) in the side's env"
    elif not named and any(sign in words for sign in _WEIGHT_WORDS):
        hint = "the weights do not fit config.json, or their files are damaged: a checkpoint that is whole"
    elif "root cause" in words.lower():
        hint = "the root cause stands above this in the log of this side"
    where = frames.hint(error)
    hint += f"; {where}" if where else ""
    return EngineError(
        f"vLLM refused: {type(error).__name__}: {words}",
        value={key: arguments[key] for key in named or ("model",)},
        hint=hint,
        fatal=True,
    )


def _check_workers(started: Started) -> None:
    """Ask every worker for its method, so that a plug-in that did not load is told at once."""
    try:
        started.llm.collective_rpc(METHOD, args=("release", "{}"))
    except Exception as error:
        stop(started)
        raise EngineError(
            f"vLLM's workers did not load the logdiff plug-in: {type(error).__name__}: {error}",
            value=os.environ.get("VLLM_PLUGINS"),
            hint="the entry point vllm.general_plugins 'logdiff' must be visible to this Python",
            fatal=True,
        ) from error
