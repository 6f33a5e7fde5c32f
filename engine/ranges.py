"""Interval analysis of integer values: what int64 values a GPU may hold as 32 bits.

Intervals are sound: whatever the weights, sizes and data, a value lies in its interval, under two
conditions that the runtime checks. Graph inputs of type int64 that are listed in `Ranges.assumes`
must lie in `CHECKED` (the runtime scans them), and no symbol exceeds `MAX_SIZE` (a guard of
the plan wherever a proof needs it). Arithmetic wraps in ONNX as in NumPy, so a result that could
leave its type's range may be anything of that type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import reduce

import numpy as np

from engine import dims
from engine import intervals as iv
from engine.dims import Dim, Guard
from engine.dtypes import DType
from engine.intervals import Interval
from engine.ir import Array, Graph, Node
from engine.records import dataclass

CHECKED = (-(1 << 28), 1 << 28)
"""What graph inputs of type int64 are taken to lie in: some room is left for arithmetic on them."""
MAX_SIZE = (1 << 30) - 1
"""What a symbol may stand for at most where a proof depends on it: the sum of two fits int32."""


@dataclass(frozen=True)
class Fit:
    """Whether an integer value may be held in 32 bits.

    Attributes:
        how: "proven", "input (checked)", or the reason why not.
        inputs: graph inputs that must be scanned before the call for it to be true.
        guards: bounds on symbols that the proof needs.
    """

    ok: bool
    how: str
    inputs: frozenset[str] = frozenset()
    guards: tuple[Guard, ...] = ()


class Ranges(Mapping[str, Interval]):
    """Value name to interval, for the integer and bool tensors of one graph."""

    def __init__(
        self,
        intervals: Mapping[str, Interval],
        assumes: Mapping[str, frozenset[str]],
        guards: Mapping[str, tuple[Guard, ...]],
    ) -> None:
        self._intervals = dict(intervals)
        self._assumes = dict(assumes)
        self._guards = dict(guards)

    def __getitem__(self, name: str) -> Interval:
        return self._intervals[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._intervals)

    def __len__(self) -> int:
        return len(self._intervals)

    def assumes(self, name: str) -> frozenset[str]:
        """The graph inputs whose scan the interval of `name` relies on."""
        return self._assumes.get(name, frozenset())

    def fits_int32(self, name: str) -> Fit:
        """Whether `name` may be held as an i32 on the GPU."""
        lo, hi = self._intervals.get(name, iv.ANY)
        inputs = self.assumes(name)
        if iv.inside((lo, hi), iv.INT32):
            how = "input (checked)" if name in inputs else "proven"
            return Fit(True, how, inputs, self._guards.get(name, ()))
        return Fit(
            False,
            f"int64 value could exceed the int32 range: {name!r} lies in "
            f"[{'-2**63' if lo is None else lo}, {'2**63-1' if hi is None else hi}]",
        )


def ranges(
    graph: Graph,
    binding: Mapping[str, int] | None = None,
    *,
    checked: Collection[str] | None = None,
    held: Collection[str] = (),
) -> Ranges:
    """Intervals of every integer and bool tensor in `graph` (bodies are not entered).

    Args:
        binding: symbols to take as fixed; what follows then holds for these sizes only.
        checked: int64 graph inputs (and captures) taken to lie in `CHECKED`; None takes all.
        held: those of them that are on the GPU already, in 32 bits, and can't be scanned.
    """
    fixed = dict(binding or {})
    found = _Analysis(graph, fixed, MAX_SIZE)
    found.run(checked, held)
    unlimited = _Analysis(graph, fixed, None)
    unlimited.run(checked, held)
    guards = _size_guards(graph, fixed)
    sized = {
        name: guards
        for name, interval in found.intervals.items()
        if iv.inside(interval, iv.INT32) and not iv.inside(unlimited.intervals[name], iv.INT32)
    }
    return Ranges(found.intervals, found.assumed, sized)


def _size_guards(graph: Graph, fixed: Mapping[str, int]) -> tuple[Guard, ...]:
    shapes = [v.tensor.shape or () for v in graph.values.values() if v.tensor is not None]
    names = {name for shape in shapes for dim in shape for name in dims.symbols_of(dim)}
    return tuple(
        dims.at_least(MAX_SIZE, dims.symbol(name), f"{name} is below 2**30")
        for name in sorted(names - fixed.keys())
    )


class _Analysis:
    """The state of one analysis: what is known of the values so far."""

    def __init__(self, graph: Graph, binding: dict[str, int], max_size: int | None) -> None:
        self.graph = graph
        self.binding = binding
        self.max_size = max_size
        self.intervals: dict[str, Interval] = {}
        self.assumed: dict[str, frozenset[str]] = {}

    def run(self, checked: Collection[str] | None, held: Collection[str]) -> None:
        for name in (*self.graph.inputs, *self.graph.captures):
            dtype = self.dtype(name)
            if dtype is None or self.known(name) is not None:
                continue
            self.intervals[name] = limits(dtype)
            if dtype.name == "int64" and (checked is None or name in checked):
                self.intervals[name] = iv.INT32 if name in held else CHECKED
                self.assumed[name] = frozenset({name})
        for name in self.graph.values:
            known = self.known(name)
            if known is not None:
                self.intervals[name] = known
        for node in self.graph.nodes:
            self.visit(node)

    def visit(self, node: Node) -> None:
        for index, name in enumerate(node.outputs):
            dtype = self.dtype(name)
            if dtype is None or name in self.intervals:
                continue
            rule = _RULES.get(node.op_type) if node.domain == "" else None
            found = rule(_Operands(self, node, index)) if rule is not None else iv.ANY
            full = limits(dtype)
            narrower = iv.inside(found, full)
            self.intervals[name] = found if narrower else full
            if narrower and node.op_type not in _CONTENT_FREE:
                sources = [self.assumed.get(n, frozenset()) for n in node.reads]
                self.assumed[name] = frozenset().union(*sources)

    def dtype(self, name: str) -> DType | None:
        """Element type of an integer or bool tensor, else None."""
        tensor = self.graph.tensor(name)
        if tensor is None or not (tensor.dtype.is_integer or tensor.dtype.name == "bool"):
            return None
        return tensor.dtype

    def known(self, name: str) -> Interval | None:
        """Interval of a constant, or of a value whose content is known as dims."""
        value = self.graph.values[name]
        if value.constant is not None:
            return _of_array(value.constant)
        if value.dims is not None and self.dtype(name) is not None:
            return iv.hull(self.of_dim(d) for d in value.dims.reshape(-1))
        return None

    def of_dim(self, dim: Dim) -> Interval:
        """Interval of a dim under the binding and the bound on symbols."""
        if isinstance(dim, int):
            return dim, dim
        total: Interval = (0, 0)
        for monomial, factor in dim.terms:
            term: Interval = (factor, factor)
            for atom in monomial:
                term = iv.mul(term, self.of_atom(atom))
            total = iv.add(total, term)
        return iv.meet(total, dims.bounds(dim))

    def of_atom(self, atom: dims.Atom) -> Interval:
        if isinstance(atom, dims.Symbol):
            if atom.name in self.binding:
                return self.binding[atom.name], self.binding[atom.name]
            return 0, self.max_size
        a, b = (self.of_dim(arg) for arg in atom.args)
        bounds = dims.bounds(dims.Expr((((atom,), 1),)))
        match atom.op:
            case "//" if b[0] is not None and b[0] > 0:
                return iv.meet(iv.div(a, b), bounds)
            case "%":
                return 0, None if b[1] is None else max(b[1] - 1, 0)
            case "min":
                return iv.minimum(a, b)
            case "max" | "bcast":
                return iv.meet(iv.hull((a, b)), bounds)
            case _:
                return bounds


class _Operands:
    """What a rule sees: the node's inputs as intervals, and one of its outputs."""

    def __init__(self, analysis: _Analysis, node: Node, output: int) -> None:
        self._analysis = analysis
        self.node = node
        self.output = output

    def __getitem__(self, index: int) -> Interval:
        return self._analysis.intervals.get(self.node.input(index), iv.ANY)

    def has(self, index: int) -> bool:
        return bool(self.node.input(index))

    def attr(self, name: str, default: int) -> int:
        return int(self.node.attrs.get(name, default))

    @property
    def all(self) -> list[Interval]:
        return [self[i] for i in range(len(self.node.inputs)) if self.has(i)]

    def shape(self, index: int) -> list[Interval] | None:
        """Intervals of the sizes of input `index`; None if its rank is unknown."""
        tensor = self._analysis.graph.tensor(self.node.input(index))
        if tensor is None or tensor.shape is None:
            return None
        return [self._analysis.of_dim(d) for d in tensor.shape]

    def size(self, index: int = 0) -> Interval:
        """Interval of the number of elements of input `index`."""
        sizes = self.shape(index)
        if sizes is None:
            return 0, None
        total: Interval = (1, 1)
        for interval in sizes:
            total = iv.mul(total, interval)
        return total

    def longest(self, index: int = 0, axis: int | None = None) -> int | None:
        """Upper bound of the size of input `index` along `axis` (None: along any)."""
        sizes = self.shape(index)
        if sizes is None:
            return None
        if axis is not None and -len(sizes) <= axis < len(sizes):
            sizes = [sizes[axis]]
        highs = [hi for _, hi in sizes]
        return None if None in highs else max((hi for hi in highs if hi is not None), default=1)

    def constant(self, index: int) -> Array | None:
        return self._analysis.graph.constant(self.node.input(index))


