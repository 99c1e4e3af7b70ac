import re
from pathlib import Path

import pytest
from logdiff.errors import InputError
from logdiff.live.runfile import (
    MAX_BYTES,
    Align,
    Prompts,
    RandomPrompts,
    RolloutSide,
    RunFile,
    Sampling,
    Score,
    Update,
    load_run_file,
)
from logdiff.target.alignment import OPERATORS

WHOLE = """
format: logdiff-run/1
model: model
dtype: bfloat16
prompts: {random: {count: 8, lengths: [7, 33, 128], seed: 1}}
sampling: {max_tokens: 64, temperature: 1.0, top_p: 1.0, top_k: -1, seed: 7}
rollout: {engine: vllm, args: {enforce_eager: true, block_size: 128}, env: {A: "1"}, modules: [m.py]}
train:   {engine: transformers, args: {attn_implementation: sdpa}, env: {}, modules: [],
          score: {layout: padded, padding_side: right, micro_batch_size: 8}}
steps: 1
align: {}
"""


def minimal(**changes):
    data = {
        "format": "logdiff-run/1",
        "model": "/m",
        "prompts": {"random": {"count": 1, "lengths": [3]}},
        "rollout": {"engine": "vllm"},
        "train": {"engine": "transformers"},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        at = data
        for parent in parents:
            at = at.setdefault(parent, {})
        at[last] = value
    return data


@pytest.fixture
def write(tmp_path):
    (tmp_path / "m.py").write_text("x = 1\n")

    def make(text):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return path

    return make


def test_the_run_file_of_the_documentation_is_read_with_paths_relative_to_itself(write, tmp_path, monkeypatch):
    path = write(WHOLE)
    monkeypatch.chdir("/")
    run = load_run_file(path)
    assert run.model == str(tmp_path / "model")
    assert run.rollout.modules == [str(tmp_path / "m.py")]
    assert run.rollout.args == {"enforce_eager": True, "block_size": 128}
    spec = run.spec("train")
    assert (spec.engine, spec.dtype, spec.score) == (
        "transformers",
        "bfloat16",
        {"layout": "padded", "padding_side": "right", "micro_batch_size": 8},
    )
    assert run.spec("rollout").sampling["max_tokens"] == 64


def test_a_side_has_its_own_model_dtype_and_python():
    run = RunFile.from_dict(minimal(train__model="/other", train__dtype="float32", train__python="python3"))
    assert (run.spec("train").model, run.spec("train").dtype, run.spec("train").python) == (
        "/other",
        "float32",
        "python3",
    )
    assert (run.spec("rollout").model, run.spec("rollout").dtype, run.spec("rollout").python) == (
        "/m",
        "bfloat16",
        None,
    )


def test_a_small_local_model_is_named_by_a_prefix_and_is_no_path():
    assert RunFile.from_dict(minimal(model="builtin:qwen3")).spec("train").model == "builtin:qwen3"


@pytest.mark.parametrize(
    ("change", "where", "hint"),
    [
        ({"sampling__temprature": 1.0}, "sampling.temprature", "did you mean `temperature`"),
        ({"rolout": {}}, "rolout", "did you mean `rollout`"),
        ({"rollout__arg": {}}, "rollout.arg", "did you mean `args`"),
        ({"train__score__layuot": "single"}, "train.score.layuot", "did you mean `layout`"),
        ({"prompts__random__cuont": 3}, "prompts.random.cuont", "did you mean `count`"),
        ({"rollout__engine": "vlm"}, "rollout.engine", "did you mean `vllm`"),
        ({"train__engine": "vllm"}, "train.engine", "transformers"),
        ({"train__score__layout": "ragged"}, "train.score.layout", ""),
        ({"sampling__temperature": "hot"}, "sampling.temperature", ""),
        ({"sampling__temperature": -1.0}, "sampling.temperature", ""),
        ({"sampling__temperature": float("nan")}, "sampling.temperature", ""),
        ({"sampling__max_tokens": 0}, "sampling.max_tokens", ""),
        ({"sampling__max_tokens": True}, "sampling.max_tokens", ""),
        ({"sampling__max_tokens": 2.5}, "sampling.max_tokens", ""),
        ({"steps": 0}, "steps", ""),
        ({"dtype": "int8"}, "dtype", ""),
        ({"prompts__text": "x.txt"}, "prompts", ""),
        ({"prompts": {}}, "prompts", ""),
        ({"prompts__random__lengths": []}, "prompts.random.lengths", ""),
        ({"prompts__random__lengths": [0]}, "prompts.random.lengths", ""),
        ({"rollout__env": {"A": ["x"]}}, "rollout.env.A", ""),
        ({"model": None}, "model", ""),
        ({"align": {"ops": ["atention"]}}, "align.ops", ""),
        ({"align": {"ops": []}}, "align.ops", ""),
        ({"align": {"ops": "all", "sides": []}}, "align.sides", ""),
        ({"align": {"op": "all"}}, "align.op", "`ops`"),
        ({"align": {"tokens": "nowhere"}}, "align.tokens", "relative to"),
        ({"align": {"ops": "all"}, "rollout__engine": "vllm-http"}, "running server", "env.sh"),
        ({"train__modules": ["nowhere.py"]}, "train.modules", "relative to"),
        ({"format": "logdiff-run/2"}, "format", ""),
        ({"rollout__engine": "vllm-http", "steps": 2}, "running server", "engine vllm"),
    ],
)
def test_what_is_wrong_is_named_with_the_nearest_valid_key(change, where, hint):
    with pytest.raises(InputError, match=where.replace(".", r"\.")) as error:
        RunFile.from_dict(minimal(**change))
    assert hint in error.value.hint
    assert error.value.exit_code == 2


def test_a_missing_key_is_named():
    data = minimal()
    del data["rollout"]
    with pytest.raises(InputError, match="`rollout` is missing"):
        RunFile.from_dict(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "just words",
        "- a\n- b",
        "format: [unclosed",
        "format: logdiff-run/1\nformat: logdiff-run/1\n",
        "a: &x [1]\nb: *x\n",
        "!!python/object/apply:os.system [echo hi]",
        "1: 2",
        "[" * 5000,
    ],
)
def test_what_is_no_run_file_is_an_input_error(write, text):
    with pytest.raises(InputError):
        load_run_file(write(text))


