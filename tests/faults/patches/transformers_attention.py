"""Masks, positions and attention of Transformers gone wrong, one function per module of a train side."""

from __future__ import annotations

from tests.faults.patches.loading import on_transformers_model


def attention_window(*, off):
    """Every sliding window is `off` tokens longer."""
    from transformers import masking_utils

    stock = masking_utils.sliding_window_overlay
    masking_utils.sliding_window_overlay = lambda window: stock(window + off)


def attention_scale(*, layer, factor):
    """One layer scales its scores by another number."""

    def change(model):
        model.model.layers[layer].self_attn.scaling *= factor

    on_transformers_model(change)


def attention_sinks(*, layers):
    """The softmax of these layers has no sink."""
    from transformers.models.gpt_oss import modeling_gpt_oss
    from transformers.models.qwen3.modeling_qwen3 import eager_attention_forward

    stock = modeling_gpt_oss.eager_attention_forward

    def forward(module, *arguments, **named):
        if module.layer_idx not in layers:
            return stock(module, *arguments, **named)
        named.pop("s_aux", None)
        return eager_attention_forward(module, *arguments, **named)

    modeling_gpt_oss.eager_attention_forward = forward


def long_packs(*, beyond):
    """Rows longer than a bound are not seen to be packed."""
    from transformers import masking_utils

    stock = masking_utils.find_packed_sequence_indices

    def find(position_ids):
        return None if position_ids.shape[-1] > beyond else stock(position_ids)

    masking_utils.find_packed_sequence_indices = find


def padding_seen():
    """The mask of the padding never reaches the attention."""
    from transformers import masking_utils

    stock = masking_utils._preprocess_mask_arguments

    def preprocess(config, inputs_embeds, attention_mask, past_key_values, position_ids, layer_idx):
        return stock(config, inputs_embeds, None, past_key_values, None, layer_idx)

    masking_utils._preprocess_mask_arguments = preprocess


def first_row_mask():
    """The padding of a batch's first row is taken for every row."""
    from transformers import masking_utils

    stock = masking_utils._preprocess_mask_arguments

    def preprocess(config, inputs_embeds, attention_mask, *arguments, **named):
        if attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = attention_mask[:1].expand_as(attention_mask)
        return stock(config, inputs_embeds, attention_mask, *arguments, **named)

    masking_utils._preprocess_mask_arguments = preprocess


def key_heads():
    """Key and value heads are tiled over the query heads instead of repeated."""
    from transformers.integrations import sdpa_attention

    def repeat_kv(hidden_states, n_rep):
        return hidden_states.repeat(1, n_rep, 1, 1)

    sdpa_attention.repeat_kv = repeat_kv
    sdpa_attention.use_gqa_in_sdpa = lambda *arguments: False


def clamped_positions(*, last):
    """Positions stop counting at the length that the table was built for."""

    def change(model):
        rotary = model.model.rotary_emb
        stock = rotary.forward
        rotary.forward = lambda x, position_ids, *rest, **named: stock(x, position_ids.clamp(max=last), *rest, **named)

    on_transformers_model(change)


def rotary_base(*, factor):
    """The base of the rotation is another one."""

    def change(model):
        rotary = model.model.rotary_emb
        size = 2 * len(rotary.inv_freq)
        exponents = (rotary.inv_freq.new_tensor(range(0, size, 2))) / size
        rotary.inv_freq = rotary.inv_freq / factor**exponents

    on_transformers_model(change)


def coarse_rotation():
    """Cosines and sines go through half precision."""

    def change(model):
        import torch

        rotary = model.model.rotary_emb
        stock = rotary.forward

        def forward(*arguments, **named):
            return tuple(part.to(torch.bfloat16).to(part.dtype) for part in stock(*arguments, **named))

        rotary.forward = forward

    on_transformers_model(change)


def coarse_softmax():
    """Attention weights are computed in the activation's dtype from end to end."""
    import torch
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import repeat_kv

    def forward(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **named):
        groups = getattr(module, "num_key_value_groups", 1)
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        scores = (query @ key.transpose(-1, -2)) * (scaling or query.shape[-1] ** -0.5)
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        elif attention_mask is not None:
            scores = scores + attention_mask
        elif query.shape[2] > 1:
            later = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights @ value).transpose(1, 2).contiguous(), None

    AttentionInterface.register("sdpa", forward)
