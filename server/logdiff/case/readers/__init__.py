"""Readers: one file per foreign format, each turning files into `PairBatch`es."""

from logdiff.case.readers.pair_writer import write_pairs
from logdiff.case.readers.pairs import read_pairs

__all__ = ["read_pairs", "write_pairs"]
