"""The used subset of Ascend C on a CPU: kernel sources compiled by g++ and run with the checks of a strict NPU."""
