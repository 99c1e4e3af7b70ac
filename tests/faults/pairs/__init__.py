"""Faults as pair files."""

from tests.faults.pairs import model, outputs, state

FAULTS = [*outputs.FAULTS, *model.FAULTS, *state.FAULTS]
