"""Checks that no condition over single keys can say: places, repetitions, near misses, combinations of versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from logdiff.audit.data import packaged
from logdiff.audit.effective import Table
from logdiff.audit.keys import canonical, catalogue
from logdiff.audit.options import absent
from logdiff.audit.rule import Rule, load_rules
from logdiff.audit.settings import SIDES, Setting, Unknown
from logdiff.audit.values import same
from logdiff.audit.versions import within
from logdiff.model_keys import NOT_FUNCTION


@dataclass(frozen=True, slots=True)
class Hit:
    """What a check found; `severity`, `fix` and `evidence` replace those of the rule where given."""

    side: str
    key: str
    value: Any
    where: str
    words: str = ""
    severity: str = ""
    fix: str = ""
    evidence: str = ""


_NO_NUMBERS = frozenset(
    (
        "CUDA_VISIBLE_DEVICES",
        "ASCEND_RT_VISIBLE_DEVICES",
        "RAY_DEDUP_LOGS",
        "TOKENIZERS_PARALLELISM",
        "HCCL_CONNECT_TIMEOUT",
        "HCCL_EXEC_TIMEOUT",
    )
)
"""Known names that may stay in the submitting shell: Ray gives its workers their devices, the others change no bit."""


def driver_only(table: Table, rule: Rule) -> Iterator[Hit]:
    """Variables that the submitting shell exports and the job's processes don't get."""
    for launch in table.evidence.launches:
        for name, where in launch.driver_only:
            if name in catalogue().env_names - _NO_NUMBERS:
                yield Hit("both", name, "set in the submitting shell only", where)


def set_twice(table: Table, rule: Rule) -> Iterator[Hit]:
    """A key that decides numbers with two values in one place."""
    wanted = _judged_keys()
    for first, second in table.evidence.repeated:
        name = first.key.removeprefix("env.")
        known = name in catalogue().env_names if first.key.startswith("env.") else _listed(first.key) in wanted
        if known:
            value = f"{first.value}, then {second.value}"
            where = ", ".join(dict.fromkeys((first.where, second.where)))
            yield Hit(_side_of(table, first), first.raw_key, value, where, f"{second.value} counts.")


def _side_of(table: Table, setting: Setting) -> str:
    """The side whose effective value a setting is; both where neither alone has it."""
    name = setting.key if setting.key.startswith("env.") else _listed(setting.key)
    found = {side for side in SIDES if (one := table.get(side, name)) is not None and not one.is_default}
    return found.pop() if len(found) == 1 else "both"


def decides(setting: Setting) -> bool:
    """Whether a rule asks for a setting: only then are two processes that differ in it two cases."""
    if setting.key.startswith("env."):
        return setting.key.removeprefix("env.") in catalogue().env_names - _NO_NUMBERS
    return setting.key in _judged_keys()


def several_launches(table: Table, rule: Rule) -> Iterator[Hit]:
    """Processes of one engine whose settings differ."""
    for first, one, second, two in table.evidence.apart:
        key = next(s.raw_key for s in (one, two) if s is not None)
        value = f"{_said(one)} in one, {_said(two)} in the other"
        where = ", ".join(dict.fromkeys((one.where if one else first.where, two.where if two else second.where)))
        side = first.sides[0] if len(first.sides) == 1 else "both"
        yield Hit(side, key, value, where, f"{first.framework} is started at {first.where} and at {second.where}.")


def _said(setting: Setting | None) -> str:
    return "not set" if setting is None else str(setting.value)


def unknown_option(table: Table, rule: Rule) -> Iterator[Hit]:
    """Options of vLLM that no release around the version in use knows, with the nearest name."""
    versions = table.versions("vllm")
    version = versions[0] if len(versions) == 1 else None
    seen: set[str] = set()
    for setting in table.evidence.settings:
        name = _vllm_option(setting)
        if name is None or setting.raw_key in seen or setting.origin == "log":
            continue
        found = absent("vllm", name, version)
        if found is None:
            continue
        seen.add(setting.raw_key)
        prefix = _VLLM_ARGS if setting.framework == "verl" else "--vllm-" if setting.framework == "slime" else "--"
        nearest = found.nearest or ""
        written = prefix + (nearest if prefix == _VLLM_ARGS else nearest.replace("_", "-"))
        words = f"No option of vLLM {' or '.join(found.releases)} has this name."
        fix = f"Write {written}." if found.nearest else rule.fix
        severity = rule.severity if found.sure else "warning" if found.nearest else "info"
        value = str(setting.value) if isinstance(setting.value, Unknown) else setting.value
        yield Hit(setting.side, setting.raw_key, value, setting.where, words, severity, fix)


def _vllm_option(setting: Setting) -> str | None:
    """The option of vLLM that a setting is, as its parser names it; None for anything else, and for what we list."""
    raw = setting.raw_key
    if setting.framework == "verl" and raw.startswith(_VLLM_ARGS):
        raw = raw.removeprefix(_VLLM_ARGS)
    elif setting.framework == "slime" and raw.lstrip("-").startswith(("vllm-", "vllm_")):
        raw = raw.lstrip("-")[len("vllm_") :]
    elif setting.framework != "vllm":
        return None
    name = raw.lstrip("-").partition(".")[0].replace("-", "_").removeprefix("no_")
    return None if name in _names(("vllm",)) else name


def model_keys(table: Table, rule: Rule) -> Iterator[Hit]:
    """Keys of the model's configuration that differ and that no rule of their own compares."""
    for side, key in sorted(table.values):
        name = key.removeprefix("model.")
        if side != "rollout" or name == key or key in _compared_keys() or name.rsplit(".", 1)[-1] in _NO_FUNCTION:
            continue
        left, right = table.get("rollout", key), table.get("train", key)
        if left is None or right is None or left.choices or right.choices:
            continue
        if any(r.value is None or isinstance(r.value, Unknown) for r in (left, right)) or same(left.value, right.value):
            continue
        where = ", ".join(dict.fromkeys((left.where, right.where)))
        yield Hit("both", left.raw_key, f"rollout {left.value}, train {right.value}", where)


