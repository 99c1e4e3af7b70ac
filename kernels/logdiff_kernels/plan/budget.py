"""How many bytes each kernel takes in every memory of a core, computed from the plans, against what the core has.

`budgets` is the table over kernels, dtypes and head sizes; `check` is what a driver may call before it launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from logdiff_kernels.errors import UnsupportedError
from logdiff_kernels.plan import plans, structs
from logdiff_kernels.plan.plans import Pieces, RowKernel

MEMORIES = ("ub", "l1", "l0a", "l0b", "l0c", "bias", "fixpipe")

HEAD_SIZES = ((32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (576, 512))
"""(queries and keys, values) that the table has; any multiples of 16 that fit have a plan. 576/512 is MLA, absorbed."""

ROW_LENGTHS = (64, 128, 576, 2048, 4096, 7168, 8192, 18992)
"""Row lengths that the table has; 18992 is a leaf of a vocabulary of 151936."""

DTYPES = (structs.BFLOAT16, structs.FLOAT16, structs.FLOAT32)


@dataclass(frozen=True, slots=True)
class Budget:
    """What one kernel takes.

    Attributes:
        kernel: its name.
        arch: `dav-2201` or `dav-3510`.
        dtype: name.
        size: head size, row length or kind of product.
        used: bytes by memory.
        limit: bytes by memory that a kernel may use.
        tiles: the choices behind the figures, in words.
    """

    kernel: str
    arch: str
    dtype: str
    size: str
    used: dict[str, int]
    limit: dict[str, int]
    tiles: str

    @property
    def fits(self) -> bool:
        """Whether every memory is large enough."""
        return all(self.used[name] <= self.limit[name] for name in MEMORIES)


def check(budget: Budget) -> Budget:
    """The budget, if it fits.

    Raises:
        UnsupportedError: it doesn't; the message names kernel, dtype, size and the memories that are too small.
    """
    over = [f"{m} {budget.used[m]} of {budget.limit[m]} bytes" for m in MEMORIES if budget.used[m] > budget.limit[m]]
    if over:
        raise UnsupportedError(
            f"{budget.kernel}: {budget.dtype}, size {budget.size} doesn't fit on {budget.arch}: {', '.join(over)}",
            value=(budget.dtype, budget.size),
            hint="another dtype or head size",
        )
    return budget


def _budget(kernel: str, arch: str, dtype: int, size: str, used: structs.Usage, tiles: str) -> Budget:
    limit = plans.capacity(arch)
    return Budget(
        kernel,
        arch,
        plans.dtype_name(dtype),
        size,
        {name: int(getattr(used, name)) for name in MEMORIES},
        {name: int(getattr(limit, name)) for name in MEMORIES},
        tiles,
    )


def of_rows(kernel: RowKernel, arch: str, dtype: int, length: int) -> Budget:
    """Budget of a row kernel.

    Raises:
        UnsupportedError: it doesn't fit.
    """
    cut = plans.rows(kernel, dtype, 1024, length, 48)
    tiles = f"{cut.tile_rows} x {cut.tile}" + (f", {cut.pieces} a row" if cut.pieces > 1 else "")
    return check(_budget(kernel.name.lower(), arch, dtype, str(length), plans.row_usage(cut, dtype), tiles))


def of_linear(arch: str, dtype: int, kind: Pieces, *, bias: bool) -> Budget:
    """Budget of a matrix product: sizes of the product don't matter, only dtype and how k is cut.

    Raises:
        UnsupportedError: it doesn't fit.
    """
    plan = plans.linear(
        dtype=dtype,
        out_dtype=dtype,
        bias_dtype=dtype if bias else structs.NO_DTYPE,
        m=4096,
        n=4096,
        k=4096,
        kind=int(kind),
        cores=plans.default_cores(arch),
    )
    name = {Pieces.ONE: "linear", Pieces.LEAVES: "linear_row", Pieces.BLOCKS: "linear dw"}[kind]
    tiles = (
        f"Mmad 128 x 128 x {plan.tile_k}, L1 k {plan.l1_k} x {plan.l1_buffers}, {'with' if plan.mix else 'no'} vector"
    )
    return check(_budget(name + (" + bias" if bias else ""), arch, dtype, "any", plans.usage(plan), tiles))


def of_attention(arch: str, dtype: int, dim: int, dim_v: int, *, allow_direct: bool = True) -> Budget:
    """Budget of attention.

    Raises:
        UnsupportedError: it doesn't fit, or no tiles do.
    """
    plan = plans.attention(allow_direct=int(allow_direct), **_attention_fields(arch, dtype, dim, dim_v))
    tiles = (
        f"QK k {plan.qk_k}, PV n {plan.pv_n} k {plan.pv_k}, "
        f"L1 Q/KV/P {plan.q_buffers}/{plan.kv_buffers}/{plan.p_buffers}, "
        f"{plan.vector_rows} rows x {plan.vector_buffers}, {'direct' if plan.direct else 'through GM'}, "
        f"O in {'UB' if plan.resident else 'GM'}"
    )
    return check(_budget("attention", arch, dtype, _size(dim, dim_v), plans.usage(plan), tiles))


def of_attention_backward(arch: str, dtype: int, dim: int, dim_v: int) -> Budget:
    """Budget of attention's gradients.

    Raises:
        UnsupportedError: it doesn't fit, or no tiles do.
    """
    plan = plans.attention_backward(**_attention_fields(arch, dtype, dim, dim_v))
    tiles = (
        f"Mmad n {plan.dim_n} and {plan.dim_v_n}, L1 {plan.own_buffers} x own, "
        f"{plan.operand_buffers} x (128 x {plan.operand_width}), "
        f"{plan.vector_rows} rows, sums in {'UB' if plan.resident else 'GM'}"
    )
    return check(_budget("attention_backward", arch, dtype, _size(dim, dim_v), plans.usage(plan), tiles))


def _attention_fields(arch: str, dtype: int, dim: int, dim_v: int) -> dict[str, int]:
    return {
        "arch": plans.arch_number(arch),
        "dtype": dtype,
        "batch": 1,
        "heads": 8,
        "kv_heads": 1,
        "dim": dim,
        "dim_v": dim_v,
        "causal": 1,
        "cores": plans.default_cores(arch),
    }


def _size(dim: int, dim_v: int) -> str:
    return str(dim) if dim == dim_v else f"{dim}/{dim_v}"


def supported(dtype: int, dim: int) -> bool:
    """Whether attention is meant to have tiles: every dtype up to head size 256, two-byte ones for MLA too."""
    return dim <= 256 or structs.ELEMENT_BYTES[dtype] == 2


def budgets(arch: str) -> Iterator[Budget]:
    """Every kernel with every supported dtype and size.

    Raises:
        UnsupportedError: one doesn't fit.
    """
    for dtype in DTYPES:
        for dim, dim_v in HEAD_SIZES:
            if supported(dtype, dim):
                yield of_attention(arch, dtype, dim, dim_v)
                if structs.ELEMENT_BYTES[dtype] == 2:
                    yield of_attention_backward(arch, dtype, dim, dim_v)
        for kind in Pieces:
            yield of_linear(arch, dtype, kind, bias=False)
            yield of_linear(arch, dtype, kind, bias=True)
        for kernel in RowKernel:
            for length in ROW_LENGTHS:
                yield of_rows(kernel, arch, dtype, length)


DOCUMENTED_HEADS = ((64, 64), (128, 128), (192, 128), (256, 256), (576, 512))
_FP32 = (structs.FLOAT32,)
_BOTH = (structs.BFLOAT16, structs.FLOAT32)
DOCUMENTED_ROWS = (
    (RowKernel.RMS_NORM, 4096, _BOTH, "rms_norm"),
    (RowKernel.RMS_NORM_BACKWARD, 4096, _BOTH, "rms_norm_backward"),
    (RowKernel.COLUMN_SUM, 1024, _BOTH, "rms_norm_weight_grad"),
    (RowKernel.ROPE, 4096, _BOTH, "rope"),
    (RowKernel.GLU, 4096, _BOTH, "glu"),
    (RowKernel.GLU_BACKWARD, 4096, _BOTH, "glu_backward"),
    (RowKernel.LOGPROB, 18992, _FP32, "logprob_stats"),
    (RowKernel.LOGPROB_BACKWARD, 4096, _FP32, "log_softmax, logprob_backward, log_softmax_backward"),
    (RowKernel.ROUTER, 512, _FP32, "router"),
    (RowKernel.ROUTER_BACKWARD, 512, _FP32, "router_backward"),
    (RowKernel.GATHER, 4096, _BOTH, "gather_rows"),
    (RowKernel.COMBINE, 4096, _BOTH, "moe_combine, embedding_backward"),
    (RowKernel.COMBINE_BACKWARD, 4096, _BOTH, "moe_combine_backward"),
    (RowKernel.TREE_COMBINE, 4096, _BOTH, "tree_combine"),
)
"""(plan, length of a row, dtypes, the kernels that take its tiles) of docs/ascendc-kernels.md."""


def table() -> str:
    """The budgets as Markdown in KiB: what a core has, the cube kernels as their drivers plan them, the vector kernels.

    Raises:
        UnsupportedError: a kernel doesn't fit.
    """
    shown = [name for name in MEMORIES if name not in ("bias", "fixpipe")]
    head = ["kernel", "dtype", "size", "on", *(name.upper() for name in shown), "tiles"]
    limits = [
        ["**a core has**", "", "", arch, *(_kib(getattr(plans.capacity(arch), name)) for name in shown), ""]
        for arch in plans.ARCHES
    ]
    found = [_lines(arch, shown) for arch in plans.ARCHES]
    lines = []
    for line, other in zip(*found, strict=True):
        if line == other:
            lines.append([*line[:3], "both", *line[3:]])
        else:
            lines += [[*one[:3], arch, *one[3:]] for arch, one in zip(plans.ARCHES, (line, other), strict=True)]
    rows = [head, ["---"] * len(head), *limits, *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _lines(arch: str, shown: list[str]) -> list[list[str]]:
    found = [of_attention(arch, structs.BFLOAT16, *size, allow_direct=False) for size in DOCUMENTED_HEADS]
    found += [of_attention_backward(arch, structs.BFLOAT16, *size) for size in DOCUMENTED_HEADS]
    for dtype in _BOTH:
        found.append(of_linear(arch, dtype, Pieces.ONE, bias=False))
        found.append(of_linear(arch, dtype, Pieces.ONE, bias=True))
        found.append(of_linear(arch, dtype, Pieces.LEAVES, bias=True))
        found.append(of_linear(arch, dtype, Pieces.BLOCKS, bias=False))
    names = [one.kernel for one in found]
    for kernel, length, dtypes, users in DOCUMENTED_ROWS:
        found += [of_rows(kernel, arch, dtype, length) for dtype in dtypes]
        names += [users] * len(dtypes)
    return [
        [name, one.dtype, one.size, *(_kib(one.used[memory]) for memory in shown), one.tiles]
        for name, one in zip(names, found, strict=True)
    ]


def _kib(count: int) -> str:
    return f"{count / 1024:.4g}"


if __name__ == "__main__":
    print(table())
