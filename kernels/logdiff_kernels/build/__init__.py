"""Ascend C kernels built and called: finding CANN, compiling, launching on an NPU or in the twin, the self-test."""
