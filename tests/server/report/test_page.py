from __future__ import annotations

import base64
import hashlib
import math
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from logdiff.case import Case
from logdiff.errors import InputError
from logdiff.measure import floor_summary, measure
from logdiff.report import render
from report_cases import MakeCase, Sample
from report_page import Page, read_page

FINGERPRINT = {"engine": {"name": "vllm", "version": "0.32.0"}, "config": {"dtype": "bfloat16", "block_size": 16}}
PLOTS = ["probability", "logprob", "histogram", "survival", "position"]


def _samples(count: int = 5, length: int = 20, seed: int = 0, noise: float = 0.05) -> list[Sample]:
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        a = -rng.gamma(0.5, 2.0, length)
        sides = {
            name: (a + rng.normal(0, scale, length)).astype(np.float32).tolist()
            for name, scale in (("rollout", 0.0), ("train", noise), ("rescore", noise / 3))
        }
        made.append(Sample(rng.integers(0, 50, length).tolist(), sides, sample_id=f"chat-{i}"))
    return made


def _measured(case: Case, floor: dict[str, Any] | None = None) -> Case:
    case.write_result("measure", measure(case.meta, case.batches()).with_floor(floor or {}).as_dict())
    case.close()
    return case


def _render(case: Case, tmp_path: Path, **more: Any) -> Page:
    result = render(case, tmp_path / "report.html", **more)
    page = read_page(result["html"])
    assert page.unbalanced == []
    _assert_self_contained(page)
    return page


def _assert_self_contained(page: Page) -> None:
    """Nothing is loaded, nothing runs but the one script whose hash the policy names, no inline style needs a pass."""
    for element in page.elements:
        for key, value in element.attributes.items():
            assert not key.startswith("on"), element
            assert key != "style", element
            if key in ("href", "xlink:href", "src", "srcset", "action", "data"):
                assert value.startswith(("data:image/png;base64,", "#")), element
    for tag in ("link", "iframe", "object", "embed", "base", "form", "img", "foreignobject"):
        assert page.all(tag) == []
    (policy,) = [m.attributes["content"] for m in page.all("meta") if m.attributes.get("http-equiv")]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (element,) = page.all(tag)
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy


def test_page_has_every_part_of_a_measured_run(make_case: MakeCase, tmp_path: Path) -> None:
    axes = [
        {"side": "rollout", "axis": "rerun", "value": None, "tokens": 100, "mismatched_tokens": 0}
        | dict.fromkeys(("max_abs", "mean_abs", "p50", "p90", "p99", "p999"), 0.0),
        {"side": "train", "axis": "batch", "value": 1, "tokens": 100, "mismatched_tokens": 100}
        | {"max_abs": 0.01, "mean_abs": 0.001, "p50": 0.001, "p90": 0.002, "p99": 0.005, "p999": 0.009},
    ]
    train = {"engine": {"name": "transformers", "version": "5.19"}, "config": {"dtype": "float32"}}
    case = make_case(
        _samples(),
        kind="run",
        name="a run",
        inputs={"run": {"model": "tiny"}},
        meta={"model": "tiny", "temperature": 1.0},
        fingerprints={"rollout": FINGERPRINT, "train": train},
        token_text={i: f"word{i}" for i in range(50)},
    )
    page = _render(_measured(case, floor_summary(axes)), tmp_path)
    for identity in ("summary", "gates", "pairs", "plots", "floor", "samples", "worst", "sides", "repeat"):
        assert page.has_id(identity), identity
    for name in [*PLOTS, "floor"]:
        assert page.has_id(f"plot-{name}")
    assert "Different: 100 of 100 compared tokens" in page.by_id("summary").words
    gates = page.by_id("gates").words
    assert re.search(r"weights not judged", gates)
    assert re.search(r"finite ok", gates)
    assert "exactly 0" in page.by_id("plot-floor").words
    assert "rollout: rerun" in page.by_id("floor").words
    sides = page.by_id("sides").words
    assert re.search(r"config\.dtype\s+bfloat16\s+float32", sides)
    assert "logdiff run run.yaml" in page.by_id("repeat").text
    assert re.search(r"word\d", page.by_id("samples").text)


