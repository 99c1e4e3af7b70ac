"""The toggle proof: a run file with one switch set, and what of everything that runs changed with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from logdiff.errors import InputError
from logdiff.live import RunFile

KINDS = ("env", "args", "align", "modules")
SIDES = ("rollout", "train")
MAX_NAMED = 40
NAMED_BRIEFLY = 6

FAILED = "failed with the switch"
INVENTORY = ("patched", "libraries", "modules")
"""Parts of `changes` that a process says of itself, whether or not its passes ran to their end."""


@dataclass(frozen=True, slots=True)
class Toggle:
    """One switch: `kind` of `KINDS`, `name`, `value`, and the `sides` that it is set on."""

    text: str
    kind: str
    name: str
    value: Any
    sides: tuple[str, ...]


def parse_toggle(text: str) -> Toggle:
    """A switch as it is written: `[SIDE:]env:NAME=VALUE`, `[SIDE:]args:NAME=VALUE`, `[SIDE:]align=OPS`,
    `[SIDE:]modules=FILE`.

    `args` take YAML values; `modules` adds a file to those that the side loads; `align=none` takes alignment off.

    Raises:
        InputError: anything else.
    """
    rest = text
    sides: tuple[str, ...] = SIDES
    for side in SIDES:
        for mark in (":", "."):
            if rest.startswith(side + mark):
                rest, sides = rest[len(side) + 1 :], (side,)
    head, equals, value = rest.partition("=")
    kind, _, name = head.replace(".", ":", 1).partition(":")
    wrong = not equals or kind not in KINDS or (kind in ("env", "args") and not name)
    if wrong:
        raise InputError(
            "a toggle is env:NAME=VALUE, args:NAME=VALUE, align=OPS or modules=FILE",
            value=text,
            hint="with a side in front where only one is meant: rollout:env:VLLM_BATCH_INVARIANT=1",
        )
    parsed: Any = value
    if kind == "args":
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise InputError(f"the value is no YAML: {error}", value=text, hint="quote it") from None
    return Toggle(text, kind, name, parsed, sides)


def with_toggle(run: RunFile, toggle: Toggle) -> RunFile:
    """The run file with the switch set.

    Raises:
        InputError: the run file can't take it.
    """
    data = run.model_dump()
    if toggle.kind == "align":
        names = [n for n in toggle.value.split(",") if n]
        ops: Any = None if toggle.value in ("", "none", "off") else "all" if names == ["all"] else names
        data["align"] = {**data["align"], "ops": ops, "sides": list(toggle.sides)}
    for side in toggle.sides:
        block = data[side]
        if toggle.kind == "modules":
            path = Path(toggle.value).expanduser()
            block["modules"] = [*block["modules"], str(path if path.is_absolute() else run.base / path)]
        elif toggle.kind != "align":
            block[toggle.kind] = {**block[toggle.kind], toggle.name: toggle.value}
    return RunFile.from_dict(data, base=run.base, source=f"toggle {toggle.text}")


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What differs between two `logdiff_kernels` dispatch documents of one side.

    Returns:
        `executed`: {"operators", "kernels", "generated", "patched", "libraries", "modules": {"gone", "new"}} of what
        runs, empty parts left out; `settings`: {name: [before, after]} of what is only configured. Numbers of calls
        do not count.
    """
    executed: dict[str, Any] = {}
    for name, view in _VIEWS.items():
        one, two = view(before), view(after)
        if one != two:
            executed[name] = {"gone": sorted(one - two)[:MAX_NAMED], "new": sorted(two - one)[:MAX_NAMED]}
    settings: dict[str, list[Any]] = {}
    for part in ("resolved", "switches"):
        old, new = before.get(part) or {}, after.get(part) or {}
        settings |= {f"{part}.{k}": [old.get(k), new.get(k)] for k in sorted({*old, *new}) if old.get(k) != new.get(k)}
    return {"executed": executed, "settings": settings}


