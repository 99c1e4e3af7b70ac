"""Attention on an NPU, or in the twin: the functions of `cpu.attention` with a launcher in front.

bf16 and fp16, head sizes that are multiples of 16. Where the work table is made the lengths have to be known on the
host: `cu_q`, `cu_k` and `seq_lens` of the CPU spare a wait for the device. Tables of equal lengths are made once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logdiff_kernels.ascendc.kernel import Kernel
from logdiff_kernels.build.launcher import Launcher
from logdiff_kernels.cpu import attention as cpu
from logdiff_kernels.cpu.library import DTYPE_CODES
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.plan import plans, schedule
from logdiff_kernels.plan.structs import LdAttentionBackwardPlan, LdAttentionPlan, LdStoreKvPlan

_DTYPES = ("bfloat16", "float16")
_TABLES = ("q_start", "k_start", "k_len")

KERNELS = (
    Kernel(
        "attention",
        "attention over packed or paged keys: training, prefill and decode",
        LdAttentionPlan,
        ("q", "k", "v", "sinks", *_TABLES, "block_table", "items"),
        ("out", "lse", "workspace"),
        dtypes=_DTYPES,
        kind="mix",
    ),
    Kernel(
        "attention_combine",
        "chunks of 4096 keys that attention has left apart, combined",
        LdAttentionPlan,
        ("sinks", *_TABLES, "combines", "workspace"),
        ("out", "lse"),
        dtypes=_DTYPES,
    ),
    Kernel(
        "attention_backward_dots",
        "D = R64(dO * O) and lse of every row, as the gradients of attention read them",
        LdAttentionBackwardPlan,
        ("dout", "out", "lse"),
        ("dots",),
        dtypes=_DTYPES,
    ),
    Kernel(
        "attention_backward",
        "gradients of attention for q, k and v",
        LdAttentionBackwardPlan,
        ("q", "k", "v", "dout", "dots", *_TABLES, "dq_items", "dkv_items"),
        ("dq", "dk", "dv", "workspace"),
        dtypes=_DTYPES,
        kind="mix",
    ),
    Kernel(
        "attention_backward_sinks",
        "gradient of attention's sinks",
        LdAttentionBackwardPlan,
        ("sinks", "lse", "dots"),
        ("dsinks",),
        dtypes=_DTYPES,
    ),
    Kernel(
        "store_kv",
        "new keys and values into a paged cache",
        LdStoreKvPlan,
        ("k", "v", "slots"),
        ("k_cache", "v_cache"),
        updated=("k_cache", "v_cache"),
    ),
)

TILE_ROWS = 128
"""Packed rows of a tile: m of every Mmad."""

_MOST_INDEX = 2**31 - 1
_PLAN_FIELDS = (
    *("q_row", "q_head", "k_row", "k_head", "v_row", "v_head", "out_row", "out_head", "k_block", "v_block"),
    *("dtype", "heads", "kv_heads", "dim", "dim_v", "block_size", "causal", "scale", "softcap"),
)
"""What the plan has from the CPU driver's checked record."""


def attention(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    lse: bool,
) -> tuple[Tensor, Tensor | None]:
    """As `cpu.attention.attention`."""
    if q.dim() != 3 or k.dim() != 3 or v.dim() != 3:
        raise InputError(
            "attention: q, k and v are [tokens, heads, head size]", value=[tuple(x.shape) for x in (q, k, v)]
        )
    q, k, v = cpu.dense_rows(q), cpu.dense_rows(k), cpu.dense_rows(v)
    out = torch.empty((q.shape[0], q.shape[1], v.shape[2]), dtype=q.dtype, device=q.device)
    lse_out = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if lse else None
    fields = _fields(q, k, v, out, scale, causal, window, softcap, sinks)
    starts, key_starts, lengths = _packed_starts(q, k, v, cu_q, cu_k)
    _run(launcher, (q, k, v), out, lse_out, sinks, starts, key_starts[:-1], lengths, None, fields)
    used = int(starts[-1])
    out[used:] = 0
    if lse_out is not None:
        lse_out[used:] = -torch.inf
    return out, lse_out


