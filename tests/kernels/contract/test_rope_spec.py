"""RoPE specs against transformers' own frequencies, and tables against 60-digit arithmetic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
from logdiff_kernels.contract.rope import MAX_POSITION, RopeSpec, table
from logdiff_kernels.errors import InputError, UnsupportedError

HALF = 32
RULES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 2048},
    "yarn-deepseek": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
        "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1,
    },
    "yarn-gpt-oss": {
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False,
        "beta_fast": 32.0, "beta_slow": 1.0,
    },
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    },
    "longrope": {
        "short_factor": [1.0 + i / 50 for i in range(HALF)], "long_factor": [2.0 + i for i in range(HALF)],
        "original_max_position_embeddings": 4096, "factor": 8.0,
    },
    "proportional": {"partial_rotary_factor": 0.25, "factor": 2.0},
}  # fmt: skip


def _config(name: str, theta: float = 500000.0) -> Any:
    from transformers import LlamaConfig

    rule = {"rope_type": name, "rope_theta": theta, **RULES[name]}
    return LlamaConfig(head_dim=2 * HALF, hidden_size=256, num_attention_heads=4, max_position_embeddings=131072,
                       rope_parameters=rule)  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_frequencies_and_factor_are_those_of_transformers(name: str) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = _config(name)
    kind = config.rope_parameters["rope_type"]
    init = ROPE_INIT_FUNCTIONS.get(kind, LlamaRotaryEmbedding.compute_default_rope_parameters)
    theirs, factor = init(config)
    spec = RopeSpec.from_hf(config)
    assert spec.kind == kind
    assert spec.agrees_with(theirs.numpy(), factor)
    assert not spec.agrees_with(theirs.numpy() * 1.001, factor)
    assert not spec.agrees_with(theirs.numpy(), factor + 0.01)


def test_the_older_form_of_a_configuration_means_the_same() -> None:
    for name, rule in RULES.items():
        kind = rule.get("rope_type", name)
        scaling = {"type": kind, **{k: v for k, v in rule.items() if k != "rope_type"}}
        old = {
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": None if name == "default" else scaling,
        }
        assert RopeSpec.from_hf(old) == RopeSpec.from_hf(_config(name)), name


def test_layer_types_have_frequencies_of_their_own() -> None:
    nested = {
        "head_dim": 64,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    }
    old = {"head_dim": 64, "rope_theta": 1e6, "rope_local_base_freq": 10000.0,
           "rope_scaling": {"rope_type": "linear", "factor": 8.0}}  # fmt: skip
    for kind in ("sliding_attention", "full_attention"):
        assert RopeSpec.from_hf(nested, kind) == RopeSpec.from_hf(old, kind)
    assert RopeSpec.from_hf(nested, "full_attention").inv_freq[0] == 0.125
    with pytest.raises(InputError, match="layer type"):
        RopeSpec.from_hf(nested)


def test_gemma3_of_transformers_gives_both_specs() -> None:
    from transformers import Gemma3TextConfig
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

    config = Gemma3TextConfig(num_hidden_layers=6, head_dim=64)
    module = Gemma3RotaryEmbedding(config)
    for kind in set(config.layer_types):
        spec = RopeSpec.from_hf(config, kind)
        assert spec.agrees_with(getattr(module, f"{kind}_inv_freq").numpy())


def test_partial_rotary_and_derived_head_size() -> None:
    spec = RopeSpec.from_hf({"hidden_size": 256, "num_attention_heads": 4, "partial_rotary_factor": 0.5})
    assert spec.rotary_dim == 32
    assert len(spec.inv_freq) == 16
    assert RopeSpec.from_hf({"hidden_size": 256, "num_attention_heads": 4}, head_dim=16).rotary_dim == 16


@pytest.mark.parametrize("name", ["default", "yarn", "llama3"])
def test_table_is_the_exact_value_rounded_once(name: str) -> None:
    spec = RopeSpec.from_hf(_config(name))
    positions = [0, 1, 2, 511, 4095, 40961, 131071, 1234567, MAX_POSITION - 1]
    cos, sin = table(spec, positions)
    mpmath.mp.dps = 60
    for row, position in enumerate(positions):
        for i in range(0, HALF, 3):
            angle = mpmath.mpf(position) * mpmath.mpf(spec.inv_freq[i])
            for ours, exact in ((cos[row, i], mpmath.cos(angle)), (sin[row, i], mpmath.sin(angle))):
                value = exact * mpmath.mpf(spec.attention_factor)
                below, above = np.nextafter(ours, np.float32(-9)), np.nextafter(ours, np.float32(9))
                distance = abs(mpmath.mpf(float(ours)) - value)
                assert distance <= min(abs(mpmath.mpf(float(o)) - value) for o in (below, above))


def test_a_row_depends_on_its_position_alone() -> None:
    spec = RopeSpec.from_hf(_config("yarn"))
    whole = table(spec, np.arange(1000))
    for pick in ([7], [999, 3, 3], np.arange(0, 1000, 7), np.arange(999, -1, -1)):
        for part, full in zip(table(spec, pick), whole, strict=True):
            assert part.tobytes() == full[pick].tobytes()


def test_frequencies_that_depend_on_other_rows_are_refused() -> None:
    dynamic = RopeSpec.from_hf(_config("dynamic"))
    table(dynamic, [131071])
    with pytest.raises(UnsupportedError, match="131072"):
        table(dynamic, [5, 131072])
    short, long = (RopeSpec.from_hf(_config("longrope"), max_length=n) for n in (4096, 4097))
    with pytest.raises(UnsupportedError, match="4096"):
        table(short, [4096])
    table(long, [4096])
    assert short.hash() != long.hash()
    assert long.inv_freq[3] == pytest.approx(short.inv_freq[3] * RULES["longrope"]["short_factor"][3] / 5.0)
    with pytest.raises(UnsupportedError):
        table(RopeSpec.from_hf(_config("default")), [MAX_POSITION])
    with pytest.raises(InputError, match="negative"):
        table(RopeSpec.from_hf(_config("default")), [-1])


@pytest.mark.parametrize("rule", [{"rope_type": "mystery"}, {"rope_type": "default", "mrope_section": [16, 24, 24]}])
def test_rules_that_are_not_covered_raise(rule: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        RopeSpec.from_hf({"head_dim": 64, "rope_parameters": {"rope_theta": 1e4, **rule}})


def test_layers_without_rope_and_incomplete_rules_raise() -> None:
    with pytest.raises(UnsupportedError, match="no RoPE"):
        RopeSpec.from_hf({"head_dim": 64, "rope_parameters": {"a": None, "b": {"rope_theta": 1.0}}}, "a")
    with pytest.raises(InputError, match="factor"):
        RopeSpec.from_hf({"head_dim": 64, "rope_scaling": {"type": "linear"}, "rope_theta": 1e4})
    with pytest.raises(InputError, match="even"):
        RopeSpec.from_hf({"head_dim": 65, "rope_theta": 1e4})


def test_the_hash_names_everything_that_a_table_depends_on() -> None:
    base = SimpleNamespace(head_dim=64, rope_theta=1e4)
    hashes = {RopeSpec.from_hf(base).hash(), RopeSpec.from_hf(_config("yarn")).hash(),
              RopeSpec.from_hf(SimpleNamespace(head_dim=64, rope_theta=2e4)).hash(),
              RopeSpec.from_hf(SimpleNamespace(head_dim=32, rope_theta=1e4)).hash()}  # fmt: skip
    assert len(hashes) == 4
    assert RopeSpec.from_hf(base).hash() == RopeSpec.from_hf({"head_dim": 64, "rope_theta": 1e4}).hash()
