"""Drivers of the Ascend C kernels: one module per module of `cpu`, the same signatures with a launcher in front."""
