"""Launches as canonical settings: taken from the clean scripts, changed by a plant, judged or written as files.

The direct way (`oracle`) never touches a reader, so that what the files are found to say can be compared with it.
"""

from __future__ import annotations

import json
import pprint
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from logdiff.audit import Audit, audit, audit_paths
from logdiff.audit.keys import catalogue
from logdiff.audit.settings import Evidence, Launch, Setting, Unknown
from witness import ABSENT, UnsatisfiableError, Wanted

CLEAN = Path(__file__).with_name("clean")
BASES = sorted(p.name for p in CLEAN.iterdir())


@dataclass(frozen=True)
class Scene:
    """One launch: its frameworks, and `side.key` to value; side both for variables and packages of all processes."""

    name: str
    frameworks: tuple[str, ...]
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def form(self) -> str:
        """How it is written: verl, slime, or a pair of separate launches."""
        if "verl" in self.frameworks:
            return "verl"
        return "slime" if {"slime", "miles", "miles-fsdp"} & set(self.frameworks) else "pair"


def scene(name: str) -> Scene:
    """A clean launch as canonical settings."""
    found = audit_paths([CLEAN / name])
    values: dict[str, Any] = {}
    for (side, key), resolved in found.table.values.items():
        if resolved.is_default or isinstance(resolved.value, Unknown) or key in ("model.folder", "config_name"):
            continue
        origin = resolved.settings[-1]
        if origin.framework == "" or side == "ref" or origin.key != key:
            continue  # derived
        shared = key.startswith(("env.", "package.")) and "both" in {origin.side}
        values[f"{'both' if shared else side}.{key}"] = resolved.value
    frameworks = tuple(sorted(found.table.frameworks))
    if "verl" not in frameworks:
        values = {k: v for k, v in values.items() if not (k.startswith("train.model.") and f"rollout{k[5:]}" in values
                  and "megatron" not in frameworks and "slime" not in frameworks)}  # fmt: skip
    return Scene(name, frameworks, values)


def pair_scene() -> Scene:
    """Two separate launches: a vLLM server and Megatron over the same model."""
    left, right = scene("ascend023_serve"), scene("megatron_mindspeed")
    env = {"VLLM_BATCH_INVARIANT": 1, "VLLM_ASCEND_ENABLE_NZ": 0, "HCCL_DETERMINISTIC": "strict",
           "LCCL_DETERMINISTIC": 1, "CLOSE_MATMUL_K_SHIFT": 1}  # fmt: skip
    values = {k: v for k, v in (left.values | right.values).items() if ".env." not in k}
    values |= {f"both.package.{name}": "0.2.0" for name in ("flash-attn-npu", "flash-attn-npu-v3", "mindspeed")}
    values |= {f"{side}.env.{k}": v for side in ("rollout", "train") for k, v in env.items()}
    return Scene("pair", ("megatron", "vllm"), values)


def scenes() -> dict[str, Scene]:
    """All bases."""
    return {**{name: scene(name) for name in BASES}, "pair": pair_scene()}


def with_versions(base: Scene, versions: dict[str, str]) -> Scene:
    """The same launch with packages in the ranges that a rule is for."""
    from logdiff.audit.versions import within

    values = dict(base.values)
    for package, wanted in versions.items():
        choices = ["0.10.0", "0.16.0", "0.18.0", "0.21.0", "0.23.0", "0.26.0", "0.8.0", "0.9.0", "main"]
        fitting = [v for v in choices if within(v, wanted)]
        current = values.get(f"both.package.{package}")
        if current is None or not within(str(current), wanted):
            values[f"both.package.{package}"] = fitting[0]
    return replace(base, values=values)


def planted(base: Scene, wanted: Wanted) -> Scene:
    """A launch with a plant. Raises UnsatisfiableError where this kind of launch can't say it."""
    values = dict(base.values)
    for name, value in wanted.items():
        side, _, key = name.partition(".")
        if key.startswith(("env.", "package.")):
            for other in ("both", "rollout", "train"):
                if side in (other, "both") or other == "both":
                    old = values.pop(f"{other}.{key}", None)
                    if other == "both" and side != "both" and old is not None:
                        if base.form != "pair" and key.startswith("env."):
                            continue  # one process tree: the change is for both sides
                        rest = "train" if side == "rollout" else "rollout"
                        values[f"{rest}.{key}"] = old
            if value is not ABSENT:
                shared = side == "both" or (base.form != "pair" and key.startswith("env."))
                values[f"{'both' if shared else side}.{key}"] = value
            continue
        shared = any(e.name == key and e.side == "both" for e in catalogue().keys) and not key.startswith("model.")
        places = [s for s in ("rollout", "train") if shared or side in (s, "both")]
        for place in places:
            values.pop(f"{place}.{key}", None)
            if value is not ABSENT:
                values[f"{place}.{key}"] = value
    frameworks = base.frameworks
    if "miles-fsdp" in frameworks and values.get("train.train_backend") != "fsdp":
        frameworks = ("miles",)
    return replace(base, values=values, frameworks=frameworks)