def test_every_plot_is_described_and_every_table_has_headers(make_case: MakeCase, tmp_path: Path) -> None:
    page = _render(_measured(make_case(_samples())), tmp_path)
    drawings = page.all("svg")
    assert len(drawings) == len(PLOTS)
    for drawing in drawings:
        assert drawing.attributes["role"] == "img"
        assert len(drawing.attributes["aria-label"]) > 20
    labels = page.all("text")
    assert labels
    assert all(float(label.attributes["font-size"].removesuffix("px")) > 6 for label in labels)
    assert page.all("table")
    for header in page.all("th"):
        assert header.attributes.get("scope") in ("row", "col")
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    for label in [e.attributes["aria-labelledby"] for e in page.elements if "aria-labelledby" in e.attributes]:
        assert label in ids


def test_plot_axes_carry_their_unit_and_references_inside_a_drawing_resolve(
    make_case: MakeCase, tmp_path: Path
) -> None:
    page = _render(_measured(make_case(_samples())), tmp_path)
    for name, unit in (
        ("logprob", "(nats)"),
        ("histogram", "d (nats)"),
        ("survival", "|d| (nats)"),
        ("position", "(tokens)"),
    ):
        assert unit in page.by_id(f"plot-{name}").text
    ids = {e.attributes["id"] for e in page.elements if "id" in e.attributes}
    used = {m for e in page.elements for v in e.attributes.values() for m in re.findall(r"url\(#([^)]+)\)|^#(.+)$", v)}
    assert used
    assert {a or b for a, b in used} <= ids


def test_each_strip_token_shows_both_values_their_bits_and_d(make_case: MakeCase, tmp_path: Path) -> None:
    samples = [
        Sample([7, 8, 9, 10], {"rollout": [-1.0, -2.0, -0.5, None], "train": [-1.5, -2.0, -0.5, -1.0]}, [1, 1, 0, 1])
    ]
    page = _render(_measured(make_case(samples, token_text={7: " the", 8: "\n"})), tmp_path)
    first, second, masked, missing = [e for e in page.all("span") if "title" in e.attributes]
    assert (first.text, second.text, masked.text) == ("·the", "⏎", "[9]")
    # IEEE 754: -1.0 is bf800000, -1.5 is bfc00000
    assert first.attributes["title"] == (
        "position 0 | id 7 | rollout -1 (0xbf800000) | train -1.5 (0xbfc00000) | d -0.5000"
    )
    classes = [e.attributes["class"] for e in (first, second, masked, missing)]
    assert classes == ["t l5", "t l0", "t lm", "t ln"]
    assert "rollout missing" in missing.attributes["title"]


HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202eabc\u2066",
    "مرحبا",
    "\x00\x08\x1b]0;x\x07",
    "\ud800x",
    "' onmouseover='alert(1)",
    "</style><svg/onload=alert(1)>",
    "--><!--",
    "&lt;b&gt;",
    "a" * 5000,
]


def test_hostile_text_is_shown_as_text_wherever_it_comes_from(make_case: MakeCase, tmp_path: Path) -> None:
    everything = " ".join(HOSTILE)
    samples = _samples(3, 12)
    samples[0].token_ids = list(range(12))
    samples[0].sample_id = printable(everything)
    case = make_case(
        samples,
        name=printable(everything),
        inputs=printable({"run": {"model": everything}}),
        kind="run",
        meta=printable({"model": everything, "rollout": {"engine": everything}}),
        fingerprints=printable({"rollout": {everything: everything}, "train": {everything: "x"}}),
    )
    (case.path / "sides" / "rollout" / "token_text.json").write_text(ascii_json([HOSTILE]))
    axis = {"side": everything, "axis": everything, "value": everything, "tokens": 3, "max_abs": 0.1, "mean_abs": 0.1}
    result = measure(case.meta, case.batches()).as_dict()
    result["gates"].append({"gate": everything, "ok": False, "detail": everything})
    result["unavailable"] = {"decode_rescore": everything}
    result["pairs"]["decode_rescore"] = None
    result["floor"] = {"axes": [axis]}
    case.write_json("results/measure.json", printable(result))
    page = _render(case, tmp_path)
    assert len(page.all("script")) == 1
    source = page.source
    assert "49" not in page.all("h1")[0].words
    assert "<script>alert(1)</script>" in page.all("h1")[0].text  # as text: the parser found no second script
    assert "onerror=alert" in source
    assert "\u202e" not in source
    assert "\x1b" not in source
    assert "\\ud800" in source
    assert "more)" in source  # long text is cut and says so


