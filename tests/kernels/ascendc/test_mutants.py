"""Mutation operators on small samples: what each finds, and that it changes nothing else; a few mutants are caught."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutants import sources, trial
from benchmarks.mutants.operators import OPERATORS
from benchmarks.mutants.text import blanked, calls

LOOP = "for (uint32_t i = 0; i < n; ++i) Add(a, b, c, 8);"

SAMPLES: dict[str, tuple[str, list[str]]] = {
    "barrier_dropped": ("Add(a, b, c, n); v_barrier();", ["Add(a, b, c, n); (void)0;"]),
    "barrier_early": (
        "{ Add(a, b, c, n); v_barrier(); } { q.FreeTensor(a); v_barrier(); }",
        ["{ v_barrier(); Add(a, b, c, n); } { q.FreeTensor(a); v_barrier(); }"],
    ),
    "flag_dropped": ("if (x) SetFlag<HardEvent::M_MTE1>(i);", ["if (x) (void)0;"]),
    "flag_reversed": ("WaitFlag<HardEvent::M_MTE1>(i);", ["WaitFlag<HardEvent::MTE1_M>(i);"]),
    "flag_id": ("WaitFlag<HardEvent::M_MTE1>(turn);", ["WaitFlag<HardEvent::M_MTE1>((turn) + 1);"]),
    "flag_early": ("; load(x);\nSetFlag<HardEvent::MTE2_V>(0);", ["; SetFlag<HardEvent::MTE2_V>(0);\nload(x);"]),
    "flag_late": ("; WaitFlag<HardEvent::MTE2_V>(0); use(x);", ["; use(x); WaitFlag<HardEvent::MTE2_V>(0);"]),
    "cross_dropped": ("; CrossCoreSetFlag<2, PIPE_FIX>(kReady);", ["; (void)0;"]),
    "cross_pipe": (
        "CrossCoreSetFlag<2, PIPE_FIX>(kReady);",
        ["CrossCoreSetFlag<2, PIPE_MTE2>(kReady);", "CrossCoreSetFlag<2, PIPE_MTE3>(kReady);"],
    ),
    "cross_flag": ("; CrossCoreWaitFlag<2>(kReady);", ["; CrossCoreWaitFlag<2>(uint16_t(kReady + 1));"]),
    "enque_dropped": ("; q.EnQue(x);", ["; (void)0;"]),
    "enque_doubled": ("; q.EnQue(x);", ["; { q.EnQue(x); q.EnQue(x); };"]),
    "enque_early": ("; load(x); q.EnQue(x);", ["; q.EnQue(x); load(x);"]),
    "deque_dropped": (
        "; x = q.template DeQue<float>(); const LocalTensor<float> y = q.DeQue<float>();",
        ["; (void)0; const LocalTensor<float> y = q.DeQue<float>();"],
    ),
    "deque_doubled": ("x = q.DeQue<float>();", ["x = (q.DeQue<float>(), q.DeQue<float>());"]),
    "alloc_doubled": ("x = q.AllocTensor<T>();", ["x = (q.AllocTensor<T>(), q.AllocTensor<T>());"]),
    "free_dropped": ("; q.FreeTensor(x);", ["; (void)0;"]),
    "free_doubled": ("; q.FreeTensor(x);", ["; { q.FreeTensor(x); q.FreeTensor(x); };"]),
    "free_early": ("; store(x); q.FreeTensor(x);", ["; q.FreeTensor(x); store(x);"]),
    "buffer_halved": ("pipe.InitBuffer(q, 2, n * 4);", ["pipe.InitBuffer(q, 2, uint32_t((n * 4) / 2));"]),
    "tensors_overlap": ("b_ = a_[count]; c = a_[0];", ["b_ = a_[(count) / 2]; c = a_[0];"]),
    "offset_one": ("f(x[i], y[0]);", ["f(x[i + 1], y[0]);"]),
    "offset_block": ("f(x[i * n]);", ["f(x[i * n + 8]);"]),
    "loop_once_more": (LOOP, [LOOP.replace("i < n", "i <= n")]),
    "loop_once_less": (LOOP, [LOOP.replace("i < n", "i + 1 < n")]),
    "loop_later": (LOOP, [LOOP.replace("i = 0", "i = 0 + 1")]),
    "loop_step": (
        "for (uint32_t i = 0; i < n; i += kLanes) f();",
        ["for (uint32_t i = 0; i < n; i += 2 * (kLanes)) f();"],
    ),
    "least_most": ("a = plan::least(b, c);", ["a = plan::most(b, c);"]),
    "tail_unbounded": ("a = plan::least(b, c - d);", ["a = (b);"]),
    "not_rounded_up": (
        "f(plan::round_up(a, 64), ceil_div(a, b));",
        ["f(((a)), ceil_div(a, b));", "f(plan::round_up(a, 64), ((a) / (b)));"],
    ),
    "edge_moved": ("if (a < b && c >= d) f();", ["if (a <= b && c >= d) f();", "if (a < b && c > d) f();"]),
    "condition_fixed": ("if (a == b) f();", ["if (true) f();", "if (false) f();"]),
    "equality_inverted": ("a = b == c;", ["a = b != c;"]),
    "fill_dropped": ("; fill_tail(x, tile, T(0.0f));", ["; (void)0;"]),
    "fill_value": (
        "; fill_tail(x, tile, T(0.0f)); Duplicate(x, -kInfinity, n);",
        [
            "; fill_tail(x, tile, T(0.0f) + T(1.0f)); Duplicate(x, -kInfinity, n);",
            "; fill_tail(x, tile, T(0.0f)); Duplicate(x, -kInfinity + 1.0f, n);",
        ],
    ),
    "mask_lane": ("m = uint64_t(1) << used;", ["m = uint64_t(1) << (used + 1);", "m = uint64_t(1) << (used - 1);"]),
    "mask_inverted": ("m = ~((uint64_t(1) << used) - 1);", ["m = ((uint64_t(1) << used) - 1);"]),
    "count_halved": ("; Add(a, b, c, int32_t(n));", ["; Add(a, b, c, (int32_t(n)) / 2);"]),
    "repeat_less": ("f(x, uint8_t(rows), 1);", ["f(x, uint8_t(rows - 1), 1);"]),
    "repeat_twice": ("f(x, uint8_t(rows), 1);", ["f(x, uint8_t(2 * (rows)), 1);"]),
    "repeat_overflow": ("if (stride <= 255) f();", ["if (stride <= 511) f();"]),
    "stride_more": (
        "const BrcbRepeatParams params(1, s); params.srcStride = 1;",
        [
            "const BrcbRepeatParams params(decltype(1)(1 + 1), s); params.srcStride = 1;",
            "const BrcbRepeatParams params(1, decltype(s)(s + 1)); params.srcStride = 1;",
            "const BrcbRepeatParams params(1, s); params.srcStride = 1 + 1;",
        ],
    ),
    "stride_zero": (
        "f(BrcbRepeatParams(0, 8)); params.srcStride = n;",
        ["f(BrcbRepeatParams(0, 0)); params.srcStride = n;", "f(BrcbRepeatParams(0, 8)); params.srcStride = 0;"],
    ),
    "rounding": (
        "Cast(a, b, RoundMode::CAST_RINT, n); Cast(a, b, RoundMode::CAST_NONE, n);",
        [
            f"Cast(a, b, RoundMode::CAST_{mode}, n); Cast(a, b, RoundMode::CAST_NONE, n);"
            for mode in ("ROUND", "TRUNC", "FLOOR", "CEIL")
        ],
    ),
    "fixpipe_cast": ("q = QuantMode_t::F322F16;", ["q = QuantMode_t::F322BF16;", "q = QuantMode_t::NoQuant;"]),
    "reset_dropped": ("; SetMaskNorm();", ["; (void)0;"]),
    "mode_wrong": ("SetHF32Mode(HF32Mode::DISABLE);", ["SetHF32Mode(HF32Mode::ENABLE);"]),
    "narrowed": (
        "; Mul(x, a, b, n);",
        [
            "; { Mul(x, a, b, n); v_barrier(); ShiftRight(x.template ReinterpretCast<uint32_t>(), "
            "x.template ReinterpretCast<uint32_t>(), uint32_t(16), int32_t(n)); v_barrier(); "
            "ShiftLeft(x.template ReinterpretCast<uint32_t>(), x.template ReinterpretCast<uint32_t>(), uint32_t(16), "
            "int32_t(n)); };"
        ],
    ),
    "atomic_add": ("; store_rows(to, x);", ["; { SetAtomicAdd<float>(); store_rows(to, x); SetAtomicNone(); };"]),
    "instruction_dropped": ("; Mul(x, a, b, n); f(x);", ["; (void)0; f(x);"]),
    "instruction_exchanged": ("Sub(x, a, b, n); Add(x, a);", ["Add(x, a, b, n); Add(x, a);"]),
    "operands_exchanged": (
        "; Sub(x, a, b[0], n); Add(x, a, b, n);",
        ["; Sub(x, b[0], a, n); Add(x, a, b, n);"],
    ),
    "sign_flipped": ("f(-2.0f, 0.5f, 0.0f);", ["f(2.0f, 0.5f, 0.0f);", "f(-2.0f, -0.5f, 0.0f);"]),
    "constant_ulp": ("f(1.0f, 0.0f);", ["f(0x1.0000020000000p+0f, 0.0f);"]),
    "comparison": ("f(CMPMODE::LT);", ["f(CMPMODE::LE);", "f(CMPMODE::GT);"]),
    "integer_arithmetic": ("a = b + c; d = e * f;", ["a = b - c; d = e * f;", "a = b + c; d = e;"]),
    "update_dropped": (
        "\n    turn_ = 1 - turn_;\n    params.n = n;\n    ++count_;",
        [
            "\n    turn_ = 1 - turn_;\n    params.n = n;\n    (void)0;",
            "\n    (void)0;\n    params.n = n;\n    ++count_;",
            "\n    turn_ = 1 - turn_;\n    (void)0;\n    ++count_;",
        ],
    ),
    "constant_doubled": ("constexpr uint32_t kA = 3, kB = 2 * kA;", [
        "constexpr uint32_t kA = 2 * (3), kB = 2 * kA;",
        "constexpr uint32_t kA = 3, kB = 2 * (2 * kA);",
    ]),
    "exp_narrower": ("exp1(x, x, work, n);", ["exp1<false>(x, x, work, n);"]),
    "loop_reversed": (LOOP, [LOOP.replace("i = 0; i < n; ++i", "i = n; i-- > 0;")]),
    "tree_halves": (
        "for (uint32_t s = 1; s < count; s *= 2) f();",
        ["for (uint32_t s = count / 2; s > 0; s /= 2) f();"],
    ),
    "lanes_elsewhere": ("; Add(x, x, x[32], n);", ["; Add(x, x, x[16], n);"]),
    "cut_by_cores": ("k += depth_;", ["k += (depth_ / (GetBlockNum() > 1 ? 2 : 1));"]),
    "first_pass": (
        "params.cmatrixInitVal = first; first_ = false;",
        [
            "params.cmatrixInitVal = !first; first_ = false;",
            "params.cmatrixInitVal = true; first_ = false;",
            "params.cmatrixInitVal = first; (void)0;",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_makes_the_edits_that_it_says_and_no_others(name: str) -> None:
    sample, want = SAMPLES[name]
    assert [edit.applied(sample) for edit in OPERATORS[name].find(sample)] == want


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_leaves_comments_includes_and_strings_alone(name: str) -> None:
    sample, _ = SAMPLES[name]
    one_line = " ".join(sample.split())
    hidden = f'// {one_line}\n/* {sample} */\n#if {one_line}\nconst char* s = "{one_line}";\n'
    assert not list(OPERATORS[name].find(blanked(hidden)))


def test_a_call_knows_its_arguments_and_whether_it_is_a_statement() -> None:
    code = "if (a) f<T, 2>(x[g(1, 2)], {3, 4}, y); b = f(z); }"
    first, second = calls(code, "f")
    assert [first.argument(i) for i in range(3)] == ["x[g(1, 2)]", "{3, 4}", "y"]
    assert (first.statement, second.statement) == (True, False)


@pytest.fixture(scope="module")
def pool() -> list[sources.Mutant]:
    device = sources.device_functions()
    assert {"least", "row_walk", "linear_piece"} <= device
    assert "snake_makespan" not in device
    shared = [file for file in sources.reaching() if "common" in file.parts or file.name == "linear.h"]
    return [mutant for file in shared for mutant in sources.mutants(file, device)]


def test_every_mutant_of_the_shared_headers_differs_from_its_source_and_from_the_others(
    pool: list[sources.Mutant],
) -> None:
    assert len({mutant.name for mutant in pool}) == len(pool) > 1000
    for mutant in pool:
        assert mutant.edit.text != mutant.before
        assert len(mutant.edit.text) < len(mutant.before) + 400


def test_the_order_depends_on_the_seed_alone_and_gives_every_operator_its_turn(pool: list[sources.Mutant]) -> None:
    order = sources.in_order(pool, 3)
    assert order == sources.in_order(pool[::-1], 3) != sources.in_order(pool, 4)
    assert sorted(m.name for m in order) == sorted(m.name for m in pool)
    used = {mutant.operator for mutant in pool}
    assert {mutant.operator for mutant in order[: len(used)]} == used
    assert len({mutant.file for mutant in order[: 2 * len(used)]}) > 10


def _campaign(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "benchmarks.mutants", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=800)


def test_mutants_of_a_file_are_listed_by_name_and_an_unknown_name_is_refused(tmp_path: Path) -> None:
    file = Path("ascendc/csrc/row_sum.h")
    listed = _campaign("--list", "--only", file.name).stdout
    named = [line.split()[0] for line in listed.split("\n\n")[1].splitlines()]
    assert sorted(named) == sorted(m.name for m in sources.mutants(file, sources.device_functions()))
    refused = _campaign("--names", named[0], "no-such-mutant", "--out", str(tmp_path / "out"), "--work", str(tmp_path))
    assert refused.returncode == 2
    assert "no mutants no-such-mutant" in refused.stderr


def test_a_check_ends_after_its_cpu_time_and_not_while_it_is_stopped() -> None:
    def trial_of(work: Callable[[], None]) -> tuple[list[dict[str, Any]], str]:
        def climb(send: Callable[[dict[str, Any]], None]) -> None:
            with trial.limited(0.2):
                work()
            send({"ended": True})

        return trial.in_child(climb)

    def turn() -> None:
        while True:
            pass

    assert trial_of(turn) == ([], "endless")
    assert trial_of(lambda: time.sleep(0.6)) == ([{"ended": True}], "")


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("options", [[], ["--optimise"]], ids=str)
def test_a_mutant_chosen_by_name_is_tried_alone(options: list[str], tmp_path: Path) -> None:
    file = Path("ascendc/csrc/row_sum.h")
    (chosen,) = (m for m in sources.mutants(file, frozenset()) if m.operator == "reset_dropped")
    words = ["--names", chosen.name, "--out", str(tmp_path / "out.jsonl"), "--work", str(tmp_path / "work")]
    ended = _campaign(*words, *options, "--rungs", "1")
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(record["name"], record["status"]) for record in records] == [(chosen.name, "caught")], ended.stderr


@pytest.mark.slow
def test_planted_faults_are_caught_and_the_sources_as_they_are_pass(tmp_path: Path) -> None:
    out = tmp_path / "mutants.jsonl"
    words = ["--seed", "1", "--count", "12", "--out", str(out), "--work", str(tmp_path / "work"), "--only", "row_sum.h"]
    ended = _campaign(*words)
    assert out.is_file(), ended.stderr[-2000:]
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    counted = [record for record in records if record["status"] in ("caught", "survived")]
    assert len(counted) == 12, ended.stderr[-2000:]
    assert sum(record["status"] == "caught" for record in counted) >= 10
    assert len({record["check"] for record in counted}) > 2
