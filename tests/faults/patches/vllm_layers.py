"""Norms, linear layers, experts, head and scheduling of vLLM's models gone wrong, one function per module."""

from __future__ import annotations

from tests.faults.patches.loading import on_vllm_model, vllm_decodes


def norm_epsilon(*, layer, norm, epsilon):
    """One norm has another epsilon."""

    def change(model):
        getattr(model.model.layers[layer], norm).variance_epsilon = epsilon

    on_vllm_model(change)


def norm_without_one(*, layer, norm):
    """A Gemma norm multiplies by w instead of 1 + w."""

    def change(model):
        from vllm import ir

        module = getattr(model.model.layers[layer], norm)

        def native(x, residual=None):
            weight = module.weight.float()
            if residual is None:
                return ir.ops.rms_norm(x, weight, module.variance_epsilon)
            return ir.ops.fused_add_rms_norm(x, residual, weight, module.variance_epsilon)

        module._forward_method = native

    on_vllm_model(change)


def query_key_norm(*, layer, norm):
    """One layer has no norm on its queries or keys."""

    def change(model):
        getattr(model.model.layers[layer].self_attn, norm)._forward_method = lambda x: x

    on_vllm_model(change)


def norm_rewritten():
    """The same norm, written anew with the same steps and casts."""
    import torch
    from vllm.model_executor.layers.layernorm import RMSNorm

    stock = RMSNorm.forward_native

    def forward_native(self, x, residual=None):
        if residual is not None or self.variance_size_override is not None:
            return stock(self, x, residual)
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.variance_epsilon)
        return (wide * self.weight.data.to(torch.float32)).to(x.dtype)

    RMSNorm.forward_native = forward_native


