"""The mutation operators: general rewritings of kernel source, each found by its pattern in any file.

An operator gets the code with comments blanked and gives every edit that it can make. What it says is all that it
changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.mutants.text import Call, Edit, calls, closing, statement_after, statement_before

Find = Callable[[str], Iterator[Edit]]

NOTHING = "(void)0"
VECTOR = (
    "Add|Sub|Mul|Div|Max|Min|Adds|Muls|Maxs|Mins|Abs|Exp|Ln|Sqrt|Cast|Select|Compare|CompareScalar|ShiftLeft|"
    "ShiftRight|Not|And|Or|Gather|GatherMask|Brcb|PairReduceSum|WholeReduceMax|copy_floats|widen|widen_any|narrow|"
    "narrow_any|divide|divide_rows|row_blocks|each_row|by_rows|exp1|ln1|tanh1"
)
FILLS = r"Duplicate|InitConstValue|fill_\w+|zero_\w+|clear"
RESETS = (
    "InitSocState|SetAtomicNone|SetMaskNorm|SetMaskCount|ResetMask|SetSaturationFlag|SetCtrlSpr|SetHF32Mode|reset_core"
)
ROUNDINGS = ("CAST_RINT", "CAST_ROUND", "CAST_TRUNC", "CAST_FLOOR", "CAST_CEIL")
PARAMS = r"\w*RepeatParams|DataCopy\w*Params|GatherMaskParams"
STORES = r"store_rows|Fixpipe"
_NO_INSTRUCTION = r"(?:Alloc|EnQue|DeQue|Free|Release|Buffer|Barrier|barrier|Flag)|^\w+_? = "


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of fault.

    Attributes:
        name: of the operator.
        family: what it breaks.
        what: what it changes.
        find: every edit that it can make in a code whose comments are blanked.
    """

    name: str
    family: str
    what: str
    find: Find


OPERATORS: dict[str, Operator] = {}


def _operator(family: str, what: str) -> Callable[[Find], Find]:
    def register(find: Find) -> Find:
        name = find.__name__.lstrip("_")
        OPERATORS[name] = Operator(name, family, what, find)
        return find

    return register


def _statements(code: str, names: str) -> Iterator[Call]:
    return (call for call in calls(code, names) if call.statement)


def _dropped(code: str, names: str) -> Iterator[Edit]:
    return (call.replaced(NOTHING) for call in _statements(code, names))


def _doubled(code: str, names: str) -> Iterator[Edit]:
    return (call.replaced(f"{{ {call.text}; {call.text}; }}") for call in _statements(code, names))


def _words(code: str, pattern: str, *texts: str) -> Iterator[Edit]:
    """Every match becomes each of `texts` that it isn't; `{0}`, `{1}` stand for the match's groups."""
    for match in re.finditer(pattern, code):
        for text in texts:
            new = text.format(match.group(), *match.groups())
            if new != match.group():
                yield Edit(match.start(), match.end(), new)


def _earlier(code: str, names: str) -> Iterator[Edit]:
    for call in _statements(code, names):
        before = statement_before(call)
        if before is not None and not re.search(_NO_INSTRUCTION, code[slice(*before)]):
            start, end = before
            gap = code[end : call.start]
            yield Edit(start, call.close + 2, f"{call.text};{gap}{code[start:end]}")


def _later(code: str, names: str) -> Iterator[Edit]:
    for call in _statements(code, names):
        after = statement_after(call)
        if after is not None and not re.search(_NO_INSTRUCTION, code[slice(*after)]):
            start, end = after
            gap = code[call.close + 2 : start]
            yield Edit(call.start, end, f"{code[start:end]}{gap}{call.text};")


# --- synchronisation


@_operator("synchronisation", "a barrier dropped")
def _barrier_dropped(code: str) -> Iterator[Edit]:
    return _dropped(code, "v_barrier|PipeBarrier")


@_operator("synchronisation", "a barrier before the instruction that it should follow")
def _barrier_early(code: str) -> Iterator[Edit]:
    return _earlier(code, "v_barrier|PipeBarrier")


@_operator("synchronisation", "SetFlag or WaitFlag dropped")
def _flag_dropped(code: str) -> Iterator[Edit]:
    return _dropped(code, "SetFlag|WaitFlag")


@_operator("synchronisation", "SetFlag and WaitFlag of an event exchanged in direction (A_B to B_A)")
def _flag_reversed(code: str) -> Iterator[Edit]:
    return _words(code, r"HardEvent::([A-Z0-9]+)_([A-Z0-9]+)\b", "HardEvent::{2}_{1}")


