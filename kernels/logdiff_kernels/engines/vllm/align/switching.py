"""Budget mode: aligned operators switched on and off in place, between the tasks of a running engine.

A model that is loaded in budget mode is stock, to the bit: vLLM packs what it always packs, and the parameters that it
throws away or replaces on the way are kept beside. A switch puts the raw or the packed parameters into the layers,
lets the process-wide replacements of the wanted operators stand in vLLM's classes, and takes the others away.

Some parts have one switch, because the stock way of one stands on the other: storing keys and values with the
attention that reads them (their order in the cache differs), the up-projection of latents with latent attention, the
residual addition with the norm after it, a shared expert's gate with the experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from logdiff_kernels.align import BUDGET, OPERATORS, AlignSpec
from logdiff_kernels.engines.vllm import align
from logdiff_kernels.engines.vllm.align import arithmetic, checks, moe, rope
from logdiff_kernels.engines.vllm.align.linear import OPERATOR, operator_of
from logdiff_kernels.engines.vllm.align.patches import Patches
from logdiff_kernels.errors import UnsupportedError

KEPT = "logdiff_kept"
"""Attribute of a model: the layers that vLLM processed after loading, with their parameters before it."""

_WATCHED = "logdiff_watched"
"""Attribute of a model whose own arithmetic was looked at with everything aligned."""

_loaders = Patches()

Parameters = dict[str, tuple[Any, torch.Tensor]]
"""A layer's own parameters by name: the object and the tensor that it held."""


@dataclass(slots=True)
class Kept:
    """One layer: the operator that it runs, its parameters as loaded, and as vLLM's kernels want them."""

    layer: Any
    operator: str
    raw: Parameters
    stock: Parameters = field(default_factory=dict)

    @property
    def extra(self) -> int:
        """Bytes of raw parameters that a stock engine would not hold."""
        now = self.stock or _parameters(self.layer)
        held = {data.data_ptr() for _, data in now.values()}
        return sum(data.nbytes for _, data in self.raw.values() if data.data_ptr() not in held)


def keep_raw_weights() -> None:
    """Let the next model that this process loads be switchable. May be called often; no trace of it stays in vLLM."""
    if _loaders.targets():
        return
    import vllm.model_executor.model_loader  # noqa: F401  (defines the loaders)
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    def load(stock: Any) -> Any:
        def load_model(self: Any, *arguments: Any, **named: Any) -> Any:
            kept: list[Kept] = []
            patches = Patches()
            try:
                _record(patches, kept)
                model = stock(self, *arguments, **named)
            finally:
                patches.restore()
                _loaders.restore()
            model.__dict__[KEPT] = kept
            return model

        return load_model

    for loader in (BaseModelLoader, *checks.subclasses(BaseModelLoader)):
        if "load_model" in vars(loader):
            _loaders.wrap(loader, "load_model", load)


def _record(patches: Patches, kept: list[Kept]) -> None:
    """Note each layer's parameters right before vLLM processes them."""
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    def noting(operator: Any) -> Any:
        def make(stock: Any) -> Any:
            def process_weights_after_loading(self: Any, layer: Any) -> None:
                kept.append(Kept(layer, operator(layer), _parameters(layer)))
                stock(self, layer)

            return process_weights_after_loading

        return make

    for method, operator in (
        (UnquantizedLinearMethod, operator_of),
        (UnquantizedEmbeddingMethod, operator_of),
        (UnquantizedFusedMoEMethod, lambda _layer: "moe"),
    ):
        patches.wrap(method, "process_weights_after_loading", noting(operator))


