"""Effective settings: which of several values of a key really holds on a side, and where it comes from."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from logdiff.audit.keys import Key, catalogue
from logdiff.audit.settings import ORIGINS, SIDES, Evidence, Setting, Unknown
from logdiff.audit.values import comparable
from logdiff.audit.versions import within

_OWN_MODEL = frozenset({"megatron", "slime", "miles"})
"""Frameworks whose train side builds its model from arguments, not from config.json."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value of one key on one side.

    `choices` are (condition, value) where it hangs on a branch; `value` is then `Unknown`. `settings` are the ones
    that decide, strongest last.
    """

    side: str
    key: str
    value: Any
    settings: tuple[Setting, ...]
    choices: tuple[tuple[str, Any], ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether nobody set it."""
        return all(s.origin == "default" for s in self.settings)

    @property
    def where(self) -> str:
        """The places that decide."""
        places = [s.where for s in self.settings] if self.choices else [self.settings[-1].where]
        return ", ".join(dict.fromkeys(places))

    @property
    def raw_key(self) -> str:
        """The name as the user wrote it."""
        return self.settings[-1].raw_key


@dataclass(slots=True)
class Table:
    """All effective settings of one audit."""

    evidence: Evidence
    values: dict[tuple[str, str], Resolved] = field(default_factory=dict)
    frameworks: frozenset[str] = frozenset()

    def get(self, side: str, key: str) -> Resolved | None:
        """The value of a key on a side; None where nothing sets it and no default is known."""
        return self.values.get((side, key))

    def versions(self, package: str) -> list[str]:
        """Versions of a package, each once; empty where none is known."""
        name = "package." + package.lower().replace("_", "-")
        found = [self.get(side, name) for side in SIDES]
        return list(dict.fromkeys(str(r.value) for r in found if r is not None and not isinstance(r.value, Unknown)))

    def in_range(self, package: str, wanted: str) -> bool | None:
        """Whether the package lies in a range, on every side that has it; None where no version is known."""
        answers = [within(v, wanted) for v in self.versions(package)]
        if not answers or None in answers:
            return None
        return all(answers) if len(set(answers)) == 1 else None

    def complete(self, side: str) -> bool:
        """Whether what starts a side was read with all of its options."""
        launches = [one for one in self.evidence.launches if side in one.sides and one.framework != "environment"]
        return bool(launches) and all(launch.complete for launch in launches)

    def lists_packages(self, side: str) -> bool:
        """Whether the packages of a side were listed, so that an absent one is known to be absent."""
        listed = [s for s in self.evidence.settings if s.key.startswith("package.") and s.side in (side, "both")]
        return len({s.key for s in listed if s.origin in ("file", "live")}) >= 5

    def as_rows(self) -> list[dict[str, Any]]:
        """Every effective setting: side, key, value, where, origin."""
        rows = []
        for (side, key), found in sorted(self.values.items()):
            origin = found.settings[-1].origin
            rows.append({"side": side, "key": key, "name": found.raw_key, "value": _shown(found), "where": found.where,
                         "origin": origin})  # fmt: skip
        return rows


def _shown(found: Resolved) -> Any:
    if found.choices:
        return [{"when": condition or "else", "value": _plain(value)} for condition, value in found.choices]
    return _plain(found.value)


def _plain(value: Any) -> Any:
    return (value.partly or str(value)) if isinstance(value, Unknown) else value


def resolve(evidence: Evidence) -> Table:
    """Effective settings: what a framework printed beats what a script says, a later setting beats an earlier one,
    and what nothing sets has the default of that framework and version."""
    table = Table(evidence, frameworks=frozenset(evidence.frameworks()))
    own_model = bool(table.frameworks & _OWN_MODEL)
    groups: dict[tuple[str, str], list[Setting]] = defaultdict(list)
    for setting in evidence.settings:
        for side in _sides(setting, own_model):
            groups[side, setting.key].append(setting)
    for (side, key), settings in groups.items():
        table.values[side, key] = _decide(side, key, settings)
    for entry in catalogue().keys:
        _add_default(table, entry)
    _derive(table)
    return table


def _sides(setting: Setting, own_model: bool) -> tuple[str, ...]:
    if setting.side != "both":
        return (setting.side,)
    if setting.framework == "hf" and own_model:
        return ("rollout",)
    return SIDES


def _decide(side: str, key: str, settings: list[Setting]) -> Resolved:
    best = max(ORIGINS.index(s.origin) for s in settings)
    strongest = [s for s in settings if ORIGINS.index(s.origin) == best]
    base: Setting | None = None
    branches: list[Setting] = []
    for setting in strongest:
        if setting.condition:
            branches.append(setting)
        else:
            base, branches = setting, []
    if not branches:
        assert base is not None
        return Resolved(side, key, base.value, (base,))
    choices = [(s.condition, s.value) for s in branches]
    if base is not None:
        choices.insert(0, ("", base.value))
    values = {repr(comparable(v)) for _, v in choices}
    deciding = (*([base] if base is not None else []), *branches)
    if len(values) == 1 and base is not None:
        return Resolved(side, key, base.value, deciding[-1:])
    if len(values) == 1 and len(choices) > 1:
        return Resolved(side, key, choices[0][1], deciding[-1:])
    return Resolved(side, key, Unknown("depends on a branch"), deciding, tuple(choices))


