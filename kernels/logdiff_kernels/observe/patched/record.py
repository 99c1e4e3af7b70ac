"""What the inventory says: one record per thing that is not as the installed package has it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = {
    "replaced": "another function stands in its place",
    "wrapped": "the original is called through another function",
    "edited": "the function runs other code than its source file says",
    "rebound": "the name holds something else than its source file binds to it",
    "value": "a constant of the source file has another value",
    "registered": "a table holds an entry from another package",
    "added": "a name that the source file does not have",
    "module": "the module is not the package's own",
    "file": "the file differs from what the wheel brought",
    "package": "several packages have this import name, or the wrong one is imported",
    "operator": "an operator of torch has an implementation that this torch does not bring",
}
"""Kind of a record -> what it means."""

RANK = {kind: place for place, kind in enumerate(("package", "module", "operator", "replaced", "edited", "wrapped"))}


@dataclass(slots=True)
class Record:
    """One difference.

    Attributes:
        kind: a key of `KINDS`.
        target: full name of what is different.
        detail: what was found, in one sentence.
        stock: "file:line" of the original, "" where there is none.
        live: "file:line" of what stands there now, "" where it has no source.
        by: who brought it: "NAME VERSION" of a distribution, "standard library", or "no distribution".
        explained: why it is no finding ("" for a finding).
        code: hash of the code that stands there now.
        notes: more facts, one sentence each.
    """

    kind: str
    target: str
    detail: str
    stock: str = ""
    live: str = ""
    by: str = ""
    explained: str = ""
    code: str = ""
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @property
    def finding(self) -> bool:
        """Whether nothing explains it."""
        return not self.explained


@dataclass(slots=True)
class Inventory:
    """Every record of the packages that were asked for, and how much was compared.

    Attributes:
        records: findings first, then what is explained.
        checked: {"modules", "functions", "classes", "files"}: numbers of things compared.
        unreadable: {file: reason} that could not be compared.
        absent: packages that are not loaded in this process.
        digest: over all records, where they stand and who brought them; equal for equal patches on any host.
        seconds: what it took.
    """

    records: list[Record]
    checked: dict[str, int]
    unreadable: dict[str, str]
    absent: list[str]
    digest: str
    seconds: float

    @property
    def findings(self) -> list[Record]:
        """Records that nothing explains."""
        return [record for record in self.records if record.finding]

    def as_dict(self, limit: int = 400) -> dict[str, Any]:
        """Plain JSON values; at most `limit` records, and `left_out` of them."""
        return {
            "records": [record.as_dict() for record in self.records[:limit]],
            "left_out": max(0, len(self.records) - limit),
            "findings": len(self.findings),
            "checked": self.checked,
            "unreadable": dict(list(self.unreadable.items())[:50]),
            "absent": self.absent,
            "digest": self.digest,
            "seconds": self.seconds,
        }