def ascii_json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=True)


def printable(value: Any) -> Any:
    """Without lone surrogates, which a UTF-8 file can't hold."""
    if isinstance(value, dict):
        return {printable(k): printable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [printable(v) for v in value]
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def test_equal_sides_say_exactly_zero_in_every_logarithmic_plot(make_case: MakeCase, tmp_path: Path) -> None:
    page = _render(_measured(make_case(_samples(noise=0.0))), tmp_path)
    assert "Equal: all 100 compared tokens" in page.by_id("summary").words
    for name in ("histogram", "survival", "position"):
        assert "All differences are exactly 0" in page.by_id(f"plot-{name}").text
    assert "No token differs." in page.by_id("worst").text


def test_values_that_are_not_finite_are_told_and_lead_the_worst_tokens(make_case: MakeCase, tmp_path: Path) -> None:
    samples = _samples(2, 10)
    samples.append(Sample([1, 2], {"rollout": [-1.0, -1.0], "train": [math.nan, -math.inf]}, sample_id="broken"))
    page = _render(_measured(make_case(samples)), tmp_path)
    assert "fails the identity gates finite, range, so" in page.by_id("summary").words
    assert "2 tokens with NaN or infinite values can't be drawn." in page.by_id("plots").words
    assert re.search(r"broken 0 0 0 1 \[1\] -1.000 nan nan 0xbf800000", page.by_id("worst").words)


def test_only_values_that_are_not_finite_leave_no_plot_and_a_word(make_case: MakeCase, tmp_path: Path) -> None:
    page = _render(_measured(make_case([Sample([1], {"rollout": [-1.0], "train": [math.nan]})])), tmp_path)
    assert "nothing to draw" in page.by_id("plots").text
    assert page.all("svg") == []


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [Sample([], {"rollout": [], "train": []})],
        [Sample([1, 2], {"rollout": [-1.0, -2.0], "train": [-1.0, -2.0]}, mask=[0, 0])],
        [Sample([1, 2], {"rollout": [-1.0, None], "train": [None, -2.0]})],
        [Sample([1, 2], {"rollout": [-1.0, -2.0]})],
    ],
    ids=["no sample", "empty sample", "all masked", "no token with both", "one side"],
)
def test_nothing_comparable_is_said_and_nothing_is_drawn(
    make_case: MakeCase, tmp_path: Path, samples: list[Sample]
) -> None:
    page = _render(_measured(make_case(samples)), tmp_path)
    assert "Nothing could be compared" in page.by_id("summary").words
    assert page.by_id("summary").attributes["class"] == "summary invalid"
    assert page.all("svg") == []


def test_one_token_is_a_whole_report(make_case: MakeCase, tmp_path: Path) -> None:
    page = _render(_measured(make_case([Sample([3], {"rollout": [-0.25], "train": [-0.5]})])), tmp_path)
    assert "1 of 1 compared tokens" in page.by_id("summary").words
    assert len(page.all("svg")) == len(PLOTS)


def test_a_single_pair_names_why_the_others_are_absent(make_case: MakeCase, tmp_path: Path) -> None:
    samples = [Sample([3, 4], {"rescore": [-0.25, -1.0], "train": [-0.5, -1.0]})]
    page = _render(_measured(make_case(samples)), tmp_path)
    pairs = page.by_id("pairs").words
    assert "train - rollout (decode) no log-probability on the rollout side" in pairs
    assert "train - rescore 2 1 (50 %)" in pairs
    assert "rescore and training" in page.by_id("summary").text


def test_an_incomplete_case_says_what_is_missing(make_case: MakeCase, tmp_path: Path) -> None:
    page = _render(make_case(None), tmp_path)
    missing = page.by_id("missing").words
    for part in (
        "tokens.parquet",
        "results/measure.json",
        "No floor",
        "rollout side left no fingerprint",
        "not sealed",
    ):
        assert part in missing
    assert not page.has_id("plots")


