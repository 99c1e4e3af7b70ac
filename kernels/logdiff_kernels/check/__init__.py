"""Operators of a model judged one by one: what each side passed against fp64 on that side's own inputs."""
