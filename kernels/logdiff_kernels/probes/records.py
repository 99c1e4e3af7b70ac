"""What a probe is made of: problems, implementations, families, providers, differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from logdiff_kernels.probes.draw import Draw

Shape = dict[str, int]
Result = tuple[Tensor, ...]
"""What an operator gives: one tensor or several, dimension 0 the rows."""


@dataclass(frozen=True)
class Problem:
    """One drawn input of an operator.

    Attributes:
        shape: the dimensions it was drawn for.
        rows: tensors with one entry of dimension 0 per row; of sequence families [sequences, length, ...].
        fixed: what all rows share: weights, tables, options.
    """

    shape: Shape
    rows: dict[str, Tensor]
    fixed: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of rows, or of sequences."""
        return next(iter(self.rows.values())).shape[0]

    def with_rows(self, rows: dict[str, Tensor]) -> Problem:
        """The same with other rows."""
        return replace(self, rows=rows)

    def take(self, index: Any) -> Problem:
        """Some of the rows, by anything that indexes a dimension."""
        return self.with_rows({name: rows[index] for name, rows in self.rows.items()})


@dataclass(frozen=True)
class Layout:
    """How sequences are laid out for one call.

    Attributes:
        kind: `single` one sequence without padding; `stacked` equal lengths as a batch; `left` or `right` padded;
            `packed` one after the other; `paged` keys and values in pages of `page` tokens.
        width: length with padding of `left` and `right`.
        page: tokens in a page.
    """

    kind: str
    width: int = 0
    page: int = 0


@dataclass(frozen=True)
class Sequence:
    """The inputs of one sequence, [length, ...] each; `q` may be shorter than `k`: its last positions."""

    parts: dict[str, Tensor]

    @property
    def length(self) -> int:
        """Rows of the result: those of `q`."""
        return self.parts["q"].shape[0]


@dataclass(frozen=True)
class Impl:
    """One operator of one provider, ready to be called.

    Attributes:
        call: row families: `call(**rows, **fixed)` -> tensor or tensors, dimension 0 the rows. Sequence families:
            `call(sequences, layout, fixed)` -> one tensor [length, ...] (or tuple) per sequence.
        leading: a row family's call also takes rows with one more dimension in front ([1, rows, ...]).
        layouts: kinds of `Layout` that a sequence family's call takes; the first is its own.
        pages: page sizes that it takes.
        split: `split(problem, ranks)` -> the result as that many tensor-parallel ranks compute it in turn.
        pieces: sequence families with a state: `pieces(sequence, bounds, fixed)` -> result of one sequence computed
            piece by piece.
        gradients: whether autograd goes through the call.
        refuses: relations that can't be asked of it, each with the reason.
        base: the call of an eager function whose compiled form is tried; None: `call` itself.
        about: versions and switches that decide its bits, for the fingerprint.
    """

    call: Callable[..., Any]
    leading: bool = False
    layouts: tuple[str, ...] = ()
    pages: tuple[int, ...] = (16, 32, 64, 128)
    split: Callable[[Problem, int], Any] | None = None
    pieces: Callable[[Sequence, list[int], dict[str, Any]], Any] | None = None
    gradients: bool = True
    refuses: Mapping[str, str] = field(default_factory=dict)
    base: Callable[..., Any] | None = None
    about: str = ""


@dataclass(frozen=True)
class Family:
    """One operator: inputs, rows, what it computes.

    Attributes:
        op: its name.
        kind: `rows` (rows are independent by definition) or `sequences` (rows are tokens of sequences).
        dims: names of the dimensions, in the order in which they are shrunk; the first counts rows or sequences.
        defaults: shapes that are tried where no model is given, cheapest first.
        draw: inputs of a shape.
        exact: the same in fp64: as an `Impl.call` of the kind.
        relations: which of `relations.NAMES` make sense.
        least: smallest value of each dimension (1 where absent).
        multiples: dimensions that are multiples of a number.
        legal: further condition on a shape.
        cost: work of a shape, in multiply-adds or elements.
        terms: length of the longest sum.
        roundings: how often an implementation in the storage dtype rounds on the way from an input to the output.
        wrt: rows that have a gradient.
        weights: fixed inputs that have a gradient.
        world: an operator over ranks: the call starts processes.
        cancelling: `cancelling(rows, fixed)` -> for each gradient the size of terms that may cancel in it exactly.
    """

    op: str
    kind: str
    dims: tuple[str, ...]
    defaults: tuple[Shape, ...]
    draw: Callable[[Draw, Shape], Problem]
    exact: Callable[..., Any]
    relations: tuple[str, ...]
    terms: Callable[[Shape], int]
    cost: Callable[[Shape], float]
    roundings: int = 1
    least: Mapping[str, int] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)
    legal: Callable[[Shape], bool] = lambda shape: True
    wrt: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("bfloat16", "float16", "float32")
    world: bool = False
    cancelling: Callable[[dict[str, Tensor], dict[str, Any]], tuple[float, ...]] | None = None

    def fits(self, shape: Shape) -> bool:
        """Whether a shape is one of this operator's."""
        return (
            set(shape) == set(self.dims)
            and all(shape[d] >= self.least.get(d, 1) and shape[d] % self.multiples.get(d, 1) == 0 for d in self.dims)
            and self.legal(shape)
        )


class AbsentError(Exception):
    """Why a provider can't give an operator here; its text stands in `skipped`."""


@dataclass(frozen=True)
class Provider:
    """Where implementations come from.

    Attributes:
        name: what results call it.
        devices: device types that it has operators for.
        ops: operator -> maker of its `Impl` for (device, dtype). A maker raises `AbsentError`.
        note: one line for lists.
        on_request: why it is probed only when it is named; empty: always.
    """

    name: str
    devices: tuple[str, ...]
    ops: Mapping[str, Callable[[str, str], Impl]]
    note: str = ""
    on_request: str = ""


@dataclass(frozen=True)
class Difference:
    """Two results that were to be equal and aren't.

    Attributes:
        variant: what was varied, in words.
        output: number of the result tensor.
        row: number of the row (or sequence).
        index: place within the row.
        bits: both values as hexadecimal bit patterns, the base first.
        values: both values.
        ulp: distance of the first differing pair in units in the last place; the largest of all in `max_ulp`.
        differing: elements that differ, of `compared`.
    """

    variant: str
    output: int
    row: int
    index: tuple[int, ...]
    bits: tuple[str, str]
    values: tuple[float, float]
    ulp: int
    max_ulp: int
    differing: int
    compared: int

    def as_dict(self) -> dict[str, Any]:
        """For `detail`."""
        return {
            "variant": self.variant,
            "output": self.output,
            "row": self.row,
            "index": list(self.index),
            "bits": list(self.bits),
            "values": list(self.values),
            "ulp": self.ulp,
            "max_ulp": self.max_ulp,
            "differing": self.differing,
            "compared": self.compared,
        }