def limits(dtype: DType) -> Interval:
    """All values of an integer type or bool; those of 64 bits count as unbounded."""
    if dtype.name == "bool":
        return 0, 1
    if dtype.name == "int64":
        return iv.ANY
    if dtype.name == "uint64":
        return 0, None
    signed = not dtype.name.startswith("u")
    bits = int(dtype.name.removeprefix("u").removeprefix("int"))
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def _of_array(array: Array) -> Interval | None:
    if array.dtype.kind not in "iub":
        return None
    return (int(np.min(array)), int(np.max(array))) if array.size else (0, 0)


def _below(size: int | None) -> Interval:
    """Indices into `size` elements."""
    return 0, None if size is None else max(size - 1, 0)


def _top_k(n: _Operands) -> Interval:
    return _below(n.longest(0, n.attr("axis", -1))) if n.output == 1 else n[0]


def _pad(n: _Operands) -> Interval:
    if n.node.attrs.get("mode", "constant") not in ("constant", b"constant"):
        return n[0]
    return iv.hull((n[0], n[2] if n.has(2) else (0, 0)))


def _constant_of_shape(n: _Operands) -> Interval:
    value = n.node.attrs.get("value")
    return (_of_array(np.asarray(value)) or iv.ANY) if value is not None else (0, 0)


