"""Rules as data: what a rule file may say, checked before anything is judged by it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from logdiff.audit.data import LOADER
from logdiff.audit.versions import specifier
from logdiff.errors import InputError

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
_KEY = re.compile(r"^(rollout|train|any)\.[\w.-]+$")
_TESTS = ("equals", "not", "in", "not_in", "greater", "less", "matches", "set", "absent", "differs_from")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Condition(_Strict):
    """One test, or several joined by `all`, `any`, `none`.

    A test names a `key` (`rollout.temperature`, `train.model.rms_norm_eps`, `any.env.NAME`) and one of `equals`, `not`,
    `in`, `not_in`, `greater`, `less`, `matches`, `set`, `absent`, `differs_from`; or is `differs_across_sides: KEY`,
    `one_side_only: KEY`, `package: NAME` with `version` or `absent`, `framework: NAME`, `term: NAME`.
    """

    all: tuple[Condition, ...] | None = None
    any: tuple[Condition, ...] | None = None
    none: tuple[Condition, ...] | None = None
    key: str | None = None
    equals: Any = None
    not_: Any = Field(default=None, alias="not")
    in_: tuple[Any, ...] | None = Field(default=None, alias="in")
    not_in: tuple[Any, ...] | None = None
    greater: float | None = None
    less: float | None = None
    matches: str | None = None
    set: bool | None = None
    absent: bool | None = None
    differs_from: str | None = None
    differs_across_sides: str | None = None
    one_side_only: str | None = None
    package: str | None = None
    version: str | None = None
    framework: str | None = None
    term: str | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Condition:
        given = self.model_fields_set
        heads = given & {
            "all", "any", "none", "key", "differs_across_sides", "one_side_only", "package", "framework", "term"
        }  # fmt: skip
        if len(heads) != 1:
            raise ValueError(
                f"a condition has exactly one of all, any, none, key, ..., got {sorted(given) or 'nothing'}"
            )
        rest = given - heads
        if "key" in heads:
            if not _KEY.match(self.key or ""):
                raise ValueError(f"key {self.key!r} needs a side: rollout., train. or any.")
            names = {name.rstrip("_") for name in rest}
            if len(names) != 1 or names - set(_TESTS):
                raise ValueError(f"key {self.key} needs exactly one test of {', '.join(_TESTS)}, got {sorted(names)}")
            if self.matches is not None:
                re.compile(self.matches)
        elif "package" in heads:
            if len(rest) != 1 or rest - {"version", "absent"}:
                raise ValueError(f"package {self.package} needs `version` or `absent`")
            if self.version is not None:
                specifier(self.version)
        elif rest:
            raise ValueError(f"{sorted(heads)[0]} stands alone, got {sorted(rest)} as well")
        return self

    def leaves(self) -> Iterator[Condition]:
        """The conditions below all, any and none that stand alone, or this one."""
        inner = [part for group in (self.all, self.any, self.none) for part in group or ()]
        if not inner:
            yield self
        for part in inner:
            yield from part.leaves()

    @cached_property
    def test(self) -> str:
        """Name of the test of a `key` condition."""
        return next(name for name in _TESTS if name in {n.rstrip("_") for n in self.model_fields_set})


class Applies(_Strict):
    """Where a rule is asked at all: one of the frameworks is there, and each package lies in its range."""

    framework: tuple[str, ...] = ()
    versions: dict[str, str] = Field(default_factory=dict)

    @field_validator("versions")
    @classmethod
    def _ranges(cls, versions: dict[str, str]) -> dict[str, str]:
        for text in versions.values():
            specifier(text)
        return versions


class Rule(_Strict):
    """One rule of `rules/*.yaml`; see docs/audit.md."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
    title: Annotated[str, Field(min_length=8, max_length=120)]
    applies: Applies = Applies()
    when: Condition | None = None
    check: (
        Literal[
            "driver_only",
            "set_twice",
            "near_miss",
            "model_keys",
            "matrix",
            "unknown_key",
            "unknown_option",
            "several_launches",
        ]
        | None
    ) = None
    at: str | None = None
    side: Literal["rollout", "train", "both"] | None = None
    severity: Severity
    consequence: Annotated[str, Field(min_length=20)]
    fix: Annotated[str, Field(min_length=8)]
    evidence: Annotated[str, Field(min_length=8)]
    rows: tuple[int, ...] = ()
    causes: tuple[str, ...] = ()
    parameters: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _judged(self) -> Rule:
        if (self.when is None) == (self.check is None):
            raise ValueError("a rule has either `when` or `check`")
        if self.at is not None and not _KEY.match(self.at):
            raise ValueError(f"at {self.at!r} needs a side: rollout., train. or any.")
        return self


class RuleFile(_Strict):
    """A file of rules, with the terms that its conditions may use."""

    terms: dict[str, Condition] = Field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


class Rules(_Strict):
    """All rules and terms."""

    rules: tuple[Rule, ...]
    terms: dict[str, Condition]


def parse_rules(texts: dict[str, str]) -> Rules:
    """Rules of several files.

    Args:
        texts: file name to YAML text.

    Raises:
        InputError: the file, the rule and the key at fault.
    """
    rules: list[Rule] = []
    terms: dict[str, Condition] = {}
    for name, text in texts.items():
        try:
            data = yaml.load(text, Loader=LOADER)
            parsed = RuleFile.model_validate(data or {})
        except yaml.YAMLError as error:
            raise InputError(f"rule file {name} is no valid YAML: {' '.join(str(error).split())}", value=name) from None
        except ValidationError as error:
            raise _explained(name, data, error) from None
        rules += parsed.rules
        terms.update(parsed.terms)
    seen: set[str] = set()
    for rule in rules:
        if rule.id in seen:
            raise InputError("a rule id stands twice", value=rule.id, hint="give each rule its own id")
        seen.add(rule.id)
        for leaf in rule.when.leaves() if rule.when is not None else ():
            if leaf.term and leaf.term not in terms:
                raise InputError(f"rule {rule.id} uses a term that is nowhere", value=leaf.term,
                                 hint=f"known terms: {', '.join(sorted(terms))}")  # fmt: skip
    return Rules(rules=tuple(rules), terms=terms)


def _explained(name: str, data: Any, error: ValidationError) -> InputError:
    first = error.errors(include_url=False)[0]
    loc = list(first["loc"])
    label = ""
    if len(loc) > 1 and loc[0] == "rules" and isinstance(data, dict):
        entry = data["rules"][loc[1]] if isinstance(loc[1], int) else {}
        label = f" rule {entry.get('id', loc[1]) if isinstance(entry, dict) else loc[1]}"
    where = ".".join(str(p) for p in loc)
    message = first["msg"].removeprefix("Value error, ")
    return InputError(f"rule file {name}:{label}: `{where}`: {message}", value=first.get("input"),
                      hint="docs/audit.md has the form of a rule")  # fmt: skip


@lru_cache(maxsize=1)
def load_rules() -> Rules:
    """The rules that travel with the package."""
    folder = files("logdiff.audit") / "rules"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    return parse_rules({n: (folder / n).read_text(encoding="utf-8") for n in names if n != "matrix.yaml"})
