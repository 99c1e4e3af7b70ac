from __future__ import annotations

import math

import pytest
from logdiff.report.wording import as_float, bits, number, percent, visible


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text, 漢字, é", "plain text, 漢字, é"),
        ("a\nb\tc\r", "a⏎b⇥c␍"),
        ("\x00\x1b[31m", "\\u0000\\u001b[31m"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\ud800", "\\ud800"),
        ("\u2028", "\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        ("<script>", "<script>"),
    ],
)
def test_foreign_text_shows_every_hidden_character_as_an_escape(raw: str, shown: str) -> None:
    assert visible(raw) == shown


def test_foreign_text_can_always_be_written_as_utf8() -> None:
    everything = "".join(chr(c) for c in range(0x11000)) + "".join(chr(c) for c in range(0xE0000, 0xE0200))
    visible(everything, len(everything)).encode("utf-8")


def test_long_text_is_cut_and_says_how_much_is_left_out() -> None:
    assert visible("x" * 1000, 10) == "x" * 10 + "… (990 more)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (1234567, "1,234,567"),
        (0.0, "0"),
        (-0.0, "0"),
        (0.0442371, "0.04424"),
        (3.14159, "3.142"),
        (-12345.6, "-12346"),
        (1.5e-7, "1.500e-07"),
        (2e9 + 0.5, "2.000e+09"),
        ("nan", "nan"),
        ("-inf", "-inf"),
        (math.inf, "inf"),
        (None, "–"),
        ("text", "–"),
        (True, "–"),
        (10**400, "inf"),
    ],
)
def test_numbers_have_four_significant_digits_and_absent_ones_a_dash(value: object, shown: str) -> None:
    assert number(value) == shown


def test_numbers_never_raise_for_huge_integers() -> None:
    assert as_float(-(10**400)) == -math.inf


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 3, "33.33 %"),
        (1, 2, "50 %"),
        (1, 10_000_000, "< 0.01 %"),
        (9_999_999, 10_000_000, "> 99.99 %"),
        (1, 0, "–"),
    ],
)
def test_a_share_never_rounds_to_nothing_or_to_everything(part: int, whole: int, shown: str) -> None:
    assert percent(part, whole) == shown


def test_bits_are_eight_hexadecimal_digits() -> None:
    assert bits(0xBF800000) == "0xbf800000"  # -1.0 as IEEE 754 binary32