def test_a_run_file_that_is_missing_large_or_binary_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="no such run file"):
        load_run_file(tmp_path / "none.yaml")
    (tmp_path / "large.yaml").write_text("#" * (MAX_BYTES + 1))
    with pytest.raises(InputError, match="too large"):
        load_run_file(tmp_path / "large.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="can't be read"):
        load_run_file(tmp_path / "binary.yaml")


def test_numbers_are_read_as_a_person_means_them(write):
    run = load_run_file(write(WHOLE.replace("temperature: 1.0", "temperature: 1").replace("top_p: 1.0", "top_p: 9e-1")))
    assert (run.sampling.temperature, run.sampling.top_p) == (1.0, 0.9)
    assert RunFile.from_dict(minimal(rollout__env={"N": 2})).rollout.env == {"N": "2"}


def test_the_digest_follows_every_key_and_the_contents_of_named_files(write, tmp_path):
    path = write(WHOLE)
    first = load_run_file(path).digest()
    assert load_run_file(write(WHOLE + "\n# a comment\n")).digest() == first
    assert load_run_file(write(WHOLE.replace("seed: 7", "seed: 8"))).digest() != first
    (tmp_path / "m.py").write_text("x = 2\n")
    assert load_run_file(write(WHOLE)).digest() != first


def test_values_of_environment_variables_are_not_kept():
    run = RunFile.from_dict(minimal(rollout__env={"TOKEN": "secret"}))
    assert "secret" not in str(run.public())
    assert run.public()["rollout"]["env"] == ["TOKEN"]


def test_the_aligned_example_is_accepted():
    run = load_run_file(Path(__file__).resolve().parents[3] / "examples" / "run-aligned.yaml")
    assert run.align.of("rollout") == run.align.of("train") == list(OPERATORS)


def test_an_unaligned_run_keeps_its_digest_and_its_public_form_without_operators():
    run = RunFile.from_dict(minimal())
    assert run.public()["align"] == {}
    assert run.digest() == RunFile.from_dict(minimal(align={})).digest()
    assert run.digest() != RunFile.from_dict(minimal(align={"ops": "all"})).digest()
    assert run.with_align(ops=["rope"]).align.of("train") == ["rope"]


def test_every_key_stands_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "run-file.md").read_text()
    models = (RunFile, Prompts, Sampling, Align, Update, RolloutSide, RandomPrompts, Score)
    missing = {name for model in models for name in model.model_fields if not re.search(rf"\b{name}\b", text)}
    assert not missing
