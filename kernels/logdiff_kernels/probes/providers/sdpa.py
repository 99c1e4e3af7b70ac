"""torch's scaled_dot_product_attention: its own choice of kernel, and each kernel by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from logdiff_kernels.probes.families.attention import visible
from logdiff_kernels.probes.records import AbsentError, Impl, Layout, Problem, Provider, Sequence

LAYOUTS = ("single", "stacked", "right", "left", "packed")

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, dict[str, Any]], Tensor]
"""(q, k, v [batch, heads, length, head_dim], bool mask or None, causal, fixed) -> [batch, heads, length, head_dim]."""


def by_layout(attend: Attend) -> Callable[[list[Sequence], Layout, dict[str, Any]], list[Tensor]]:
    """An `Impl.call` for attention over dense batches: masks are what Transformers' models would pass."""

    def call(listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
        if layout.kind == "packed":
            return _packed(attend, listed, fixed)
        if layout.kind in ("left", "right"):
            return _padded(attend, listed, layout, fixed)
        q, k, v = (_stack([one.parts[name] for one in listed]) for name in "qkv")
        queries, keys, window = q.shape[2], k.shape[2], fixed["window"]
        if window <= 0 and queries == keys:
            out = attend(q, k, v, None, queries > 1, fixed)
        elif window <= 0 and queries == 1:
            out = attend(q, k, v, None, False, fixed)
        else:
            out = attend(q, k, v, visible(queries, keys, window, q.device)[None, None], False, fixed)
        return [out[i].transpose(0, 1) for i in range(len(listed))]

    return call


def _stack(listed: list[Tensor]) -> Tensor:
    """[batch, heads, length, head_dim]; of one sequence a view, so that its strides stay."""
    return listed[0][None].transpose(1, 2) if len(listed) == 1 else torch.stack(listed).transpose(1, 2)


def _packed(attend: Attend, listed: list[Sequence], fixed: dict[str, Any]) -> list[Tensor]:
    q, k, v = (torch.cat([one.parts[name] for one in listed])[None].transpose(1, 2) for name in "qkv")
    queries, keys = [one.length for one in listed], [one.parts["k"].shape[0] for one in listed]
    blocks = [visible(a, b, fixed["window"], q.device) for a, b in zip(queries, keys, strict=True)]
    mask = torch.zeros(sum(queries), sum(keys), dtype=torch.bool, device=q.device)
    row = column = 0
    for block in blocks:
        mask[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    out = attend(q, k, v, mask[None, None], False, fixed)
    return list(torch.split(out[0].transpose(0, 1), queries))


def _padded(attend: Attend, listed: list[Sequence], layout: Layout, fixed: dict[str, Any]) -> list[Tensor]:
    width, left = layout.width, layout.kind == "left"
    padded, masks = [], []
    for one in listed:
        extra = width - one.length
        pad = (0, 0, 0, 0, extra, 0) if left else (0, 0, 0, 0, 0, extra)
        padded.append([functional.pad(one.parts[name], pad) for name in "qkv"])
        seen = visible(width, width, fixed["window"], one.parts["q"].device)
        inside = torch.zeros(width, dtype=torch.bool, device=seen.device)
        inside[extra if left else 0 : width if left else one.length] = True
        mask = seen & inside[None, :]
        masks.append(mask | ~mask.any(-1, keepdim=True))  # a row that sees nothing sees everything, as in Transformers
    q, k, v = (torch.stack([p[i] for p in padded]).transpose(1, 2) for i in range(3))
    out = attend(q, k, v, torch.stack(masks)[:, None], False, fixed).transpose(1, 2)
    return [out[i, width - one.length :] if left else out[i, : one.length] for i, one in enumerate(listed)]


def plain_only(fixed: dict[str, Any], who: str) -> None:
    """Refuse what a kernel without soft cap and sinks can't compute."""
    if fixed["softcap"] or fixed["sinks"] is not None:
        raise NotImplementedError(f"{who} has no soft cap and no sinks")


def head_split(call: Callable[..., list[Any]], layout: str) -> Callable[[Problem, int], Any]:
    """Attention of each rank's heads, side by side."""

    def split(problem: Problem, count: int) -> Any:
        if problem.shape["kv_heads"] % count:
            return None
        parts = []
        for rank in range(count):
            cut = {name: problem.rows[name][0].chunk(count, dim=1)[rank].contiguous() for name in "qkv"}
            fixed = dict(problem.fixed)
            if fixed["sinks"] is not None:
                fixed["sinks"] = fixed["sinks"].chunk(count)[rank].contiguous()
            parts.append(call([Sequence(cut)], Layout(layout, page=32), fixed)[0])
        return torch.cat(parts, dim=1)

    return split


def _sdpa(backend: SDPBackend | None) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, fixed: dict[str, Any]) -> Tensor:
        plain_only(fixed, "scaled_dot_product_attention")
        with nullcontext() if backend is None else sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(
                q, k, v, mask, is_causal=causal, scale=fixed["scale"], enable_gqa=q.shape[1] != k.shape[1]
            )

    return attend


def _maker(backend: SDPBackend | None) -> Callable[[str, str], Impl]:
    def make(device: str, dtype: str) -> Impl:
        call = by_layout(_sdpa(backend))
        q = torch.zeros(1, 1, 2, 32, dtype=getattr(torch, dtype), device=device)
        fixed = {"softcap": 0.0, "sinks": None, "scale": 1.0, "window": 0}
        try:
            _sdpa(backend)(q, q, q, None, True, fixed)
        except RuntimeError as error:
            raise AbsentError(f"this kernel does not run here: {str(error).splitlines()[0]}") from None
        return Impl(
            call, layouts=LAYOUTS, split=head_split(call, "single"), base=call, about=f"torch {torch.__version__}"
        )

    return make


_BACKENDS = {
    "sdpa": None, "sdpa_math": SDPBackend.MATH, "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION, "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
}  # fmt: skip

PROVIDERS = tuple(
    Provider(
        name,
        ("cuda",) if name in ("sdpa_efficient", "sdpa_cudnn") else ("cpu", "cuda", "npu"),
        {"attention": _maker(backend)},
        "scaled_dot_product_attention, " + ("torch's choice" if backend is None else f"{backend.name} only"),
    )
    for name, backend in _BACKENDS.items()
)
