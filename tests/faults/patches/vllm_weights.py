"""Weights of a rollout side that are not what the checkpoint says, at once or after a sync."""

from __future__ import annotations

from tests.faults.patches.loading import on_vllm_weights


def tensor_noise(*, name, relative, seed):
    """One tensor is that of another moment of training."""

    def change(model):
        import torch

        parameter = dict(model.named_parameters())[name]
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(parameter.shape, generator=generator) * parameter.data.float().std() * relative
        parameter.data.copy_((parameter.data.float() + noise).to(parameter.dtype))

    on_vllm_weights(change)


def query_heads(*, layer, group):
    """The fused q, k, v of a layer was cut in the other order: its query heads are transposed in their groups."""

    def change(model):
        attention = model.model.layers[layer].self_attn
        weight = attention.qkv_proj.weight.data
        heads = weight[: attention.q_size].view(group, -1, attention.head_dim, weight.shape[-1])
        weight[: attention.q_size] = heads.transpose(0, 1).reshape(attention.q_size, -1).clone()

    on_vllm_weights(change)


def expert_halves(*, layer):
    """The fused gate and up of a layer's experts lie the other way round."""

    def change(model):
        for name, parameter in model.model.layers[layer].named_parameters():
            if name.endswith("w13_weight"):
                parameter.data = parameter.data.roll(parameter.shape[1] // 2, dims=1)

    on_vllm_weights(change)


def expert_order(*, layer, by):
    """The experts of a layer are stored `by` places on."""

    def change(model):
        for name, parameter in model.model.layers[layer].named_parameters():
            if name.endswith(("w13_weight", "w2_weight")):
                parameter.data = parameter.data.roll(by, dims=0)

    on_vllm_weights(change)


def quantised(*, bits):
    """Linear weights have gone through symmetric integers, one scale per output."""

    def change(model):
        from vllm.model_executor.layers.linear import LinearBase

        for module in model.modules():
            if isinstance(module, LinearBase):
                weight = module.weight.data.float()
                scale = weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
                module.weight.data.copy_((weight / scale).round().mul(scale).to(module.weight.dtype))

    on_vllm_weights(change)


def stale_after_sync(*, pattern):
    """A later load gives the tensors of the first one again where the name matches."""
    import re

    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    stock, first = DefaultModelLoader.get_all_weights, {}

    def get_all_weights(self, model_config, model):
        again = bool(first)
        for name, tensor in stock(self, model_config, model):
            if re.search(pattern, name):
                if not again:
                    first[name] = tensor.clone()
                else:
                    tensor = first[name].clone()
            yield name, tensor

    DefaultModelLoader.get_all_weights = get_all_weights


def swapped_after_sync(*, layer):
    """A later load puts gate where up belongs, and the other way round."""
    import re

    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    stock, loads = DefaultModelLoader.get_all_weights, [0]

    def get_all_weights(self, model_config, model):
        loads[0] += 1
        for name, tensor in stock(self, model_config, model):
            if loads[0] > 1 and re.search(rf"layers\.{layer}\..*(gate|up)_proj", name):
                old, new = ("gate_proj", "up_proj") if "gate_proj" in name else ("up_proj", "gate_proj")
                name = name.replace(old, new)
            yield name, tensor

    DefaultModelLoader.get_all_weights = get_all_weights