def _scatter(n: _Operands) -> Interval:
    reduction = n.node.attrs.get("reduction", "none")
    if reduction in ("none", "min", "max", b"none", b"min", b"max"):
        return iv.hull((n[0], n[2]))
    return iv.ANY


def _mod(n: _Operands) -> Interval:
    """fmod has the dividend's sign, the plain form the divisor's; modulo 0 gives 0."""
    lo, hi = n[1]
    if not n.node.attrs.get("fmod", 0):
        return None if lo is None else min(lo + 1, 0), None if hi is None else max(hi - 1, 0)
    divisor, dividend = iv.magnitude(n[1]), iv.magnitude(n[0])
    reaches = [x for x in (None if divisor is None else divisor - 1, dividend) if x is not None]
    reach = max(min(reaches), 0) if reaches else None
    lo, hi = n[0]
    low = 0 if lo is not None and lo >= 0 else None if reach is None else -reach
    return low, 0 if hi is not None and hi <= 0 else reach


def _sub(n: _Operands) -> Interval:
    """Function bodies make zeros of a type by x - x."""
    return (0, 0) if n.node.inputs[0] == n.node.inputs[1] else iv.add(n[0], iv.neg(n[1]))


def _clip(n: _Operands) -> Interval:
    found = iv.maximum(n[0], n[1]) if n.has(1) else n[0]
    return iv.minimum(found, n[2]) if n.has(2) else found