def oracle(made: Scene) -> Audit:
    """The audit of the settings themselves."""
    evidence = Evidence()
    for framework in made.frameworks:
        sides = {"vllm": ("rollout",), "megatron": ("train",)}.get(framework, ("rollout", "train"))
        evidence.launches.append(Launch(framework, sides, "launch"))
    for name, value in made.values.items():
        side, _, key = name.partition(".")
        origin = "override"
        if key.startswith("package."):
            origin = "file"
        framework = "hf" if key.startswith("model.") and side == "rollout" else "megatron"
        evidence.settings.append(Setting(side, key, value, key, "launch", origin, "", framework))
    return audit(evidence)


# --- writing


def spelled(form: str, side: str, key: str, value: Any) -> tuple[str, Any]:
    """(option, value) of a canonical key as a form writes it. Raises UnsatisfiableError where it has no name there."""
    for entry in catalogue().keys:
        if entry.name == key and entry.side in (side, "both") and entry.aliases.get(form):
            names = entry.aliases[form]
            name = next((n for n in names if n not in entry.negated), names[0])
            return (name, not value) if name in entry.negated else (name, value)
    raise UnsatisfiableError(f"{form} has no name for {side}.{key}")


def verl_option(side: str, key: str, value: Any) -> tuple[str, Any]:
    """A canonical key as verl's override."""
    if key.startswith("verl."):
        return key.removeprefix("verl."), value
    try:
        return spelled("verl", side, key, value)
    except UnsatisfiableError:
        pass
    known = any(entry.name == key for entry in catalogue().keys)
    if not known and not key.startswith("model."):
        prefix = "rollout.engine_kwargs.vllm" if side == "rollout" else "actor.megatron.override_transformer_config"
        return f"actor_rollout_ref.{prefix}.{key}", value
    if side == "rollout":
        if key.startswith("model."):
            name, value = spelled("hf", side, key, value)
            return f"actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides.{name}", value
        name, value = spelled("vllm", side, key, value)
        return f"actor_rollout_ref.rollout.engine_kwargs.vllm.{name}", value
    try:
        name, value = spelled("megatron", side, key, value)
    except UnsatisfiableError:
        if not key.startswith("model."):
            raise
        name, value = spelled("hf", side, key, value)
        return f"actor_rollout_ref.model.override_config.{name}", value
    return f"actor_rollout_ref.actor.megatron.override_transformer_config.{name}", value


def hydra_text(value: Any) -> str:
    """A value as Hydra reads it."""
    if isinstance(value, bool):
        return str(value)
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[" + ",".join(hydra_text(v) for v in value) + "]"
    return str(value)


