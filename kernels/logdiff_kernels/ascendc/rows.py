"""What the drivers of row kernels share: tensors as rows, and how rows are cut over the vector cores."""

from __future__ import annotations

from torch import Tensor

from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.cpu.library import DTYPE_CODES
from logdiff_kernels.plan import plans, structs


def matrix(x: Tensor) -> tuple[Tensor, int]:
    """`x` [..., n] as [rows, n] with elements side by side, and the stride of its rows; a copy where no view does."""
    n = x.shape[-1]
    if x.stride(-1) != 1 and n > 1:
        x = x.contiguous()
    count = 1
    for size in x.shape[:-1]:
        count *= size
    rows = x.reshape(count, n)
    # a row that is repeated (stride 0), or one that overlaps the next, is no tile of rows
    if count > 1 and rows.stride(0) < n:
        rows = rows.contiguous()
    return rows, rows.stride(0) if count > 1 else n


def cut(launcher: Launcher, kernel: plans.RowKernel, dtype: int, count: int, length: int) -> structs.LdRows:
    """Rows over the vector cores of `launcher`, contiguous parts."""
    return plans.rows(kernel, dtype, count, length, launcher.cores * launcher.vectors_per_core)


def code(x: Tensor | None) -> int:
    """The code of a tensor's dtype in plans; that of none for None."""
    return structs.NO_DTYPE if x is None else DTYPE_CODES[x.dtype]


def dense(x: Tensor | None) -> Tensor | None:
    """`x`, or a contiguous copy."""
    return x if x is None or x.is_contiguous() else x.contiguous()