@_operator("synchronisation", "another event id")
def _flag_id(code: str) -> Iterator[Edit]:
    return (call.with_argument(0, f"({call.argument(0)}) + 1") for call in _statements(code, "SetFlag|WaitFlag"))


@_operator("synchronisation", "SetFlag before the instruction that it should follow")
def _flag_early(code: str) -> Iterator[Edit]:
    return _earlier(code, "SetFlag|CrossCoreSetFlag")


@_operator("synchronisation", "WaitFlag behind the instruction that it should precede")
def _flag_late(code: str) -> Iterator[Edit]:
    return _later(code, "WaitFlag|CrossCoreWaitFlag")


@_operator("synchronisation", "a flag between cores, or SyncAll, dropped")
def _cross_dropped(code: str) -> Iterator[Edit]:
    return _dropped(code, "CrossCoreSetFlag|CrossCoreWaitFlag|SyncAll")


@_operator("synchronisation", "a flag between cores on another pipe")
def _cross_pipe(code: str) -> Iterator[Edit]:
    for match in re.finditer(r"CrossCore(?:Set|Wait)Flag<[^>]*\b(PIPE_\w+)>", code):
        for pipe in ("PIPE_FIX", "PIPE_MTE2", "PIPE_MTE3"):
            if pipe != match.group(1):
                yield Edit(match.start(1), match.end(1), pipe)


@_operator("synchronisation", "another flag between cores")
def _cross_flag(code: str) -> Iterator[Edit]:
    names = "CrossCoreSetFlag|CrossCoreWaitFlag"
    return (call.with_argument(0, f"uint16_t({call.argument(0)} + 1)") for call in _statements(code, names))


# --- queues


@_operator("queues", "EnQue dropped")
def _enque_dropped(code: str) -> Iterator[Edit]:
    return _dropped(code, "EnQue")


@_operator("queues", "EnQue twice")
def _enque_doubled(code: str) -> Iterator[Edit]:
    return _doubled(code, "EnQue")


@_operator("queues", "EnQue before the instruction that it should follow")
def _enque_early(code: str) -> Iterator[Edit]:
    return _earlier(code, "EnQue")


@_operator("queues", "DeQue into the variable that AllocTensor had filled dropped")
def _deque_dropped(code: str) -> Iterator[Edit]:
    return _words(code, r"(?<=[;{}])(\s*)\w+ = [\w.]+(?:template )?DeQue<[^;]*>\(\)(?=;)", "{1}" + NOTHING)


@_operator("queues", "DeQue twice")
def _deque_doubled(code: str) -> Iterator[Edit]:
    return (call.replaced(f"({call.text}, {call.text})") for call in calls(code, "DeQue"))


@_operator("queues", "AllocTensor twice")
def _alloc_doubled(code: str) -> Iterator[Edit]:
    return (call.replaced(f"({call.text}, {call.text})") for call in calls(code, "AllocTensor"))


@_operator("queues", "FreeTensor dropped")
def _free_dropped(code: str) -> Iterator[Edit]:
    return _dropped(code, "FreeTensor")


@_operator("queues", "FreeTensor twice")
def _free_doubled(code: str) -> Iterator[Edit]:
    return _doubled(code, "FreeTensor")


@_operator("queues", "FreeTensor before the last instruction on the tensor")
def _free_early(code: str) -> Iterator[Edit]:
    return _earlier(code, "FreeTensor")


# --- memory


@_operator("memory", "half of a buffer's bytes")
def _buffer_halved(code: str) -> Iterator[Edit]:
    for call in calls(code, "InitBuffer"):
        last = len(call.arguments) - 1
        yield call.with_argument(last, f"uint32_t(({call.argument(last)}) / 2)")


@_operator("memory", "two tensors of one buffer overlap by half of the first")
def _tensors_overlap(code: str) -> Iterator[Edit]:
    for match in re.finditer(r"\b[\w.]+_? = [\w.]+(\[)(?!\d+\])", code):
        end = closing(code, match.start(1))
        if code[end + 1 : end + 2] in (";", "."):
            yield Edit(match.end(1), end, f"({code[match.end(1) : end]}) / 2")


@_operator("memory", "an offset one element further")
def _offset_one(code: str) -> Iterator[Edit]:
    yield from _offsets(code, 1)


