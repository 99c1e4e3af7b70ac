"""All faults and controls."""

from __future__ import annotations

from tests.faults.fault import Fault


def faults() -> list[Fault]:
    """The corpus, faults first, then controls."""
    from tests.faults import controls, live, pairs

    return [*live.FAULTS, *pairs.FAULTS, *controls.CONTROLS]
