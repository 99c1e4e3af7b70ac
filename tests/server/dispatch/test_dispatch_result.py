"""From two engines' traces to one result: boundaries, ranked differences, switches, ranks, findings."""

from __future__ import annotations

from typing import Any

import pytest
from logdiff.dispatch import inspect as inspection
from logdiff.dispatch.boundaries import boundary
from logdiff.dispatch.inspect import result
from logdiff.dispatch.ranks import odd_ones
from logdiff.dispatch.table import by_boundary, side_by_side
from logdiff.dispatch.toggle import changes, failed_changes, parse_toggle, verdict, with_toggle
from logdiff.errors import EngineError, InputError
from logdiff.live import RunFile


def entry(where: str, op: str, tensors: str = "bf16[T,8]", caller: str = "m.f", count: int = 4) -> dict[str, Any]:
    return {
        "where": where, "op": op, "from": caller, "in": [tensors], "out": [tensors], "options": "", "count": count,
        "layers": "0-3",
    }  # fmt: skip


def document(entries: list[dict[str, Any]], phase: str = "score", **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "engine": {"name": "engine", "version": "1"},
        "native": True,
        "aligned": None,
        "digest": "0",
        "skipped": {},
        "resolved": {"attention": "sdpa"},
        "switches": {},
        "threads": 1,
        "phases": {phase: {"entries": entries, "calls": len(entries), "views": 0, "steps": 1, "beyond": 0}},
        "native_pass": {phase: {"ops": {}, "kernels": {}, "direct": {}, "generated": []}},
        "operators": {},
        "patched": {"findings": [], "explained": [], "checked": {"functions": 1, "modules": 1}, "digest": "p"},
        "libraries": [],
        "modules": {},
        "ranks": [{"operators": "a", "patched": "b"}],
        "rank_findings": [],
    }
    return {**base, **more}


@pytest.mark.parametrize(
    ("where", "op", "caller", "expected"),
    [
        ("model.layers.*.self_attn.q_proj", "aten.mm.default", "f", "self_attn.qkv_proj"),
        ("model.layers.*.self_attn.qkv_proj", "_C.onednn_mm.default", "f", "self_attn.qkv_proj"),
        ("model.layers.*.mlp.up_proj", "aten.mm.default", "f", "mlp.gate_up_proj"),
        ("model.layers.*.mlp", "aten.mul.Tensor", "x.Qwen3MLP.forward", "mlp.act"),
        ("model.layers.*.self_attn", "aten.mul.Tensor", "x.apply_rotary_pos_emb", "self_attn.rope"),
        ("model.layers.*.self_attn.rotary_emb", "_C.rotary_embedding.default", "f", "self_attn.rope"),
        ("model.layers.*.self_attn", "aten.bmm.default", "x.eager_attention_forward", "self_attn.attention"),
        ("model.layers.*.self_attn.attn", "vllm.unified_attention.default", "f", "self_attn.attention"),
        ("model.layers.*", "aten.add.Tensor", "f", "residual"),
        ("model.layers.*.mlp.experts.#.down_proj", "aten.mm.default", "f", "mlp.experts"),
        ("model.embed_tokens", "aten.embedding.default", "f", "embedding"),
        ("lm_head", "aten.mm.default", "f", "lm_head"),
        ("logits_processor", "aten.mm.default", "f", "lm_head"),
        ("", "aten._log_softmax.default", "f", "logprob"),
        ("", "aten.add.Tensor", "f", "around the model"),
        ("grad model.layers.*.self_attn.o_proj", "aten.mm.default", "", "grad self_attn.o_proj"),
    ],
)
def test_module_names_of_both_engines_meet_at_one_boundary(where: str, op: str, caller: str, expected: str) -> None:
    assert boundary(entry(where, op, caller=caller)) == expected