@_operator("memory", "an offset one data block of fp32 further")
def _offset_block(code: str) -> Iterator[Edit]:
    yield from _offsets(code, 8)


def _offsets(code: str, by: int) -> Iterator[Edit]:
    for match in re.finditer(r"(?<=[\w)])\[(?=[^\]\d])", code):
        end = closing(code, match.start())
        declared = re.match(r"\[k[A-Z]\w*\]\s*[;,]", code[match.start() : end + 3])
        if end > 0 and not declared and "RangeOf" not in code[match.start() : end]:
            yield Edit(match.end(), end, f"{code[match.end() : end]} + {by}")


# --- loops and bounds


def _loops(code: str) -> Iterator[tuple[re.Match[str], int]]:
    """Loops with the head `for (type i = first; i < end; step)` and where the body ends."""
    head = r"for \((\w+) (\w+) = ([^;]+); \2 (<) ([^;]+); ([^)]+)\)"
    for match in re.finditer(head, code):
        body = match.end() + len(code[match.end() :]) - len(code[match.end() :].lstrip())
        end = closing(code, body) if code[body : body + 1] == "{" else code.find(";", body)
        yield match, end


@_operator("loops", "a loop runs once more")
def _loop_once_more(code: str) -> Iterator[Edit]:
    return (Edit(*match.span(4), "<=") for match, _ in _loops(code))


@_operator("loops", "a loop leaves its last turn out")
def _loop_once_less(code: str) -> Iterator[Edit]:
    for match, _ in _loops(code):
        step = re.search(r"\+= (.+)", match.group(6))
        by = f"({step.group(1)})" if step else "1"
        yield Edit(match.start(4) - len(match.group(2)) - 1, match.start(4) - 1, f"{match.group(2)} + {by}")


@_operator("loops", "a loop begins one later")
def _loop_later(code: str) -> Iterator[Edit]:
    for match, _ in _loops(code):
        step = re.search(r"\+= (.+)", match.group(6))
        yield Edit(*match.span(3), f"{match.group(3)} + {f'({step.group(1)})' if step else 1}")


@_operator("loops", "twice the step of a loop")
def _loop_step(code: str) -> Iterator[Edit]:
    for match, _ in _loops(code):
        step = re.search(r"\+= (.+)", match.group(6))
        if step:
            yield Edit(match.start(6) + step.start(1), match.start(6) + step.end(1), f"2 * ({step.group(1)})")


@_operator("loops", "plan::least and plan::most exchanged")
def _least_most(code: str) -> Iterator[Edit]:
    yield from _words(code, r"\bleast(?=\()", "most")
    yield from _words(code, r"\bmost(?=\()", "least")


@_operator("loops", "the bound of a tail dropped: least(a, b) is a")
def _tail_unbounded(code: str) -> Iterator[Edit]:
    for call in calls(code, "least"):
        if not re.search(r"constexpr \w+ $", code[: call.start]):
            yield call.replaced(f"({call.argument(0)})")


@_operator("loops", "rounding up dropped, or down instead")
def _not_rounded_up(code: str) -> Iterator[Edit]:
    for call in calls(code, "round_up|ceil_div"):
        if re.search(r"\b\w+ $", code[: call.start]) and not re.search(r"\breturn $", code[: call.start]):
            continue
        by = f" / ({call.argument(1)})" if call.name.endswith("ceil_div") else ""
        yield call.replaced(f"(({call.argument(0)}){by})")


@_operator("loops", "a condition's edge moved: < and <=, > and >=")
def _edge_moved(code: str) -> Iterator[Edit]:
    for match in _conditions(code):
        for edge in re.finditer(r" (<=?|>=?) ", match[2]):
            old = edge.group(1)
            new = old[0] if len(old) == 2 else old + "="
            yield Edit(match[0] + edge.start(1), match[0] + edge.end(1), new)


@_operator("loops", "a condition always true, or never")
def _condition_fixed(code: str) -> Iterator[Edit]:
    for start, end, _ in _conditions(code):
        yield Edit(start, end, "true")
        yield Edit(start, end, "false")


@_operator("loops", "an equality inverted in a condition or a value")
def _equality_inverted(code: str) -> Iterator[Edit]:
    for match in re.finditer(r" ([=!]=) ", code):
        yield Edit(*match.span(1), "!=" if match.group(1) == "==" else "==")


def _conditions(code: str) -> Iterator[tuple[int, int, str]]:
    for match in re.finditer(r"\bif \(", code):
        end = closing(code, match.end() - 1)
        yield match.end(), end, code[match.end() : end]


