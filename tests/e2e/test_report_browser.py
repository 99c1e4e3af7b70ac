"""The report in a real browser: it loads without a complaint, fits small and large windows, and its script works."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from logdiff.case import Case
from logdiff.case.batch import PairBatch, PairMeta
from logdiff.measure import measure
from logdiff.report import render

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: the report was not looked at in a browser")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--enable-logging=stderr", "--v=0", "--virtual-time-budget=3000"),
]


@dataclass(frozen=True)
class Visit:
    dom: str
    console: list[str]


def _visit(page: Path, profile: Path, *flags: str) -> Visit:
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return Visit(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line])


def _case(path: Path) -> Case:
    rng = np.random.default_rng(7)
    samples, length = 6, 60
    tokens = samples * length
    rollout = (-rng.gamma(0.5, 2.0, tokens)).astype(np.float32)
    train = (rollout + rng.normal(0, 0.05, tokens)).astype(np.float32)
    train[::7] = rollout[::7]
    no = np.zeros(tokens, np.bool_)
    unknown = np.full(samples, -1, np.int32)
    batch = PairBatch(
        sample_id=[f"<b>sample {i}</b>" for i in range(samples)],
        step=np.arange(samples, dtype=np.int32) % 2,
        rank=np.zeros(samples, np.int32),
        policy_version=unknown.astype(np.int64),
        pack=unknown,
        left_pad=unknown,
        prompt_offsets=np.arange(samples + 1, dtype=np.int64),
        prompt_ids=np.ones(samples, np.int64),
        offsets=np.arange(samples + 1, dtype=np.int64) * length,
        token_ids=np.arange(tokens, dtype=np.int64) % 40,
        mask=~no,
        logprob={"rollout": rollout, "train": train, "rescore": np.full(tokens, np.nan, np.float32)},
        null={"rollout": no, "train": no, "rescore": ~no},
        lengths=np.tile(np.array([length, length, length, length, -1], np.int64), (samples, 1)),
        train_ids=[None] * samples,
    )
    with Case.create(path, "a case with a name that is rather long for a small screen", "measure", {}) as case:
        case.write_meta(PairMeta(facts={"model": "m" * 200}))
        with case.open_writer() as writer:
            writer.append(batch)
        text = [f"<script>document.title='x{i}'</script>" if i == 3 else f" word{i}" for i in range(40)]
        rows = [[text[token] for token in row] for row in batch.token_ids.reshape(samples, length).tolist()]
        case.write_json("sides/rollout/token_text.json", rows)
        for side, dtype in (("rollout", "bfloat16"), ("train", "float32")):
            case.write_json(f"sides/{side}/fingerprint.json", {"config": {"dtype": dtype, "path": "/long" * 60}})
        case.write_result("measure", measure(case.meta, case.batches()).as_dict())
        case.seal()
    return case


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return render(_case(folder / "case"), folder / "report.html")["html"]


def _with_script(report: Path, folder: Path, script: str) -> Path:
    """A copy of the page whose policy is lifted, so that a test script can look at it from inside."""
    source = report.read_text(encoding="utf-8")
    source, lifted = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", source)
    assert lifted == 1
    copy = folder / "copy.html"
    copy.write_text(source.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    return copy


def test_report_loads_without_a_console_message_and_shows_its_parts(report: Path, tmp_path: Path) -> None:
    visit = _visit(report, tmp_path / "profile")
    assert visit.console == []
    for identity in ("summary", "gates", "pairs", "plots", "plot-survival", "plot-steps", "samples", "worst", "sides"):
        assert f'id="{identity}"' in visit.dom
    assert visit.dom.count("<svg") == visit.dom.count("</svg>") == 6
    assert "<title>logdiff: a case with a name" in visit.dom  # the hostile token text did not run


def test_browser_would_have_told_of_a_breach_of_the_policy(report: Path, tmp_path: Path) -> None:
    source = report.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    breach = '<p style="color: red" onclick="x()">x</p><script>document.title = "y"</script>'
    broken.write_text(source.replace("</main>", f"{breach}</main>"))
    visit = _visit(broken, tmp_path / "profile")
    assert len(visit.console) >= 2
    assert "<title>logdiff: a case" in visit.dom


@pytest.mark.parametrize("width", [420, 1280])
def test_page_never_scrolls_sideways(report: Path, tmp_path: Path, width: int) -> None:
    _with_script(
        report,
        tmp_path,
        "parent.postMessage([document.documentElement.scrollWidth, innerWidth, "
        "getComputedStyle(document.querySelector('.plots')).gridTemplateColumns.split(' ').length].join(' '), '*')",
    )
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<iframe src="copy.html" width="{width}" height="900" frameborder="0"></iframe><p id="out"></p>'
        "<script>onmessage = (e) => { document.getElementById('out').textContent = e.data }</script>"
    )
    visit = _visit(frame, tmp_path / "profile", "--window-size=1400,1000")
    found = re.search(r'<p id="out">(\d+) (\d+) (\d+)</p>', visit.dom)
    assert found, visit.dom[:2000]
    needed, inner, columns = map(int, found.groups())
    assert inner == width
    assert needed <= inner
    assert columns == (1 if width < 760 else 2)


def test_hovering_and_arrow_keys_show_a_tokens_numbers(report: Path, tmp_path: Path) -> None:
    copy = _with_script(
        report,
        tmp_path,
        """
        const out = [], detail = document.getElementById("detail"), strip = document.querySelector(".strip");
        const look = () => out.push(detail.hidden ? "hidden" : detail.textContent.match(/position \\d+/)[0]);
        const key = (name) => strip.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
        look();
        strip.children[5].dispatchEvent(new PointerEvent("pointerover", {bubbles: true})); look();
        key("ArrowRight"); look();
        key("ArrowLeft"); key("ArrowLeft"); look();
        key("Escape"); look();
        key("ArrowRight"); look();
        document.title = out.join(", ");
        """,
    )
    visit = _visit(copy, tmp_path / "profile")
    assert "<title>hidden, position 5, position 6, position 4, hidden, position 0</title>" in visit.dom


def test_plots_follow_the_colour_scheme(report: Path, tmp_path: Path) -> None:
    script = """
    const path = document.querySelector("#plot-survival svg [stroke='var(--pair-a)']");
    const text = document.querySelector("#plot-survival svg text");
    document.title = [getComputedStyle(path).stroke, getComputedStyle(text).fill,
        getComputedStyle(document.documentElement).backgroundColor].join(" / ");
    """
    copy = _with_script(report, tmp_path, script)
    shown = {}
    for scheme, number in (("light", 1), ("dark", 0)):
        visit = _visit(copy, tmp_path / scheme, f"--blink-settings=preferredColorScheme={number}")
        found = re.search(r"<title>(.*?)</title>", visit.dom)
        assert found
        shown[scheme] = found.group(1).split(" / ")
    assert shown["light"][2] == "rgb(255, 255, 255)"
    for light, dark in zip(shown["light"], shown["dark"], strict=True):
        assert light.startswith("rgb(")
        assert light != dark