def realign(worker: Any, ops: list[str]) -> dict[str, Any]:
    """Run exactly these operators aligned from here on, the others stock.

    Args:
        worker: the vLLM worker, idle.
        ops: operators of the contract; none: stock.

    Returns:
        `ops` in the contract's order, `operators` that this model has parts of, `bytes` of raw weights that are kept
        for the switch, `layers` that changed parameters.

    Raises:
        UnsupportedError: the engine isn't in budget mode, it is compiled, or has a part that no aligned operator
            covers; the engine is stock then.
    """
    runner, config = worker.model_runner, worker.vllm_config
    model = runner.get_model()
    kept: list[Kept] | None = model.__dict__.get(KEPT)
    if kept is None:
        raise UnsupportedError(
            "this engine was not started in budget mode", value=BUDGET, hint=f"{BUDGET}=1 in the side's environment"
        )
    spec = AlignSpec(frozenset(ops), id="budget")
    align.restore()
    _put_stock(model, kept)
    try:
        if ops:
            _refuse_compiled(model)
            checks.check_engine(config, spec)
            _put_raw(model, kept, spec)
            checks.prepare_model(model, config, spec)
            align.apply(spec)
            _bind_sampler(runner)
            if spec.complete and not model.__dict__.get(_WATCHED):
                arithmetic.watch(runner)
                model.__dict__[_WATCHED] = True
    except BaseException:
        align.restore()
        _put_stock(model, kept)
        _bind_sampler(runner)
        raise
    _bind_sampler(runner)
    return {
        "ops": [op for op in OPERATORS if op in spec],
        "operators": _operators(model, kept, config),
        "bytes": sum(one.extra for one in kept),
        "layers": sum(bool(one.stock) for one in kept),
    }


def _refuse_compiled(model: Any) -> None:
    compiled = [name for name, module in model.named_modules() if getattr(module, "do_not_compile", True) is False]
    if compiled:
        raise UnsupportedError(
            "a compiled engine can't be switched in place: its graph holds the operators that it was traced with",
            value=compiled[0] or type(model).__name__,
            hint="enforce_eager: true, or start an engine per set of operators",
        )


def _parameters(layer: Any) -> Parameters:
    return {name: (p, p.data) for name, p in layer.named_parameters(recurse=False)}


def _install(layer: Any, parameters: Parameters) -> None:
    for name, (parameter, data) in parameters.items():
        parameter.data = data
        layer._parameters[name] = parameter


def _put_raw(model: Any, kept: list[Kept], spec: AlignSpec) -> None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod

    projections = {id(module) for module in _latent_projections(model)} if "attention" in spec else set()
    for one in kept:
        if one.operator not in spec and id(one.layer) not in projections:
            continue
        one.stock = _parameters(one.layer)
        _install(one.layer, one.raw)
        if one.operator in spec and isinstance(one.layer.quant_method, UnquantizedLinearMethod):
            setattr(one.layer, OPERATOR, one.operator)


def _put_stock(model: Any, kept: list[Kept]) -> None:
    """Undo `_put_raw` and what `checks.prepare_model` changed. May be called twice."""
    for one in kept:
        if one.stock:
            _install(one.layer, one.stock)
            one.stock = {}
        if hasattr(one.layer, OPERATOR):
            delattr(one.layer, OPERATOR)
    for module in model.modules():
        if hasattr(module, moe.GATE):
            module.shared_experts._layer.expert_gate = getattr(module, moe.GATE)[0]
            delattr(module, moe.GATE)


def _bind_sampler(runner: Any) -> None:
    """vLLM's sampler keeps one of its class's functions from its start; take the one that stands there now."""
    sampler: Any = getattr(getattr(runner, "sampler", None), "topk_topp_sampler", None)
    bound = vars(sampler).get("forward") if sampler is not None else None
    if bound is not None:
        sampler.forward = getattr(sampler, bound.__name__)


def _latent_projections(model: Any) -> Iterator[Any]:
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention

    for module in model.modules():
        if isinstance(module, MLAAttention):
            yield module.kv_b_proj


def _operators(model: Any, kept: list[Kept], config: Any) -> list[str]:
    from vllm.model_executor.layers import activation
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    gates = (activation.SiluAndMul, activation.GeluAndMul, activation.SiluAndMulWithClamp, activation.SwigluOAIAndMul)
    of_kind: tuple[tuple[tuple[str, ...], tuple[type, ...]], ...] = (
        (("rms_norm", "add_rms_norm"), (RMSNorm, GemmaRMSNorm)),
        (("rope",), rope.covered()),
        (("swiglu",), gates),
        (("attention",), (AttentionLayerBase,)),
        (("router", "moe"), (MoERunner,)),
        (("embedding",), (VocabParallelEmbedding,)),
    )
    found = {"logprob", "lm_head", *(one.operator for one in kept)}
    for module in model.modules():
        found.update(op for names, kinds in of_kind if isinstance(module, kinds) for op in names)
    if config.parallel_config.tensor_parallel_size > 1:
        found |= {"all_reduce", "reduce_scatter"}
    return [op for op in OPERATORS if op in found]
