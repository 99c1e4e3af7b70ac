"""Named points of a model where two implementations can be compared row by row."""
