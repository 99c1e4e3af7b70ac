"""Faults injected into live engines."""

from tests.faults.live import attention, configuration, layers, outputs, routing, weights

FAULTS = [
    *configuration.FAULTS,
    *attention.FAULTS,
    *layers.FAULTS,
    *weights.FAULTS,
    *routing.FAULTS,
    *outputs.FAULTS,
]
