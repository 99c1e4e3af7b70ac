"""Budgets: every supported kernel fits, by arithmetic that a second formula confirms; what doesn't fit says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from logdiff_kernels.ascendc import probes
from logdiff_kernels.ascendc.kernels import kernels
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.plan import budget, plans, structs

KIB = 1024
ARCHES = sorted(plans.ARCHES)

# Documented sizes, less what runtime and compiler keep: 2201 loses 256 bytes of UB and of L1 and 8 KiB of UB; 3510 has
# 248 of 256 KiB of UB.
LIMITS = {
    "dav-2201": {"ub": 192 * KIB - 256 - 8 * KIB, "l1": 512 * KIB - 256, "l0a": 64 * KIB, "l0b": 64 * KIB}
    | {"l0c": 128 * KIB, "bias": KIB, "fixpipe": 2 * KIB},
    "dav-3510": {"ub": 248 * KIB, "l1": 512 * KIB, "l0a": 64 * KIB, "l0b": 64 * KIB}
    | {"l0c": 256 * KIB, "bias": 4 * KIB, "fixpipe": 4 * KIB},
}


@pytest.mark.parametrize("arch", ARCHES)
def test_every_kernel_dtype_and_size_fits(arch: str) -> None:
    found = list(budget.budgets(arch))
    assert {one.kernel for one in found} >= {"attention", "attention_backward", "linear", "linear_row", "rms_norm"}
    for one in found:
        assert one.limit == LIMITS[arch]
        for memory, limit in LIMITS[arch].items():
            assert one.used[memory] <= limit, (one.kernel, one.dtype, one.size, memory)
        assert sum(one.used.values()) > 0


@pytest.mark.parametrize("dtype", [structs.BFLOAT16, structs.FLOAT32])
@pytest.mark.parametrize(("dim", "dim_v"), [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)])
def test_attention_s_bytes_add_up(dtype: int, dim: int, dim_v: int) -> None:
    plan = plans.attention(arch=2201, dtype=dtype, batch=1, heads=8, kv_heads=2, dim=dim, dim_v=dim_v, cores=24)
    size, used = structs.ELEMENT_BYTES[dtype], plans.usage(plan)
    slices = plan.vector_rows * plan.vector_buffers
    tensors = slices * 512 * (4 + size) + slices * dim_v * 4  # S and P, PV
    tensors += (64 if plan.resident else slices) * dim_v * 4 + plan.vector_rows * dim_v * size  # O and the result
    assert used.ub == tensors + 29 * KIB + plan.vector_rows * 64 * 4  # exp1, state and 64 running lanes a row
    assert used.l1 == 128 * size * (plan.q_buffers * dim + plan.kv_buffers * max(dim, plan.pv_n) + plan.p_buffers * 128)
    assert used.l0c == plan.l0c_buffers * 128 * 128 * 4
    assert (plan.qk_k, dim_v % plan.pv_n) == (min(dim, 256 // size), 0)
    assert 2 * 128 * max(plan.qk_k, plan.pv_k) * size == used.l0a


def test_what_does_not_fit_names_dtype_and_head_size() -> None:
    with pytest.raises(UnsupportedError, match=r"float32, head size 576/512"):
        budget.of_attention("dav-2201", structs.FLOAT32, 576, 512)
    with pytest.raises(UnsupportedError, match=r"bfloat16, head size 2048"):
        budget.of_attention("dav-3510", structs.BFLOAT16, 2048, 2048)
    with pytest.raises(InputError, match="head size 100"):
        plans.attention(arch=2201, dtype=1, batch=1, heads=1, kv_heads=1, dim=100, dim_v=100, cores=1)


def test_a_budget_over_a_limit_is_refused_with_the_memory_s_name() -> None:
    good = budget.of_attention("dav-2201", structs.BFLOAT16, 128, 128)
    bad = budget.Budget(good.kernel, good.arch, good.dtype, good.size, good.used | {"l0c": 129 * KIB}, good.limit, "")
    assert [good.fits, bad.fits] == [True, False]
    with pytest.raises(UnsupportedError, match=r"bfloat16, size 128 .* l0c 132096 of 131072 bytes"):
        budget.check(bad)


def test_tiles_depend_on_dtype_and_head_size_only() -> None:
    names = [
        "qk_k",
        "pv_n",
        "pv_k",
        "q_buffers",
        "kv_buffers",
        "p_buffers",
        "resident",
        "vector_rows",
        "vector_buffers",
    ]
    seen = set()
    for arch, batch, heads, kv_heads, cores, window, block in [
        (2201, 1, 1, 1, 1, 0, 0),
        (2201, 64, 32, 8, 24, 0, 128),
        (3510, 3, 64, 8, 40, 4096, 16),
    ]:
        plan = plans.attention(
            arch=arch, dtype=1, batch=batch, heads=heads, kv_heads=kv_heads, dim=128, dim_v=128, cores=cores,
            window=window, block_size=block, causal=1,
        )  # fmt: skip
        seen.add(tuple(getattr(plan, name) for name in names))
    assert len(seen) == 1


def test_row_tiles_do_not_depend_on_rows_or_cores() -> None:
    for kernel in plans.RowKernel:
        cuts = [plans.rows(kernel, 1, rows, 576, cores) for rows, cores in [(1, 1), (7, 48), (10_000, 40)]]
        assert len({(cut.tile, cut.tile_rows, cut.pieces) for cut in cuts}) == 1


def test_the_documented_table_is_what_the_plans_say() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ascendc-kernels.md").read_text(encoding="utf-8")
    shown = page.split("<!-- budget -->\n")[1].split("\n<!-- /budget -->")[0]
    assert shown == budget.table(), "python -m logdiff_kernels.plan.budget prints the new one"


def test_the_page_names_every_kernel() -> None:
    page = (Path(__file__).parents[3] / "docs" / "ascendc-kernels.md").read_text(encoding="utf-8")
    operators = set(kernels()) - {probe.name for probe in probes.KERNELS}
    assert {name for name in operators if f"`{name}`" not in page} == set()
    named = {name for *_, names in budget.DOCUMENTED_ROWS for name in names.split(", ")}
    assert named <= operators
