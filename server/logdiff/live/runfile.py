"""The run file `logdiff-run/1`: one live comparison, checked before any engine is started."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from logdiff.errors import InputError
from logdiff.jsonio import dumps
from logdiff.live.tokens import tokens_digest
from logdiff.target.alignment import parse_ops
from logdiff.target.engine import EngineSpec
from logdiff.target.redact import redacted

MAX_BYTES = 1 << 20
BUILTIN = "builtin:"

ROLLOUT_ENGINES = ("vllm", "vllm-http", "transformers-generate", "transformers")
TRAIN_ENGINES = ("transformers",)

Dtype = Literal["bfloat16", "float16", "float32"]


class _Strict(BaseModel):
    """No unknown keys, no silent conversion between types."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class RandomPrompts(_Strict):
    """`count` prompts of ids uniform over the vocabulary without special ids; `lengths` is cycled."""

    count: int = Field(ge=1, le=1_000_000)
    lengths: list[Annotated[int, Field(ge=1, le=10_000_000)]] = Field(min_length=1)
    seed: int = Field(default=0, ge=0)


class Prompts(_Strict):
    """Exactly one source of prompts."""

    random: RandomPrompts | None = None
    token_ids: str | None = None
    text: str | None = None
    chat: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> Prompts:
        given = [k for k in ("random", "token_ids", "text") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of random, token_ids, text is needed, got {given or 'none'}")
        if self.chat and self.text is None:
            raise ValueError("chat needs text prompts")
        return self


class Sampling(_Strict):
    """How the rollout side samples. `top_k` -1 keeps the whole vocabulary; `topk` log-probabilities are recorded."""

    max_tokens: int = Field(default=64, ge=1, le=1_000_000)
    temperature: float = Field(default=1.0, ge=0.0, le=100.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)
    seed: int | None = Field(default=0, ge=0)
    topk: int = Field(default=0, ge=0, le=1000)
    ignore_eos: bool = False

    def request(self) -> dict[str, Any]:
        """The `sampling` object of the runner protocol."""
        return {**self.model_dump(), "n": 1}


class Score(_Strict):
    """How the train side lays out its rows."""

    layout: Literal["single", "padded", "packed"] = "padded"
    padding_side: Literal["left", "right"] = "right"
    micro_batch_size: int = Field(default=8, ge=1, le=100_000)


class Update(_Strict):
    """The small real update between two steps: its learning rate and seed."""

    lr: float = Field(default=2e-4, gt=0.0, le=1.0)
    seed: int = Field(default=0, ge=0)


class Align(_Strict):
    """Which operators run aligned on which side; `tokens`: an earlier case whose tokens are scored again, not sampled.

    Without `ops` both engines stay native.
    """

    ops: Literal["all"] | list[str] | None = None
    sides: list[Literal["rollout", "train"]] = Field(default=["rollout", "train"], min_length=1)
    tokens: str | None = None

    @field_validator("ops")
    @classmethod
    def _known(cls, ops: Literal["all"] | list[str] | None) -> list[str] | None:
        try:
            return None if ops is None else parse_ops(ops)
        except InputError as error:
            raise ValueError(f"{error.message}; {error.hint}") from None

    def of(self, side: str) -> list[str]:
        """Operators aligned on a side, in the contract's order; empty where it stays native."""
        return list(self.ops or []) if side in self.sides else []


class _Side(_Strict):
    args: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    modules: list[str] = Field(default_factory=list)
    python: str | None = None
    model: str | None = None
    dtype: Dtype | None = None


class RolloutSide(_Side):
    """The side that samples. `score` is for engine `transformers`: it samples, then scores what it sampled."""

    engine: Literal["vllm", "vllm-http", "transformers-generate", "transformers"]
    score: Score = Field(default_factory=Score)


class TrainSide(_Side):
    """The side that scores fixed tokens."""

    engine: Literal["transformers"]
    score: Score = Field(default_factory=Score)


class RunFile(_Strict):
    """One live comparison. Build it with `load_run_file` or `RunFile.from_dict`; paths in it are then absolute."""

    format: Literal["logdiff-run/1"]
    model: str
    dtype: Dtype = "bfloat16"
    prompts: Prompts
    sampling: Sampling = Field(default_factory=Sampling)
    rollout: RolloutSide
    train: TrainSide
    steps: int = Field(default=1, ge=1, le=1000)
    update: Update = Field(default_factory=Update)
    align: Align = Field(default_factory=Align)

    _base: Path = PrivateAttr(default_factory=Path.cwd)

    @classmethod
    def from_dict(cls, data: Any, *, base: Path | str | None = None, source: str = "run file") -> RunFile:
        """Check a run given as plain data; relative paths are resolved against `base` (default: working directory).

        Raises:
            InputError: with the key at fault, its value, and the nearest valid key where one was misspelt.
        """
        if not isinstance(data, dict):
            raise InputError(
                f"{source} must be a mapping with format: logdiff-run/1",
                value=type(data).__name__,
                hint="`format`, `model`, `prompts`, `rollout` and `train` are needed",
            )
        if data.get("format") != "logdiff-run/1":
            raise InputError(
                f"{source} has no `format: logdiff-run/1`",
                value=data.get("format"),
                hint="write `format: logdiff-run/1` as its first line",
            )
        data = _numbers(data)
        try:
            run = cls.model_validate(data)
        except ValidationError as error:
            raise _input_error(error, source) from None
        if run.align.of("rollout") and run.rollout.engine == "vllm-http":
            raise InputError(
                "the operators of a running server can't be switched from here",
                value="align.sides: rollout",
                hint="align.sides: [train]; start the server itself with the env.sh that `logdiff align apply` writes",
            )
        if run.align.tokens is not None and run.steps > 1:
            raise InputError(
                "given tokens are for one step: later steps sample with updated weights",
                value=f"steps: {run.steps}",
                hint="steps: 1, or no align.tokens",
            )
        if run.steps > 1 and run.rollout.engine == "vllm-http":
            raise InputError(
                "the weights of a running server can't be updated from here",
                value=f"steps: {run.steps}",
                hint="use engine vllm, or steps: 1",
            )
        return run._resolved(Path(base) if base is not None else Path.cwd())

    @property
    def base(self) -> Path:
        """Folder that relative paths were resolved against."""
        return self._base

    def spec(self, side: str, model: Path | str | None = None) -> EngineSpec:
        """The engine of `side` ("rollout" or "train"); `model` replaces the folder that the run file names."""
        block: RolloutSide | TrainSide = self.rollout if side == "rollout" else self.train
        return EngineSpec(
            engine=block.engine,
            side=side,
            model=str(model or self.side_model(side)),
            dtype=block.dtype or self.dtype,
            args=dict(block.args),
            env=dict(block.env),
            modules=list(block.modules),
            score=block.score.model_dump(),
            sampling=self.sampling.request(),
            python=block.python,
        )

    def side_model(self, side: str) -> str:
        """The model of a side as the run file gives it: an absolute folder or `builtin:NAME`."""
        block: RolloutSide | TrainSide = self.rollout if side == "rollout" else self.train
        return block.model or self.model

    def digest(self) -> str:
        """SHA-256 of everything that decides what is captured; named files count by content, not by path."""
        data = self._dump()
        if self.align.tokens is not None:
            data["align"]["tokens"] = tokens_digest(Path(self.align.tokens))
        for key in ("token_ids", "text"):
            if data["prompts"][key] is not None:
                data["prompts"][key] = _sha256(Path(data["prompts"][key]))
        for side in ("rollout", "train"):
            data[side]["modules"] = [_sha256(Path(path)) for path in data[side]["modules"]]
        return hashlib.sha256(dumps(data).encode()).hexdigest()

    def public(self) -> dict[str, Any]:
        """The run as the case keeps it: without the values of environment variables and of keys that name secrets."""
        data: dict[str, Any] = redacted(self._dump())
        for side in ("rollout", "train"):
            data[side]["env"] = sorted(data[side]["env"])
        return data

    def with_align(self, **changes: Any) -> RunFile:
        """The same run with other `align` keys, checked; paths absolute or relative to the working directory.

        Raises:
            InputError: as for a run file.
        """
        data = {**self.model_dump(), "align": {**self.align.model_dump(), **changes}}
        return RunFile.from_dict(data, source="align")

    def _dump(self) -> dict[str, Any]:
        """Plain data; `align` empty where both engines are native and sample for themselves."""
        data = self.model_dump()
        if self.align.ops is None:
            data["align"] = {} if self.align.tokens is None else {"tokens": self.align.tokens}
        return data

    def _resolved(self, base: Path) -> RunFile:
        base = base.absolute()

        def path(value: str | None) -> str | None:
            if value is None or value.startswith(BUILTIN):
                return value
            return str((base / Path(value).expanduser()).absolute())

        def existing(value: str | None, key: str) -> str | None:
            found = path(value)
            if found is not None and not Path(found).is_file():
                raise InputError(f"{key}: no such file", value=found, hint=f"paths are relative to {base}")
            return found

        def side(block: Any, name: str) -> Any:
            update: dict[str, Any] = {
                "modules": [existing(m, f"{name}.modules") for m in block.modules],
                "model": path(block.model),
            }
            if block.python is not None and os.sep in block.python:
                update["python"] = existing(block.python, f"{name}.python")
            return block.model_copy(update=update)

        prompts = self.prompts.model_copy(
            update={
                "token_ids": existing(self.prompts.token_ids, "prompts.token_ids"),
                "text": existing(self.prompts.text, "prompts.text"),
            }
        )
        tokens = path(self.align.tokens)
        if tokens is not None and not (Path(tokens) / "manifest.json").is_file():
            raise InputError("align.tokens: no case folder", value=tokens, hint=f"paths are relative to {base}")
        run = self.model_copy(
            update={
                "model": path(self.model),
                "prompts": prompts,
                "align": self.align.model_copy(update={"tokens": tokens}),
                "rollout": side(self.rollout, "rollout"),
                "train": side(self.train, "train"),
            }
        )
        run._base = base
        return run


def load_run_file(path: Path | str) -> RunFile:
    """Read a YAML run file. Raises `InputError` where it can't be used as it stands."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise InputError("run file is no file", value=str(path), hint="give the path of a logdiff-run/1 YAML file")
        if size > MAX_BYTES:
            raise InputError("run file is too large", value=f"{size} bytes", hint=f"at most {MAX_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            "no such run file", value=str(path), hint="give the path of a logdiff-run/1 YAML file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"run file can't be read: {error}", value=str(path), hint="it must be UTF-8 YAML") from None
    try:
        data = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"run file is not valid YAML: {words}", value=str(path), hint="fix the line named") from None
    return RunFile.from_dict(data, base=path.absolute().parent, source=str(path))


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases (no exponential documents), without repeated keys, with 1e-6 read as a number."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not accepted", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(  # YAML 1.1 of PyYAML reads 1e-6 as text
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _numbers(data: dict[str, Any]) -> dict[str, Any]:
    """Let an integer stand for a float in `sampling` (1 for 1.0): YAML writers do not tell them apart."""
    sampling = data.get("sampling")
    if isinstance(sampling, dict):
        fixed = {k: float(v) if k in ("temperature", "top_p") and type(v) is int else v for k, v in sampling.items()}
        data = {**data, "sampling": fixed}
    for side in ("rollout", "train"):
        block = data.get(side)
        if isinstance(block, dict) and isinstance(block.get("env"), dict):
            env = {k: str(v) if type(v) in (int, float) else v for k, v in block["env"].items()}
            data = {**data, side: {**block, "env": env}}
    return data


def _input_error(error: ValidationError, source: str) -> InputError:
    problems = error.errors(include_url=False)
    first = problems[0]
    where = ".".join(str(p) for p in first["loc"]) or "run file"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        names = _keys_at(first["loc"][:-1])
        key = str(first["loc"][-1])
        near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
        hint = (f"did you mean `{near[0]}`? " if near else "") + f"known keys: {', '.join(names)}"
        return InputError(f"{source}: unknown key `{where}`{more}", value=key, hint=hint)
    if first["type"] == "missing":
        return InputError(f"{source}: `{where}` is missing{more}", value=where, hint=f"add `{where}`")
    hint = "docs/run-file.md gives the value and type of every key"
    if where.endswith(".engine"):
        names = list(TRAIN_ENGINES if where.startswith("train") else ROLLOUT_ENGINES)
        near = difflib.get_close_matches(str(first["input"]), names, n=1, cutoff=0.5)
        hint = (f"did you mean `{near[0]}`? " if near else "") + f"engines of this side: {', '.join(names)}"
    message = first["msg"].removeprefix("Value error, ")
    return InputError(f"{source}: `{where}`: {message}{more}", value=first["input"], hint=hint)


def _keys_at(loc: tuple[int | str, ...]) -> list[str]:
    model: Any = RunFile
    for part in loc:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        options = (
            get_args(annotation) if get_origin(annotation) in (Union, type(RandomPrompts | None)) else (annotation,)
        )
        model = next(o for o in options if isinstance(o, type) and issubclass(o, BaseModel))
    return list(model.model_fields)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
