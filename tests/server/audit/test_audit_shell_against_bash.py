"""The shell reader against bash itself, on generated scripts of harmless assignments."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logdiff.audit.readers.expansion import UNKNOWN
from logdiff.audit.readers.shell import Command, Script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash here")

NAMES = ("A", "B", "C", "LIST")
PLAIN = st.text(alphabet="abxyz012_./:-=", min_size=0, max_size=6)
SPACED = st.text(alphabet="ab 1.=", min_size=0, max_size=6)
NAME = st.sampled_from(NAMES[:3])


def read(text: str) -> list[list[str]]:
    """The words of every `emit` as our reader sees them."""
    found: list[Command] = []
    unread: list[tuple[int, str]] = []
    script = Script(found.append, lambda line, why: unread.append((line, why)), lambda name, line: None)
    script.run(text.encode())
    assert not unread, (unread, text)
    words = [[w.text for w in c.words[1:]] for c in found if c.words[0].text == "emit"]
    assert not any(UNKNOWN.search(w) for row in words for w in row), (words, text)
    return words


def run(text: str) -> list[list[str]]:
    """The words of every `emit` as bash sees them."""
    whole = 'emit() { printf "%s\\0" "$@"; printf "\\n\\0"; }\n' + text
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "script.sh"
        file.write_text(whole, encoding="utf-8")
        done = subprocess.run(
            [str(BASH), "--norc", str(file)], env={}, capture_output=True, check=False, timeout=20, cwd=folder
        )
    assert done.returncode == 0, (done.stderr, text)
    rows: list[list[str]] = [[]]
    for word in done.stdout.decode().split("\0")[:-1]:
        if word == "\n":
            rows.append([])
        else:
            rows[-1].append(word)
    return [row if row != [""] else [] for row in rows[:-1]]


@st.composite
def word(draw: st.DrawFn, depth: int = 0) -> str:
    """One shell word: literals, quotes, parameters with operators, arithmetic, braces."""
    parts = draw(st.lists(st.integers(0, 11), min_size=1, max_size=3))
    out = ""
    for kind in parts:
        name, plain, digit = draw(NAME), draw(PLAIN), draw(st.integers(0, 9))
        out += {
            0: plain,
            1: f"'{draw(SPACED)}'",
            2: f'"{draw(SPACED)}${{{name}}}{plain}"',
            3: f'"${{{name}:-{draw(SPACED)}}}"',
            4: f"${{{name}}}",
            5: f'"${{{name}%{draw(st.sampled_from(["b", "1", "?", "*b"]))}}}"',
            6: f'"${{{name}//{draw(st.sampled_from("ab1"))}/{plain.replace("/", "")}}}"',
            7: f"$(({digit} * {draw(st.integers(0, 9))} + {draw(st.integers(0, 99))} / {digit + 1}))",
            8: "{" + f"{plain.replace('=', '')}p,q{draw(PLAIN)}" + "}",
            9: f'"${{{name}:+set}}"',
            10: f'"${{#{name}}}"',
            11: f"\\{draw(st.sampled_from('ab1'))}",
        }[kind]
    return out


@st.composite
def statement(draw: st.DrawFn, depth: int = 0) -> str:
    """One statement: assignment, array, appending, test, case, loop, function, here-document."""
    kind = draw(st.integers(0, 8 if depth < 2 else 3))
    name, value = draw(NAME), draw(word())
    inner = draw(statement(depth + 1)) if kind > 3 else ""
    other = draw(statement(depth + 1)) if kind > 3 else ":"
    letter = draw(st.sampled_from(["a", "b", "1"]))
    return {
        0: f"{name}={value}",
        1: f'export {name}="${{{draw(NAME)}}}{draw(PLAIN)}"',
        2: f"LIST+=({value}\n  {draw(word())} # said twice\n)",
        3: f"{name}+={draw(PLAIN)}",
        4: f'if [[ "${name}" == "{letter}" ]]; then\n{inner}\nelse\n{other}\nfi',
        5: f'case "${name}" in\n  a*) {inner} ;;\n  *) B=other ;;\nesac',
        6: f"for A in x y{draw(PLAIN)}; do\n{inner}\ndone",
        7: f'[ -n "${name}" ] && {name}=full',
        8: f'f{depth}() {{ C="in $1"; {inner}\n}}\nf{depth} "{draw(PLAIN)}"',
    }[kind]


@settings(max_examples=60, deadline=None)
@given(st.lists(statement(), min_size=1, max_size=5), word(), word())
def test_words_are_those_that_bash_makes(statements: list[str], first: str, second: str) -> None:
    start = "A=a B='b c' C=1\nLIST=(one 'two 2')\n"
    text = start + "\n".join(statements) + f'\nemit k={first} {second} "${{LIST[@]}}" ${{LIST[1]}} "$A" $B "x$C"\n'
    assert read(text) == run(text), text


CASES = [
    'emit "${UNSET:-"a  b"}" ${UNSET:-c d} "${UNSET:-${A:-x}y}"\n',
    "A='p q'\nemit $A\"$A\"$A\n",
    "emit a\\\n  b\\\n  c\n",
    "emit --k='{\"a\": {\"b\": [1, 2]}}' '{x:1,y:[2,3]}' {x:1,y:2}\n",
    "N=3\nemit $((N-5/2)) $(( (N*2) % 4 )) $((-7/2))\n",
    'A=(1 2 3)\nemit ${#A[@]} "${A[*]}" ${A[@]} ${A[2]}\n',
    "A=a.b.c\nemit ${A#*.} ${A##*.} ${A%.*} ${A%%.*} ${A/./-} ${A^^}\n",
    'emit $\'a\\tb\' "it\'s" \'say "x"\' "q\\"q" \\$A\n',
    "cat > /dev/null <<EOF\nthis is no command $A\nEOF\nemit done\n",
    "f() { local X=$1; shift_me=$X; }\nf 'a b'\nemit \"$shift_me\"\n",
    'set -- p q\nemit "$@" $# "$1"\n',
    'A=1\nunset A\nemit "${A-gone}"\n',
    "A=\nemit [${A-unset}] [${A:-empty}]\n",
    "emit {1..4} x{a,b}{1,2} {single}\n",
    "A=x; B=$A; A=y; emit $B $A\n",
    "LIST=()\nLIST+=(--flag 'v w')\nemit ${LIST[@]} \"${LIST[@]}\"\n",
    "A=2; if (( A > 1 )); then B=big; elif [ $A -eq 1 ]; then B=one; fi; emit $B\n",
    "A=k; case $A in j) B=1;; k|l) B=2;; *) B=3;; esac; emit $B\n",
    "A=x; ! [ $A = y ] && B=no; emit $B\n",
    'A=0; export A=1 B="two $A"; readonly C=3; emit "$B" $C\n',
    'emit "a\\\nb" "c\\d" "\\`"\n',
]


@pytest.mark.parametrize("text", CASES)
def test_what_scripts_are_made_of(text: str) -> None:
    assert read(text) == run(text)
