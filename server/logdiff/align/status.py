"""`logdiff align status`: what is on, read from the disk alone, right at any moment."""

from __future__ import annotations

import os
from typing import Any

from logdiff.align.state import SWITCH, State
from logdiff.target.alignment import VARIABLE


def status(state: State) -> dict[str, Any]:
    """The alignment of a workspace (`logdiff-align/1`).

    `active` has one {"op", "side", "provider"} for each operator that an engine started with the overlay's
    environment runs aligned. `native` is False while an overlay is on, True when none was ever on or the last revert
    proved it, None when a revert could not prove it. `problems` says what is not as the journal tells.
    """
    overlays = state.overlays()
    on = [overlay for overlay in overlays if overlay.on]
    active = []
    for overlay in on:
        switch = overlay.switch or {}
        ops, sides = switch.get("ops"), switch.get("sides")
        for side in sides if isinstance(sides, list) else []:
            for op in ops if isinstance(ops, list) else []:
                active.append({"op": op, "side": side, "provider": switch.get("provider")})
    problems = [f"{overlay.path}: {problem}" for overlay in overlays for problem in overlay.problems]
    if not state.root.exists() and state.root.name != ".logdiff":
        problems.append(f"{state.root} does not exist: nothing was planned or applied from there")
    last = state.reverted()
    native: bool | None = True
    if on:
        native = False
    elif last is not None:
        native = last.get("native")
    variable = os.environ.get(VARIABLE)
    if variable and not any(variable == str(overlay.path / SWITCH) for overlay in on):
        problems.append(f"{VARIABLE} of this shell names {variable}, which is no overlay that is on here")
    return {
        "format": "logdiff-align/1",
        "active": active,
        "native": native,
        "overlay": str(on[0].path) if on else None,
        "plan": on[0].plan or None if on else None,
        "problems": problems,
    }
