"""The CPU provider: C++ kernels of the numeric contract, one source for every instruction set, called by ctypes."""
