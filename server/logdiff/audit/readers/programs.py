"""Which program a command line starts, behind wrappers, launchers and containers."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from logdiff.audit.readers.expansion import UNKNOWN, Word

_MEGATRON = frozenset(
    {"--num-layers", "--tensor-model-parallel-size", "--micro-batch-size", "--hidden-size", "--use-mcore-models"}
)
_WRAPPERS = frozenset({"nohup", "time", "exec", "sudo", "stdbuf", "numactl", "timeout", "command", "nice", "srun"})
_DOCKER_FLAGS = frozenset({"--rm", "--detach", "--interactive", "--tty", "--privileged", "--init", "--read-only"})
_VERL = re.compile(r"^[+~]*(actor_rollout_ref|algorithm|trainer|data|critic|global_profiler)\.[\w.]+=")


def unwrapped(words: list[Word], env: dict[str, Word]) -> tuple[list[Word], dict[str, Word]]:
    """The command behind `nohup`, `env A=b` and the like, and the environment that it adds."""
    while words:
        name = PurePosixPath(words[0].text).name
        if name == "env":
            words = words[1:]
            while words and (words[0].text.startswith("-") or re.match(r"^\w+=", words[0].text)):
                key, equals, value = words[0].text.partition("=")
                if equals and not key.startswith("-"):
                    env[key] = Word(value, words[0].line)
                words = words[1:]
        elif name in _WRAPPERS:
            words = words[1:]
            while words and (words[0].text.startswith("-") or re.fullmatch(r"[\d.]+[smh]?", words[0].text)):
                words = words[1:]
        else:
            break
    return words, env


def program(words: list[Word]) -> tuple[str, list[Word]] | None:
    """(framework, arguments) of a command that starts an engine; ("unknown", arguments) for another Python program."""
    if not words:
        return None
    name = PurePosixPath(words[0].text).name
    if name == "vllm" and len(words) > 1:
        return ("vllm", _tagged(words[2:])) if words[1].text == "serve" else None
    python = re.fullmatch(r"python[\d.]*", name) is not None or UNKNOWN.fullmatch(words[0].text) is not None
    if not python and name not in ("torchrun", "deepspeed", "accelerate", "msrun", "mpirun"):
        return None
    module, arguments = _module(words[1:])
    if module is None:
        return None
    texts = [a.text for a in arguments]
    flags = {t.partition("=")[0] for t in texts if t.startswith("--")}
    if module.startswith("vllm.entrypoints"):
        return "vllm", arguments
    if module.startswith("sglang.launch_server"):
        return "sglang", arguments
    if module.startswith(("verl.", "recipe.")) or any(_VERL.match(t) for t in texts):
        return "verl", arguments
    if "--hf-checkpoint" in flags or any(f.startswith(("--sglang-", "--vllm-", "--rollout-")) for f in flags):
        return ("miles" if "miles" in module or any("miles" in f for f in flags) else "slime"), arguments
    if flags & _MEGATRON or re.search(r"(pretrain|posttrain)_", module):
        return "megatron", arguments
    if "--model_name_or_path" in flags or "--model-name-or-path" in flags:
        return "transformers", arguments
    return "unknown", arguments


def _tagged(arguments: list[Word]) -> list[Word]:
    """Arguments of `vllm serve [MODEL] ...`, with the model as an option."""
    if arguments and not arguments[0].text.startswith("-"):
        return [Word("--model-tag", arguments[0].line), *arguments]
    return arguments


def in_container(words: list[Word]) -> list[Word]:
    """The command that `docker run` or `docker exec` starts; vLLM's own image starts the server itself."""
    index = next((i for i, w in enumerate(words) if w.text in ("run", "exec")), len(words)) + 1
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        alone = text in _DOCKER_FLAGS or "=" in text or re.fullmatch(r"-[itd]+", text) is not None
        index += 1 if alone else 2
    inner = words[index + 1 :]
    if index < len(words) and "vllm-openai" in words[index].text and inner and inner[0].text.startswith("-"):
        return [Word("vllm", inner[0].line), Word("serve", inner[0].line), *inner]
    return inner


def _module(words: list[Word]) -> tuple[str | None, list[Word]]:
    """The module or file that Python runs, behind launchers' own options, and its arguments."""
    for index, word in enumerate(words):
        if word.text == "-m" and index + 1 < len(words):
            inner = words[index + 1].text
            if inner in ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"):
                return _module(words[index + 2 :])
            return inner, words[index + 2 :]
        if word.text == "-c":
            return None, []
        if word.text.endswith(".py"):
            return word.text, words[index + 1 :]
    return None, []
