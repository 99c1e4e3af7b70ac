"""A dispatch shows one count over all engines; what an engine says of its own start passes through."""

from __future__ import annotations

from logdiff.dispatch.steps import Steps
from logdiff.target import Progress


def test_the_count_goes_over_engines_and_phases_and_never_back() -> None:
    told: list[Progress] = []
    steps = Steps([3, 2], told.append)
    for name, side in (("rollout", "rollout"), ("train with align=all", "train")):
        steps.start(name)
        for done in range(5):
            steps(Progress(f"dispatch/{side}", done, 4, "pass", "score" if done < 4 else "comparing"))
    steps.end()
    counts = [p.done for p in told]
    assert counts == sorted(counts)
    assert {p.total for p in told} == {(3 + 2) + (2 + 2)}
    assert {p.task for p in told} == {"dispatch"}
    assert (counts[0], counts[-1]) == (0, 9)
    assert told[5].message == "rollout: comparing"
    assert told[5].done == 4, "one step is left: the comparison of functions, which has only begun"
    assert told[6].message == "train with align=all: starting the engine"
    assert told[6].done == 5


def test_an_engine_that_ends_early_takes_its_steps_along() -> None:
    told: list[Progress] = []
    steps = Steps([3, 3], told.append)
    steps.start("rollout")
    steps.start("rollout with env:A=1")
    steps.end()
    assert [p.done for p in told] == [0, 5, 10]


def test_other_tasks_pass_through_and_nobody_needs_to_listen() -> None:
    told: list[Progress] = []
    steps = Steps([1], told.append)
    steps.start("train")
    compiling = Progress("start", 3, 40, "source", "linear.cpp")
    steps(compiling)
    assert told[-1] is compiling
    silent = Steps([1], None)
    silent.start("train")
    silent(Progress("dispatch/train", 1, 2))
    silent.end()