def test_differences_are_ranked_provider_then_dtype_then_operators() -> None:
    layer = "model.layers.*."
    rollout = by_boundary(
        [
            entry(f"{layer}input_layernorm", "_C.rms_norm.default"),
            entry(f"{layer}mlp.down_proj", "aten.mm.default"),
            entry("model.norm", "aten.mul.Tensor"),
            entry("lm_head", "aten.mm.default", "f32[T,8]"),
        ]
    )
    train = by_boundary(
        [
            entry(f"{layer}input_layernorm", "aten.mean.dim"),
            entry(f"{layer}mlp.down_proj", "aten.mm.default"),
            entry("model.norm", "aten.mul.Tensor"),
            entry("model.norm", "aten.rsqrt.default"),
            entry("lm_head", "aten.mm.default", "bf16[T,8]"),
            entry("", "aten._log_softmax.default", "f32[T,8]"),
        ]
    )
    rows = [(row["boundary"], row["kind"]) for row in side_by_side(rollout, train)]
    assert rows == [
        ("input_layernorm", "provider"),
        ("lm_head", "dtype"),
        ("norm", "operators"),
        ("logprob", "absent"),
        ("mlp.down_proj", "same"),
    ]


def test_a_cast_alone_shows_as_a_dtype_and_not_as_an_operator() -> None:
    cell = by_boundary([entry("lm_head", "aten._to_copy.default", "f32[T,8]"), entry("lm_head", "aten.mm.default")])
    assert cell["lm_head"]["ops"] == ["aten.mm.default"]
    assert cell["lm_head"]["dtypes"] == ["f32", "bf16"]


def test_a_switch_that_changes_nothing_is_a_finding_and_says_so() -> None:
    before = document([entry("lm_head", "aten.mm.default", count=4)])
    after = document([entry("lm_head", "aten.mm.default", count=9)])
    proof = verdict(parse_toggle("rollout:env:VLLM_BATCH_INVARIANT=1"), {"rollout": changes(before, after)})
    assert proof["changed"] is False
    assert proof["statement"].startswith("the switch changed nothing")
    data = result({"rollout": before}, [proof])
    assert [f["kind"] for f in data["findings"]] == ["toggle"]


def test_a_switch_shows_the_operators_kernels_and_functions_that_it_changed() -> None:
    before = document([entry("lm_head", "aten.mm.default")])
    record = {"kind": "replaced", "target": "torch.sum", "by": "no distribution", "code": "ff", "detail": "d"}
    native = {"score": {"ops": {}, "kernels": {"oneDNN matmul gemm": 1}, "direct": {}, "generated": []}}
    after = document(
        [entry("lm_head", "logdiff.linear.default")],
        native_pass=native,
        patched={**before["patched"], "findings": [{**record, "live": "", "notes": []}]},
    )
    proof = verdict(parse_toggle("align=all"), {"rollout": changes(before, after), "train": changes(before, before)})
    found = proof["sides"]["rollout"]["executed"]
    assert proof["changed"] is True
    assert set(found) == {"operators", "kernels", "patched"}
    assert "logdiff.linear.default" in found["operators"]["new"][0]
    assert "aten.mm.default" in found["operators"]["gone"][0]
    assert found["kernels"]["new"] == ["score: oneDNN matmul gemm"]
    assert proof["sides"]["train"]["executed"] == {}


def test_a_setting_that_moves_without_any_code_is_no_proof() -> None:
    before = document([entry("lm_head", "aten.mm.default")])
    after = document([entry("lm_head", "aten.mm.default")], resolved={"attention": "flash"})
    proof = verdict(parse_toggle("args:attn_implementation=flash"), {"rollout": changes(before, after)})
    assert proof["changed"] is False
    assert "resolved.attention" in proof["statement"]


def test_an_engine_that_refuses_a_switch_leaves_it_not_proven() -> None:
    proof = verdict(parse_toggle("args:x=1"), {"rollout": {"error": "unknown argument x"}})
    assert proof["result"] == "not proven"
    assert proof["changed"] is None
    assert "not proven" in proof["statement"]
    assert result({"rollout": document([])}, [proof])["findings"][0]["kind"] == "toggle"


FAILURE = {
    "phase": "prefill",
    "pass": "watched",
    "error": "TypeError: no grid",
    "where": ["vllm/a.py:7 in mean_dim", "vllm/norm.py:3 in forward"],
}


def registered(*targets: str) -> dict[str, Any]:
    records = [
        {"kind": "operator", "target": t, "by": "vllm 0.32", "code": "", "detail": "wrong", "live": "", "notes": []}
        for t in targets
    ]
    return {"findings": records, "explained": [], "checked": {"functions": 1, "modules": 1}, "digest": "p"}