def _reduce_extreme(n: _Operands) -> Interval:
    """An empty reduction gives the type's own extreme, so sizes must be known to be positive."""
    return n[0] if (n.size()[0] or 0) > 0 else iv.ANY


def _cum_sum(n: _Operands) -> Interval:
    axis = n.constant(1)
    known = int(axis.reshape(-1)[0]) if axis is not None and axis.size == 1 else None
    return iv.times_count(n[0], n.longest(0, known))


def _bitwise(n: _Operands) -> Interval:
    """Sign-extended numbers of k bits stay numbers of k bits; without a sign, non-negative."""
    lo, hi = iv.hull((n[0], n[1]))
    if lo is None or hi is None:
        return iv.ANY
    bits = max(hi.bit_length(), (~lo).bit_length() if lo < 0 else 0)
    return (0 if lo >= 0 else -(1 << bits)), (1 << bits) - 1


_CONTENT_FREE = frozenset({"ArgMax", "ArgMin", "NonZero", "Shape", "Size"})

_SAME = (
    "Cast CastLike Compress DepthToSpace Expand Flatten Gather GatherElements GatherND Identity "
    "Reshape ReverseSequence Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze"
)

_RULES: dict[str, Callable[[_Operands], Interval]] = {
    **dict.fromkeys(_SAME.split(), lambda n: n[0]),
    **dict.fromkeys(("ArgMax", "ArgMin"), lambda n: _below(n.longest(0, n.attr("axis", 0)))),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), _bitwise),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), _reduce_extreme),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scatter),
    "Abs": lambda n: iv.absolute(n[0]),
    "Add": lambda n: iv.add(n[0], n[1]),
    "BitwiseNot": lambda n: iv.add(iv.neg(n[0]), (-1, -1)),
    "Clip": _clip,
    "Concat": lambda n: iv.hull(n.all),
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cum_sum,
    "Div": lambda n: iv.div(n[0], n[1]),
    "Dropout": lambda n: (0, 1) if n.output == 1 else n[0],
    "EyeLike": lambda n: (0, 1),
    "Max": lambda n: reduce(iv.maximum, n.all),
    "MaxPool": lambda n: _below(n.size()[1]) if n.output == 1 else n[0],
    "Min": lambda n: reduce(iv.minimum, n.all),
    "Mod": _mod,
    "Mul": lambda n: iv.mul(n[0], n[1]),
    "Neg": lambda n: iv.neg(n[0]),
    "NonMaxSuppression": lambda n: iv.hull((_below(n.longest(0)), _below(n.longest(1)))),
    "NonZero": lambda n: _below(n.longest()),
    "OneHot": lambda n: n[2],
    "Pad": _pad,
    "Range": lambda n: iv.hull((n[0], n[1])),
    "ReduceL1": lambda n: iv.times_count(iv.absolute(n[0]), n.size()[1]),
    "ReduceSum": lambda n: iv.times_count(n[0], n.size()[1]),
    "ReduceSumSquare": lambda n: iv.times_count(iv.square(n[0]), n.size()[1]),
    "Shape": lambda n: (0, n.longest()),
    "Sign": lambda n: (-1, 1),
    "Size": lambda n: n.size(),
    "Sub": _sub,
    "Sum": lambda n: reduce(iv.add, n.all),
    "TensorScatter": lambda n: iv.hull((n[0], n[1])),
    "TopK": _top_k,
    "Trilu": lambda n: iv.hull((n[0], (0, 0))),
    "Unique": lambda n: n[0] if n.output == 0 else (0, n.size()[1]),
    "Where": lambda n: iv.hull((n[1], n[2])),
}