# --- counts, masks, repeats, strides


@_operator("extents", "padding, tail or start value not filled")
def _fill_dropped(code: str) -> Iterator[Edit]:
    return _dropped(code, FILLS)


@_operator("extents", "another fill value")
def _fill_value(code: str) -> Iterator[Edit]:
    for call in _statements(code, "Duplicate|fill_tail|fill_lanes|fill_from"):
        for i, (start, end) in enumerate(call.arguments):
            value = re.fullmatch(r"-?[\d.]+f|(T)\(0\.0f\)|-?kInfinity", code[start:end])
            if i and value:
                yield call.with_argument(i, f"{value.group()} + {'T(1.0f)' if value.group(1) else '1.0f'}")


@_operator("extents", "a lane more or less in a mask")
def _mask_lane(code: str) -> Iterator[Edit]:
    yield from _words(
        code, r"uint64_t\(1\) << (\w+|\([^()]+\))", "uint64_t(1) << ({1} + 1)", "uint64_t(1) << ({1} - 1)"
    )


@_operator("extents", "a mask inverted")
def _mask_inverted(code: str) -> Iterator[Edit]:
    return _words(code, r"~\(\(", "((")


@_operator("extents", "half of a vector instruction's count")
def _count_halved(code: str) -> Iterator[Edit]:
    for call in _statements(code, VECTOR):
        last = len(call.arguments) - 1
        if last > 0 and re.search(r"count|\bn\b|int32_t|kMostRows|kSoftmaxRows", call.argument(last)):
            yield call.with_argument(last, f"({call.argument(last)}) / 2")


@_operator("extents", "one repeat less")
def _repeat_less(code: str) -> Iterator[Edit]:
    return _words(code, r"\buint8_t\(([^()]+)\)", "uint8_t({1} - 1)")


@_operator("extents", "twice the repeats")
def _repeat_twice(code: str) -> Iterator[Edit]:
    return _words(code, r"\buint8_t\(([^()]+)\)", "uint8_t(2 * ({1}))")


@_operator("extents", "more repeats than an instruction has: the limit of 255 doubled")
def _repeat_overflow(code: str) -> Iterator[Edit]:
    return _words(code, r"\b255\b", "511")


@_operator("extents", "a stride or count of an instruction's parameters one more")
def _stride_more(code: str) -> Iterator[Edit]:
    for call in _parameters(code):
        for i, (start, end) in enumerate(call.arguments):
            yield call.with_argument(i, f"decltype({code[start:end]})({code[start:end]} + 1)")
    yield from _fields(code, "{1} = {2} + 1")


@_operator("extents", "a stride of an instruction's parameters zero")
def _stride_zero(code: str) -> Iterator[Edit]:
    for call in _parameters(code):
        for i, (start, end) in enumerate(call.arguments):
            if code[start:end] != "0":
                yield call.with_argument(i, "0")
    yield from _fields(code, "{1} = 0")


def _parameters(code: str) -> Iterator[Call]:
    """`Params(...)` and `Params name(...)`, `name{...}`."""
    for match in re.finditer(rf"\b(?:{PARAMS})(?:<\w+>)?(?: \w+)?([({{])", code):
        end = closing(code, match.start(1))
        if end > 0:
            yield Call(code, "", match.start(), match.start(1), end)


def _fields(code: str, text: str) -> Iterator[Edit]:
    fields = r"\w*Stride|repeatTimes|blockNum|blockCount|blockLen|dstGap|nValue|dValue|ndNum|[mnk]|[mn]Size|[mk]Step"
    return _words(code, rf"(\bparams\.(?:{fields})) = (?!false|true)([^;]+)(?=;)", text)


# --- rounding and modes


@_operator("rounding and modes", "another rounding mode")
def _rounding(code: str) -> Iterator[Edit]:
    for match in re.finditer(r"\bCAST_(?:RINT|ROUND|TRUNC|FLOOR|CEIL)\b", code):
        for mode in ROUNDINGS:
            if mode != match.group():
                yield Edit(match.start(), match.end(), mode)


@_operator("rounding and modes", "Fixpipe casts to the other 16-bit type, or not")
def _fixpipe_cast(code: str) -> Iterator[Edit]:
    yield from _words(code, r"QuantMode_t::F322BF16\b", "QuantMode_t::F322F16", "QuantMode_t::NoQuant")
    yield from _words(code, r"QuantMode_t::F322F16\b", "QuantMode_t::F322BF16", "QuantMode_t::NoQuant")


