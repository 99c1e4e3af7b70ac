"""Words that the terminal, the tools and the report share."""

_WORDS = (("error", "error"), ("warning", "warning"), ("info", "note"))


def counted(number: int, word: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def tally(counts: dict[str, int]) -> str:
    """`2 errors, 1 warning, 0 notes` of `counts` of a `logdiff-audit/1`."""
    return ", ".join(counted(counts[name], word) for name, word in _WORDS)
