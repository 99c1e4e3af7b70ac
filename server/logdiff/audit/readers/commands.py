"""What a command line means: which engine it starts, with which options and which environment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from logdiff.audit.readers.collect import Collector
from logdiff.audit.readers.expansion import UNKNOWN, Variables, Word
from logdiff.audit.readers.programs import in_container, program, unwrapped
from logdiff.audit.readers.shell import Command
from logdiff.audit.settings import Setting, Unknown
from logdiff.audit.values import hydra, json_or_hydra, scalar

_OVERRIDE = re.compile(r"^(\+\+|\+|~)?([A-Za-z_][\w.@/-]*?)(?:=(.*))?$", re.S)
_ON_RAY = frozenset({"verl", "slime", "miles", "slime-fsdp", "miles-fsdp"})
_SHORT = {"-tp": "--tensor-parallel-size", "-pp": "--pipeline-parallel-size", "-dp": "--data-parallel-size",
          "-O": "--compilation-config", "-cc": "--compilation-config", "-q": "--quantization"}  # fmt: skip


@dataclass(slots=True)
class Launcher:
    """Turns the commands of one script into settings."""

    file: str
    collector: Collector
    variables: Variables
    files: dict[str, str]
    launches: int = 0
    ray_env: dict[str, Word] | None = None
    cluster: bool = False
    last: Command | None = None
    scripts: list[tuple[str, int]] = field(default_factory=list)

    def command(self, command: Command) -> None:
        """Take one command; one that starts no engine is passed over."""
        self.last = command
        words, env = unwrapped(command.words, dict(command.env))
        if not words:
            return
        name = PurePosixPath(words[0].text).name
        if name == "ray":
            self._ray(words, command, env)
        elif name in ("bash", "sh") or words[0].text.endswith(".sh"):
            script = next((w for w in words if w.text.endswith(".sh")), None)
            if script is not None:
                self.scripts.append((script.text, script.line))
            else:
                self._text(words)
        elif name in ("docker", "podman"):
            self._docker(words, command)
        elif name in ("pip", "pip3", "uv", "git") or [w.text for w in words[1:3]] == ["-m", "pip"]:
            self._installed(words)
        else:
            self._engine(words, {**command.exported, **env}, command, ())

    def _where(self, line: int) -> str:
        return f"{self.file}:{line}"

    def _ray(self, words: list[Word], command: Command, env: dict[str, Word]) -> None:
        texts = [w.text for w in words]
        if texts[1:2] == ["start"]:
            self.ray_env = {**command.exported, **env}
            self.cluster = not command.conditions
            return
        if texts[1:2] == ["stop"]:
            self.ray_env, self.cluster = None, False
            return
        if texts[1:3] != ["job", "submit"]:
            return
        runtime: dict[str, Word] = {}
        at = texts.index("--") if "--" in texts else len(texts)
        for index, word in enumerate(words[3:at], 3):
            flag, equals, value = word.text.partition("=")
            if flag in ("--runtime-env-json", "--runtime-env"):
                text = value if equals else (words[index + 1].text if index + 1 < len(words) else "")
                runtime.update(self._runtime_env(flag, text, word.line))
        raylet = self.ray_env or {}
        passed = {**raylet, **runtime}
        missing = [(n, self._where(w.line)) for n, w in command.exported.items() if n not in passed]
        if at < len(texts):
            inner, prefix = unwrapped(words[at + 1 :], {})
            self.cluster = False
            self._engine(inner, {**passed, **prefix}, command, tuple(missing))

    def _runtime_env(self, flag: str, text: str, line: int) -> dict[str, Word]:
        from logdiff.audit.readers.yaml_files import parse_yaml

        if flag == "--runtime-env":
            content = self.files.get(text)
            if content is None:
                self.collector.unread(self._where(line), f"runtime environment {_shown(text)}: give the file as well")
                return {}
            text = content
        try:
            data = parse_yaml(text) if flag == "--runtime-env" else json_or_hydra(text)
        except ValueError as error:
            self.collector.unread(self._where(line), f"runtime environment: {error}")
            return {}
        env = data.get("env_vars") if isinstance(data, dict) else None
        return {str(k): Word(str(v), line) for k, v in env.items()} if isinstance(env, dict) else {}

    def _docker(self, words: list[Word], command: Command) -> None:
        env: dict[str, Word] = {}
        for index, word in enumerate(words):
            image = re.search(r"\b(vllm-ascend|verl|vllm)(?:-openai)?:v?(\d[\w.]*)", word.text)
            if image:
                self.collector.package(image[1], image[2], self._where(word.line))
            if word.text in ("-e", "--env") and index + 1 < len(words):
                name, equals, value = words[index + 1].text.partition("=")
                if equals:
                    env[name] = Word(value, words[index + 1].line)
        inner, prefix = unwrapped(in_container(words), {})
        if program(inner) is not None:
            self._engine(inner, {**env, **prefix}, command, ())
            return
        self._text(inner)
        for name, given in env.items():
            self._env(name, given, "both", command)
            self.launches += 1

    def _text(self, words: list[Word]) -> None:
        """Note a shell that gets its commands as text: they are not followed."""
        if words and PurePosixPath(words[0].text).name in ("bash", "sh"):
            text = next((b for a, b in pairwise(words) if re.fullmatch(r"-[a-z]*c", a.text)), None)
            if text is not None:
                self.collector.unread(self._where(text.line), f"commands given as text: {_shown(text.text)}")

    def _installed(self, words: list[Word]) -> None:
        """Versions that `pip install NAME==VERSION` and `git clone -b TAG URL` bring."""
        texts = [w.text for w in words]
        if "install" in texts:
            for word in words:
                match = re.match(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([\w.+!-]+)$", word.text)
                if match:
                    self.collector.package(match[1], match[2], self._where(word.line))
        elif texts[1:2] == ["clone"]:
            branch = next((b for a, b in pairwise(texts) if a in ("-b", "--branch")), None)
            url = next((t for t in texts if re.search(r"/[\w.-]+(\.git)?$", t) and ":" in t), None)
            if branch and url and not UNKNOWN.search(branch + url):
                name = url.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
                self.collector.package(name, branch, self._where(words[0].line))

    def _engine(
        self, words: list[Word], env: dict[str, Word], command: Command, missing: tuple[tuple[str, str], ...]
    ) -> None:
        found = program(words)
        if found is None:
            return
        framework, arguments = found
        texts = [a.text for a in arguments]
        if framework in ("slime", "miles") and (
            ("--train-backend", "fsdp") in pairwise(texts) or "--train-backend=fsdp" in texts
        ):
            framework += "-fsdp"
        if framework == "unknown":
            if any(a.text.startswith("--") for a in arguments):
                text = _shown(" ".join(w.text for w in words[:3]))
                self.collector.unread(self._where(command.line), f"{text}: no launcher that is known here")
            return
        self.launches += 1
        if self.cluster and framework in _ON_RAY and not missing:
            # the driver joins the cluster that `ray start` made; its workers have the environment of that moment
            started = self.ray_env or {}
            missing = tuple(
                (n, self._where(w.line)) for n, w in env.items() if n not in started or started[n].text != w.text
            )
            env = started
        sides = {"vllm": ("rollout",), "sglang": ("rollout",), "megatron": ("train",), "transformers": ("train",)}.get(
            framework, ("rollout", "train")
        )
        complete = not any(self._whole(a) for a in arguments)
        if not complete:
            first = next(a for a in arguments if self._whole(a))
            reason = self.variables.reason(first.text)
            why = reason.why if reason is not None else ""
            self.collector.unread(self._where(first.line), f"arguments are missing here: {why}")
        self.collector.launch(
            framework, sides, self._where(command.line), complete=complete, driver_only=missing,
            apart=not command.conditions,
        )  # fmt: skip
        side = sides[0] if len(sides) == 1 else "both"
        for name, word in env.items():
            self._env(name, word, side, command)
        if framework == "verl":
            self._hydra(arguments, command)
        else:
            self._flags(framework, arguments, command)
        self.collector.launched()

    def _whole(self, word: Word) -> bool:
        """Whether a word is nothing but an unknown piece without choices: arguments that nobody knows."""
        if not re.fullmatch(rf"{UNKNOWN.pattern}+", word.text):
            return False
        reason = self.variables.reason(word.text)
        return reason is not None and not reason.choices and "array" in reason.why

    def _env(self, name: str, word: Word, side: str, command: Command) -> None:
        for condition, value in self.choices(word.text):
            where = " and ".join((*command.conditions, condition)) if condition else " and ".join(command.conditions)
            self.collector.env(name, value, self._where(word.line), side=side, condition=where)

    def finish(self, exported: dict[str, Word], conditions: tuple[str, ...]) -> None:
        """The end of the script: one that starts nothing is an environment file."""
        if self.launches:
            return
        for name, word in exported.items():
            self._env(name, word, "both", Command([], {}, {}, word.line, conditions))
        if not exported:
            self.collector.unread(self.file, "no command of a known engine and no exported variable")

    def choices(self, text: str) -> Iterator[tuple[str, Any]]:
        """(condition, value) of a text: one pair, unless it hangs on a branch."""
        found = UNKNOWN.search(text)
        if found is None:
            yield "", text
            return
        reason = self.variables.reason(text)
        if reason is None or not reason.choices:
            yield "", Unknown(reason.why if reason is not None else "unknown", UNKNOWN.sub("…", text))
            return
        for condition, choice in reason.choices:
            changed = text.replace(found[0], choice)
            inner = self.variables.reason(changed)
            yield condition, Unknown(inner.why) if inner is not None else changed

    def _option(self, form: str, raw: str, text: str, line: int, command: Command, **extra: Any) -> None:
        for condition, value in self.choices(text):
            parsed: Any = value
            if isinstance(value, str):
                try:
                    parsed = json_or_hydra(value) if form != "verl" else hydra(value)
                except ValueError as error:
                    self.collector.unread(self._where(line), f"{extra.get('shown') or raw}: {error}")
                    continue
            whole = (*command.conditions, condition) if condition else command.conditions
            self.collector.option(
                form, raw, parsed, self._where(line), "override", condition=" and ".join(whole), **extra
            )

    def _hydra(self, arguments: list[Word], command: Command) -> None:
        seen: dict[str, tuple[str, int]] = {}
        for word in self._opened(arguments):
            text = word.text
            if text.startswith("--"):
                flag, _, value = text.partition("=")
                if flag in ("--config-name", "--config-path") and value:
                    self._option("verl", flag.removeprefix("--").replace("-", "_"), value, word.line, command)
                continue
            match = _OVERRIDE.match(text)
            if match is None or (match[3] is None and match[1] != "~"):
                if not UNKNOWN.search(text):
                    self.collector.unread(self._where(word.line), f"{_shown(text)}: no override of the form key=value")
                continue
            sign, key, value = match[1] or "", match[2], match[3]
            if sign == "~":
                self._option("verl", key, "null", word.line, command, shown=key)
                continue
            self._noted_twice(seen, key, value, word.line)
            self._option("verl", key, value, word.line, command, adds=bool(sign))

    def _opened(self, arguments: list[Word]) -> Iterator[Word]:
        """Arguments; one that is nothing but a choice between texts becomes those texts, joined to their branch."""
        for word in arguments:
            reason = self.variables.reason(word.text) if len(word.text) == 1 else None
            if reason is not None and reason.choices:
                for condition, text in reason.choices:
                    key, equals, value = text.partition("=")
                    if equals and not UNKNOWN.search(text):
                        yield Word(f"{key}={self.variables.unknown(reason.why, ((condition, value),))}", word.line)
                continue
            yield word

    def _noted_twice(self, seen: dict[str, tuple[str, int]], key: str, value: str, line: int) -> None:
        old = seen.get(key)
        if old is not None and old[0] != value and not UNKNOWN.search(old[0] + value):
            number = self.collector.number
            first = Setting("both", key, scalar(old[0]), key, self._where(old[1]), "override", launch=number)
            second = Setting("both", key, scalar(value), key, self._where(line), "override", launch=number)
            self.collector.evidence.repeated.append((first, second))
        seen[key] = (value, line)

    def _flags(self, framework: str, arguments: list[Word], command: Command) -> None:
        form = "slime" if framework in ("slime", "miles", "slime-fsdp", "miles-fsdp") else framework
        seen: dict[str, tuple[str, int]] = {}
        for flag, values, line in _options(arguments):
            name, raw = _flag_name(form, flag)
            text = (
                "true"
                if not values
                else values[0].text
                if len(values) == 1
                else f"[{','.join(v.text for v in values)}]"
            )
            if name != raw and not values:
                text = "false"
            self._noted_twice(seen, name, text, line)
            self._option(form, name, text, line, command, shown=f"--{raw.replace('_', '-')}")


def _shown(text: str) -> str:
    text = UNKNOWN.sub("…", " ".join(text.split()))
    return text if len(text) <= 80 else text[:77] + "..."


def _flag_name(form: str, flag: str) -> tuple[str, str]:
    """(option, as written) of `--flag`; `--no-x` is x, unless the table lists it by itself."""
    from logdiff.audit.keys import catalogue

    head, dot, tail = flag.partition(".")
    raw = head.replace("-", "_") + dot + tail.replace("-", "_")
    if raw.startswith("no_") and catalogue().find(form if form != "slime" else "megatron", raw) is None:
        return raw.removeprefix("no_"), raw
    return raw, raw


def _options(arguments: list[Word]) -> Iterator[tuple[str, list[Word], int]]:
    """`--flag [value ...]` and `--flag=value`, in order."""
    flag: Word | None = None
    values: list[Word] = []
    for word in arguments:
        text = _SHORT.get(word.text, word.text)
        if text.startswith("--") and len(text) > 2:
            if flag is not None:
                yield flag.text, values, flag.line
            name, equals, value = text[2:].partition("=")
            flag, values = Word(name, word.line), ([Word(value, word.line)] if equals else [])
        elif flag is not None:
            values.append(word)
    if flag is not None:
        yield flag.text, values, flag.line
