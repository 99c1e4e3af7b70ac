"""Identity gates, statistics, floor: pure functions over token-level evidence."""

from logdiff.measure.compare import compare
from logdiff.measure.facts import RunFacts
from logdiff.measure.floor import floor_summary, self_stats, within_floor
from logdiff.measure.gates import Gate, aligned_differences
from logdiff.measure.result import LIMITABLE, Measurement, parse_fail_above
from logdiff.measure.stream import measure

__all__ = [
    "LIMITABLE",
    "Gate",
    "Measurement",
    "RunFacts",
    "aligned_differences",
    "compare",
    "floor_summary",
    "measure",
    "parse_fail_above",
    "self_stats",
    "within_floor",
]
