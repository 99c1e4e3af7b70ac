"""The watched and the native pass on small modules: what ran, where, and who called it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from logdiff_kernels.observe.native import Native, _onednn
from logdiff_kernels.observe.trace import Trace, ranges, split_layer
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.proj(x)) + x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def traced(model: nn.Module, x: torch.Tensor, backward: bool = False) -> list[dict[str, Any]]:
    trace = Trace(model)
    with trace.phase("p", {5: "T"}):
        y = model(x)
        if backward:
            y.sum().backward()
    entries: list[dict[str, Any]] = trace.as_dict()["p"]["entries"]
    return entries


def test_equal_calls_of_all_layers_are_one_entry_with_its_layers() -> None:
    with torch.no_grad():
        entries = traced(Model(), torch.randn(5, 8))
    found = {(e["where"], e["op"]): e for e in entries}
    linear = found["layers.*.proj", "aten.addmm.default"]
    assert (linear["count"], linear["layers"]) == (3, "0-2")
    assert linear["in"] == ["f32[8]", "f32[T,8]", "f32[8,8]:t"]
    assert found["layers.*", "aten.silu.default"]["count"] == 3
    assert found["layers.*", "aten.silu.default"]["from"].endswith("Block.forward")


def test_a_backward_pass_is_told_by_the_module_whose_forward_made_it() -> None:
    entries = traced(Model(), torch.randn(5, 8), backward=True)
    grads = {(e["where"], e["op"]) for e in entries if e["where"].startswith("grad")}
    assert ("grad layers.*.proj", "aten.mm.default") in grads
    assert ("grad layers.*", "aten.silu_backward.default") in grads


def test_nothing_is_left_behind() -> None:
    model = Model()
    hooks = len(torch.nn.modules.module._global_forward_hooks)
    with torch.no_grad():
        traced(model, torch.randn(5, 8))
    assert len(torch.nn.modules.module._global_forward_hooks) == hooks
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_custom_operator_in_python_is_looked_into() -> None:
    library = torch.library.Library("trace_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x.sin() + x, "CPU")
    operator: Any = torch.ops.trace_test.twice

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return operator(x)  # type: ignore[no-any-return]

    with torch.no_grad():
        ops = [e["op"] for e in traced(Custom(), torch.randn(5, 8))]
    assert {"trace_test.twice.default", "aten.sin.default"} <= set(ops)


def test_sizes_that_vary_become_stars() -> None:
    class Growing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for n in range(1, 8):
                torch.exp(x[:, :n].contiguous())
            return x

    with torch.no_grad():
        entries = [e for e in traced(Growing(), torch.randn(6, 8)) if e["op"] == "aten.exp.default"]
    assert [(e["in"], e["count"]) for e in entries] == [(["f32[6,*]"], 7)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.11.mlp", ("model.layers.*.mlp", 11)),
        ("layers.0.mlp.experts.7.up", ("layers.*.mlp.experts.#.up", 0)),
        ("lm_head", ("lm_head", None)),
    ],
)
def test_layers_are_split_from_names(name: str, expected: tuple[str, int | None]) -> None:
    assert split_layer(name) == expected


def test_ranges_of_layers() -> None:
    assert ranges({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8"


def test_the_native_pass_names_operators_and_direct_kernels() -> None:
    from logdiff_kernels import ops

    native = Native()
    with native.phase("p"), torch.no_grad():
        torch.mm(torch.randn(4, 4), torch.randn(4, 4))
        ops.rms_norm(torch.randn(2, 8), torch.ones(8), 1e-6)
    found = native.as_dict()["p"]
    assert found["ops"]["aten::mm"] == 1
    assert any(name.startswith("logdiff_kernels.cpu.norm.") for name in found["direct"])


def test_a_line_of_onednns_log_is_a_kernel_name() -> None:
    line = "onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_bf16,undef,src:bf16,,,,1x2:2x3,0.1"
    assert _onednn(line) == "oneDNN matmul brg_matmul:avx512_core_bf16"
    assert _onednn("hello, exec, cpu, a, b") is None


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("MATH", "aten._safe_softmax.default"),
        ("FLASH_ATTENTION", "aten._scaled_dot_product_flash_attention_for_cpu.default"),
    ],
)
def test_backends_of_sdpa_are_told_apart(backend: str, expected: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with torch.no_grad(), sdpa_kernel(getattr(SDPBackend, backend)):
        ops = {e["op"] for e in traced(Attention(), torch.randn(1, 2, 7, 16))}
    assert expected in ops
    other = {"aten._safe_softmax.default", "aten._scaled_dot_product_flash_attention_for_cpu.default"} - {expected}
    assert not ops & other


@pytest.mark.slow(seconds=120)
def test_compiled_code_is_listed_with_its_kernels_and_eager_code_has_none() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.relu(x) * 2 + 1, x.cos())

    compiled: Any = torch.compile(function)
    x = torch.randn(16, 16)
    native = Native()
    with torch.no_grad():
        compiled(x)  # warm: what compiling itself runs is not the point
        with native.phase("eager"):
            function(x)
        with native.phase("compiled"):
            compiled(x)
    found = native.as_dict()
    assert found["eager"]["generated"] == []
    kernels = [name for one in found["compiled"]["generated"] for name in one["kernels"]]
    assert any(name.startswith("cpp_fused") for name in kernels), found["compiled"]["generated"]
    assert any("mm" in name for one in found["compiled"]["generated"] for name in one["extern"])
