"""Norms, MLPs, experts, weights and head of Transformers gone wrong. Each function is one module of a train side."""

from __future__ import annotations

from tests.faults.patches.loading import on_transformers_model


def final_norm_epsilon(*, epsilon):
    """The last norm has another epsilon."""

    def change(model):
        model.model.norm.variance_epsilon = epsilon

    on_transformers_model(change)


def activation_halves(*, layer):
    """One layer gates with the wrong projection."""

    def change(model):
        mlp = model.model.layers[layer].mlp
        mlp.forward = lambda x: mlp.down_proj(mlp.gate_proj(x) * mlp.act_fn(mlp.up_proj(x)))

    on_transformers_model(change)


def active_dropout(*, layer, rate):
    """Dropout was never switched off in one layer."""

    def change(model):
        import torch.nn.functional as functional

        mlp = model.model.layers[layer].mlp
        stock = mlp.forward
        mlp.forward = lambda x: functional.dropout(stock(x), p=rate, training=True)

    on_transformers_model(change)


def residual_factor(*, layer, factor):
    """One layer multiplies its residual by a number that belongs to another model."""

    def change(model):
        module = model.model.layers[layer]
        stock = module.forward

        def forward(hidden_states, *arguments, **named):
            out = stock(hidden_states, *arguments, **named)
            return out + (factor - 1.0) * hidden_states

        module.forward = forward

    on_transformers_model(change)


def later_rows(*, layer, factor):
    """In a batch, all rows but the first get another scale in one MLP."""

    def change(model):
        mlp = model.model.layers[layer].mlp
        stock = mlp.forward

        def forward(x):
            out = stock(x)
            if len(x) > 1:
                out = out.clone()
                out[1:] *= factor
            return out

        mlp.forward = forward

    on_transformers_model(change)


def tensor_noise(*, name, relative, seed):
    """One tensor is that of another moment of training."""

    def change(model):
        import torch

        parameter = model.get_parameter(name)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(parameter.shape, generator=generator) * parameter.data.float().std() * relative
        parameter.data.copy_((parameter.data.float() + noise).to(parameter.dtype))

    on_transformers_model(change)


def head_temperature(*, temperature):
    """The head divides by the temperature, and the trainer does so again."""

    def change(model):
        head = model.lm_head
        stock = head.forward
        head.forward = lambda x: stock(x) / temperature

    on_transformers_model(change)


def head_without_temperature(*, temperature):
    """The head undoes the division that the trainer makes: the scores are those at temperature 1."""

    def change(model):
        head = model.lm_head
        stock = head.forward
        head.forward = lambda x: stock(x) * temperature

    on_transformers_model(change)


def shifted_logits():
    """The logits of a position are given for the next one."""

    def change(model):
        stock = model.forward

        def forward(*arguments, **named):
            out = stock(*arguments, **named)
            out.logits = out.logits.roll(1, dims=1)
            return out

        model.forward = forward

    on_transformers_model(change)


def other_ids(*, every, shift, low, vocabulary):
    """Every n-th id of a row is embedded as another one."""

    def change(model):
        import torch

        embedding = model.get_input_embeddings()
        stock = embedding.forward

        def forward(ids):
            columns = torch.arange(ids.shape[-1]).expand_as(ids)
            other = low + (ids - low + shift) % (vocabulary - low)
            return stock(torch.where((columns % every == every - 1) & (ids >= low), other, ids))

        embedding.forward = forward

    on_transformers_model(change)


def expert_ids(*, layer, by):
    """One layer's experts are counted from another one."""

    def change(model):
        gate = model.model.layers[layer].mlp.gate
        stock = gate.forward

        def forward(hidden_states):
            logits, scores, indices = stock(hidden_states)
            return logits, scores, (indices + by) % gate.num_experts

        gate.forward = forward

    on_transformers_model(change)


def expert_rows(*, by):
    """Routing decisions are applied `by` tokens late."""

    def change(model):
        for layer in model.model.layers:
            gate = layer.mlp.gate

            def forward(hidden_states, stock=gate.forward):
                logits, scores, indices = stock(hidden_states)
                return logits, scores.roll(by, dims=0), indices.roll(by, dims=0)

            gate.forward = forward

    on_transformers_model(change)


def expert_capacity(*, factor):
    """An expert takes only so many tokens of a batch; the others lose its part."""

    def change(model):
        import torch

        for layer in model.model.layers:
            gate = layer.mlp.gate

            def forward(hidden_states, stock=gate.forward, gate=gate):
                logits, scores, indices = stock(hidden_states)
                room = int(factor * indices.numel() / gate.num_experts)
                chosen = torch.nn.functional.one_hot(indices.flatten(), gate.num_experts)
                place = (chosen.cumsum(0) * chosen).sum(-1).view_as(indices)
                return logits, scores * (place <= room), indices

            gate.forward = forward

    on_transformers_model(change)


def fewer_experts(*, count):
    """Fewer experts are asked than the model has chosen."""

    def change(model):
        for layer in model.model.layers:
            layer.mlp.gate.top_k = count

    on_transformers_model(change)


def autocast():
    """The forward runs under an autocast that the configuration does not name."""

    def change(model):
        import torch

        stock = model.forward

        def forward(*arguments, **named):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return stock(*arguments, **named)

        model.forward = forward

    on_transformers_model(change)


def coarse_norms():
    """Norms stay in the activation's dtype from end to end."""

    def change(model):
        for path, module in model.named_modules():
            if path.endswith("norm") and hasattr(module, "variance_epsilon"):

                def forward(x, module=module):
                    return x * ((x * x).mean(-1, keepdim=True) + module.variance_epsilon).rsqrt() * module.weight

                module.forward = forward

    on_transformers_model(change)


def partial_sums(*, parts):
    """Projections back into the residual stream are summed from parts, each rounded, as ranks would."""

    def change(model):
        import torch.nn.functional as functional

        for path, module in model.named_modules():
            if path.endswith(("o_proj", "down_proj")) and hasattr(module, "in_features"):

                def forward(x, module=module):
                    size = module.in_features // parts
                    total = 0
                    for start in range(0, module.in_features, size):
                        part = slice(start, start + size)
                        total = total + functional.linear(x[..., part], module.weight[:, part])
                    return total if module.bias is None else total + module.bias

                module.forward = forward

    on_transformers_model(change)
