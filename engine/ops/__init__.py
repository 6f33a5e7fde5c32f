"""Operators: what the stages know about each, registered by family in this folder's modules.

`OpDef` ties an operator to its rules: shape inference on symbolic dims (`infer`), symbolic contents
of small integer tensors (`evaluate`), what the GPU can do (`supports`), and how (`elementwise`,
`view` or `lower`). An operator without an `OpDef` runs on the CPU, with onnx's own shape inference.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from engine import dims
from engine.dims import Dim, Guard, ceildiv, dmin, evaluate, symbols_of
from engine.dtypes import DType
from engine.errors import ShapeError
from engine.indexing import Place
from engine.ir import Array, Graph, Node, Shape, TensorType, ValueType
from engine.records import dataclass
from engine.target import MAX_WORKGROUPS, Target
from engine.work import CpuWork, GpuWork

MAX_RANK = 8
MAX_DIMS = 4096
"""Constants with more elements hold data, not sizes."""


@dataclass(frozen=True)
class Support:
    """Whether the GPU can run a node: yes, yes under guards, or no with the reason in words."""

    ok: bool
    reason: str = ""
    guards: tuple[Guard, ...] = ()


YES = Support(True)


def no(reason: str) -> Support:
    """A refusal; `reason` completes "on the CPU because ..."."""
    return Support(False, reason)


def yes_if(*guards: Guard) -> Support:
    """Supported while every guard holds; a call that breaks one gets a plan of its own."""
    return Support(True, "", tuple(guards))


class NodeView:
    """A node with what is known of its operands. Rules read nodes through this class only."""

    def __init__(self, graph: Graph, node: Node, target: Target | None = None) -> None:
        self.graph = graph
        self.node = node
        self.target = target or Target.baseline()

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return bool(self.node.input(index))

    def wants(self, index: int) -> bool:
        """Whether output `index` is used."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index])

    def type(self, index: int) -> TensorType:
        """Type of input `index`. Raises: ShapeError if it is not a tensor of known type."""
        return self._tensor(self.node.input(index), f"input {index}")

    def out(self, index: int = 0) -> TensorType:
        """Type of output `index`. Raises: ShapeError if it is not a tensor of known type."""
        return self._tensor(self.node.outputs[index], f"output {index}")

    def _tensor(self, name: str, what: str) -> TensorType:
        tensor = self.graph.tensor(name)
        if tensor is None:
            raise ShapeError(f"{self.describe()}: {what} ({name!r}) is not a tensor of known type")
        return tensor

    def shape(self, index: int) -> Shape:
        """Shape of input `index`. Raises: ShapeError if its rank is unknown."""
        shape = self.type(index).shape
        if shape is None:
            raise ShapeError(f"{self.describe()}: the rank of input {index} is unknown")
        return shape

    def out_shape(self, index: int = 0) -> Shape:
        """Shape of output `index`. Raises: ShapeError if its rank is unknown."""
        shape = self.out(index).shape
        if shape is None:
            raise ShapeError(f"{self.describe()}: the rank of output {index} is unknown")
        return shape

    def dtype(self, index: int) -> DType:
        """Element type of input `index`."""
        return self.type(index).dtype

    def const(self, index: int) -> Array | None:
        """Array of input `index` if it is a constant, else None (also if omitted)."""
        return self.graph.constant(self.node.input(index))

    def dims(self, index: int) -> Array | None:
        """Content of small integer input `index` as an object array of `Dim`; None if unknown."""
        name = self.node.input(index)
        if name not in self.graph.values:
            return None
        value = self.graph.values[name]
        if value.dims is not None:
            return value.dims
        array = value.constant
        if array is not None and array.dtype.kind in "iub" and array.size <= MAX_DIMS:
            return array.astype(object)
        return None

    def dim_list(self, index: int) -> list[Dim] | None:
        """Content of a 1-D (or 0-D) integer input as a flat list of dims; None if unknown."""
        found = self.dims(index)
        return None if found is None else list(found.reshape(-1))

    def ints(self, index: int) -> list[int] | None:
        """Content of an integer input if every element is a known integer; None otherwise."""
        found = self.dim_list(index)
        if found is None or not dims.is_static(found):
            return None
        return [int(d) for d in found]  # type: ignore[arg-type]

    def attr(self, name: str, default: Any = None) -> Any:
        """Attribute `name`, or `default` where it is not given."""
        return self.node.attrs.get(name, default)

    def axis(self, rank: int, default: int = 0, name: str = "axis") -> int:
        """Attribute `name` as an axis in [0, rank). Raises: ShapeError if it is outside."""
        return self.normal_axis(int(self.attr(name, default)), rank)

    def normal_axis(self, axis: int, rank: int) -> int:
        """`axis` counted from the front. Raises: ShapeError if it is outside [-rank, rank)."""
        if not -rank <= axis < max(rank, 1):
            raise ShapeError(f"{self.describe()}: axis {axis} is outside [-{rank}, {rank})")
        return axis % rank if rank else 0

    def normal_axes(self, axes: Iterable[int], rank: int) -> list[int]:
        """Axes counted from the front. Raises: ShapeError if one is outside or given twice."""
        given = list(axes)
        found = [self.normal_axis(int(a), rank) for a in given]
        if len(set(found)) < len(found):
            raise ShapeError(f"{self.describe()}: axes {given} name one axis twice")
        return found

    def describe(self) -> str:
        """The node for messages: operator, name, and what its inputs look like."""
        types = ", ".join(str(self.graph.values[n].type) if n else "-" for n in self.node.inputs)
        return f"{self.node.op_type} {self.node.name or self.node.key!r} ({types})"

    def named(self, error: ShapeError) -> ShapeError:
        """The error with the node in front, if it does not say which one it is of."""
        if str(error).startswith(f"{self.node.op_type} "):
            return error
        return ShapeError(f"{self.describe()}: {error}")