def test_an_engine_that_fails_with_a_switch_says_where_and_what_the_switch_had_changed() -> None:
    before = document([entry("lm_head", "aten.mm.default")])
    after = document([], failed=FAILURE, patched=registered("aten::mean.dim", "aten::bmm"), resolved={"attention": "x"})
    one = failed_changes(before, after)
    assert set(one) == {"failed", "inventory", "settings"}
    assert set(one["inventory"]) == {"patched"}, "operators of passes that did not end are compared with nothing"
    assert one["settings"] == {"resolved.attention": ["sdpa", "x"]}
    proof = verdict(parse_toggle("rollout:env:A=1"), {"rollout": one})
    assert (proof["result"], proof["changed"]) == ("failed with the switch", None)
    assert proof["statement"] == (
        "failed with the switch: with rollout:env:A=1 the rollout engine fails in prefill: TypeError: no grid at "
        "vllm/a.py:7 in mean_dim; what it had changed by then, and no phase shows at work: operator: aten::bmm, "
        "operator: aten::mean.dim"
    )
    found = result({"rollout": before}, [proof])["findings"]
    assert [(f["kind"], f["what"], f["detail"]) for f in found] == [("toggle", "rollout:env:A=1", proof["statement"])]


def test_a_failure_before_which_the_switch_changed_nothing_says_so() -> None:
    before = document([])
    proof = verdict(parse_toggle("env:A=1"), {"train": failed_changes(before, document([], failed=FAILURE))})
    assert proof["statement"].endswith("by then it had changed no registration and no function")


def test_a_side_that_fails_is_not_hidden_by_the_other_that_changed() -> None:
    before = document([entry("lm_head", "aten.mm.default")])
    moved = changes(before, document([entry("lm_head", "logdiff.linear.default")]))
    failed = failed_changes(before, document([], failed=FAILURE))
    proof = verdict(parse_toggle("align=all"), {"rollout": failed, "train": moved})
    assert (proof["result"], proof["changed"]) == ("failed with the switch", True)
    assert "the rollout engine fails in prefill" in proof["statement"]
    assert "align=all changed what runs on train: operators" in proof["statement"]
    assert len(result({"rollout": before}, [proof])["findings"]) == 1


def test_a_side_that_fails_without_any_switch_is_an_error_that_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = RunFile.from_dict(
        {
            "format": "logdiff-run/1",
            "model": "builtin:qwen3",
            "prompts": {"random": {"count": 1, "lengths": [4]}},
            "rollout": {"engine": "vllm"},
            "train": {"engine": "transformers"},
        }
    )
    monkeypatch.setattr(inspection, "resolve_models", lambda *_: {"rollout": None, "train": None})
    monkeypatch.setattr(inspection, "collect", lambda *_, **__: document([], failed=FAILURE))
    with pytest.raises(EngineError) as caught:
        inspection.inspect(run, sides=["rollout"])
    assert caught.value.message == "the rollout engine failed in prefill: TypeError: no grid"
    assert caught.value.value == "vllm/a.py:7 in mean_dim"
    assert "vllm/norm.py:3 in forward" in caught.value.hint


def test_an_engine_that_dies_with_a_switch_leaves_it_not_proven_with_its_words_and_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = RunFile.from_dict(
        {
            "format": "logdiff-run/1",
            "model": "builtin:qwen3",
            "prompts": {"random": {"count": 1, "lengths": [4]}},
            "rollout": {"engine": "vllm"},
            "train": {"engine": "transformers"},
        }
    )

    def collected(run: RunFile, side: str, *_: Any, **__: Any) -> dict[str, Any]:
        if run.rollout.env.get("A"):
            raise EngineError(
                "vLLM failed: EngineDeadError: dead", hint="raised at vllm/v1/engine/core_client.py:9 in f"
            )
        return document([])

    monkeypatch.setattr(inspection, "resolve_models", lambda *_: {"rollout": None, "train": None})
    monkeypatch.setattr(inspection, "collect", collected)
    data, _ = inspection.inspect(run, sides=["rollout"], toggles=["rollout:env:A=1"])
    assert data["toggles"][0]["result"] == "not proven"
    assert data["findings"][0]["detail"].endswith(
        "EngineDeadError: dead; raised at vllm/v1/engine/core_client.py:9 in f"
    )


