"""Captures of a Transformers model: rows are the tokens', whatever the layout, and watching changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captures import WHOLE, bits, by_place, capture, first_difference, order_of, places
from logdiff_kernels import sequences as files
from logdiff_kernels.align import OPERATORS, AlignSpec
from logdiff_kernels.engines.transformers.adapter import create
from logdiff_kernels.engines.transformers.align import apply
from logdiff_kernels.engines.transformers.scorer import Scorer
from logdiff_kernels.engines.transformers.settings import Score
from logdiff_kernels.errors import InputError
from logdiff_kernels.observe.boundaries.files import BoundaryFile
from logdiff_kernels.protocol import Request
from tf_reference import PROMPTS, RESPONSES, SAMPLE_IDS, nothing

FAMILIES = ["llama", "qwen2", "qwen3", "qwen3-moe", "mistral", "gemma2", "gemma3", "gpt-oss", "deepseek-v3"]
LAYOUTS = [
    (Score("padded", "right", 3), None),
    (Score("padded", "left", 4), [2, 0, 3, 1]),
    (Score("packed", micro_batch_size=3), [3, 1, 2, 0]),
]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_those_of_single_sequences_in_every_layout(
    name: str, load_model: Callable[..., Any], tmp_path: Path
) -> None:
    model = load_model(name)
    single, _, data = capture(model, tmp_path / "single", Score("single"))
    assert data["unmapped"] == []
    assert data["notes"] == []
    every = [(s, p) for s, ids in enumerate(WHOLE) for p in range(len(ids))]
    scored = [
        (s, len(p) - 1 + t) for s, (p, r) in enumerate(zip(PROMPTS, RESPONSES, strict=True)) for t in range(len(r))
    ]
    for score, order in LAYOUTS:
        if score.layout == "packed" and name == "gpt-oss":
            continue
        found, columns, _ = capture(model, tmp_path / "other", score, order=order)
        assert found.tensor("rows.input_id").tolist() == [token for ids in WHOLE for token in ids]
        assert found.tensor("rows.position_id").tolist() == [p for _, p in every]
        assert order_of(found) == order_of(single)
        for boundary in order_of(found):
            assert places(found, boundary) == (scored if boundary in ("logits", "logprob") else every)
            if boundary.endswith(("expert_ids", "expert_weights")):
                continue  # near ties of experts may fall otherwise in another layout
            a, b = found.tensor(boundary).double(), single.tensor(boundary).double()
            assert float((a - b).norm() / b.norm()) < 2e-3, boundary
        assert np.array_equal(found.tensor("logprob").flatten().numpy(), columns["logprobs"])


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma3", "gpt-oss", "deepseek-v3"])
def test_decoding_with_a_cache_gives_the_rows_of_scoring(
    name: str, load_model: Callable[..., Any], tmp_path: Path
) -> None:
    model = load_model(name)
    scored, _, _ = capture(model, tmp_path / "scored", Score("single"))
    found, columns, data = capture(model, tmp_path / "decoded", None, order=[3, 0, 1, 2])
    assert data["passes"] == 30 + 1  # of the first three in one batch the longest response, and one token
    fed = [(s, p) for s, ids in enumerate(WHOLE) for p in range(len(ids) - 1)]  # nothing follows the last token
    assert places(found, "embedding") == fed
    assert order_of(found) == order_of(scored)
    for boundary in order_of(found):
        if boundary.endswith(("expert_ids", "expert_weights")):
            continue
        theirs = by_place(scored, boundary)
        expected = torch.stack([theirs[place] for place in places(found, boundary)]).double()
        assert float((found.tensor(boundary).double() - expected).norm() / expected.norm()) < 2e-3, boundary
    assert np.array_equal(found.tensor("logprob").flatten().numpy(), columns["logprobs"])
    assert int(found.tensor("rows.pass").max()) == data["passes"] - 1


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt-oss"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logprobs_have_the_bits_that_they_have_unwatched(
    name: str, dtype: str, load_model: Callable[..., Any], tmp_path: Path
) -> None:
    model = load_model(name, dtype)
    before = _state(model)
    plain = Scorer(model, 0).score(PROMPTS, RESPONSES, Score(), temperature=1.0, progress=nothing).columns
    file, columns, _ = capture(model, tmp_path / "file", Score())
    assert np.array_equal(columns["logprobs"].view(np.int32), plain["logprobs"].view(np.int32))
    assert np.array_equal(file.tensor("logprob").flatten().numpy().view(np.int32), plain["logprobs"].view(np.int32))
    assert _state(model) == before


def _state(model: Any) -> list[Any]:
    """Everything that a watch could leave behind: hooks, forwards, and the names that attention code looks up."""
    import sys

    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), "forward" in m.__dict__) for m in model.modules()]
    home = vars(sys.modules[type(model).__module__])
    return [hooks, {k: id(v) for k, v in home.items()}, dict(ALL_ATTENTION_FUNCTIONS._local_mapping)]


def _noise(part: str) -> Callable[[Any], Any]:
    def plant(model: Any) -> Any:
        module = model.get_submodule(part)
        return module.register_forward_hook(lambda _m, _i, out: out + 1e-3 * torch.ones_like(out))

    return plant


PLANTED = {
    "model.embed_tokens": "embedding",
    "model.layers.2.input_layernorm": "layers.2.input_norm",
    "model.layers.1.self_attn.q_proj": "layers.1.q",
    "model.layers.1.self_attn.k_norm": "layers.1.k_norm",
    "model.layers.3.self_attn.v_proj": "layers.3.v",
    "model.layers.0.self_attn.o_proj": "layers.0.attn_out",
    "model.layers.2.mlp.up_proj": "layers.2.up",
    "model.layers.2.mlp.act_fn": "layers.2.act",
    "model.layers.1.mlp.down_proj": "layers.1.mlp_out",
    "model.norm": "final_norm",
    "lm_head": "logits",
}


@pytest.mark.parametrize("part", PLANTED)
def test_a_change_in_one_module_shows_in_its_boundary_first(
    part: str, load_model: Callable[..., Any], tmp_path: Path
) -> None:
    model = load_model("qwen3")
    clean, _, _ = capture(model, tmp_path / "clean", Score())
    handle = _noise(part)(model)
    try:
        found, _, data = capture(model, tmp_path / "planted", Score())
    finally:
        handle.remove()
    assert first_difference(clean, found) == PLANTED[part]
    assert data["unmapped"] == []


def test_a_change_between_two_modules_leaves_an_input_that_is_no_boundary(
    load_model: Callable[..., Any], tmp_path: Path
) -> None:
    model = load_model("qwen3")
    module = model.get_submodule("model.layers.1.mlp")
    handle = module.register_forward_pre_hook(lambda _m, args: (args[0] * 1.01,))
    try:
        found, _, _ = capture(model, tmp_path / "file", Score())
    finally:
        handle.remove()
    entries = {entry.name: entry for entry in found.entries()}
    assert entries["layers.1.gate"].inputs == ("",)
    given = found.tensor("layers.1.gate<in")
    assert torch.allclose(given, found.tensor("layers.1.mlp_norm") * 1.01)
    assert entries["layers.2.gate"].inputs == ("layers.2.mlp_norm",)
    assert entries["layers.1.residual"].inputs == ("layers.1.attn_residual", "layers.1.mlp_out")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_attention_of_user_code_is_seen_as_it_is(
    implementation: str, model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logdiff_kernels.engines.transformers.loading import load
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.qwen3 import modeling_qwen3

    model = load(str(model_folder("qwen3")), "float32", {"attn_implementation": implementation}).model
    clean, _, _ = capture(model, tmp_path / "clean", Score())

    def slipped(inner: Any) -> Any:
        def attend(module: Any, *args: Any, **kwargs: Any) -> Any:
            out, weights = inner(module, *args, **kwargs)
            return (out * 1.001 if module.layer_idx == 2 else out), weights

        return attend

    if implementation == "eager":
        monkeypatch.setattr(modeling_qwen3, "eager_attention_forward", slipped(modeling_qwen3.eager_attention_forward))
    else:
        table = ALL_ATTENTION_FUNCTIONS._global_mapping
        monkeypatch.setitem(table, "sdpa", slipped(table["sdpa"]))
    found, _, data = capture(model, tmp_path / "found", Score())
    assert first_difference(clean, found) == "layers.2.context"
    assert data["unmapped"] == []


def test_a_rotation_of_user_code_is_seen_as_it_is(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logdiff_kernels.engines.transformers.loading import load
    from transformers.models.qwen3 import modeling_qwen3

    model = load(str(model_folder("qwen3")), "float32", {}).model
    clean, _, _ = capture(model, tmp_path / "clean", Score())
    stock = modeling_qwen3.apply_rotary_pos_emb

    def turned(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return stock(q, k, cos, sin, unsqueeze_dim)[0], stock(q, k, cos, -sin, unsqueeze_dim)[1]

    monkeypatch.setattr(modeling_qwen3, "apply_rotary_pos_emb", turned)
    found, _, _ = capture(model, tmp_path / "found", Score())
    assert first_difference(clean, found) == "layers.0.k_rope"
    assert {e.name: e.inputs for e in found.entries()}["layers.0.k_rope"] == ("layers.0.k_norm",)


def test_attention_that_user_code_wrote_anew_is_followed_by_name(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logdiff_kernels.engines.transformers.loading import load
    from transformers.models.llama import modeling_llama

    def forward(self: Any, hidden_states: Any, position_embeddings: Any = None, **_kwargs: Any) -> Any:
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = (t.unsqueeze(1) for t in position_embeddings)
        half = self.head_dim // 2
        q, k = (x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin for x in (q, k))
        k, v = (x.repeat_interleave(self.num_key_value_groups, 1) for x in (k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2)), None

    monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", forward)
    model = load(str(model_folder("llama")), "float32", {}).model
    found, _, data = capture(model, tmp_path / "found", Score("single"))
    layer = {e.name.rpartition(".")[2] for e in found.entries() if e.name.startswith("layers.1.")}
    assert layer >= {"input_norm", "q", "k", "v", "context", "attn_out", "attn_residual", "mlp_norm", "residual"}
    assert {one["where"] for one in data["unmapped"]} == {f"layers.{n}" for n in range(4)}


@pytest.mark.parametrize("name", ["qwen3", "qwen3-moe", "deepseek-v3"])
def test_an_aligned_model_is_captured_with_its_own_bits(
    name: str, model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    from logdiff_kernels.engines.transformers.loading import load

    model = load(str(model_folder(name)), "float32", {}).model
    stock, _, _ = capture(model, tmp_path / "stock", Score())
    handle = apply(model, AlignSpec(frozenset(OPERATORS), id="test"))
    try:
        settings = {"temperature": 1.0, "progress": nothing}
        plain = Scorer(model, 0, aligned=True).score(PROMPTS, RESPONSES, Score(), **settings).columns["logprobs"]
        before = _state(model)
        found, _, data = capture(model, tmp_path / "aligned", Score())
        again = Scorer(model, 0, aligned=True).score(PROMPTS, RESPONSES, Score(), **settings).columns["logprobs"]
        assert _state(model) == before
    finally:
        handle.restore()
    assert np.array_equal(plain.view(np.int32), again.view(np.int32))
    missing = set(order_of(stock)) - set(order_of(found))
    assert {n.rpartition(".")[2] for n in missing} <= {"kv_b"}  # latents are taken as they are
    assert all(one["where"].endswith("kv_b_proj") for one in data["unmapped"])
    for boundary in set(order_of(found)) - {n for n in order_of(found) if "expert" in n}:
        a, b = found.tensor(boundary).double(), stock.tensor(boundary).double()
        if name == "deepseek-v3" and boundary.endswith("_rope"):  # stock code also sorts the pairs into halves
            a, b = a.sort(-1).values, b.sort(-1).values
        assert float((a - b).norm() / b.norm()) < 2e-2, boundary


def test_only_what_is_asked_for_is_kept(load_model: Callable[..., Any], tmp_path: Path) -> None:
    model = load_model("qwen3")
    whole, _, _ = capture(model, tmp_path / "whole", Score())
    part, _, data = capture(
        model,
        tmp_path / "part",
        Score(),
        samples=("b", "d"),
        last=4,
        boundaries=("layers.2.*", "final_norm", "logprob"),
    )
    assert part.header.sample_ids == ["b", "d"]
    assert {e.name.rpartition(".")[0] for e in part.entries()} == {"layers.2", ""}
    ends = {0: len(WHOLE[1]) - 1, 1: len(WHOLE[3]) - 1}
    kept = [(s, p) for s in range(2) for p in range(ends[s] - 4, ends[s] + 1)]
    assert places(part, "layers.2.q_rope") == kept
    assert places(part, "layers.2.v") == [(s, p) for s in range(2) for p in range(ends[s] + 1)]
    for boundary in ("layers.2.mlp_out", "final_norm"):
        theirs = by_place(whole, boundary)
        for (s, p), row in by_place(part, boundary).items():
            assert torch.equal(bits(row), bits(theirs[{0: 1, 1: 3}[s], p]))
    assert "layers.2.input_norm<in" in part  # the layer before isn't there to be named
    assert data["rows"] == sum(ends.values()) + 2
    assert data["unmapped"] == []  # what was not asked for is not missing


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return files.write(tmp_path / "in", files.build(SAMPLE_IDS, PROMPTS, RESPONSES))


@pytest.mark.parametrize(
    ("engine", "side", "phase", "kind"),
    [
        ("transformers", "train", "score", "score"),
        ("transformers", "rollout", "prefill", "rescore"),
        ("transformers-generate", "rollout", "decode", "force"),
        ("transformers-generate", "rollout", "prefill", "rescore"),
    ],
)
def test_the_task_writes_what_the_phases_own_task_writes(
    engine: str, side: str, phase: str, kind: str, model_folder: Callable[[str], Path], written: Path, tmp_path: Path
) -> None:
    folder = str(model_folder("qwen3"))
    adapter = create(Request(engine, side, folder, "bfloat16", sampling={"temperature": 0.7, "seed": 1}))
    given = {"input": str(written), "batch": 3, "order": "shuffled:5"}
    adapter.run({**given, "task": kind, "output": str(tmp_path / "plain")}, nothing)
    paths = {"logprobs": str(tmp_path / "logprobs"), "output": str(tmp_path / "boundaries")}
    done = adapter.run({**given, "task": "capture", "phase": phase, **paths}, nothing)
    plain, found = files.read(tmp_path / "plain"), files.read(tmp_path / "logprobs")
    assert found.metadata == plain.metadata
    assert set(found.columns) == set(plain.columns)
    assert all(np.array_equal(found.columns[name], values) for name, values in plain.columns.items())
    file = BoundaryFile(done.files["boundaries"])
    assert (file.header.engine, file.header.side, file.header.phase) == (engine, side, phase)
    assert (file.header.model, file.header.dtype) == (folder, "bfloat16")
    assert np.array_equal(file.tensor("logprob").flatten().numpy(), plain.columns["logprobs"])
    assert set(done.data) >= {"rows", "values", "bytes", "boundaries", "unmapped", "notes", "passes"}
    logits = file.tensor("logits")  # decoding divides in fp32, scoring in the dtype of the logits
    logp = torch.log_softmax(((logits.float() if kind == "force" else logits) / 0.7).float(), -1)
    tokens = torch.tensor([token for response in RESPONSES for token in response])
    assert float((logp.gather(-1, tokens[:, None]) - file.tensor("logprob")).abs().max()) < 1e-5


def test_a_phase_that_is_none_is_refused(model_folder: Callable[[str], Path], written: Path, tmp_path: Path) -> None:
    adapter = create(Request("transformers", "train", str(model_folder("qwen3")), "float32"))
    task = {"task": "capture", "phase": "training", "input": str(written), "logprobs": "x", "output": "y"}
    with pytest.raises(InputError, match="unknown phase"):
        adapter.run(task, nothing)
