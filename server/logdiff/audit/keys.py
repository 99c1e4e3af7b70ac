"""One name for each setting, whatever the framework calls it; the table is `keys.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from logdiff.audit.data import packaged

FORMS = ("verl", "vllm", "sglang", "megatron", "slime", "hf", "run", "transformers")
"""Whose spelling an alias is: `megatron` covers MindSpeed and the dotted names of TransformerConfig."""


@dataclass(frozen=True, slots=True)
class Key:
    """A canonical key: its side, its aliases by form, its defaults by framework and version range."""

    name: str
    side: str
    aliases: dict[str, tuple[str, ...]]
    negated: frozenset[str] = frozenset()
    defaults: tuple[dict[str, Any], ...] = ()
    parent: bool = False


@dataclass(slots=True)
class Catalogue:
    """All keys, with the look-up from a framework's spelling."""

    keys: list[Key] = field(default_factory=list)
    by_alias: dict[tuple[str, str], Key] = field(default_factory=dict)
    env_names: frozenset[str] = frozenset()
    other: dict[str, frozenset[str]] = field(default_factory=dict)
    families: dict[str, dict[str, Any]] = field(default_factory=dict)

    def find(self, form: str, raw: str) -> Key | None:
        """The key that `form` spells `raw`; None where the table has none."""
        return self.by_alias.get((form, raw))

    def spelling(self, form: str, name: str, side: str) -> str | None:
        """How `form` spells a canonical key of a side; None where it can't be said there."""
        for key in self.keys:
            if key.name == name and key.side in (side, "both") and key.aliases.get(form):
                return key.aliases[form][0]
        return None


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The table, read once."""
    data = packaged("keys.yaml")
    found = Catalogue(
        env_names=frozenset(data["environment"]),
        other={form: frozenset(names) for form, names in data["other_names"].items()},
        families={name: row["values"] for row in data["model_defaults"] for name in row["model_type"]},
    )
    for entry in data["keys"]:
        aliases = {form: tuple(_listed(entry[form])) for form in FORMS if form in entry}
        negated = frozenset(name[1:] for names in aliases.values() for name in names if name.startswith("!"))
        plain = {form: tuple(name.lstrip("!") for name in names) for form, names in aliases.items()}
        key = Key(entry["key"], entry["side"], plain, negated, tuple(entry.get("defaults", ())))
        found.keys.append(key)
        for form, names in plain.items():
            for name in names:
                if (form, name) in found.by_alias:
                    raise ValueError(f"keys.yaml: {form} {name} stands twice")
                found.by_alias[form, name] = key
    return found


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


_ROLLOUT = "actor_rollout_ref.rollout."
_VLLM_ARGS = _ROLLOUT + "engine_kwargs.vllm."
_SGLANG_ARGS = _ROLLOUT + "engine_kwargs.sglang."
_TRANSFORMER = re.compile(
    r"^actor_rollout_ref\.(actor|ref)\.(?:megatron|mindspeed)\.override_transformer_config\.(.+)$"
)
_OVERRIDE_CONFIG = re.compile(r"^actor_rollout_ref\.model\.override_config\.(?:model_config\.)?(.+)$")


@dataclass(frozen=True, slots=True)
class Named:
    """A canonical place: side, key, and whether a true value means false there."""

    side: str
    key: str
    negated: bool = False


def canonical(form: str, raw: str) -> Named:
    """Side and canonical key of an option as `form` spells it; an unlisted one keeps its own name."""
    if form == "verl":
        return _verl(raw)
    if form == "slime":
        return _slime(raw)
    key = catalogue().find(form, raw)
    if key is not None:
        return Named(key.side, key.name, raw in key.negated)
    if form in ("vllm", "sglang"):
        for prefix in ("hf_overrides.", "json_model_override_args."):
            if raw.startswith(prefix):
                return Named("rollout", "model." + _hf_name(raw.removeprefix(prefix)))
        if raw.startswith("override_generation_config."):
            return Named("rollout", raw.removeprefix("override_generation_config."))
        return Named("rollout", raw if form == "vllm" else f"sglang.{raw}")
    if form == "megatron":
        return Named("train", raw)
    if form == "hf":
        return Named("both", f"model.{_hf_name(raw)}")
    if form == "transformers":
        return Named("train", raw)
    if form == "run":
        return Named("both", raw)
    return Named("both", f"{form}.{raw}")


def _hf_name(raw: str) -> str:
    key = catalogue().find("hf", raw)
    return key.name.removeprefix("model.") if key is not None else raw


def _verl(raw: str) -> Named:
    key = catalogue().find("verl", raw)
    if key is not None:
        return Named(key.side, key.name, raw in key.negated)
    for prefix, form in ((_VLLM_ARGS, "vllm"), (_SGLANG_ARGS, "sglang")):
        if raw.startswith(prefix):
            return canonical(form, raw.removeprefix(prefix).replace("-", "_"))
    match = _TRANSFORMER.match(raw)
    if match:
        inner = canonical("megatron", match[2])
        return Named("train" if match[1] == "actor" else "ref", inner.key, inner.negated)
    match = _OVERRIDE_CONFIG.match(raw)
    if match:
        return Named("train", f"model.{_hf_name(match[1])}")
    if raw.startswith(_ROLLOUT):
        return Named("rollout", "verl." + raw)
    if raw.startswith("actor_rollout_ref.actor."):
        return Named("train", "verl." + raw)
    if raw.startswith(("actor_rollout_ref.ref.", "critic.", "reward", "data.")):
        return Named("ref", "verl." + raw)
    return Named("both", "verl." + raw)


def _slime(raw: str) -> Named:
    key = catalogue().find("slime", raw)
    if key is not None:
        return Named(key.side, key.name, raw in key.negated)
    for prefix, form in (("vllm_", "vllm"), ("sglang_", "sglang")):
        if raw.startswith(prefix):
            return canonical(form, raw.removeprefix(prefix))
    return canonical("megatron", raw)
