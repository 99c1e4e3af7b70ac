"""Results that are at hand: one JSON file per check, named by everything that decides its answer."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from logdiff.case.files import write_atomic
from logdiff.jsonio import dumps
from logdiff.probe.plan import Plan

ALIGNED = "aligned"
"""The provider of the aligned kernels, and the fact that names their build."""

Identity = tuple[str, str, str, str]
"""(operator, provider, relation, other provider or empty)."""


def folder() -> Path:
    """`probes` under `$LOGDIFF_CACHE`, else under the user's cache folder."""
    root = os.environ.get("LOGDIFF_CACHE")
    if root:
        return Path(root) / "probes"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logdiff" / "probes"


def identity(entry: dict[str, Any]) -> Identity:
    """Which check an entry of `results` answers."""
    against = (entry.get("detail") or {}).get("against") or ""
    return str(entry["op"]), str(entry["provider"]), str(entry["relation"]), str(against)


class Cache:
    """The stored answers for one plan under the facts of one interpreter (versions, machine, threads, kernels, probes).

    The aligned kernels decide only the answers in which the aligned provider takes part: the others stay when the
    kernels change, and are found by a plan that does not ask for them. An answer counts when its check, seed, dtype,
    device and shapes are the plan's. Answers for which time ran out are not kept.
    """

    def __init__(self, facts: dict[str, Any], plan: Plan) -> None:
        self._facts = hashlib.sha256(dumps(facts).encode()).hexdigest()
        self._aligned = facts.get(ALIGNED)
        self._plan = plan
        stock = dumps({name: fact for name, fact in facts.items() if name != ALIGNED})
        self._folder = folder() / hashlib.sha256(stock.encode()).hexdigest()[:16]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the facts."""
        return self._facts

    def known(self) -> list[dict[str, Any]]:
        """Every stored entry of this plan's operators, providers and relations; damaged files are passed over."""
        found = []
        for file in sorted(self._folder.glob("*.json")):
            try:
                entry = json.loads(file.read_text(encoding="utf-8"))
                who = identity(entry)
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
            if self._asked(who) and file.name == self._name(who):
                found.append(entry)
        return found

    def keep(self, entry: dict[str, Any]) -> None:
        """Store one answer, unless time ran out for it; a cache that can't be written is no reason to lose a result."""
        if entry["detail"].get("finished") is False:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / self._name(identity(entry)), dumps(entry).encode())
        except OSError:
            return

    def _asked(self, who: Identity) -> bool:
        op, provider, relation, other = who
        plan = self._plan
        named = plan.asks(provider) and (not other or plan.asks(other))
        return (plan.ops == ("all",) or op in plan.ops) and named and (not plan.relations or relation in plan.relations)

    def _name(self, who: Identity) -> str:
        plan = self._plan
        kernels = self._aligned if ALIGNED in (who[1], who[3]) else None
        key = dumps([who, plan.seed, plan.dtype, plan.device, plan.shapes.get(who[0]), kernels])
        return hashlib.sha256(key.encode()).hexdigest()[:32] + ".json"
