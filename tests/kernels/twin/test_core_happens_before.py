"""The race check against a reference: random programs, judged by paths in an explicit graph instead of clocks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from logdiff_kernels.twin.errors import TwinError
from logdiff_kernels.twin.library import Options

from tests.kernels.twin.kernels_of import Kernels

S, V, M, MTE1, MTE2, MTE3, FIX, ALL = range(8)
PIPES = {"cube": (MTE1, MTE2, FIX), "vector": (S, V, MTE2, MTE3)}
EVENTS = {  # (source, target): number in HardEvent
    (MTE2, V): 0, (V, MTE2): 1, (MTE3, V): 2, (V, MTE3): 3, (MTE2, MTE1): 4, (MTE1, MTE2): 5, (MTE2, MTE3): 10,
    (MTE3, MTE2): 11, (MTE1, FIX): 16, (FIX, MTE1): 17, (MTE2, FIX): 18, (FIX, MTE2): 19, (S, V): 22, (V, S): 23,
    (S, MTE2): 24, (MTE2, S): 25, (S, MTE3): 26, (MTE3, S): 27,
}  # fmt: skip
OP, SET, WAIT, BARRIER, CROSS_SET, CROSS_WAIT, NOTHING = range(7)
Row = tuple[int, int, int, int]


@dataclass
class Graph:
    """Nodes are beginnings and ends of instructions and flags; an edge goes from what is earlier."""

    after: list[list[int]] = field(default_factory=list)

    def node(self, *earlier: int) -> int:
        self.after.append([])
        for node in earlier:
            self.after[node].append(len(self.after) - 1)
        return len(self.after) - 1

    def path(self, source: int, target: int) -> bool:
        seen, todo = {source}, [source]
        while todo:
            node = todo.pop()
            if node == target:
                return True
            fresh = [n for n in self.after[node] if n not in seen]
            seen.update(fresh)
            todo.extend(fresh)
        return False


@dataclass
class Access:
    core: int
    pipe: int
    begin: int
    end: int
    read: int
    write: int


def races(programs: list[list[Row]]) -> Iterator[tuple[Access, Access]]:
    """Pairs of accesses to one cell, one of them a write, with no path between the end of one and the other's start."""
    graph = Graph()
    accesses: list[Access] = []
    sets: dict[tuple[int, int], list[list[int]]] = {}  # (core, flag): for each passage the set nodes behind it
    halves: dict[tuple[int, int], list[int]] = {}
    waits: list[tuple[int, int, int, int]] = []
    for core, program in enumerate(programs):
        gate = {pipe: graph.node() for pipe in range(7)}
        ends: dict[int, list[int]] = {pipe: [] for pipe in range(7)}
        set_nodes: dict[tuple[int, int], int] = {}
        seen: dict[int, int] = {}
        for what, a, b, c in program:
            if what == OP:
                serial = ends[S][-1:] if a == S else []
                begin = graph.node(gate[a], gate[S], *serial)
                end = graph.node(begin)
                ends[a].append(end)
                accesses.append(Access(core, a, begin, end, b, c))
            elif what in (SET, WAIT):
                source, target = next(pair for pair, number in EVENTS.items() if number == a)
                if what == SET:
                    set_nodes[a, b] = graph.node(gate[source], gate[S], *ends[source])
                else:
                    gate[target] = graph.node(gate[target], gate[S], set_nodes[a, b])
            elif what == BARRIER and a == ALL:
                meeting = graph.node(*gate.values(), *(end for pipe in ends.values() for end in pipe))
                gate = dict.fromkeys(gate, meeting)
            elif what == BARRIER:
                gate[a] = graph.node(gate[a], gate[S], *ends[a])
            elif what == CROSS_SET:
                node = graph.node(gate[a], gate[S], *ends[a])
                if core == 0:
                    for vector in (1, 2):
                        sets.setdefault((vector, b), []).append([node])
                else:
                    halves.setdefault((core, b), []).append(node)
            elif what == CROSS_WAIT:
                gate[S] = graph.node(gate[S])
                waits.append((core, b, seen.get(b, 0), gate[S]))
                seen[b] = seen.get(b, 0) + 1
    for flag in {flag for _, flag in halves}:
        pairs = zip(halves.get((1, flag), []), halves.get((2, flag), []), strict=False)
        sets[0, flag] = [list(pair) for pair in pairs]
    for core, flag, turn, node in waits:
        for source in sets[core, flag][turn]:
            graph.after[source].append(node)
    for i, first in enumerate(accesses):
        for second in accesses[i + 1 :]:
            for cell in {first.read, first.write} & {second.read, second.write} - {-1}:
                one_core = first.core == second.core
                if (cell < 8 and not one_core) or cell not in (first.write, second.write):
                    continue
                forward = graph.path(first.end, second.begin)
                if not forward and (one_core or not graph.path(second.end, first.begin)):
                    yield first, second