_NO_FUNCTION = NOT_FUNCTION | {"folder", "is_moe", "quant_method"}


@lru_cache(maxsize=1)
def _compared_keys() -> frozenset[str]:
    """Canonical keys that a rule compares between the sides."""
    leaves = (leaf for rule in load_rules().rules if rule.when is not None for leaf in rule.when.leaves())
    return frozenset(leaf.differs_across_sides for leaf in leaves if leaf.differs_across_sides)


@lru_cache(maxsize=1)
def _judged_keys() -> frozenset[str]:
    """Canonical keys that a rule or a term asks for."""
    rules = load_rules()
    found: set[str] = set()
    for condition in (*(rule.when for rule in rules.rules if rule.when is not None), *rules.terms.values()):
        for leaf in condition.leaves():
            found |= {key.partition(".")[2] for key in (leaf.key, leaf.differs_from) if key}
            found |= {key for key in (leaf.differs_across_sides, leaf.one_side_only) if key}
    return frozenset(found)


def _listed(raw: str) -> str:
    for form in ("verl", "vllm", "megatron", "slime", "sglang"):
        found = catalogue().find(form, raw)
        if found is not None:
            return found.name
    return canonical("verl", raw).key


def near_miss(table: Table, rule: Rule) -> Iterator[Hit]:
    """A name that nothing reads and that is one or two letters from one that decides numbers."""
    seen: set[str] = set()
    for setting in table.evidence.settings:
        near = _near(setting)
        if near is not None and setting.raw_key not in seen:
            seen.add(setting.raw_key)
            value = str(setting.value) if isinstance(setting.value, Unknown) else setting.value
            yield Hit(setting.side, setting.raw_key, value, setting.where, fix=f"Write {near}.")


def _near(setting: Setting) -> str | None:
    if setting.framework == "env":
        return _closest(setting.raw_key, catalogue().env_names)
    form = setting.framework
    if form not in ("verl", "vllm", "megatron", "slime", "sglang"):
        return None
    if _vllm_option(setting) is not None and "." not in setting.raw_key.removeprefix(_VLLM_ARGS):
        return None  # unknown_option knows every name of its releases
    raw = setting.raw_key.lstrip("-").replace("-", "_") if form != "verl" else setting.raw_key
    if form == "verl":
        return _near_hydra(raw)
    forms = [form, *(["megatron"] if form == "slime" else [])]
    for prefix in ("vllm_", "sglang_"):
        if form == "slime" and raw.startswith(prefix):
            raw, forms = raw.removeprefix(prefix), [prefix[:-1]]
    return _closest(raw.removeprefix("no_"), frozenset(_names(tuple(forms))))


_VLLM_ARGS = "actor_rollout_ref.rollout.engine_kwargs.vllm."
_PREFIXES = {
    _VLLM_ARGS: "vllm",
    "actor_rollout_ref.rollout.engine_kwargs.sglang.": "sglang",
    "actor_rollout_ref.actor.megatron.override_transformer_config.": "megatron",
    "actor_rollout_ref.ref.megatron.override_transformer_config.": "megatron",
}


def _near_hydra(raw: str) -> str | None:
    for prefix, form in _PREFIXES.items():
        if raw.startswith(prefix):
            near = _closest(raw.removeprefix(prefix).replace("-", "_"), frozenset(_names((form,))))
            return None if near is None else prefix + near
    return _closest(raw, frozenset(_names(("verl",))))