@_operator("rounding and modes", "a reset of a mode dropped")
def _reset_dropped(code: str) -> Iterator[Edit]:
    yield from _dropped(code, RESETS)


@_operator("rounding and modes", "a mode set to the wrong value")
def _mode_wrong(code: str) -> Iterator[Edit]:
    yield from _words(code, r"SetAtomicNone\(\)", "SetAtomicAdd<float>()")
    yield from _words(code, r"HF32Mode::DISABLE", "HF32Mode::ENABLE")
    yield from _words(code, r"(SetSaturationFlag<[^>]*>)\(false\)", "{1}(true)")
    yield from _words(code, r"(SetCtrlSpr<[^>]*>)\(1\)", "{1}(0)")


@_operator("rounding and modes", "an fp32 intermediate narrowed to bf16")
def _narrowed(code: str) -> Iterator[Edit]:
    for call in _statements(code, "Add|Sub|Mul|Adds|Muls|divide"):
        if len(call.arguments) == 4:
            bits, count = f"{call.argument(0)}.template ReinterpretCast<uint32_t>()", f"int32_t({call.argument(3)})"
            shift = "v_barrier(); Shift{}({}, {}, uint32_t(16), {});"
            shifts = " ".join(shift.format(side, bits, bits, count) for side in ("Right", "Left"))
            yield call.replaced(f"{{ {call.text}; {shifts} }}")


@_operator("rounding and modes", "a result added to GM by atomics instead of stored")
def _atomic_add(code: str) -> Iterator[Edit]:
    for call in _statements(code, STORES):
        yield call.replaced(f"{{ SetAtomicAdd<float>(); {call.text}; SetAtomicNone(); }}")


# --- arithmetic


@_operator("arithmetic", "an arithmetic instruction dropped")
def _instruction_dropped(code: str) -> Iterator[Edit]:
    return _dropped(code, VECTOR)


@_operator("arithmetic", "an instruction exchanged: Add and Sub, Mul and Add, Adds and Muls, Max and Min")
def _instruction_exchanged(code: str) -> Iterator[Edit]:
    pairs = {"Add": "Sub", "Sub": "Add", "Mul": "Add", "Adds": "Muls", "Muls": "Adds", "Max": "Min", "Maxs": "Mins"}
    pairs |= {"Min": "Max", "Mins": "Maxs", "MulBlocks": "SubBlocks", "MulRows": "SubRows", "AddRows": "SubRows"}
    pairs |= {"ShiftLeft": "ShiftRight", "ShiftRight": "ShiftLeft"}
    for call in calls(code, "|".join(pairs)):
        if call.name in pairs and len(call.arguments) >= 4:
            yield Edit(call.start, call.start + len(call.name), pairs[call.name])


@_operator("arithmetic", "the operands of a difference, a quotient or a selection exchanged")
def _operands_exchanged(code: str) -> Iterator[Edit]:
    for call in _statements(code, "Sub|Div|divide|divide_rows|Select"):
        first = 2 if call.name == "Select" else 1
        if len(call.arguments) > first + 1:
            (a, b), (c, d) = call.arguments[first : first + 2]
            yield Edit(a, d, code[c:d] + code[b:c] + code[a:b])


@_operator("arithmetic", "the sign of a constant flipped")
def _sign_flipped(code: str) -> Iterator[Edit]:
    yield from _words(code, r"(?<=[(, ])-(\d[\d.]*(?:e-?\d+)?f|kInfinity)\b", "{1}")
    yield from _words(code, r"(?<=[(, ])(?<!- )([1-9][\d.]*(?:e-?\d+)?f|0\.\d*[1-9]\d*f|kInfinity)\b", "-{1}")


@_operator("arithmetic", "an fp32 constant one ulp further from 0")
def _constant_ulp(code: str) -> Iterator[Edit]:
    for match in re.finditer(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?|0x[\da-f.]+p[+-]?\d+)f\b", code):
        word = match.group(1)
        value = np.float32(float.fromhex(word) if "x" in word else float(word))
        if value and value < np.finfo(np.float32).max:
            yield Edit(match.start(), match.end(), f"{float(np.nextafter(value, np.float32(np.inf))).hex()}f")


