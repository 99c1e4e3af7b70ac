"""Operators against their peers: one file per family, each with `run() -> list of rows` of `logdiff-bench/1`."""
