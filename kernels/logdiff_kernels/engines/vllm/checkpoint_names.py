"""Which checkpoint tensor a parameter of a vLLM model holds, by the model's own loading rules."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logdiff_kernels.errors import InputError

_QKV = ("q", "k", "v")
_HEADER_LIMIT = 100_000_000  # bytes; safetensors' own bound


def checkpoint_shapes(folder: str) -> dict[str, list[int]]:
    """Name -> shape of every tensor in the safetensors files of a model folder; empty where it has none.

    Raises:
        InputError: a file whose header can't be read.
    """
    shapes: dict[str, list[int]] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        try:
            with path.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                if length > _HEADER_LIMIT:
                    raise ValueError(f"a header of {length} bytes")
                header = json.loads(stream.read(length))
            shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
        except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
            raise InputError(f"can't read the safetensors header: {error}", value=str(path)) from error
    return shapes


class NameTable:
    """Looks up checkpoint names for (vLLM parameter name, shard); a shard is "q", "k", "v", an index, or None.

    Args:
        model: the vLLM model; its `hf_to_vllm_mapper` and `packed_modules_mapping` are the rules.
        shapes: name -> shape of the checkpoint; may be empty, then names are derived from the rules alone.
    """

    def __init__(self, model: Any, shapes: Mapping[str, list[int]]) -> None:
        self.shapes = shapes
        self._packed = _packed_parts(model)
        self._names: dict[tuple[str, str | int | None], str] = {}
        mapper = getattr(model, "hf_to_vllm_mapper", None)
        for name in shapes:
            mapped: tuple[str, Any] | None = (name, None)
            if mapper is not None:
                mapped = mapper._map_name_with_shard(name)
            if mapped is None:
                continue
            target, shard = mapped
            for one in shard if isinstance(shard, list) else [shard]:
                self._names.setdefault((target, one), name)

    def find(self, parameter: str, shard: str | int | None = None) -> str | None:
        """The checkpoint's name, or None where the checkpoint is known and has no such tensor."""
        parameter = parameter.replace(".base_layer.", ".")  # a layer that an adapter wraps
        found = self._names.get((parameter, shard))
        if found is not None or shard is None:
            return found if found is not None or self.shapes else parameter
        derived = self._derived(parameter, shard)
        found = self._names.get((derived, None))
        return found if found is not None or self.shapes else derived

    def _derived(self, parameter: str, shard: str | int) -> str:
        """`...self_attn.qkv_proj.weight`, "q" -> `...self_attn.q_proj.weight`."""
        module, _, leaf = parameter.rpartition(".")
        parent, _, fused = module.rpartition(".")
        parts = self._packed.get(fused, [])
        index = _QKV.index(shard) if isinstance(shard, str) else shard
        part = parts[index] if index < len(parts) else f"{fused}.{shard}"
        return ".".join(piece for piece in (parent, part, leaf) if piece)


def _packed_parts(model: Any) -> dict[str, list[str]]:
    parts = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    parts.update({key: list(value) for key, value in (getattr(model, "packed_modules_mapping", None) or {}).items()})
    return parts
