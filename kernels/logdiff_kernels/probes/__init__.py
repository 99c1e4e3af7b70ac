"""Operator probes: small experiments on one operator of one provider, each with a yes/no answer and a control.

`families/` says what an operator's inputs are, what a row is and what it computes in fp64; `providers/` how each
implementation is called; `relations/` which change of shape must leave a row's bits alone (docs/probes.md).
"""