@_operator("arithmetic", "a comparison's edge moved, or the comparison turned")
def _comparison(code: str) -> Iterator[Edit]:
    edge = {"LT": "LE", "LE": "LT", "GT": "GE", "GE": "GT", "EQ": "NE", "NE": "EQ"}
    turned = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}
    for match in re.finditer(r"CMPMODE::(\w+)", code):
        for new in (edge.get(match.group(1)), turned.get(match.group(1))):
            if new:
                yield Edit(*match.span(1), new)


@_operator("arithmetic", "an address or a count: a plus made a minus, a factor dropped")
def _integer_arithmetic(code: str) -> Iterator[Edit]:
    yield from _words(code, r"(?<=[\w)\]]) \+ (?=[\w(])", " - ")
    yield from _words(code, r"(?<=[\w)\]]) \* (\w[\w.]*(?![\w.(<:]))", "")


@_operator("arithmetic", "a state not carried on: an increment or the assignment to a member dropped")
def _update_dropped(code: str) -> Iterator[Edit]:
    yield from _words(code, r"(?<=[;{} ])\+\+[\w.]+(?=;)", NOTHING)
    yield from _words(code, r"(?<=\n)( +)\w+_(?:\.\w+)? \+?= [^;{}]+(?=;)", "{1}" + NOTHING)
    yield from _words(code, r"(?<=\n)( +)\w+\.\w+ = [^;{}]+(?=;)", "{1}" + NOTHING)


@_operator("arithmetic", "a constant doubled")
def _constant_doubled(code: str) -> Iterator[Edit]:
    for match in re.finditer(r"\bconstexpr (?:float|u?int\d+_t) ([^;()]+);", code):
        for value in re.finditer(r"k[A-Z]\w*(?:<T>)? = ([^,;]+)", match.group(1)):
            start = match.start(1)
            yield Edit(start + value.start(1), start + value.end(1), f"2 * ({value.group(1)})")


@_operator("arithmetic", "the NaN or upper part of exp left out")
def _exp_narrower(code: str) -> Iterator[Edit]:
    yield from _words(code, r"\bexp1\((?=\w+, )", "exp1<false>(")


# --- order of sums


@_operator("order", "a loop that adds up runs backwards")
def _loop_reversed(code: str) -> Iterator[Edit]:
    for match, end in _loops(code):
        kind, name, first, _, last, step = match.groups()
        if step == f"++{name}" and re.search(r"\bAdd\(|\badd\(|multiply|sums_|scale_add", code[match.end() : end]):
            yield Edit(*match.span(), f"for ({kind} {name} = {last}; {name}-- > {first};)")


@_operator("order", "a balanced tree over neighbours becomes one over halves")
def _tree_halves(code: str) -> Iterator[Edit]:
    for match in re.finditer(r"for \((\w+) (\w+) = 1; \2 < ([^;]+); \2 \*= 2\)", code):
        kind, name, count = match.groups()
        yield Edit(*match.span(), f"for ({kind} {name} = {count} / 2; {name} > 0; {name} /= 2)")


@_operator("order", "operands of a pairwise reduction taken from other lanes")
def _lanes_elsewhere(code: str) -> Iterator[Edit]:
    for call in _statements(code, "Add"):
        for i, (start, end) in enumerate(call.arguments[1:3], 1):
            moved = re.sub(r"\[(\d+)\]$", lambda m: f"[{int(m.group(1)) // 2}]", code[start:end])
            if moved != code[start:end]:
                yield call.with_argument(i, moved)


@_operator("order", "a fixed cut of a sum depends on the number of cores")
def _cut_by_cores(code: str) -> Iterator[Edit]:
    if "LD_PLAN_FN" in code:
        yield from _words(code, r"(?<![\w:.])(?:kStep|kChunkSteps|p\.leaves)\b", "({0} / (p.blocks > 1 ? 2 : 1))")
        return
    names = r"plan::(?:kStep|kChunkSteps|kSubTile)\b|kMmadK<T>|(?:depth_|plan_\.leaves|plan_\.leaf|cut_\.tile|batch_)\b"
    yield from _words(code, rf"(?<![\w:.])(?:{names})(?! *[=({{])", "({0} / (GetBlockNum() > 1 ? 2 : 1))")


@_operator("order", "a sum's first term added to itself or lost: the first pass taken for a later one")
def _first_pass(code: str) -> Iterator[Edit]:
    yield from _words(code, r"cmatrixInitVal = (\w+)", "cmatrixInitVal = !{1}", "cmatrixInitVal = true")
    yield from _words(code, r"\bfirst_ = (?:true|false)(?=;)", NOTHING)
