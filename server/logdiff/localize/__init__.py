"""From captured evidence to where two implementations part: which side, which operator, which input."""
