"""The used subset of Ascend C on a CPU: the source of a kernel compiled by g++ and run with the checks of a strict NPU."""