@pytest.mark.parametrize(
    ("text", "kind", "name", "value", "sides"),
    [
        ("env:A=1", "env", "A", "1", ("rollout", "train")),
        ("rollout:env:A=b=c", "env", "A", "b=c", ("rollout",)),
        ("train.args.attn_implementation=eager", "args", "attn_implementation", "eager", ("train",)),
        ("args:enforce_eager=false", "args", "enforce_eager", False, ("rollout", "train")),
        ("align=all", "align", "", "all", ("rollout", "train")),
        ("rollout:modules=a.py", "modules", "", "a.py", ("rollout",)),
    ],
)
def test_switches_are_read(text: str, kind: str, name: str, value: Any, sides: tuple[str, ...]) -> None:
    toggle = parse_toggle(text)
    assert (toggle.kind, toggle.name, toggle.value, toggle.sides) == (kind, name, value, sides)


@pytest.mark.parametrize("text", ["", "env", "env:=1", "env:A", "foo:A=1", "args:=2", "rollout:A=1"])
def test_a_switch_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_toggle(text)


def test_a_switch_is_set_on_its_side_alone() -> None:
    run = RunFile.from_dict(
        {
            "format": "logdiff-run/1",
            "model": "builtin:qwen3",
            "prompts": {"random": {"count": 1, "lengths": [4]}},
            "rollout": {"engine": "vllm", "env": {"A": "0", "B": "2"}},
            "train": {"engine": "transformers"},
        }
    )
    changed = with_toggle(run, parse_toggle("rollout:env:A=1"))
    assert changed.rollout.env == {"A": "1", "B": "2"}
    assert changed.train.env == {}
    assert with_toggle(run, parse_toggle("train:align=rms_norm")).align.of("train") == ["rms_norm"]
    assert with_toggle(run, parse_toggle("train:align=rms_norm")).align.of("rollout") == []


def test_the_odd_one_of_several_hosts_is_named() -> None:
    same = {"operators": "a", "libraries": "b"}
    found = odd_ones({f"rank {i}": same for i in range(7)} | {"rank 7 on host-b": {**same, "libraries": "c"}})
    assert [(odd["part"], odd["odd"]) for odd in found] == [("libraries", ["rank 7 on host-b"])]


def test_of_two_that_differ_neither_is_called_right() -> None:
    found = odd_ones({"rank 0": {"patched": "a"}, "rank 1": {"patched": "b"}})
    assert found[0]["odd"] == ["rank 0", "rank 1"]


def test_a_part_that_one_process_lacks_is_a_difference() -> None:
    found = odd_ones({"a": {"p": "1"}, "b": {"p": "1"}, "c": {}})
    assert found[0]["odd"] == ["c"]


def test_clean_documents_have_no_findings_and_a_stable_digest() -> None:
    documents = {"rollout": document([], "decode"), "train": document([])}
    data = result(documents, [])
    assert data["findings"] == []
    assert data["digest"] == result(documents, [])["digest"]
    moved = {**documents, "train": document([], ranks=[{"operators": "z", "patched": "b"}])}
    assert result(moved, [])["digest"] != data["digest"]


def test_patched_functions_libraries_and_ranks_become_findings() -> None:
    record = {"kind": "wrapped", "target": "vllm.x", "detail": "d", "by": "b", "live": "f:1", "notes": [], "code": ""}
    changed = {"file": "torch/lib/libtorch.so", "sha256": "0", "changed": "its hash", "operators": False, "by": "torch"}
    one = document(
        [],
        patched={"findings": [record], "explained": [], "checked": {"functions": 1, "modules": 1}, "digest": "p"},
        libraries=[changed],
        ranks=[{"operators": "a"}, {"operators": "a"}, {"operators": "b"}],
    )
    kinds = [f["kind"] for f in result({"rollout": one}, [])["findings"]]
    assert kinds == ["wrapped", "library", "rank"]


def test_functions_of_ours_without_an_overlay_are_a_leftover() -> None:
    assert result({"rollout": document([], native=False)}, [])["findings"][0]["kind"] == "leftover"
    assert result({"rollout": document([], native=False, aligned={"ops": []})}, [])["findings"] == []


def test_compiled_code_is_said_to_hide_operators() -> None:
    generated = [{"file": "c.py", "calls": 2, "kernels": ["cpp_fused_add_0"], "extern": ["mm"], "sha256": "1"}]
    native = {"score": {"ops": {}, "kernels": {}, "direct": {}, "generated": generated}}
    facts = result({"train": document([entry("lm_head", "aten.mm.default")], native_pass=native)}, [])["sides"]["train"]
    assert "1 generated files with 1 kernels" in facts["phases"]["score"]["compiled"]