def paged_attention(
    launcher: Launcher,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_q: Tensor,
    seq_lens: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    """As `cpu.attention.paged_attention`."""
    if q.dim() != 3 or k_cache.dim() != 4 or v_cache.dim() != 4:
        raise InputError(
            "paged_attention: q is [tokens, heads, head size], the caches are [blocks, block, heads, head size]",
            value=[tuple(x.shape) for x in (q, k_cache, v_cache)],
        )
    q = cpu.dense_rows(q)
    shape = (q.shape[0], q.shape[1], v_cache.shape[3])
    result = torch.empty(shape, dtype=q.dtype, device=q.device) if out is None else out
    fields = _fields(q, k_cache, v_cache, result, scale, causal, window, softcap, sinks)
    starts, batch = _on_host(cu_q, "cu_q"), cu_q.numel() - 1
    if (
        seq_lens.dim() != 1
        or seq_lens.is_floating_point()
        or block_table.is_floating_point()
        or seq_lens.numel() < batch
        or block_table.dim() != 2
        or block_table.shape[0] < batch
    ):
        raise InputError(
            "paged_attention: seq_lens and block_table are integers of at least the sequences of cu_q",
            value=(tuple(seq_lens.shape), tuple(block_table.shape), tuple(cu_q.shape)),
        )
    _check_starts(starts, q.shape[0], -11)
    lengths = _on_host(seq_lens[:batch], "seq_lens", least=0)
    table = _pages(block_table[:batch], lengths, k_cache.shape[1], min(k_cache.shape[0], v_cache.shape[0]))
    fields["table_row"] = table.stride(0) if batch else 0
    _run(launcher, (q, k_cache, v_cache), result, None, sinks, starts, None, lengths, table, fields)
    if out is None:
        result[int(starts[-1]) :] = 0
    return result


def attention_backward(
    launcher: Launcher,
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_q: Tensor,
    cu_k: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """As `cpu.attention.attention_backward`; without `causal` a sequence has at most as many queries as keys."""
    dout, lse = cpu.dense_rows(dout.to(q.dtype)), lse.contiguous()
    q, k, v, out = cpu.dense_rows(q), cpu.dense_rows(k), cpu.dense_rows(v), cpu.dense_rows(out)
    fields = _fields(q, k, v, out, scale, causal, window, softcap, sinks)
    if dout.shape != out.shape or lse.shape != q.shape[:2] or lse.dtype != torch.float32:
        raise InputError(
            "attention_backward: dout is like out, lse is fp32 [tokens, heads]",
            value=(tuple(dout.shape), tuple(lse.shape), str(lse.dtype)),
        )
    starts, key_starts, lengths = _packed_starts(q, k, v, cu_q, cu_k)
    if not causal and (np.diff(starts) > lengths).any():
        raise UnsupportedError(
            "attention_backward on an NPU needs as many keys as queries in every sequence, unless causal",
            value=(np.diff(starts).tolist(), lengths.tolist()),
            hint="the CPU backend takes any",
        )
    fields |= {"arch": launcher.arch, "cores": launcher.cores, "batch": lengths.size}
    fields |= {"dout_row": dout.stride(0), "dout_head": dout.stride(1)}
    arrays = [x.astype(np.int32).tobytes() for x in (starts, key_starts[:-1], lengths)]
    packed, tables, items = _gradient_work(tuple(sorted(fields.items())), *arrays, launcher.device)
    plan = LdAttentionBackwardPlan.from_buffer_copy(packed)
    vectors = launcher.cores * launcher.vectors_per_core
    dots = torch.empty((2, plan.dots.rows, 8), dtype=torch.float32, device=q.device)
    if plan.dots.rows:
        launcher.launch("attention_backward_dots", [dout, out, lse, dots], plan, plan.dots.blocks)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    blocks = max(plan.dq_blocks, plan.dkv_blocks)
    if blocks:
        workspace = launcher.workspace(plan.workspace)
        tensors = [q, k, v, dout, dots, *tables, *items, dq, dk, dv, workspace]
        launcher.launch("attention_backward", tensors, plan, blocks)
    dq[int(starts[-1]) :] = 0
    dk[int(key_starts[-1]) :] = 0
    dv[int(key_starts[-1]) :] = 0
    if sinks is None:
        return dq, dk, dv, None
    sinks32 = sinks.detach().to(torch.float32).contiguous()
    dsinks = torch.empty_like(sinks32)
    launcher.launch("attention_backward_sinks", [sinks32, lse, dots, dsinks], plan, min(plan.forward.heads, vectors))
    return dq, dk, dv, dsinks


def store_kv(launcher: Launcher, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """As `cpu.attention.store_kv`. Slots that aren't negative differ from each other."""
    k, v = cpu.dense_rows(k), cpu.dense_rows(v)
    record = cpu.checked_store(k, v, k_cache, v_cache, slots)
    if record.capacity > _MOST_INDEX:
        raise UnsupportedError("store_kv: a cache of more slots than 32 bits count", value=record.capacity)
    if bool((slots >= record.capacity).any()):
        raise InputError(f"attention: {cpu.REFUSED[-15]}", value=record.capacity)
    if record.tokens == 0 or record.heads == 0:
        return
    plan = LdStoreKvPlan(
        dtype=DTYPE_CODES[k.dtype],
        tokens=record.tokens,
        heads=record.heads,
        block_size=record.block_size,
        blocks=min(record.tokens, launcher.cores * launcher.vectors_per_core),
    )
    for i, side in enumerate(record.side):
        plan.dim[i], plan.token[i], plan.head[i] = side.dim, side.row, side.head
        plan.cache_block[i], plan.cache_row[i], plan.cache_head[i] = side.cache_block, side.cache_row, side.cache_head
    indices = slots.to(device=launcher.device, dtype=torch.int32).contiguous()
    launcher.launch("store_kv", [k, v, indices, k_cache, v_cache], plan, plan.blocks)


def _fields(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> dict[str, int | float]:
    """The problem as fields of the plan, checked as the CPU driver checks it."""
    record = cpu.checked(q, k, v, out, scale, causal, window, softcap, sinks)
    if q.dtype == torch.float32 or q.shape[2] % 16 or v.shape[-1] % 16:
        raise UnsupportedError(
            "attention on an NPU needs bfloat16 or float16 and head sizes that are multiples of 16",
            value=(str(q.dtype), q.shape[2], v.shape[-1]),
            hint="the CPU backend takes float32 and any head size",
        )
    fields: dict[str, int | float] = {name: getattr(record, name) for name in _PLAN_FIELDS}
    fields["window"], fields["has_sinks"] = min(record.window, _MOST_INDEX), int(sinks is not None)
    return fields


def _on_host(x: Tensor, name: str, least: int = 1) -> NDArray[np.int64]:
    if x.dim() != 1 or x.numel() < least or x.is_floating_point():
        raise InputError(f"attention: {name} is a vector of batch + 1 integers", value=tuple(x.shape))
    return x.to(device="cpu", dtype=torch.int64).numpy()


def _packed_starts(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """First query rows [B + 1], first key rows [B + 1] and key counts [B], checked."""
    starts = _on_host(cu_q, "cu_q")
    key_starts = starts if cu_k is None else _on_host(cu_k, "cu_k")
    if key_starts.size != starts.size:
        raise InputError("cu_k has another number of sequences than cu_q", value=(key_starts.size, starts.size))
    _check_starts(starts, q.shape[0], -11)
    lengths = np.diff(key_starts)
    if (lengths < 0).any() or (lengths.size and (key_starts[0] < 0 or key_starts[-1] > min(k.shape[0], v.shape[0]))):
        raise InputError(f"attention: {cpu.REFUSED[-12]}", value=key_starts.tolist())
    return starts, key_starts, lengths


def _check_starts(starts: NDArray[np.int64], rows: int, status: int) -> None:
    if starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > rows:
        raise InputError(f"attention: {cpu.REFUSED[status]}", value=starts.tolist())


def _pages(table: Tensor, lengths: NDArray[np.int64], block_size: int, blocks: int) -> Tensor:
    """The block table as int32 with adjacent columns; every entry that a sequence uses is a block of the cache."""
    if (lengths < 0).any() or (block_size < 1 and lengths.any()):
        raise InputError(f"attention: {cpu.REFUSED[-13]}", value=lengths.tolist())
    used = -(-lengths // max(block_size, 1))
    if used.size and used.max() > table.shape[1]:
        raise InputError(f"attention: {cpu.REFUSED[-13]}", value=(used.tolist(), table.shape[1]))
    columns = torch.arange(table.shape[1], device=table.device)
    inside = columns[None, :] < torch.from_numpy(used).to(table.device)[:, None]
    if bool((inside & ((table < 0) | (table >= blocks))).any()):
        raise InputError(f"attention: {cpu.REFUSED[-14]}", value=blocks)
    if table.dtype == torch.int32 and table.stride(1) == 1:
        return table
    return table.clamp(-1, _MOST_INDEX).to(torch.int32).contiguous()


@lru_cache(maxsize=256)
def _work(
    fields: tuple[tuple[str, int | float], ...], starts: bytes, key_starts: bytes, lengths: bytes, device: torch.device
) -> tuple[bytes, list[Tensor], Tensor | None, Tensor | None]:
    """The plan as bytes, and on the device: the tables of starts and lengths, the items and the combines."""
    plan = plans.attention(**dict(fields))
    table = schedule.attention_table(plan, np.frombuffer(starts, np.int32), np.frombuffer(lengths, np.int32))
    tables = [_on_device(x, device) for x in (starts, key_starts, lengths)]
    items, combines = (_on_device(x.tobytes(), device) if x.size else None for x in (table.items, table.combines))
    return bytes(plan), tables, items, combines


@lru_cache(maxsize=256)
def _gradient_work(
    fields: tuple[tuple[str, int | float], ...], starts: bytes, key_starts: bytes, lengths: bytes, device: torch.device
) -> tuple[bytes, list[Tensor], list[Tensor | None]]:
    """The same for the gradients: the plan, the tables of starts and lengths, the items of dQ and of dK and dV."""
    problem: dict[str, Any] = dict(fields)
    plan = plans.attention_backward(**problem)
    table = schedule.backward_table(plan, np.frombuffer(starts, np.int32), np.frombuffer(lengths, np.int32))
    tables = [_on_device(x, device) for x in (starts, key_starts, lengths)]
    items = [_on_device(x.tobytes(), device) if x.size else None for x in (table.dq, table.dkv)]
    return bytes(plan), tables, items


def _on_device(words: bytes, device: torch.device) -> Tensor:
    return torch.from_numpy(np.frombuffer(words, np.int32).copy()).to(device)


def _run(
    launcher: Launcher,
    qkv: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    lse: Tensor | None,
    sinks: Tensor | None,
    starts: NDArray[np.int64],
    key_starts: NDArray[np.int64] | None,
    lengths: NDArray[np.int64],
    block_table: Tensor | None,
    fields: dict[str, int | float],
) -> None:
    fields |= {"arch": launcher.arch, "cores": launcher.cores, "batch": lengths.size, "want_lse": int(lse is not None)}
    firsts = np.zeros(0, np.int64) if key_starts is None else key_starts
    arrays = [x.astype(np.int32).tobytes() for x in (starts, firsts, lengths)]
    packed, (q_start, k_start, k_len), items, combines = _work(
        tuple(sorted(fields.items())), arrays[0], arrays[1], arrays[2], launcher.device
    )
    if items is None:
        return
    plan = LdAttentionPlan.from_buffer_copy(packed)
    sinks32 = None if sinks is None else sinks.detach().to(torch.float32).contiguous()
    workspace = launcher.workspace(plan.workspace)
    tables = [sinks32, q_start, None if key_starts is None else k_start, k_len]
    launcher.launch("attention", [*qkv, *tables, block_table, items, out, lse, workspace], plan, plan.blocks)
    if combines is None:
        return
    parts = plan.combines * -(-TILE_ROWS // plan.vector_rows)
    blocks = min(parts, launcher.cores * launcher.vectors_per_core)
    launcher.launch("attention_combine", [*tables, combines, workspace, out, lse], plan, blocks)
