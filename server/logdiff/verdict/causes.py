"""The catalogue of causes (`playbooks/causes.yaml`), checked when it is read."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from logdiff.errors import InputError
from logdiff.verdict.records import CLASSES, PATHS, path_of

_ID = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")
_NO_CAUSE = ("none", "undetermined", "invalid-evidence")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Experiment(_Strict):
    """What tells this cause from others: in words, and as a command of ours."""

    what: str = Field(min_length=1)
    command: str = Field(pattern=r"^logdiff ")


class Fix(_Strict):
    """What to do about it, for an engine ("any" for all) and its versions."""

    engine: str = Field(min_length=1)
    versions: str = Field(min_length=1)
    do: str = Field(min_length=1)


class Cause(_Strict):
    """One entry of the catalogue.

    Args:
        id: short kebab-case name.
        class_: the class of a verdict with this cause.
        path: operator or framework; follows from the class.
        components: boundaries or configuration keys that it is at home in, the commonest first.
        does: what goes wrong.
        signature: how it shows.
        experiment: what splits it from its neighbours.
        fix: what to do, by engine and version.
        evidence: public reports, each as its author's claim, or "by definition ...".
    """

    id: str
    class_: str = Field(alias="class")
    path: str
    components: tuple[str, ...] = Field(min_length=1)
    does: str = Field(min_length=1)
    signature: str = Field(min_length=1)
    experiment: Experiment
    fix: tuple[Fix, ...] = Field(min_length=1)
    evidence: tuple[str, ...] = Field(min_length=1)

    @field_validator("id")
    @classmethod
    def _kebab(cls, value: str) -> str:
        if not _ID.match(value):
            raise ValueError(f"{value!r} is not kebab-case")
        return value

    @model_validator(mode="after")
    def _known(self) -> Cause:
        if self.class_ not in CLASSES or self.class_ in _NO_CAUSE:
            raise ValueError(f"{self.id}: no class {self.class_!r} of a cause")
        if self.path not in PATHS or self.path != path_of(self.class_):
            raise ValueError(f"{self.id}: path {self.path!r} does not belong to class {self.class_}")
        return self

    def as_dict(self) -> dict[str, Any]:
        """The entry as in the file."""
        return self.model_dump(mode="json", by_alias=True)


def parse_causes(text: str, where: str = "causes.yaml") -> dict[str, Cause]:
    """Read a catalogue.

    Raises:
        InputError: not a list of entries in this form, or an id that comes twice.
    """
    try:
        entries = TypeAdapter(list[Cause]).validate_python(yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError) as error:
        raise InputError(f"the catalogue of causes can't be read: {error}", value=where) from None
    catalogue: dict[str, Cause] = {}
    for entry in entries:
        if entry.id in catalogue:
            raise InputError("a cause is listed twice", value=entry.id, hint=f"give each id once in {where}")
        catalogue[entry.id] = entry
    return catalogue


@lru_cache(maxsize=1)
def causes() -> dict[str, Cause]:
    """All causes by id, in the order of the file; read once."""
    return parse_causes(files("logdiff.verdict").joinpath("causes.yaml").read_text(encoding="utf-8"))


def cause(name: str) -> Cause:
    """One cause.

    Raises:
        InputError: no such id.
    """
    found = causes().get(name)
    if found is None:
        raise InputError("no such cause", value=name, hint="the ids stand in playbooks/causes.yaml")
    return found
