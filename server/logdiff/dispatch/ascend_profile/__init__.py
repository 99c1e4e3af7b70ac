"""Ascend profiles, read offline: which kernels ran on an NPU, and how those of two sides differ.

`profile_result([ROLLOUT, TRAIN])` is the whole of it; `docs/ascend-profiles.md` says how to make one.
"""

from logdiff.dispatch.ascend_profile.compare import compare as compare
from logdiff.dispatch.ascend_profile.read import read_side as read_side
from logdiff.dispatch.ascend_profile.result import profile_result as profile_result
