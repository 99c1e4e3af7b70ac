"""What a case says, in one sentence and one row per pair of sides; nothing that its files don't carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logdiff.report.files import CaseFiles
from logdiff.report.floor import Floor, FloorRow
from logdiff.report.profile import PairProfile, Profile
from logdiff.report.wording import as_float, number, percent, visible

PAIR_TITLES = {
    "decode_train": "train - rollout (decode)",
    "decode_rescore": "rescore - rollout (decode)",
    "rescore_train": "train - rescore",
}
COLUMNS: dict[str, str] = {
    "tokens": "tokens",
    "mismatched_tokens": "bit-different",
    "max_abs": "max |d|",
    "mean_abs": "mean |d|",
    "mean": "mean d",
    "p99": "p99 |d|",
    "k1_kl": "KL k1",
    "k3_kl": "KL k3",
    "mean_exp_d": "E[exp d]",
    "ess": "ESS",
    "missing": "missing",
}
"""Field of a `pairs` block -> heading."""


@dataclass(frozen=True, slots=True)
class PairRow:
    """One pair of sides: the fields of its block (empty when there are no numbers) and why there are none."""

    name: str
    title: str
    block: dict[str, Any]
    reason: str = ""

    @property
    def tokens(self) -> int:
        """Compared tokens, 0 without numbers."""
        value = self.block.get("tokens")
        return value if isinstance(value, int) else 0

    @property
    def mismatched(self) -> int:
        """Compared tokens whose fp32 bits differ, 0 without numbers."""
        value = self.block.get("mismatched_tokens")
        return value if isinstance(value, int) else 0

    def cell(self, key: str) -> str:
        """The field as text; for the bit-different tokens with their share."""
        if key == "mismatched_tokens" and self.block:
            return f"{self.mismatched:,} ({percent(self.mismatched, self.tokens)})"
        return number(self.block.get(key))


def block_of(pair: PairProfile) -> dict[str, Any]:
    """The fields of a `pairs` block that the report's own pass knows; quantiles within 2.4 %."""
    n = pair.finite
    block: dict[str, Any] = {"tokens": pair.tokens, "mismatched_tokens": pair.differing, "missing": pair.missing}
    if pair.nonfinite or not n:
        return block  # like a mean over tokens of which some are not numbers: no number
    mean = pair.sum_d / n
    return block | {
        "max_abs": pair.max_abs,
        "mean_abs": pair.sum_abs / n,
        "mean": mean,
        "p50": pair.quantile(0.5),
        "p99": pair.quantile(0.99),
        "k1_kl": -mean,
        "k3_kl": pair.sum_k3 / n,
        "mean_exp_d": pair.sum_exp / n,
    }


def _reason(measure: dict[str, Any], name: str) -> str:
    reasons = measure.get("unavailable")
    reason = reasons.get(name) if isinstance(reasons, dict) else None
    return reason if isinstance(reason, str) and reason else "not captured"


def pair_rows(measure: dict[str, Any], profile: Profile | None) -> list[PairRow]:
    """The triangle: a row per pair, from `logdiff-measure/1`, else from the report's own pass over the tokens."""
    rows = []
    pairs = measure.get("pairs")
    for name, title in PAIR_TITLES.items():
        block = pairs.get(name) if isinstance(pairs, dict) else None
        if not measure and profile is not None and profile.pairs[name].tokens:
            block = block_of(profile.pairs[name])
        tokens = block.get("tokens") if isinstance(block, dict) else None
        if isinstance(block, dict) and isinstance(tokens, int) and tokens > 0:
            rows.append(PairRow(name, title, block))
        else:
            missing = block.get("missing") if isinstance(block, dict) else None
            reason = f"no token compared, {number(missing)} without a value" if missing else _reason(measure, name)
            rows.append(PairRow(name, title, {}, reason))
    return rows


def main_row(rows: list[PairRow]) -> PairRow | None:
    """The pair that the report is about: the first with a comparable token."""
    return next((row for row in rows if row.tokens), None)