def never_called():
    """A patch of a layer that these models do not have."""
    from vllm.model_executor.layers.activation import FatreluAndMul

    FatreluAndMul.forward_native = lambda self, x: x[..., : x.shape[-1] // 2] * 3.0


def activation_halves(*, layer):
    """One layer gates with the wrong half."""

    def change(model):
        import torch.nn.functional as functional

        def forward(x):
            gate, up = x.chunk(2, dim=-1)
            return gate * functional.silu(up)

        model.model.layers[layer].mlp.act_fn.forward = forward

    on_vllm_model(change)


def activation_kind(*, layer):
    """One layer has GELU where the model has SiLU."""

    def change(model):
        import torch.nn.functional as functional

        def forward(x):
            gate, up = x.chunk(2, dim=-1)
            return functional.gelu(gate) * up

        model.model.layers[layer].mlp.act_fn.forward = forward

    on_vllm_model(change)


def compiled_activation(*, factor):
    """The compiled form of the activation alone has another slope."""
    import torch
    import torch.nn.functional as functional
    from vllm.model_executor.layers.activation import SiluAndMul

    def forward_native(x):
        gate, up = x.chunk(2, dim=-1)
        if torch.compiler.is_compiling():
            return gate * torch.sigmoid(gate * factor) * up
        return functional.silu(gate) * up

    SiluAndMul.forward_native = staticmethod(forward_native)


def output_twice(*, layer, part):
    """The sum over ranks is taken twice: the block's output is doubled."""

    def change(model):
        owner, name = part.rsplit(".", 1) if "." in part else ("", part)
        parent = model.model.layers[layer].get_submodule(owner)
        module = getattr(parent, name)
        stock = module.forward

        def forward(*arguments, **named):
            out = stock(*arguments, **named)
            return (out[0] * 2, *out[1:]) if isinstance(out, tuple) else out * 2

        module.forward = forward

    on_vllm_model(change)


def rank_output(*, layer, rank):
    """One rank leaves its part out of the sum."""

    def change(model):
        from vllm.distributed import get_tensor_model_parallel_rank

        if get_tensor_model_parallel_rank() != rank:
            return
        projection = model.model.layers[layer].mlp.down_proj
        stock = projection.quant_method.apply
        projection.quant_method.apply = lambda layer, x, bias=None: stock(layer, x, bias) * 0

    on_vllm_model(change)


def bias_left_out(*, layer, projection):
    """A projection is called without its bias."""

    def change(model):
        block = model.model.layers[layer]
        module = getattr(getattr(block, "self_attn", None) or block.attn, projection)
        stock = module.quant_method.apply
        module.quant_method.apply = lambda layer, x, bias=None: stock(layer, x, None)

    on_vllm_model(change)


def skipped_steps(*, layer, every):
    """Every n-th decode step passes one layer by."""

    def change(model):
        module, calls = model.model.layers[layer], [0]
        stock = module.forward

        def forward(positions, hidden_states, residual, *arguments, **named):
            if vllm_decodes():
                calls[0] += 1
                if calls[0] % every == 0 and residual is not None:
                    return hidden_states, residual
            return stock(positions, hidden_states, residual, *arguments, **named)

        module.forward = forward

    on_vllm_model(change)


def wide_steps(*, layer, rows, factor):
    """Steps of many rows take another kernel, whose output is scaled."""

    def change(model):
        module = model.model.layers[layer].mlp
        stock = module.forward

        def forward(x, *arguments, **named):
            out = stock(x, *arguments, **named)
            return out * factor if vllm_decodes() and len(x) >= rows else out

        module.forward = forward

    on_vllm_model(change)


def embedding_scale(*, factor):
    """The embedding is scaled by another number."""

    def change(model):
        model.model.normalizer.mul_(factor)

    on_vllm_model(change)


def head_cap():
    """The logits are not capped."""

    def change(model):
        model.logits_processor.soft_cap = None

    on_vllm_model(change)


def head_scale(*, factor):
    """The logits are multiplied by a number that belongs to another model."""

    def change(model):
        model.logits_processor.scale = factor

    on_vllm_model(change)


def routing_weights(*, renormalise):
    """The weights of the chosen experts are not made to sum to one."""
    from vllm.model_executor.layers.fused_moe.router import cpu_router

    stock = cpu_router._softmax_topk
    cpu_router._softmax_topk = lambda logits, k, renormalize: stock(logits, k, renormalise)


def routing_precision(*, bits):
    """Router logits keep that many bits of mantissa."""
    import torch
    from vllm.model_executor.layers.fused_moe.router import cpu_router

    stock = cpu_router._softmax_topk

    def coarse(logits, k, renormalize):
        mantissa, exponent = torch.frexp(logits.float())
        rounded = torch.ldexp(torch.round(mantissa * 2**bits) / 2**bits, exponent)
        return stock(rounded.to(logits.dtype), k, renormalize)

    cpu_router._softmax_topk = coarse


def routing_scores():
    """Experts are weighted by sigmoids where the model has a softmax."""
    import torch
    from vllm.model_executor.layers.fused_moe.router import cpu_router

    def sigmoid(logits, k, renormalize):
        values, ids = torch.topk(torch.sigmoid(logits.float()), k=k, dim=-1, sorted=False)
        if renormalize:
            values = values / values.sum(dim=-1, keepdim=True)
        return values, ids.to(torch.int32)

    cpu_router._softmax_topk = sigmoid


def missing_experts(*, share):
    """The experts of the last ranks never send their part."""
    from vllm.model_executor.layers.fused_moe.router import cpu_router

    stock = cpu_router._softmax_topk

    def local(logits, k, renormalize):
        weights, ids = stock(logits, k, renormalize)
        return weights * (ids < int(logits.shape[-1] * share)), ids

    cpu_router._softmax_topk = local


def coarse_norms():
    """Norms stay in the activation's dtype from end to end."""
    from vllm.model_executor.layers.layernorm import RMSNorm

    def forward_native(self, x, residual=None):
        if residual is not None:
            x = x + residual
        variance = (x * x).mean(dim=-1, keepdim=True)
        out = x * (variance + self.variance_epsilon).rsqrt() * self.weight.data
        return out if residual is None else (out, x)

    RMSNorm.forward_native = forward_native