class InferView(NodeView):
    """What `infer` rules get: also makes fresh symbols for sizes that data decide.

    Attributes:
        guards: conditions on sizes under which what a rule says is right; rules add them.
    """

    def __init__(self, graph: Graph, node: Node, fresh: Callable[[str], Dim]) -> None:
        super().__init__(graph, node)
        self.fresh = fresh
        self.guards: list[Guard] = []

    def require(self, guards: Iterable[Guard]) -> None:
        """Adds conditions without which the node means nothing.

        Raises: ShapeError for one that can't hold.
        """
        for guard in guards:
            if guard.known is False:
                node = self.node
                where = f"{node.op_type} {node.name or node.key!r}"
                raise ShapeError(f"{where}: it can't be that {guard}")
            self.guards.append(guard)


@dataclass(frozen=True)
class KernelCall:
    """One dispatch of a shader file, sizes still symbolic.

    Attributes:
        shader: file stem in `shaders/`.
        tensors: WGSL tensor name to value name (operands of the node, or scratch values).
        params: field of Params to its value: a dim for u32 and i32, a float for f32.
        grid: workgroups in x, y, z; see `linear`.
        flags, text, overrides, features: as `engine.shader.render` takes them.
        extra_params: (name, kind) of words that generated `text` reads beyond the file's own.
        trips: bound on the loop iterations of one invocation, nested loops multiplied out.
        repeat: how often it is dispatched in turn, for a kernel that calls `repeat_index()`: the
            index of the repetition. Each sees what those before it wrote. Neighbouring stages that
            repeat take turns: all at index 0, then all at index 1, and so on.
        when: guards under which this alternative may run.
    """

    shader: str
    tensors: Mapping[str, str]
    params: Mapping[str, Dim | float]
    grid: tuple[Dim, Dim, Dim]
    flags: frozenset[str] = frozenset()
    text: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, int] = field(default_factory=dict)
    features: frozenset[str] = frozenset()
    extra_params: tuple[tuple[str, str], ...] = ()
    trips: Dim = 1
    repeat: Dim = 1
    when: tuple[Guard, ...] = ()


