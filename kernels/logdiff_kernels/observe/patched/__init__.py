"""Patched functions: what a process holds, compared with the source files of its packages.

`inventory(packages=[...])` works in any interpreter in which this package can be imported; torch is not needed.
"""

from logdiff_kernels.observe.patched.inventory import PACKAGES as PACKAGES
from logdiff_kernels.observe.patched.inventory import inventory as inventory
from logdiff_kernels.observe.patched.record import KINDS as KINDS
from logdiff_kernels.observe.patched.record import Inventory as Inventory
from logdiff_kernels.observe.patched.record import Record as Record