def _add_default(table: Table, key: Key) -> None:
    for side in SIDES if key.side == "both" else (key.side,):
        if (side, key.name) in table.values:
            continue
        for entry in key.defaults:
            launches = [
                launch for launch in table.evidence.launches
                if launch.framework == entry["framework"] and side in launch.sides and launch.complete
            ]  # fmt: skip
            if not launches:
                continue
            value: Any = entry["value"]
            if "versions" in entry:
                answer = table.in_range(entry["framework"], entry["versions"])
                if answer is False:
                    continue
                if answer is None:
                    value = Unknown(f"default depends on the version of {entry['framework']}")
            setting = Setting(side, key.name, value, key.name, f"default of {entry['framework']}", "default")
            table.values[side, key.name] = Resolved(side, key.name, value, (setting,))
            break


def _derive(table: Table) -> None:
    """Facts that follow from others: padded vocabulary rows, norm_topk_prob of Megatron, the train backend."""

    def add(side: str, key: str, value: Any, *parents: Resolved) -> None:
        if (side, key) not in table.values:
            table.values[side, key] = Resolved(side, key, value, tuple(s for p in parents for s in p.settings))

    vocab, divisor = table.get("train", "model.vocab_size"), table.get("train", "make_vocab_size_divisible_by")
    size = table.get("train", "tensor_parallel_size")
    if vocab is not None and divisor is not None and vocab.settings[-1].framework in ("megatron", "slime"):
        numbers = [r.value for r in (vocab, divisor, size) if r is not None]
        if len(numbers) == 3 and all(type(n) is int and n > 0 for n in numbers):
            multiple = numbers[1] * numbers[2]
            add("train", "padded_vocab_size", -(-numbers[0] // multiple) * multiple, vocab)
    pre = table.get("train", "moe_router_pre_softmax")
    function = table.get("train", "model.scoring_func")
    experts = table.get("train", "model.num_experts")
    if experts is not None and pre is not None and isinstance(pre.value, bool) and pre.settings[-1].framework != "hf":
        # top-k then softmax over the k values is softmax then top-k then renormalising
        softmax = function is None or function.value == "softmax"
        if not pre.is_default and pre.settings[-1].side == "train":
            table.values.pop(("train", "model.norm_topk_prob"), None)  # an override beats config.json
        add("train", "model.norm_topk_prob", (not pre.value) if softmax else True, pre)
    window = table.get("train", "window_size")
    left = _left_window(window.value) if window is not None else None
    if window is not None and left is not None:
        add("train", "window_size_covers", left + 1, window)
    backend = table.get("train", "train_backend")
    engine = table.get("train", "model_engine")
    name = table.get("train", "config_name")
    if backend is None and "verl" in table.frameworks:
        if engine is not None and isinstance(engine.value, str):
            add("train", "train_backend", "fsdp" if engine.value == "dp" else engine.value, engine)
        elif name is not None and "megatron" in str(name.value):
            add("train", "train_backend", "megatron", name)
    for side in SIDES:
        family = table.get(side, "model.model_type")
        known = catalogue().families.get(str(family.value), {}) if family is not None else {}
        for key, default in known.items():
            place = f"{family.where}, default of {family.value}" if family is not None else ""
            unset = Setting(side, key, default, key.removeprefix("model."), place, "default")
            add(side, key, default, Resolved(side, key, default, (unset,)))
        path = table.get(side, "model_path")
        model = _model_name(path.value) if path is not None else ""
        if path is not None and model:
            add(side, "model_name", model, path)
        experts = table.get(side, "model.num_experts")
        if experts is not None and type(experts.value) is int:
            add(side, "model.is_moe", experts.value > 1, experts)


def _left_window(value: Any) -> int | None:
    """Tokens to the left of the current one in `W,0`, `(W, 0)` or a list; None where there is no window."""
    first = value[0] if isinstance(value, list) and value else value
    match = re.match(r"[(\[]?\s*(\d+)", str(first)) if isinstance(value, list | str) else None
    return int(match[1]) if match else None


def _model_name(path: Any) -> str:
    """The model that a path or a hub name means, in small letters; empty where its last part names none."""
    if not isinstance(path, str):
        return ""
    cached = re.search(r"models--[^/]+?--([^/]+)", path)
    name = (cached[1] if cached else path.rstrip("/").rsplit("/", 1)[-1]).lower()
    if not re.search(r"[a-z].*\d+(\.\d+)?[bm]?", name) or re.fullmatch(r"[0-9a-f]{16,}", name):
        return ""
    if re.match(r"(global_?)?(step|iter|checkpoint|ckpt|epoch|version|v|run|exp)[-_]?\d", name):
        return ""
    return name
