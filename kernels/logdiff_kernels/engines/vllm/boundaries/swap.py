"""The task `swap`: this engine's own operator over what the other side's operator was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from logdiff_kernels.engines.vllm.boundaries.calls import Call
from logdiff_kernels.engines.vllm.boundaries.shards import split_parts
from logdiff_kernels.errors import InputError, UnsupportedError
from logdiff_kernels.observe.boundaries import names
from logdiff_kernels.observe.boundaries.files import ROWS, BoundaryFile, Entry, Header, given, picked, write


def swap(worker: Any, payload: dict[str, Any], places: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    """Compute one boundary from another file's inputs.

    Args:
        worker: the vLLM worker.
        payload: `boundary`, `inputs` (path of the other side's boundaries), `output`, `side`, `model`.
        places: boundary -> (name, module) of this engine, from its captures.

    Returns:
        `rows` and `cast` (whether inputs were brought to this engine's dtype).

    Raises:
        InputError: a boundary or an input that the file or this engine's captures haven't.
        UnsupportedError: attention, which reads more than its rows; several ranks.
    """
    boundary = str(payload["boundary"])
    if int(worker.vllm_config.parallel_config.world_size) > 1:
        raise UnsupportedError("an operator that ranks share can't be fed alone", value=boundary, hint="one rank")
    if boundary not in places:
        raise InputError(
            f"no capture of this engine has {boundary}", value=boundary, hint="capture it on this side first"
        )
    other = BoundaryFile(payload["inputs"])
    rows, arguments = _arguments(other, boundary)
    where, module = places[boundary]
    dtype = worker.vllm_config.model_config.dtype
    cast = any(t.is_floating_point() and t.dtype != dtype and t.dtype != torch.float32 for t in arguments)
    fed = [t.to(dtype) if t.is_floating_point() and t.dtype not in (dtype, torch.float32) else t for t in arguments]
    positions = other.tensor("rows.position_id" if "rows.position_id" in other else "rows.position").long()[rows]
    with torch.inference_mode(), _context(worker, len(rows)):
        left = _RUN[_operator(boundary)](worker, module, names.parse(boundary)[1], fed, positions)
    tensors = {key: other.tensor(key) for key in ROWS if key in other}
    tensors |= {boundary: left, f"{boundary}@rows": rows.to(torch.int32)}
    entry = Entry(boundary, where, next(e.inputs for e in other.entries() if e.name == boundary))
    header = Header(
        "vllm", payload["side"], other.header.phase, payload["model"], str(dtype).removeprefix("torch."),
        other.header.sample_ids, [entry], extra={"inputs": str(payload["inputs"]), "cast": cast},
    )  # fmt: skip
    write(Path(payload["output"]), header, tensors)
    return {"rows": len(rows), "cast": cast}


def _operator(boundary: str) -> str:
    kind = names.operator(boundary)
    if kind not in _RUN:
        hint = "attention reads the rows of earlier tokens; compare its captured inputs and output"
        raise UnsupportedError(f"{boundary} ({kind}) can't be fed row by row", value=boundary, hint=hint)
    return kind


def _arguments(other: BoundaryFile, boundary: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(rows of the file, the operator's arguments for them)."""
    entry = next((e for e in other.entries() if e.name == boundary), None)
    if entry is None:
        raise InputError(f"the file has no {boundary}", value=str(other.path))
    if names.operator(boundary) == "embedding":
        rows = other.rows(boundary)
        return rows, [other.tensor("rows.input_id")[rows]]
    rows, sources = other.rows(boundary), []
    for number, source in enumerate(entry.inputs):
        key = source or given(boundary, number)
        if key not in other:
            raise InputError(f"the file has no rows of what {boundary} was given", value=key, hint='level "full"')
        have = other.rows(source) if source else other.given_rows(boundary, number)
        sources.append((other.tensor(key), have))
        rows = rows[torch.isin(rows, have)]
    if not sources or not len(rows):
        raise InputError(f"the file doesn't say what {boundary} was given", value=str(other.path))
    return rows, [picked(values, have, rows) for values, have in sources]


def _context(worker: Any, tokens: int) -> Any:
    from vllm.forward_context import set_forward_context

    return set_forward_context(None, worker.vllm_config, num_tokens=tokens)


def _linear(_worker: Any, module: Any, part: str, fed: list[torch.Tensor], _at: torch.Tensor) -> torch.Tensor:
    output = module(fed[0])
    rows = output[0] if isinstance(output, tuple) else output
    pieces = split_parts(Call("linear", "", module, fed, [rows]))
    order = {"q": 0, "k": 1, "v": 2, "gate": 0, "up": 1, "shared_gate": 0, "shared_up": 1, "q_a": 0, "kv_a": 1}
    return pieces[order[part]][1] if len(pieces) > 1 else rows


def _norm(_worker: Any, module: Any, _part: str, fed: list[torch.Tensor], _at: torch.Tensor) -> torch.Tensor:
    width = module.weight.numel()
    output: torch.Tensor = module(fed[0].reshape(len(fed[0]), -1, width).squeeze(1))
    return output.reshape(len(fed[0]), -1)


def _rope(_worker: Any, module: Any, _part: str, fed: list[torch.Tensor], at: torch.Tensor) -> torch.Tensor:
    if not getattr(module, "is_neox_style", True):
        raise UnsupportedError("a rotation of pairs has another order of features here", value=type(module).__name__)
    query, key = fed[0].clone(), fed[0].clone()
    output: torch.Tensor = module(at, query, key)[0]
    return output


def _activation(_worker: Any, module: Any, _part: str, fed: list[torch.Tensor], _at: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = module(torch.cat(fed, -1))
    return output


def _experts(_worker: Any, module: Any, _part: str, fed: list[torch.Tensor], _at: torch.Tensor) -> torch.Tensor:
    if len(fed) < 3 or not hasattr(module, "forward_modular"):
        raise UnsupportedError("these experts choose by themselves", value=type(module).__name__)
    output: torch.Tensor = module.forward_modular(fed[0], fed[1].float(), fed[2].to(torch.int32))
    return output


def _router(worker: Any, module: Any, part: str, fed: list[torch.Tensor], _at: torch.Tensor) -> torch.Tensor:
    hidden = fed[0].new_zeros(len(fed[0]), int(worker.vllm_config.model_config.get_hidden_size()))
    weights, ids = module._compute_routing(hidden, fed[0], None)
    order = weights.argsort(dim=-1, descending=True, stable=True)
    chosen: torch.Tensor = (ids if part == "expert_ids" else weights).gather(-1, order)
    return chosen


def _head(worker: Any, _module: Any, _part: str, fed: list[torch.Tensor], _at: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = worker.model_runner.get_model().compute_logits(fed[0])
    return output


def _embedding(worker: Any, _module: Any, _part: str, fed: list[torch.Tensor], _at: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = worker.model_runner.get_model().embed_input_ids(fed[0])
    return output


_RUN: dict[str, Callable[[Any, Any, str, list[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "linear": _linear, "norm": _norm, "rope": _rope, "activation": _activation, "experts": _experts,
    "router": _router, "lm_head": _head, "embedding": _embedding,
}  # fmt: skip
