"""What the probes say of stock operators, against brute force that shares nothing with them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from logdiff_kernels.probes.catalogue import families
from logdiff_kernels.probes.session import Wanted, run
from torch.nn import functional

GRID = [(r, k, n) for r in (1, 2, 3, 4) for k in range(1, 25) for n in (1, 2, 3)]


def probed(ops: list[str], providers: list[str], relations: list[str], **task: Any) -> list[dict[str, Any]]:
    request = {"ops": ops, "providers": providers, "relations": relations, "seconds": 600.0, **task}
    return run(Wanted.of(request))["results"]


def share_of_draws_with_other_bits(r: int, k: int, n: int, draws: int) -> float:
    """How often some row of a product of r rows has other bits than in a call of fewer rows, on random fp32 data."""
    different = 0
    for seed in range(draws):
        g = torch.Generator().manual_seed(1000 * seed + 31 * k + n)
        x, w = torch.randn(r, k, generator=g), torch.randn(n, k, generator=g)
        whole = functional.linear(x, w)
        fewer = [functional.linear(x[:s], w) for s in range(1, r)]
        alone = [functional.linear(x[i : i + 1], w) for i in range(r)]
        same = all(torch.equal(whole[: len(part)], part) for part in fewer)
        same &= all(torch.equal(whole[i : i + 1], part) for i, part in enumerate(alone))
        different += not same
    return different / draws


def test_the_smallest_batch_variant_product_agrees_with_brute_force_over_a_grid() -> None:
    shape = {"rows": 4, "k": 24, "n": 3}
    (entry,) = probed(["linear"], ["torch"], ["I:batch"], dtype="float32", shapes={"linear": [shape]})
    often = {(r, k, n): share_of_draws_with_other_bits(r, k, n, 12) for r, k, n in GRID}
    assert entry["ok"] is not (max(often.values()) > 0)  # the grid holds every shape that the probe could end at
    if entry["ok"]:
        return
    small = entry["smallest_failing_shape"]
    place = (small["rows"], small["k"], small["n"])
    assert share_of_draws_with_other_bits(*place, 400) > 0
    for other, share in often.items():  # no single dimension of it can be lowered, but for shapes that rarely show
        lower = [a < b for a, b in zip(other, place, strict=True)]
        if sum(lower) == 1 and sum(a == b for a, b in zip(other, place, strict=True)) == 2:
            assert share <= 0.5, (other, place, share)


def test_a_sum_over_a_long_row_alone_is_split_over_threads() -> None:
    """torch splits one long reduction over threads, but gives each thread whole rows when there are several."""
    if torch.get_num_threads() < 2:
        pytest.skip("needs two threads")
    x = torch.randn(2, 70000, generator=torch.Generator().manual_seed(0))
    brute = any(not torch.equal(x[:2].sum(-1)[i], x[i : i + 1].sum(-1)[0]) for i in range(2))
    shapes = {"sum": [{"rows": 2, "n": 70000}]}
    (entry,) = probed(["sum"], ["torch"], ["I:batch"], dtype="float32", shapes=shapes)
    assert (entry["ok"] is False) == brute


@pytest.mark.slow(seconds=120)
def test_sdpa_and_vllm_attention_agree_with_brute_force() -> None:
    """One sequence of a length where kernels split keys: the last token decoded, against its row of the prefill."""
    heads, kv_heads, width, length = 4, 2, 64, 513
    shape = {
        "batch": 1, "length": length, "heads": heads, "kv_heads": kv_heads, "head_dim": width, "window": 0,
        "softcap": 0, "sinks": 0,
    }  # fmt: skip
    (entry,) = probed(["attention"], ["sdpa"], ["I:decode"], dtype="float32", shapes={"attention": [shape]})
    different = False
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        q = torch.randn(1, heads, length, width, generator=g)
        k, v = (torch.randn(1, kv_heads, length, width, generator=g) for _ in range(2))
        whole = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        for at in (length // 2, length - 1):
            one = functional.scaled_dot_product_attention(
                q[:, :, at : at + 1], k[:, :, : at + 1], v[:, :, : at + 1], enable_gqa=True
            )
            different |= not torch.equal(one[:, :, 0], whole[:, :, at])
    assert (entry["ok"] is False) == different


@pytest.mark.slow(seconds=200)
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_aligned_operators_keep_every_invariance_of_every_family(dtype: str) -> None:
    shapes = {op: list(family.defaults[:2]) for op, family in families().items()}
    request = {"ops": ["all"], "providers": ["aligned"], "dtype": dtype, "shapes": shapes, "seconds": 2400.0}
    data = run(Wanted.of(request))
    invariances = [entry for entry in data["results"] if "I:" in entry["relation"]]
    assert len({entry["op"] for entry in invariances}) >= 19
    assert [e for e in invariances if e["ok"] is not True or not e["control_seen"]] == []
    assert [e for e in data["results"] if e["relation"] in ("A", "grad-A") and e["ok"] is False] == []


def test_a_budget_of_nothing_leaves_everything_in_skipped() -> None:
    began = time.monotonic()
    data = run(Wanted.of({"ops": ["rms_norm"], "providers": ["torch"], "seconds": 0.0}))
    assert data["results"] == []
    assert {entry["reason"] for entry in data["skipped"]} == {"out of time"}
    assert time.monotonic() - began < 30


@pytest.mark.slow(seconds=120)
def test_sums_over_rank_processes_are_probed_and_the_aligned_tree_holds() -> None:
    shapes = {"all_reduce": [{"rows": 4, "n": 64, "ranks": 2}, {"rows": 4, "n": 64, "ranks": 4}]}
    entries = probed(["all_reduce"], ["torch", "aligned"], ["I:batch", "I:order", "A"], shapes=shapes)
    assert {entry["provider"] for entry in entries} == {"torch", "aligned"}
    assert all(entry["control_seen"] for entry in entries)
    assert all(entry["ok"] for entry in entries if entry["provider"] == "aligned")


def _vllm_attention(sequences: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """vLLM's CPU kernels on whole sequences (q [L, H, D], k, v [L, Hk, D]), pages in order."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    page = 32
    q, k, v = (torch.cat([s[i] for s in sequences]) for i in range(3))
    lengths = [s[0].shape[0] for s in sequences]
    pages = [-(-n // page) for n in lengths]
    table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
    slots, first = [], 0
    for row, (n, count) in enumerate(zip(lengths, pages, strict=True)):
        table[row, :count] = torch.arange(first, first + count)
        slots += list(range(first * page, first * page + n))
        first += count
    isa = _get_attn_isa(q.dtype, page, q.shape[2], "auto")
    keys, values = torch.zeros(first, k.shape[1], 2 * page, k.shape[2], dtype=k.dtype).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(k, v, keys, values, torch.tensor(slots), isa)
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    known = torch.tensor(lengths, dtype=torch.int32)
    plan = ops.cpu_attn_get_scheduler_metadata(
        len(lengths), q.shape[1], k.shape[1], q.shape[2], known, q.dtype, starts, True, -1, isa, True
    )
    out = torch.empty_like(q)
    scale = q.shape[2] ** -0.5
    ops.cpu_attention_with_kv_cache(
        q, keys, values, out, starts, known, scale, True, None, -1, table, 0.0, plan, None
    )  # fmt: skip
    return list(torch.split(out, lengths))


@pytest.mark.slow(seconds=120)
def test_vllm_attention_with_kv_split_agrees_with_brute_force() -> None:
    """Over two threads keys of a long sequence are split when it is alone, and not as much in company."""
    pytest.importorskip("vllm")
    if torch.get_num_threads() < 2:
        pytest.skip("needs two threads")
    shape = {
        "batch": 2, "length": 2048, "heads": 1, "kv_heads": 1, "head_dim": 64, "window": 0, "softcap": 0, "sinks": 0,
    }  # fmt: skip
    (entry,) = probed(["attention"], ["vllm"], ["I:batch"], shapes={"attention": [shape]})
    different: dict[int, bool] = {}
    lengths = [2048, *([] if entry["ok"] else [entry["smallest_failing_shape"]["length"]])]
    for length in lengths:
        different[length] = False
        for seed in range(3):
            g = torch.Generator().manual_seed(seed)
            parts = [
                tuple(torch.randn(length, 1, 64, generator=g).to(torch.bfloat16) for _ in range(3)) for _ in range(2)
            ]
            together = _vllm_attention(parts)
            alone = [_vllm_attention([part])[0] for part in parts]
            different[length] |= any(not torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    assert (entry["ok"] is False) == different[2048]
    assert entry["ok"] or different[lengths[-1]]
