"""Faults and controls by name: each makes a `Case` from a seed; what noise, sizes and facts it has is drawn from it."""

from __future__ import annotations

from tests.server.verdict.faults import controls, data, framework, operators, routing, sampling, weights

FAULTS = {
    **sampling.FAULTS,
    **data.FAULTS,
    **framework.FAULTS,
    **weights.FAULTS,
    **routing.FAULTS,
    **operators.FAULTS,
    **controls.FAULTS,
}