Stage = tuple[KernelCall, ...]
"""Alternatives for one dispatch, tried in order when sizes are bound; the last has no guard."""


def linear(
    invocations: Dim, workgroup: int = 64, limit: int = MAX_WORKGROUPS
) -> tuple[Dim, Dim, Dim]:
    """The grid of a 1-D kernel (`lib/index.wgsl: flat_index`), folded into y past the limit."""
    groups = ceildiv(invocations, workgroup)
    return dmin(groups, limit), ceildiv(groups, limit), 1


class Lowering(NodeView):
    """What `lower` rules get: also makes scratch buffers and derived constants."""

    def __init__(
        self,
        graph: Graph,
        node: Node,
        target: Target,
        scratch: Callable[[TensorType], str],
        derived: Callable[[str, str, Callable[[Array], Array], DType | None], str],
        style: str = "",
        binding: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(graph, node, target)
        self.style = style
        self._binding = binding or {}
        self._scratch = scratch
        self._derived = derived

    def likely(self, dim: Dim) -> int | None:
        """A size in the call that the plan is made for, to choose by: other calls differ."""
        return evaluate(dim, self._binding) if symbols_of(dim) <= self._binding.keys() else None

    def scratch(self, dtype: DType, shape: Sequence[Dim]) -> str:
        """Name of a new buffer that lives for this node's stages only."""
        return self._scratch(TensorType(dtype, tuple(shape)))

    def derived(
        self,
        index: int,
        recipe: str,
        make: Callable[[Array], Array],
        dtype: DType | None = None,
    ) -> str:
        """Name of a constant computed from constant input `index`; equal recipes are shared.

        It has the type of the input, unless `dtype` says another.
        """
        return self._derived(self.node.inputs[index], recipe, make, dtype)


Walk = tuple[Shape, Shape]


@dataclass(frozen=True)
class Elementwise:
    """An operator as one WGSL expression over its operands, all broadcast to one shape.

    `expr` is a format string, or a function of the node that returns one. Its fields: `{0}`, `{1}`,
    ... the operands (plain identifiers), `{T}` the output's type, `{S}` the type of operand 0,
    `{U}` u32, and each name in `params`. It must hold for scalars and for vec4 alike ({T}, {S} and
    {U} become vector types; write `{T}(0)` for literals, `select`, `&`, `|`), unless `scalar` is
    set, in which case it is applied to each lane. An omitted optional operand is the string "".

    Attributes:
        walks: for operands that are not broadcast as NumPy does: their index to sizes and strides,
            in elements, of a walk through them in the order of the output.
        params: attribute name to default; each becomes an f32 word of the kernel. Or a function of
            the node that returns names and values.
        includes: library files, such as "lib/erf.wgsl", whose functions `expr` calls.
    """

    expr: str | Callable[[NodeView], str]
    params: Mapping[str, float] | Callable[[NodeView], Mapping[str, float]] = field(
        default_factory=dict
    )
    includes: tuple[str, ...] = ()
    scalar: bool = False
    walks: Callable[[NodeView], Mapping[int, Walk]] | None = None

    def text(self, view: NodeView) -> str:
        return self.expr if isinstance(self.expr, str) else self.expr(view)

    def values(self, view: NodeView) -> dict[str, float]:
        if callable(self.params):
            return dict(self.params(view))
        return {name: float(view.attr(name, d)) for name, d in self.params.items()}


@dataclass(frozen=True)
class Tail:
    """How what a kernel accumulates becomes an element of output 0, where it is stored.

    Attributes:
        elementwise: an expression of `{acc}` and of the operands that it reads.
        inputs: indices of these operands; kernels do not bind them.
        acc: WGSL type of what is accumulated.
    """

    elementwise: Elementwise
    inputs: tuple[int, ...]
    acc: str


@dataclass(frozen=True)
class InPlace:
    """How an operator that only moves elements can leave them where they are.

    Attributes:
        joins: operands are parts of output 0, where their kernels store them; else outputs are
            parts of input 0, where their kernels load them.
        parts: the place of operands in output 0, or of outputs in input 0, by index, for those that
            have one.
        rest: the dispatches that copy only the operands or outputs of these indices.
    """

    joins: bool
    parts: Callable[[NodeView], Mapping[int, Place]]
    rest: Callable[[Lowering, Sequence[int]], Sequence[Stage]]


Infer = Callable[[InferView], Sequence[ValueType]]
Evaluate = Callable[[NodeView], Sequence[Array | None] | None]

FLOATS = frozenset({"float32", "float16", "bfloat16"})
SMALL_INTS = frozenset({"int8", "uint8", "int16", "uint16"})
NIBBLES = frozenset({"int4", "uint4", "int2", "uint2"})
INTS = frozenset({"int32", "uint32", "int64"}) | SMALL_INTS
NUMBERS = FLOATS | INTS
ALL = NUMBERS | {"bool"}


@dataclass(frozen=True)
class OpDef:
    """All that the stages know of one operator from `since` on (until the next registered form).

    Attributes:
        infer: output types from input types; None asks onnx's shape inference, which needs sizes.
        evaluate: contents of small integer outputs as object arrays of `Dim`, from the inputs'.
        elementwise: the operator as an expression; or
        view: output 0 is input 0's buffer with another shape; or
        lower: dispatches that compute it. All three None: CPU only.
        supports: refusals and guards beyond dtypes, ranks and limits, which are checked for all.
        limits: what `supports` refuses, in words, for the table of operators.
        dtypes: ONNX dtype names that tensors outside `shape_inputs` may have on the GPU.
        shape_inputs: inputs read when planning, never by a kernel: constants or known dims.
        tail: the kernel stores what `tail.acc` says, and this expression makes the output of it.
        loads: index of an input, and how often the kernels load each of its elements (the view has
            integers for sizes). Elementwise nodes in front of such an input may be computed where
            it is loaded. Every kernel reads it through its accessors, and no packed copy is made.
        by_plane: whether kernels load by `plane_load_x`, so that what is one for a plane has no
            place to be worked out.
        border: for a node and a Pad that makes its input 0: the node that reads what the Pad reads
            (its attributes may be known to `lower` only), or why there is none.
        epilogue: the last stage that binds output 0 stores it through `store_`/`store4_` of its
            tensor, each element once, so elementwise consumers may be fused into it; that of a
            variadic node is its only one while its tensors keep to the limit.
        in_place: how values may be parts of others instead; see `engine.parts`.
        inlines_scalars: `lower` reads constants of one element from Params, not from buffers, as
            expressions do.
        scratch: storage buffers that `lower` binds beyond the node's own tensors.
        flops: floating point operations of one run, for costs; None: one per output element.
        launches: dispatches of one run, for costs; None: those of `gpu`, or else one and one for
            each of `scratch`.
        cpu, gpu: what one run does in NumPy and in the kernels, for costs; the view has integers
            for sizes. None: worked out from `flops` and from what is read and written.
        variadic: any number of inputs or outputs (`Sum`, `Concat`, `Split`): `lower` keeps to the
            limit of storage buffers by itself.
        random: never folded or merged.
        styles: kinds of kernel besides the default that `lower` makes if `Lowering.style` asks for
            them; the tuner measures which is fastest.
        tolerance: largest error over the largest magnitude, against the reference in float64.
    """

    op_type: str
    since: int = 1
    domain: str = ""
    infer: Infer | None = None
    evaluate: Evaluate | None = None
    elementwise: Elementwise | None = None
    view: bool = False
    lower: Callable[[Lowering], Sequence[Stage]] | None = None
    supports: Callable[[NodeView], Support] | None = None
    limits: str = ""
    dtypes: frozenset[str] = FLOATS
    shape_inputs: tuple[int, ...] = ()
    tail: Tail | None = None
    loads: Mapping[int, Callable[[NodeView], float]] = field(default_factory=dict)
    by_plane: Callable[[NodeView], bool] = lambda view: False
    border: Callable[[NodeView, NodeView], Node | str] | None = None
    epilogue: bool = False
    in_place: InPlace | None = None
    inlines_scalars: bool = False
    scratch: int = 0
    flops: Callable[[NodeView], Dim] | None = None
    launches: Callable[[NodeView], Dim] | None = None
    cpu: Callable[[NodeView], CpuWork] | None = None
    gpu: Callable[[NodeView], GpuWork] | None = None
    variadic: bool = False
    random: bool = False
    styles: tuple[str, ...] = ()
    tolerance: float = 1e-5

    @property
    def on_gpu(self) -> bool:
        return self.elementwise is not None or self.view or self.lower is not None


_REGISTRY: dict[tuple[str, str], list[OpDef]] = {}


def register(op: OpDef) -> OpDef:
    """Adds an operator form. Raises: ValueError if it is registered already."""
    forms = _REGISTRY.setdefault((op.domain, op.op_type), [])
    if any(f.since == op.since for f in forms):
        raise ValueError(f"{op.op_type}-{op.since} is registered twice")
    forms.append(op)
    forms.sort(key=lambda f: f.since)
    return op


def lookup(op_type: str, since_version: int = 1 << 30, domain: str = "") -> OpDef | None:
    """The newest form registered for at most `since_version`, or None."""
    if not _imported:
        _import_families()
    for form in reversed(_REGISTRY.get((domain, op_type), ())):
        if form.since <= since_version:
            return form
    return None


def definition(node: Node) -> OpDef | None:
    """The `OpDef` of a node, or None."""
    return lookup(node.op_type, node.since_version, node.domain)


def in_place(node: Node) -> InPlace | None:
    """How a node can do without a kernel, or None."""
    op = definition(node)
    return None if op is None else op.in_place


def registered() -> tuple[OpDef, ...]:
    """Every registered form."""
    _import_families()
    return tuple(f for forms in _REGISTRY.values() for f in forms)


def is_scalar_constant(graph: Graph, name: str) -> bool:
    """Whether a value is one known number, which expressions read from Params, not a buffer."""
    array, tensor = graph.constant(name), graph.tensor(name)
    if array is None or array.size != 1 or tensor is None:
        return False
    return tensor.dtype.wgsl in ("f32", "i32", "u32")


def bound_inputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """The inputs of a node for which kernels bind buffers, each once."""
    op = definition(node)
    names = dict.fromkeys(
        n for i, n in enumerate(node.inputs) if n and (op is None or i not in op.shape_inputs)
    )
    inlined = op is not None and (op.elementwise is not None or op.inlines_scalars)
    return tuple(n for n in names if not (inlined and is_scalar_constant(graph, n)))


_imported = False


def _import_families() -> None:
    global _imported
    if not _imported:
        _imported = True
        for module in pkgutil.iter_modules(__path__):
            importlib.import_module(f"{__name__}.{module.name}")


def object_array(items: Sequence[Dim] | Dim, shape: Sequence[int] | None = None) -> Array:
    """Dims as an object array: 1-D for a sequence, 0-D for one dim, or of the given shape."""
    if isinstance(items, (int, dims.Expr)):
        scalar: Array = np.empty((), dtype=object)
        scalar[()] = items
        return scalar
    array: Array = np.empty(len(items), dtype=object)
    array[:] = list(items)
    return array if shape is None else array.reshape(tuple(shape))
