"""Boundaries of a model that vLLM runs: which module makes which, their rows in a running engine, over ranks."""