def failed_changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What is known of a side whose engine starts with the switch and then fails in a pass.

    Operators and kernels of the passes that did run are no basis of comparison; what the process says of itself is.

    Returns:
        `failed`: {"phase", "pass", "error", "where"} of the engine; `inventory`: {"patched", "libraries", "modules"}
        as `executed` of `changes`; `settings`.
    """
    found = changes(before, after)
    return {
        "failed": after["failed"],
        "inventory": {name: part for name, part in found["executed"].items() if name in INVENTORY},
        "settings": found["settings"],
    }


def verdict(toggle: Toggle, sides: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A toggle's result, the weightiest of its sides.

    Args:
        toggle: the switch.
        sides: {side: `changes`, `failed_changes`, or {"error": why the engine did not run with it}}.

    Returns:
        `result`: "failed with the switch", "not proven" (an engine did not start with it), "changed" or "changed
        nothing"; `changed`: true, false, or null where no side shows that it changed and one could not run;
        `statement`, one sentence for each kind of side.
    """
    failed = [side for side, one in sides.items() if one.get("failed")]
    refused = [side for side, one in sides.items() if "error" in one]
    moved = [side for side, one in sides.items() if one.get("executed")]
    words = [_failure(toggle, side, sides[side]) for side in failed]
    words += [f"not proven: the {s} engine did not run with {toggle.text}: {sides[s]['error']}" for s in refused]
    if moved:
        parts = sorted({part for side in moved for part in sides[side]["executed"]})
        words.append(f"{toggle.text} changed what runs on {' and '.join(moved)}: {', '.join(parts)}")
    if not words:
        words.append(_nothing(toggle, sides))
    return {
        "toggle": toggle.text,
        "sides": sides,
        "changed": True if moved else None if failed or refused else False,
        "result": FAILED if failed else "not proven" if refused else "changed" if moved else "changed nothing",
        "statement": "; ".join(words),
    }


def _failure(toggle: Toggle, side: str, one: dict[str, Any]) -> str:
    why, patched = one["failed"], one["inventory"].get("patched") or {"gone": [], "new": []}
    at = f" at {why['where'][0]}" if why["where"] else ""
    named = sorted({line.partition(" by ")[0] for line in (*patched["new"], *patched["gone"])})
    more = f" and {len(named) - NAMED_BRIEFLY} more" if len(named) > NAMED_BRIEFLY else ""
    changed = (
        f"what it had changed by then, and no phase shows at work: {', '.join(named[:NAMED_BRIEFLY])}{more}"
        if named
        else "by then it had changed no registration and no function"
    )
    return f"{FAILED}: with {toggle.text} the {side} engine fails in {why['phase']}: {why['error']}{at}; {changed}"


def _nothing(toggle: Toggle, sides: dict[str, dict[str, Any]]) -> str:
    words = f"the switch changed nothing: {toggle.text} leaves every operator, kernel, function and library the same"
    configured = sorted({name for one in sides.values() for name in one.get("settings") or {}})
    return words + (f", though {', '.join(configured)} says otherwise" if configured else "")


def _operators(document: dict[str, Any]) -> set[str]:
    return {
        f"{phase}: {e['where'] or 'outside'}: {e['op']} {','.join(e['in'])} -> {','.join(e['out'])} from {e['from']}"
        for phase, found in (document.get("phases") or {}).items()
        for e in found["entries"]
    }


def _kernels(document: dict[str, Any]) -> set[str]:
    return {
        f"{phase}: {name}"
        for phase, found in (document.get("native_pass") or {}).items()
        for kind in ("kernels", "direct")
        for name in found[kind]
    }


def _generated(document: dict[str, Any]) -> set[str]:
    return {
        f"{phase}: generated code {one['sha256']} with {', '.join([*one['kernels'], *one['extern']][:6])}"
        for phase, found in (document.get("native_pass") or {}).items()
        for one in found["generated"]
    }


def _patched(document: dict[str, Any]) -> set[str]:
    found = document.get("patched") or {}
    return {
        f"{r['kind']}: {r['target']} by {r['by']} ({r['code'] or r['detail']})"
        for part in ("findings", "explained")
        for r in found.get(part, [])
    }


def _libraries(document: dict[str, Any]) -> set[str]:
    return {
        f"{one['file'].rpartition('/')[2]} {one['sha256']}"
        for one in document.get("libraries") or []
        if one["computes"]
    }


def _modules(document: dict[str, Any]) -> set[str]:
    return {
        f"{where}: {one['class']} runs {one['forward']}" + (f" with {one['method']}" if one["method"] else "")
        for where, many in (document.get("modules") or {}).items()
        for one in many
    }


_VIEWS = {
    "operators": _operators,
    "kernels": _kernels,
    "generated": _generated,
    "patched": _patched,
    "libraries": _libraries,
    "modules": _modules,
}
