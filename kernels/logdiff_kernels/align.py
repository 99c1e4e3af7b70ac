"""Which operators are aligned in this process: read from the overlay that `logdiff align apply` or a run writes.

`LOGDIFF_ALIGN` in the environment holds the absolute path of a `logdiff-overlay/1` file. Without the variable nothing
in this package touches an engine's numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logdiff_kernels.contract import CONTRACT as CONTRACT
from logdiff_kernels.contract import OPERATORS as OPERATORS
from logdiff_kernels.errors import InputError

VARIABLE = "LOGDIFF_ALIGN"
"""Environment variable with the path of the overlay file."""

BUDGET = "LOGDIFF_BUDGET"
"""Environment variable that, set to 1, starts an engine stock but such that operators can be switched on and off in
place (the task `realign`): the raw weights stay beside what the engine packs."""

FORMAT = "logdiff-overlay/1"

PROVIDER = "aligned-cpu"

SIDES = ("rollout", "train")


@dataclass(frozen=True, slots=True)
class AlignSpec:
    """What is aligned: operator names, provider, contract version, and the id of the plan it came from."""

    ops: frozenset[str] = frozenset(OPERATORS)
    provider: str = PROVIDER
    contract: str = CONTRACT
    id: str = ""

    def __contains__(self, op: str) -> bool:
        return op in self.ops

    @property
    def complete(self) -> bool:
        """Whether every operator of the contract is aligned."""
        return self.ops == frozenset(OPERATORS)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values for fingerprints: `contract`, `provider`, `id`, `ops` in the contract's order."""
        ordered = [op for op in OPERATORS if op in self.ops]
        return {"contract": self.contract, "provider": self.provider, "id": self.id, "ops": ordered}


def parse_ops(ops: str | Iterable[str]) -> frozenset[str]:
    """Operator names of `"all"`, a comma-separated text, or a list.

    Raises:
        InputError: an unknown name, or none at all.
    """
    names = [part.strip() for part in ops.split(",")] if isinstance(ops, str) else list(ops)
    names = [name for name in names if name]
    if names == ["all"]:
        return frozenset(OPERATORS)
    unknown = [name for name in names if name not in OPERATORS]
    if unknown:
        raise InputError(
            f"unknown operator {unknown[0]!r}", value=unknown[0], hint=f"`all`, or of: {', '.join(OPERATORS)}"
        )
    if not names:
        raise InputError("no operator to align", value=ops, hint=f"`all`, or of: {', '.join(OPERATORS)}")
    return frozenset(names)


def parse_switch(ops: str | Iterable[str]) -> frozenset[str]:
    """`parse_ops` of what a running engine is switched to, where none (an empty list) means stock."""
    names = ops if isinstance(ops, str) else list(ops)
    return parse_ops(names) if names else frozenset()


def budget_mode() -> bool:
    """Whether this process's engine is to be switchable.

    Raises:
        InputError: it is also to be aligned from the start.
    """
    if os.environ.get(BUDGET) != "1":
        return False
    if os.environ.get(VARIABLE):
        raise InputError(
            f"{BUDGET} and {VARIABLE} exclude each other", value=os.environ[VARIABLE], hint="leave one out"
        )
    return True


def from_environment(side: str | None = None) -> AlignSpec | None:
    """The alignment of this process; None where there is none, or where `side` stays native.

    Args:
        side: "rollout" or "train": None is given back when the overlay doesn't name it. None: whatever the side.

    Raises:
        InputError: the overlay can't be read, is of another format or contract, or names unknown operators. An aligned
            process never falls back to the native one.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    return load(Path(path), side)


def load(path: Path, side: str | None = None) -> AlignSpec | None:
    """`from_environment` of the overlay at `path`."""
    where = str(path)
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"the alignment overlay can't be read: {error}", value=where, hint=f"unset {VARIABLE}, or apply again"
        ) from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise InputError(f"not a {FORMAT} file", value=found, hint=f"{VARIABLE}={where}")
    if data.get("contract") != CONTRACT:
        raise InputError(
            f"this version's numeric contract is {CONTRACT}, the overlay's is {data.get('contract')!r}",
            value=where,
            hint="apply the alignment again with this version on both sides",
        )
    if data.get("provider") != PROVIDER:
        raise InputError(
            f"no provider {data.get('provider')!r} in this version", value=where, hint=f"the provider is {PROVIDER}"
        )
    ops = data.get("ops")
    if not isinstance(ops, list) or not all(isinstance(op, str) for op in ops):
        raise InputError("the overlay's `ops` must be a list of operator names", value=ops, hint=where)
    sides = data.get("sides")
    if not isinstance(sides, list) or not sides or not set(map(str, sides)) <= set(SIDES):
        raise InputError("the overlay's `sides` must name rollout, train or both", value=sides, hint=where)
    if side is not None and side not in sides:
        return None
    return AlignSpec(parse_ops(ops), str(data["provider"]), str(data["contract"]), str(data.get("id") or ""))
