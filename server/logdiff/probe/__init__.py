"""Operator probes: which experiments to ask an interpreter for, and what their answers mean (docs/probes.md)."""

from logdiff.probe.judge import exit_code, matrix, summary
from logdiff.probe.plan import Plan, make_plan, parse_shapes
from logdiff.probe.run import list_probes, run_probes

__all__ = ["Plan", "exit_code", "list_probes", "make_plan", "matrix", "parse_shapes", "run_probes", "summary"]