def sentence(files: CaseFiles, rows: list[PairRow], floor: Floor) -> str:
    """One or two plain sentences: equal or different, how far, and how that stands to the floor."""
    row = main_row(rows)
    if row is None:
        return (
            f"{_gate_words(files.measure)}Nothing could be compared: no response token that passes the gates has "
            "both log-probabilities under mask 1."
        )
    what = {
        "decode_train": "rollout and training",
        "decode_rescore": "rollout decode and rescore",
        "rescore_train": "rescore and training",
    }[row.name]
    if row.mismatched == 0:
        text = f"Equal: all {row.tokens:,} compared tokens have the same log-probability bits in {what}."
    else:
        text = (
            f"Different: {row.mismatched:,} of {row.tokens:,} compared tokens ({percent(row.mismatched, row.tokens)}) "
            f"have different log-probability bits in {what}"
        )
        largest, mean_abs, mean = (row.block.get(k) for k in ("max_abs", "mean_abs", "mean"))
        if as_float(largest) is not None:
            text += (
                f"; the largest difference is {number(largest)} nats, the mean absolute difference "
                f"{number(mean_abs)}, the mean {number(mean)}"
            )
        text += "."
    missing = row.block.get("missing")
    if isinstance(missing, int) and missing:
        text += f" {missing:,} more tokens lack a value on one side."
    return f"{_gate_words(files.measure)}{text} {against_floor(row, floor.reference)}"


def _gate_words(measure: dict[str, Any]) -> str:
    failed = failed_gates(measure)
    if not failed:
        return ""
    gates = f"gate {failed[0]}" if len(failed) == 1 else f"gates {', '.join(failed)}"
    return f"The evidence fails the identity {gates}, so the numbers prove nothing until that is explained. "


def failed_gates(measure: dict[str, Any]) -> list[str]:
    """Names of the gates whose `ok` is false."""
    gates = measure.get("gates")
    if not isinstance(gates, list):
        return []
    return [str(gate.get("gate")) for gate in gates if isinstance(gate, dict) and gate.get("ok") is False]


def statistics(rows: list[PairRow]) -> list[tuple[str, list[Any]]]:
    """Every number of the blocks as (field, value per pair with a block), in the order of the first block."""
    blocks = [row.block for row in rows if row.block]
    keys = dict.fromkeys(key for block in blocks for key, value in block.items() if as_float(value) is not None)
    return [(str(key), [block.get(key) for block in blocks]) for key in keys]


def against_floor(row: PairRow, floor: FloorRow | None) -> str:
    """How mean_abs, p99 and max_abs stand to the floor's; within it when each that is known is at most the floor's."""
    if floor is None:
        return "No floor was measured."
    known = []
    for key, label in (("mean_abs", "mean"), ("p99", "p99"), ("max_abs", "max")):
        signal, base = as_float(row.block.get(key)), getattr(floor, key)
        if signal is not None and base is not None:
            known.append((label, signal, base))
    if not known:
        return "The floor has no number to hold it against."
    above = [(label, signal, base) for label, signal, base in known if not signal <= base]
    if not above:
        if row.mismatched == 0:
            return f"The measured floor is {_floor_words(known)}."
        names = ", ".join(label for label, _, _ in known)
        return f"That is within the measured floor ({names} of |d| are at most the floor's)."
    parts = [
        f"{label} {number(signal)} against exactly 0" if base == 0 else f"{label} {number(signal / base, 2)} times"
        for label, signal, base in above
    ]
    return f"It lies above the measured floor: {', '.join(parts)}."


def _floor_words(known: list[tuple[str, float, float]]) -> str:
    if all(base == 0 for _, _, base in known):
        return "exactly 0"
    return ", ".join(f"{label} {number(base)}" for label, _, base in known) + " nats"


def table(files: CaseFiles, profile: Profile | None = None) -> list[dict[str, Any]]:
    """Rows of the demo's table: pair, tokens, bit-different, max, mean abs, mean d (nats), KL (k3); None: unknown."""
    keys = ("tokens", "mismatched_tokens", "max_abs", "mean_abs", "mean", "k3_kl")
    return [
        {"pair": row.name, "title": row.title, **{key: row.block.get(key) for key in keys}, "reason": row.reason}
        for row in pair_rows(files.measure, profile)
    ]


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def markdown(files: CaseFiles, rows: list[PairRow], floor: Floor) -> str:
    """The summary and the triangle as Markdown."""
    keys = ("tokens", "mismatched_tokens", "max_abs", "mean_abs", "mean", "k3_kl")
    lines = [f"**{_cell(visible(files.name, 80))}**: {_cell(visible(sentence(files, rows, floor), 1000))}", ""]
    lines.append("| pair | " + " | ".join(_cell(COLUMNS[k]) for k in keys) + " |")
    lines.append("| --- |" + " ---: |" * len(keys))
    for row in rows:
        cells = [row.cell(k) for k in keys] if row.block else [visible(row.reason, 120)] + ["–"] * (len(keys) - 1)
        lines.append("| " + " | ".join(_cell(c) for c in [row.title, *cells]) + " |")
    base = floor.reference
    if base is not None:
        cells = [number(base.tokens), number(base.mismatched), number(base.max_abs), number(base.mean_abs), "–", "–"]
        lines.append("| floor | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
