"""Input that is broken, huge or made to harm: told with file, line and reason, never executed, never fatal."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from logdiff.audit import audit_paths
from logdiff.errors import InputError

GOOD = "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.top_p=0.9\n"


def write(folder: Path, name: str, data: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def whys(folder: Path, *extra: Path) -> list[tuple[str, int | None, str]]:
    good = write(folder, "good.sh", GOOD)
    found = audit_paths([good, *extra])
    assert any(f.rule == "top-p-renormalises" for f in found.findings)  # the rest is still audited
    return [(u.file, u.line, u.why) for u in found.evidence.unread]


def test_an_absent_file_is_an_error() -> None:
    with pytest.raises(InputError, match="no such file"):
        audit_paths(["nowhere.sh"])


def test_nothing_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to audit"):
        audit_paths([write(tmp_path, "x.yaml", "hello: world\n")])


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("empty.sh", "", "empty"),
        ("binary.log", b"\x00\x01\x02" * 50, "binary"),
        ("unknown.txt", "once upon a time\nthere was a file\n", "no form that is known"),
        ("broken.yaml", "a: [1, 2\nb: {", "no valid YAML"),
        ("other.yaml", "animals:\n  dog: 1\n", "no kind known"),
        ("broken.json", "{\"model_type\": ", "no valid JSON"),
        ("deep.json", "[" * 100_000, ""),
        ("list.json", "[1, 2]", ""),
        ("quotes.sh", "export A='unclosed\nvllm serve m\n", "don't close"),
        ("eval.sh", "eval \"$X\"\nvllm serve m\n", "eval"),
        ("source.sh", "source missing.sh\nvllm serve m\n", "sources missing.sh"),
        ("child.sh", "bash inner.sh\nvllm serve m\n", "starts inner.sh"),
        ("crlf.sh", "export A=1\r\nvllm serve m\r\n", "CR LF"),
        ("latin.sh", b"# caf\xe9\nvllm serve m\n", "no UTF-8"),
        ("twice.yaml", "actor_rollout_ref: {}\nactor_rollout_ref: {model: {path: m}}\n", "stands twice"),
        ("uncalled.sh", "f() { export A=1; }\nvllm serve m\n", "not called"),
        ("override.sh", "python3 -m verl.trainer.main_ppo oops a.b=[1,2\n", "oops"),
        ("other.sh", "python3 evaluate.py --top-p 0.9\n", "no launcher"),
        ("env.sh", "ray job submit --runtime-env-json='{oops' -- python3 -m verl.trainer.main_ppo a=1\n", "runtime"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_listed_with_its_reason(
    name: str, data: str | bytes, words: str, tmp_path: Path
) -> None:
    path = write(tmp_path, name, data)
    found = [(file, why) for file, _, why in whys(tmp_path, path) if file == str(path)]
    assert found
    assert any(words in why for _, why in found), found


def test_places_have_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "lines.sh", "A=1\nsource missing.sh\nvllm serve m\n")
    assert any(line == 2 for file, line, _ in whys(tmp_path, path) if file == str(path))


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    text = f"touch {mark}\nX=$(touch {mark})\nY=`touch {mark}`\neval touch {mark}\nvllm serve $X <(touch {mark})\n"
    write(tmp_path, "evil.sh", text)
    write(tmp_path, "evil.yaml", f"actor_rollout_ref: !!python/object/apply:os.system ['touch {mark}']\n")
    log = f"non-default args: {{'a': __import__('os').system('touch {mark}')}}\n"
    write(tmp_path, "evil.log", log)
    whys(tmp_path, tmp_path / "evil.sh", tmp_path / "evil.yaml", tmp_path / "evil.log")
    assert not mark.exists()


def test_a_yaml_bomb_is_refused_in_no_time(tmp_path: Path) -> None:
    levels = ["a: &a [x,x,x,x,x,x,x,x,x]"] + [
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]" for i in range(12)
    ]
    path = write(tmp_path, "bomb.yaml", "actor_rollout_ref: 1\n" + "\n".join(levels) + "\n")
    started = time.monotonic()
    found = whys(tmp_path, path)
    assert any("unfolds" in why for file, _, why in found if file == str(path))
    assert time.monotonic() - started < 20


def test_a_shell_bomb_ends(tmp_path: Path) -> None:
    doubling = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 60 + "B={1..9999}{1..9999}\n"
    loop = (
        "for i in {1..9}; do for j in {1..9}; do for k in {1..9}; do for l in {1..9}; do C=$i; done; done; done; done\n"
    )
    recursion = "f() { f; }\nf\nvllm serve $A $B\n"
    path = write(tmp_path, "bomb.sh", doubling + loop + recursion)
    started = time.monotonic()
    whys(tmp_path, path)
    assert time.monotonic() - started < 60


def test_a_huge_file_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.write(b"actor_rollout_ref:\n")
        stream.truncate(1 << 33)
    found = [why for file, _, why in whys(tmp_path, path) if file == str(path)]
    assert any("bytes" in why for why in found) or any("binary" in why for why in found)


def test_a_log_with_an_endless_line_is_cut(tmp_path: Path) -> None:
    head = "INFO [utils.py:233] non-default args: {'model': 'm', 'enforce_eager': True}\n"
    path = write(tmp_path, "long.log", head + "x" * (5 << 20) + "\nend\n")
    assert any("longer than" in why for file, _, why in whys(tmp_path, path) if file == str(path))


def test_links_and_devices(tmp_path: Path) -> None:
    loop = tmp_path / "loop.sh"
    loop.symlink_to(loop)
    with pytest.raises(InputError):
        audit_paths([loop])
    os.mkfifo(tmp_path / "pipe.sh")
    assert any("regular" in why for _, _, why in whys(tmp_path, tmp_path / "pipe.sh"))
    good = write(tmp_path, "target.sh", GOOD)
    (tmp_path / "link.sh").symlink_to(good)
    assert audit_paths([tmp_path / "link.sh"]).findings


def test_json_inside_quotes_inside_json(tmp_path: Path) -> None:
    inner = json.dumps({"rl_config": {"enabled": True, "surprise": 1}})
    text = (
        f"python3 -m verl.trainer.main_ppo '+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config={inner}'\n"
    )
    write(tmp_path, "run.sh", text)
    write(tmp_path, "r.txt", "vllm-ascend @ git+https://g/vllm-ascend@main\n")
    assert any(f.rule == "rl-config-unknown-key" for f in audit_paths([tmp_path]).findings)
