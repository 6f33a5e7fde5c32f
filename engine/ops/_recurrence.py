"""What LSTM, GRU and RNN share: the sizes of a node, its cell, and what kernels can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.dims import Dim, Guard, at_least, ceildiv
from engine.errors import ShapeError
from engine.ir import Shape
from engine.ops import NodeView, Support, no, yes_if
from engine.ops._activations import Activation, activations
from engine.ops._fit import alike
from engine.ops._variants import MAX_TRIPS
from engine.records import dataclass


@dataclass(frozen=True)
class Cell:
    """A cell: name, gates, default activations, and loops over the hidden units in a step."""

    name: str
    gates: int
    functions: tuple[str, ...]
    loops: int = 1


CELLS = {
    "LSTM": Cell("LSTM", 4, ("Sigmoid", "Tanh", "Tanh")),
    "GRU": Cell("GRU", 3, ("Sigmoid", "Tanh"), 2),
    "RNN": Cell("RNN", 1, ("Tanh",)),
}


def cell_of(view: NodeView) -> Cell:
    """The cell of a node, quantised or not."""
    return CELLS[view.node.op_type.removeprefix("DynamicQuantize")]


@dataclass(frozen=True)
class Recurrence:
    """Sizes of a node, and how its tensors lie.

    Attributes:
        batch_first: whether sequences come before steps in its tensors.
        backwards: whether the only direction is from the last step to the first.
    """

    cell: Cell
    steps: Dim
    sequences: Dim
    inputs: Dim
    hidden: Dim
    directions: int
    batch_first: bool
    backwards: bool

    @property
    def padded(self) -> Dim:
        return ceildiv(self.hidden, 4) * 4

    @property
    def x_strides(self) -> Mapping[str, Dim]:
        """Rows of the input from step to step and from sequence to sequence; the same for y."""
        strides: tuple[Dim, ...] = (self.sequences, 1, self.directions * self.sequences, 1)
        strides = (*strides, self.sequences)
        if self.batch_first:
            strides = (1, self.steps, self.directions, self.steps * self.directions, 1)
        names = ("x_step", "x_sequence", "y_step", "y_sequence", "y_direction")
        return dict(zip(names, strides, strict=True))

    @property
    def state_strides(self) -> Mapping[str, Dim]:
        strides = (self.directions, 1) if self.batch_first else (1, self.sequences)
        return dict(zip(("state_sequence", "state_direction"), strides, strict=True))


def direction_of(view: NodeView) -> str:
    """ "forward", "reverse" or "bidirectional", if it is valid."""
    value = view.attr("direction", "forward")
    return value.decode() if isinstance(value, bytes) else str(value)


def recurrence(view: NodeView) -> Recurrence:
    """The sizes of a node. Raises: ShapeError if X or R are not of rank 3."""
    x, r = view.shape(0), view.shape(2)
    if len(x) != 3 or len(r) != 3:
        raise ShapeError(f"{view.describe()}: X and R must have rank 3")
    batch_first = bool(view.attr("layout", 0))
    steps, sequences = (x[1], x[0]) if batch_first else (x[0], x[1])
    given = view.attr("hidden_size")
    direction = direction_of(view)
    return Recurrence(
        cell_of(view),
        steps,
        sequences,
        x[2],
        (r[1] if view.node.domain else r[2]) if given is None else int(given),
        2 if direction == "bidirectional" else 1,
        batch_first,
        direction == "reverse",
    )


def functions_of(view: NodeView) -> tuple[Activation, ...]:
    """The activations of a node, those of one direction after those of the other."""
    found = cell_of(view)
    count = 2 if direction_of(view) == "bidirectional" else 1
    names = [n.decode() if isinstance(n, bytes) else str(n) for n in view.attr("activations") or ()]
    return activations(
        names or list(found.functions) * count,
        view.attr("activation_alpha") or (),
        view.attr("activation_beta") or (),
    )


def supports(view: NodeView) -> Support:
    """Whether the kernels have its types, activations and sizes."""
    found = recurrence(view)
    if not view.dtype(0).is_float:
        return no(f"its kernels compute in float32, not in {view.dtype(0)}")
    if direction_of(view) not in ("forward", "reverse", "bidirectional"):
        return no(f"the direction {direction_of(view)!r} is unknown")
    functions = functions_of(view)
    wanted = len(found.cell.functions) * found.directions
    if len(functions) != wanted:
        return no(f"it has {len(functions)} activations, and {wanted} are needed")
    unknown = [f.name for f in functions if not f.known]
    if unknown:
        return no(f"there is no kernel for the activation {unknown[0]!r}")
    limit = MAX_TRIPS // found.cell.loops * 4
    return yes_if(
        at_least(found.hidden, 1, "there are hidden units"),
        at_least(limit, found.hidden, f"there are at most {limit} hidden units"),
    )


def agree(view: NodeView) -> Iterator[Guard]:
    """Weights, biases, lengths and states have the sizes that input and hidden units imply.

    Those that are quantised have weights by inputs, then by gates.
    """
    found = recurrence(view)
    lead, units = found.directions, found.hidden
    gates = found.cell.gates * units
    sequences = found.sequences
    state = (sequences, lead, units) if found.batch_first else (lead, sequences, units)
    weights: tuple[Shape, ...] = ((lead, gates, found.inputs), (lead, gates, units))
    if view.node.domain:
        weights = tuple((d, columns, rows) for d, rows, columns in weights)
    due: tuple[Shape, ...] = (
        *weights,
        (lead, 2 * gates),
        (sequences,),
        state,
        state,
        (lead, 3 * units),
    )
    for index, shape in enumerate(due, 1):
        if view.has(index):
            yield from alike(view, view.shape(index), shape)
