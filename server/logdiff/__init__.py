"""Measure, explain, align and prove the log-probability difference between rollout and training engines."""

__version__ = "0.1.0"