def test_broken_files_of_a_case_are_named_and_the_rest_is_shown(make_case: MakeCase, tmp_path: Path) -> None:
    case = make_case(_samples(), fingerprints={"rollout": FINGERPRINT})
    (case.path / "results").mkdir()
    (case.path / "results" / "measure.json").write_text('{"format": "logdiff-measure/1", "pairs": {')
    (case.path / "sides" / "rollout" / "fingerprint.json").write_text("[1, 2]")
    (case.path / "sides" / "rollout" / "token_text.json").write_bytes(b"\xff\xfe{}")
    page = _render(case, tmp_path)
    missing = page.by_id("missing").words
    assert "results/measure.json can't be read" in missing
    assert "sides/rollout/fingerprint.json holds list" in missing
    assert "sides/rollout/token_text.json can't be read" in missing
    assert "without any gate" in page.by_id("pairs").words
    assert len(page.all("svg")) == len(PLOTS)


def test_a_damaged_token_table_is_named_and_not_drawn(make_case: MakeCase, tmp_path: Path) -> None:
    case = _measured(make_case(_samples()))
    table = case.path / "tokens.parquet"
    table.write_bytes(table.read_bytes()[:-20])
    page = _render(case, tmp_path)
    assert "The token table can't be read" in page.by_id("missing").words
    assert page.all("svg") == []


def test_one_sample_of_a_hundred_thousand_tokens_stays_a_small_page(make_case: MakeCase, tmp_path: Path) -> None:
    case = _measured(make_case(_samples(1, 100_000)))
    page = _render(case, tmp_path)
    assert len(page.source.encode()) < 3_000_000
    assert len([e for e in page.all("span") if "title" in e.attributes]) == 400
    assert "of 100,000, around the worst token" in page.by_id("samples").words
    assert "Bins of 2,048 positions" in page.by_id("plot-position").text  # 64 bins over 100,000, a power of two


def test_many_long_tokens_stay_below_three_megabytes(make_case: MakeCase, tmp_path: Path) -> None:
    samples = _samples(40, 500)
    case = _measured(make_case(samples, token_text=dict.fromkeys(range(50), "\U000e0041" * 500)))
    page = _render(case, tmp_path)
    assert len(page.source.encode()) < 3_000_000


def test_steps_and_ranks_get_a_plot_only_when_there_are_several(make_case: MakeCase, tmp_path: Path) -> None:
    samples = _samples(4)
    for i, sample in enumerate(samples):
        sample.step = i
    page = _render(_measured(make_case(samples)), tmp_path)
    assert page.has_id("plot-steps")
    assert not page.has_id("plot-ranks")


def test_every_plot_is_saved_as_png_on_request(make_case: MakeCase, tmp_path: Path) -> None:
    result = render(_measured(make_case(_samples())), tmp_path / "r.html", png_dir=tmp_path / "deep" / "png")
    assert [path.stem for path in result["png"]] == PLOTS
    for path in result["png"]:
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
        assert min(width, height) > 400


def test_an_earlier_case_stands_beside_this_one(make_case: MakeCase, tmp_path: Path) -> None:
    now = _measured(make_case(_samples(noise=0.01), name="after"))
    before = _measured(make_case(_samples(noise=0.5), name="before"))
    page = _render(now, tmp_path, earlier=before)
    assert "Earlier case: before" in page.by_id("pairs").words
    assert "the earlier case" in page.by_id("plot-survival").text


def test_the_page_is_the_same_bytes_each_time_and_leaves_matplotlib_as_it_was(
    make_case: MakeCase, tmp_path: Path
) -> None:
    case = _measured(make_case(_samples()))
    settings = dict(mpl.rcParams)
    first = render(case, tmp_path / "report.html")["html"].read_bytes()
    second = render(case, tmp_path / "report.html")["html"].read_bytes()
    assert first == second
    assert dict(mpl.rcParams) == settings


def test_a_folder_as_output_is_refused_with_the_way_out(make_case: MakeCase, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        render(make_case(_samples()), tmp_path)
    assert error.value.value == str(tmp_path)
    assert "Name a file" in error.value.hint


def test_importing_the_report_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, logdiff.report\n"
        "print(sorted({'matplotlib', 'jinja2', 'pyarrow', 'duckdb', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
