"""Operator probes: which experiments to ask an interpreter for, and what their answers mean (docs/probes.md).

`run` starts the interpreter, and is imported by who asks for that alone.
"""

from logdiff.probe.judge import exit_code, matrix, summary
from logdiff.probe.plan import Plan, make_plan, parse_shapes

__all__ = ["Plan", "exit_code", "make_plan", "matrix", "parse_shapes", "summary"]
