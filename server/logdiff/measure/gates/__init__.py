"""Identity gates: what must hold before a number means anything."""

from logdiff.measure.gates.alignment import aligned_differences, aligned_gate
from logdiff.measure.gates.configuration import bypass_gate, config_gate
from logdiff.measure.gates.gate import Exclusion, Gate, TokenGate
from logdiff.measure.gates.identity import Duplicates, Ids, Lengths, Masks, Vocabulary
from logdiff.measure.gates.values import Finite, Range, coverage_gate
from logdiff.measure.gates.weights import update_gate, weights_gate

__all__ = [
    "Duplicates",
    "Exclusion",
    "Finite",
    "Gate",
    "Ids",
    "Lengths",
    "Masks",
    "Range",
    "TokenGate",
    "Vocabulary",
    "aligned_differences",
    "aligned_gate",
    "bypass_gate",
    "config_gate",
    "coverage_gate",
    "update_gate",
    "weights_gate",
]