def one_core_program(rng: random.Random, kind: str, steps: int) -> list[Row]:
    """Instructions, flags that are waited for at random, barriers; what is left set is waited for at the end."""
    pipes = PIPES[kind]
    events = [number for (a, b), number in EVENTS.items() if a in pipes and b in pipes]
    rows: list[Row] = []
    pending: list[tuple[int, int]] = []
    for _ in range(steps):
        chance = rng.random()
        if chance < 0.25:
            pipe = rng.choice(pipes)
            # The scalar unit reads UB only; GM is left to the programs of several cores.
            rows.append((OP, pipe, rng.choice([-1, *range(4)]), rng.choice([-1, *range(4)])))
        elif chance < 0.6:
            flag = (rng.choice(events), rng.randrange(2))
            if flag not in pending:
                pending.append(flag)
                rows.append((SET, *flag, 0))
        elif chance < 0.92 and pending:
            rows.append((WAIT, *pending.pop(rng.randrange(len(pending))), 0))
        else:
            rows.append((BARRIER, rng.choice([p for p in pipes if p != S] + [ALL] * (rng.random() < 0.1)), 0, 0))
    return rows + [(WAIT, *flag, 0) for flag in pending]


def several_core_programs(rng: random.Random, steps: int) -> list[list[Row]]:
    """One cube and two vector cores that touch GM; a wait is only written where the flag is set in some order."""
    programs: list[list[Row]] = [[], [], []]
    passages = [0, 0, 0]
    half = [0, 0, 0]
    outstanding = [0, 0, 0]
    for _ in range(steps):
        core = rng.randrange(3)
        pipe = rng.choice((MTE2, FIX) if core == 0 else (MTE2, MTE3))
        chance = rng.random()
        if chance < 0.2:
            cell = 8 + rng.randrange(3)
            programs[core].append((OP, pipe, *((cell, -1) if pipe == MTE2 else (-1, cell))))
        elif chance < 0.4:
            programs[core].append((BARRIER, ALL, 0, 0))
        elif chance < 0.7 and outstanding[core] < 4:
            # Always on one pipe: which of two pipes sets first is not defined.
            programs[core].append((CROSS_SET, FIX if core == 0 else MTE3, core != 0, 0))
            if core == 0:
                passages[1] += 1
                passages[2] += 1
            else:
                half[core] += 1
                if half[1] and half[2]:
                    half[1] -= 1
                    half[2] -= 1
                    passages[0] += 1
            outstanding[core] += 1
        elif passages[core]:
            passages[core] -= 1
            outstanding = [max(0, n - 1) for n in outstanding]
            programs[core].append((CROSS_WAIT, 0, core == 0, 0))
    for vector in (1, 2):
        for _ in range(half[3 - vector]):  # complete the halves
            programs[vector].append((CROSS_SET, MTE3, 1, 0))
    passages[0] += half[1] + half[2]
    for core in range(3):
        programs[core] += [(CROSS_WAIT, 0, core == 0, 0)] * passages[core]
    return programs


def _run(core: Kernels, programs: list[list[Row]], seed: int) -> TwinError | None:
    count = max(map(len, programs))
    rows = [[*program, *([(NOTHING, 0, 0, 0)] * (count - len(program)))] for program in programs]
    try:
        core.run(
            "program",
            0,
            [torch.tensor(rows, dtype=torch.int32), torch.zeros(64)],
            count=count,
            options=Options(seed=seed),
        )
    except TwinError as error:
        return error
    return None


def test_one_core_agrees_with_the_graph(core: Kernels) -> None:
    rng = random.Random(1)
    found = 0
    for turn in range(300):
        kind = rng.choice(("cube", "vector"))
        steps = rng.randrange(4, 24)
        program = one_core_program(rng, kind, steps)
        if kind == "cube":
            expected = list(races([program]))
            error = _run(core, [program, [], []], turn)
        else:
            expected = list(races([[], program]))
            error = _run(core, [[], program, []], turn)
        assert (error is not None) == bool(expected), (program, error)
        if error is not None:
            assert error.check == "race"
            # The instruction that is named is the first in program order that races with an earlier one.
            first = min(pair[1].begin for pair in expected)
            pipe = next(pair[1].pipe for pair in expected if pair[1].begin == first)
            assert error.pipe == ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX")[pipe]
            found += 1
    assert 60 < found < 240  # both verdicts are common, or nothing is shown


def test_several_cores_agree_with_the_graph(core: Kernels) -> None:
    rng = random.Random(2)
    found = 0
    for turn in range(300):
        programs = several_core_programs(rng, rng.randrange(6, 40))
        expected = bool(list(races(programs)))
        for seed in (turn, turn + 1000):
            error = _run(core, programs, seed)
            assert (error is not None) == expected, (programs, error)
            assert error is None or error.check == "race", error
        found += expected
    assert 60 < found < 240


@pytest.mark.slow
def test_long_programs_agree_with_the_graph(core: Kernels) -> None:
    rng = random.Random(3)
    for turn in range(3000):
        program = one_core_program(rng, "vector", rng.randrange(10, 60))
        assert (_run(core, [[], program, []], turn) is not None) == bool(list(races([[], program])))
        programs = several_core_programs(rng, rng.randrange(6, 80))
        assert (_run(core, programs, turn) is not None) == bool(list(races(programs)))
