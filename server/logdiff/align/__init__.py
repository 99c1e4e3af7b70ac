"""Aligning two engines: plan, apply, status, revert. Nothing of an engine's installation is ever edited."""

from logdiff.align.apply import apply
from logdiff.align.plan import plan
from logdiff.align.revert import revert
from logdiff.align.state import State
from logdiff.align.status import status

__all__ = ["State", "apply", "plan", "revert", "status"]