@lru_cache(maxsize=32)
def _names(forms: tuple[str, ...]) -> frozenset[str]:
    table = catalogue()
    names = {name for form, name in table.by_alias if form in forms}
    for form in forms:
        names |= table.other.get(form, frozenset())
    return frozenset(names)


@lru_cache(maxsize=8192)
def _closest(name: str, known: frozenset[str]) -> str | None:
    """The known name within two edits (one for short names); None where the name is known itself."""
    if name in known or len(name) < 9:
        return None
    limit = 1 if len(name.rsplit(".", 1)[-1]) < 12 else 2
    best: tuple[int, str] | None = None
    for other in known:
        if abs(len(other) - len(name)) > limit or len(other.rsplit(".", 1)[-1]) < 5:
            continue
        if other.rsplit(".", 1)[-1].rstrip("s") == name.rsplit(".", 1)[-1].rstrip("0123456789") and name[-1].isdigit():
            continue  # a numbered sibling
        found = _edits(name, other, limit)
        if found is not None and (best is None or (found, other) < best):
            best = (found, other)
    return None if best is None else best[1]


def _edits(left: str, right: str, limit: int) -> int | None:
    """Edits between two names, swaps of neighbours as one; None beyond the limit."""
    before2: list[int] = []
    before = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        row = [i]
        for j, b in enumerate(right, 1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before2[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return None
        before2, before = before, row
    return before[-1] if before[-1] <= limit else None


def unknown_key(table: Table, rule: Rule) -> Iterator[Hit]:
    """Keys below a prefix whose reader refuses every name but some."""
    prefix, names = str(rule.parameters["prefix"]), set(rule.parameters["names"])
    for (side, key), found in sorted(table.values.items()):
        head, dot, tail = key.rpartition(prefix)
        if dot and head in ("", "additional_config.") and tail.split(".", 1)[0] not in names:
            yield Hit(side, found.raw_key, found.value, found.where)


@lru_cache(maxsize=1)
def matrix() -> list[dict[str, Any]]:
    """Combinations of versions: `rules/matrix.yaml`."""
    found: list[dict[str, Any]] = packaged("rules/matrix.yaml")["combinations"]
    return found


def combinations(table: Table, rule: Rule) -> Iterator[Hit]:
    """Known-bad combinations by their severity, and an info where a full set of versions is in no known-good row."""
    versions = {
        name: table.versions(name)[0] for row in matrix() for name in row["packages"] if len(table.versions(name)) == 1
    }
    bad = False
    for row in matrix():
        if row["state"] == "good":
            continue
        answers = [within(versions[n], spec) if n in versions else False for n, spec in row["packages"].items()]
        if all(answers):
            bad = True
            yield _row_hit(table, row, row["packages"])
    if bad:
        return
    anchors = [name for name in ("vllm-ascend",) if name in versions]
    for anchor in anchors:
        rows = [
            r for r in matrix() if r["state"] == "good" and within(versions[anchor], r["packages"].get(anchor, "<0"))
        ]
        known = [n for n in versions if any(n in r["packages"] for r in rows)]
        if len(known) > 1 and not any(_fits(row, versions) for row in rows):
            shown = ", ".join(f"{n} {versions[n]}" for n in known)
            words = "This combination is in no published matrix that is known here."
            fix = "Compare with the matrix of your release notes."
            yield Hit("both", anchor, shown, _places(table, known), words, "info", fix)


def _fits(row: dict[str, Any], versions: dict[str, str]) -> bool:
    return all(n not in versions or within(versions[n], spec) is not False for n, spec in row["packages"].items())


def _row_hit(table: Table, row: dict[str, Any], names: Iterable[str]) -> Hit:
    shown = ", ".join(f"{n} {table.versions(n)[0]}" for n in names)
    return Hit(
        "both",
        next(iter(row["packages"])),
        shown,
        _places(table, names),
        row["consequence"],
        row["severity"],
        row["fix"],
        row["source"],
    )


def _places(table: Table, names: Iterable[str]) -> str:
    found = [table.get(side, f"package.{name}") for name in names for side in SIDES]
    return ", ".join(dict.fromkeys(r.where for r in found if r is not None))


CHECKS: dict[str, Callable[[Table, Rule], Iterable[Hit]]] = {
    "driver_only": driver_only,
    "set_twice": set_twice,
    "near_miss": near_miss,
    "model_keys": model_keys,
    "unknown_key": unknown_key,
    "unknown_option": unknown_option,
    "several_launches": several_launches,
    "matrix": combinations,
}