class Writer:
    """Writes a scene into a folder, in places drawn from a generator."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.paths: list[str] = []
        self.places: list[str] = []

    def write(self, made: Scene) -> list[str]:
        """All files; their paths as `logdiff audit` takes them."""
        values = dict(made.values)
        env = {side: {k.split(".env.", 1)[1]: values.pop(k) for k in list(values) if k.startswith(f"{side}.env.")}
               for side in ("both", "rollout", "train")}  # fmt: skip
        for side in ("both", "rollout", "train"):
            pins = {k.split(".package.", 1)[1]: values.pop(k) for k in list(values) if k.startswith(f"{side}.package.")}
            if pins:
                self._packages(side, pins)
        generation = {k.rsplit(".", 1)[1]: values.pop(k) for k in list(values) if ".generation_config." in k}
        if generation:
            self._file("generation_config.json", json.dumps({"transformers_version": "5", **generation}))
        self._facts(values)
        {"verl": self._verl, "slime": self._slime, "pair": self._pair}[made.form](made, values, env)
        return self.paths

    def _file(self, name: str, text: str, prefix: str = "") -> None:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        self.paths.append(f"{prefix}{path}")

    def _packages(self, side: str, pins: dict[str, Any]) -> None:
        lines = [f"{n} @ git+https://example.org/{n}.git@main" if v == "main" else f"{n}=={v}" for n, v in pins.items()]
        prefix = "" if side == "both" else f"{side}="
        if side == "both" and all("@" not in line for line in lines) and self.rng.random() < 0.3:
            self._file("Dockerfile", "FROM ubuntu:24.04\nRUN pip install " + " \\\n    ".join(lines) + "\n")
            return
        self._file(f"{side}-requirements.txt", "\n".join(lines) + "\n", prefix)

    def _facts(self, values: dict[str, Any]) -> None:
        """What only a running interpreter knows."""
        live = {
            k: values.pop(k) for k in list(values) if k.endswith(".deterministic_algorithms") or ".distribution." in k
        }
        if not live:
            return
        data: dict[str, Any] = {"format": "logdiff-env/1", "packages": {}, "env": {}}
        for key, value in live.items():
            if key.endswith("deterministic_algorithms"):
                data["torch"] = {"deterministic_algorithms": value}
            else:
                _, _, rest = key.partition(".distribution.")
                name, _, fact = rest.rpartition(".")
                data.setdefault("distributions", {}).setdefault(name, {})[fact] = value
        self._file("env.json", json.dumps(data))

    def _exports(self, env: dict[str, Any]) -> list[str]:
        return [f'export {name}="{value}"' for name, value in env.items()]

    # verl

    def _verl(self, made: Scene, values: dict[str, Any], env: dict[str, dict[str, Any]]) -> None:
        for side in ("rollout", "train"):
            if env[side]:
                raise UnsatisfiableError("one process tree")
        options = dict(verl_option(*_cut(name), value) for name, value in values.items())
        place = self.rng.choice(["script", "array", "yaml", "log"])
        self.places.append(place)
        if place in ("script", "array"):
            self._verl_script(options, env["both"], place)
            return
        nested = _nest(options)
        variables = self.rng.choice(["env.sh", "runtime_env.yaml", "Dockerfile.env"])
        if env["both"]:
            self._environment(variables, env["both"])
        if place == "yaml":
            (self.folder / "outputs").mkdir()
            self._file("outputs/config.yaml", yaml.safe_dump(nested, sort_keys=False))
        else:
            text = pprint.pformat(nested, width=90)
            lines = [
                "INFO starting",
                *("(TaskRunner pid=4711) " + line for line in text.splitlines()),
                "step:1 - x:0.1",
            ]
            self._file("train.log", "\n".join(lines) + "\n")

    def _environment(self, name: str, env: dict[str, Any]) -> None:
        if name == "env.sh":
            self._file(name, "#!/bin/bash\n" + "\n".join(self._exports(env)) + "\n")
        elif name == "runtime_env.yaml":
            self._file(name, yaml.safe_dump({"working_dir": "./", "env_vars": {k: str(v) for k, v in env.items()}}))
        else:
            lines = "\n".join(f'ENV {k}="{v}"' for k, v in env.items())
            self._file("Dockerfile.env", f"FROM ubuntu:24.04\n{lines}\n")

    def _verl_script(self, options: dict[str, Any], env: dict[str, Any], place: str) -> None:
        words = [
            _quoted(f"{self.rng.choice(['', '+', '++'])}{key}={hydra_text(value)}") for key, value in options.items()
        ]
        lines = ["#!/bin/bash", "set -x"]
        way = self.rng.choice(["export", "prefix", "ray"])
        self.places.append(way)
        if way == "export":
            lines += self._exports(env)
        if place == "array":
            lines += ["ARGS=(", *("    " + w for w in words), ")"]
            words = ['"${ARGS[@]}"']
        command = "python3 -m verl.trainer.main_ppo \\\n    " + " \\\n    ".join(words) + ' "$@"'
        if way == "prefix":
            command = " ".join(f"{k}='{v}'" for k, v in env.items()) + " " + command
        if way == "ray":
            text = json.dumps({"env_vars": {k: str(v) for k, v in env.items()}})
            command = f"ray job submit --runtime-env-json='{text}' -- {command}"
        self._file("run.sh", "\n".join([*lines, command]) + "\n")

    # slime and miles

    def _slime(self, made: Scene, values: dict[str, Any], env: dict[str, dict[str, Any]]) -> None:
        for side in ("rollout", "train"):
            if env[side]:
                raise UnsatisfiableError("one process tree")
        model = {k: values.pop(k) for k in list(values) if k.startswith("rollout.model.")}
        self._model(model)
        flags = dict.fromkeys(tuple(self._slime_flag(*_cut(name), value)) for name, value in values.items())
        words = [w for flag in flags for w in flag]
        lines = ["#!/bin/bash", *self._exports(env["both"]), "ARGS=(", *("   " + _quoted(w) for w in words), ")",
                 "ray start --head"]  # fmt: skip
        runtime = json.dumps({"env_vars": {k: str(v) for k, v in env["both"].items()}})
        backend = "/root/miles/train.py" if any(f.startswith("miles") for f in made.frameworks) else "train.py"
        lines.append(f"ray job submit --runtime-env-json='{runtime}' -- python3 {backend} ${{ARGS[@]}}")
        self._file("run.sh", "\n".join(lines) + "\n")
        self.places.append("slime")

    def _slime_flag(self, side: str, key: str, value: Any) -> list[str]:
        if key.startswith("sglang."):
            return _flag("sglang-" + key.removeprefix("sglang."), value)
        for form, prefix in (("slime", ""), ("megatron", ""), ("vllm", "vllm-"), ("sglang", "sglang-")):
            try:
                name, shown = spelled(form, side, key, value)
            except UnsatisfiableError:
                continue
            return _flag(prefix + name, shown)
        if side == "train" and "." not in key:
            return _flag(key, value)
        raise UnsatisfiableError(key)

    # two separate launches

    def _pair(self, made: Scene, values: dict[str, Any], env: dict[str, dict[str, Any]]) -> None:
        model = {k: values.pop(k) for k in list(values) if k.startswith("rollout.model.")}
        self._model(model)
        sides: dict[str, dict[str, Any]] = {"rollout": {}, "train": {}}
        for name, value in values.items():
            side, key = _cut(name)
            if key == "model_path" and side == "train":
                continue  # the server's model; Megatron builds its own
            form = "vllm" if side == "rollout" else "megatron"
            try:
                raw, shown = spelled(form, side, key, value)
            except UnsatisfiableError:
                if key.startswith("model.") or "." in key or any(e.name == key for e in catalogue().keys):
                    raise
                raw, shown = key, value
            sides[side][raw] = shown
        for framework, side in (("vllm", "rollout"), ("megatron", "train")):
            if framework not in made.frameworks and (sides[side] or env[side]):
                raise UnsatisfiableError(f"nothing starts {side}")
        if "vllm" in made.frameworks:
            self._server(sides["rollout"], {**env["both"], **env["rollout"]})
        if "megatron" in made.frameworks:
            self._trainer(sides["train"], {**env["both"], **env["train"]})

    def _server(self, options: dict[str, Any], env: dict[str, Any]) -> None:
        place = self.rng.choice(["args", "yaml", "log"]) if not env else self.rng.choice(["args", "config"])
        self.places.append(f"serve {place}")
        if place == "log":
            nested = _nest(options)
            self._file(
                "serve.log", f"(APIServer pid=9) INFO 09-11 14:12:54 [utils.py:233] non-default args: {nested!r}\n"
            )
            return
        if place in ("yaml", "config"):
            shown = {k.replace("_", "-"): v for k, v in _nest(options).items()}
            self._file("engine.yaml", yaml.safe_dump({"model": "/m", **shown}, sort_keys=False))
            if place == "config":
                exports = "\n".join(self._exports(env))
                self._file("serve.sh", f"#!/bin/bash\n{exports}\nvllm serve --config engine.yaml\n")
            return
        words = [w for key, value in _json(_nest(options)).items() for w in _flag(key, value)]
        command = "vllm serve /m " + " ".join(_quoted(w) for w in words)
        if env and self.rng.random() < 0.5:
            command = "env " + " ".join(f"{k}='{v}'" for k, v in env.items()) + " " + command
            env = {}
        self._file("serve.sh", "\n".join(["#!/bin/bash", *self._exports(env), command]) + "\n")

    def _trainer(self, options: dict[str, Any], env: dict[str, Any]) -> None:
        place = "args" if env else self.rng.choice(["args", "log"])
        self.places.append(f"train {place}")
        if place == "log":
            body = "\n".join(f"  {k} {'.' * max(48 - len(k), 4)} {v}" for k, v in sorted(options.items()))
            rule = "------------------------"
            self._file("megatron.log", f"{rule} arguments {rule}\n{body}\n{rule} end of arguments {rule}\n")
            return
        words = [w for key, value in options.items() for w in _flag(key, value)]
        text = " ".join(_quoted(w) for w in words)
        exports = "\n".join(self._exports(env))
        self._file("train.sh", f"#!/bin/bash\n{exports}\ntorchrun --nproc_per_node 8 pretrain_gpt.py {text}\n")

    def _model(self, model: dict[str, Any]) -> None:
        if not model:
            return
        data: dict[str, Any] = {"architectures": ["X"]}
        for name, value in model.items():
            side, key = _cut(name)
            try:
                raw, shown = spelled("hf", side, key, value)
            except UnsatisfiableError:
                raw, shown = key.removeprefix("model."), value
            head, dot, tail = raw.partition(".")
            if dot and isinstance(data.get(head), dict):
                data[head][tail] = shown
            elif shown is not None or head not in data:
                data |= _nest({raw: shown})
        self._file("config.json", json.dumps(data))


def _cut(name: str) -> tuple[str, str]:
    side, _, key = name.partition(".")
    return side, key


def _nest(options: dict[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in options.items():
        *path, last = key.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def _json(options: dict[str, Any]) -> dict[str, Any]:
    return {k: json.dumps(v) if isinstance(v, dict) else v for k, v in options.items()}


def _flag(key: str, value: Any) -> list[str]:
    name = key.replace("_", "-")
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *(str(v) for v in value)]
    return [f"--{name}", str(value)]


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'" if not word or set(word) & set(" '\"{}[]$&|;<>()*?#!~`\\,") else word
