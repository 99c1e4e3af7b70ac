"""kill -9 at every single file operation of apply and of revert: the disk tells the truth, and revert ends native."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logdiff.align import State, apply, plan, revert, status
from logdiff.target.alignment import OPERATORS

OPERATIONS = ("replace", "write", "unlink", "mkdir", "rmdir", "fsync")


def killed_at(operation: int, work: Callable[[], Any]) -> bool:
    """Do `work` in a forked child that kills itself before its n-th file operation; whether it came that far."""
    child = os.fork()
    if child == 0:
        count = 0

        def counting(stock: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal count
                count += 1
                if count == operation:
                    os.kill(os.getpid(), signal.SIGKILL)
                return stock(*arguments, **named)

            return call

        code = 1
        try:
            for name in OPERATIONS:
                setattr(os, name, counting(getattr(os, name)))
            work()
            code = 0
        finally:
            os._exit(code)
    _, how = os.waitpid(child, 0)
    assert os.WIFSIGNALED(how) or os.WEXITSTATUS(how) == 0, "the work failed before it was killed"
    return os.WIFSIGNALED(how)


def truth(overlay: Path) -> bool:
    """Whether an engine that is started with the overlay's environment runs aligned: what the engine itself asks."""
    return (overlay / "align.json").is_file()


def check_status(state: State, overlay: Path) -> None:
    found = status(state)
    if truth(overlay):
        assert found["native"] is False
        assert found["overlay"] == str(overlay)
        assert {(a["op"], a["side"]) for a in found["active"]} == {
            (op, side) for op in OPERATORS for side in ("rollout", "train")
        }
    else:
        assert found["native"] is not False
        assert (found["active"], found["overlay"]) == ([], None)


@pytest.mark.usefixtures("asked")
def test_apply_can_be_killed_anywhere(write_run: Callable[..., Path], state: State) -> None:
    overlay = Path(plan(write_run(), state)["overlay"])
    identity = state.plans()[0]["id"]
    switched = []
    for operation in range(1, 200):
        if not killed_at(operation, lambda: apply(identity, state)):
            break
        switched.append(truth(overlay))
        check_status(state, overlay)
        reverted = revert(state, bits=False)
        assert reverted["native"] is True
        assert all(side["same"] for side in reverted["proof"]["dispatch"].values())
        assert len(reverted["proof"]["dispatch"]) == 2
        assert not overlay.exists()
        assert not status(state)["problems"]
    assert operation > 20, "apply has more file operations than were tried"
    assert set(switched) == {False, True}, "the kills fell on both sides of the switch"
    assert switched == sorted(switched), "once on, the overlay stays on"
    check_status(state, overlay)
    assert status(state)["native"] is False, "the one that was not killed is on"


@pytest.mark.usefixtures("asked")
def test_revert_can_be_killed_anywhere(write_run: Callable[..., Path], state: State) -> None:
    overlay = Path(plan(write_run(), state)["overlay"])
    identity = state.plans()[0]["id"]
    natives = []
    for operation in range(1, 200):
        apply(identity, state)
        if not killed_at(operation, lambda: revert(state, bits=False)):
            break
        check_status(state, overlay)
        natives.append(status(state)["native"])
        assert revert(state, bits=False)["native"] is True
        assert not overlay.exists()
    assert operation > 20
    assert natives[0] is False
    assert None in natives, "between the removal and the proof native is unproven"
    assert status(state)["native"] is True


@pytest.mark.usefixtures("asked")
def test_apply_goes_on_after_a_kill_without_a_revert(write_run: Callable[..., Path], state: State) -> None:
    identity = plan(write_run(), state)["id"]
    for operation in (3, 9, 15):
        assert killed_at(operation, lambda: apply(identity, state))
        if not truth(state.default_overlay):
            assert apply(identity, state)["native"] is False
        assert revert(state, bits=False)["native"] is True
