"""Operators: what the stages know about each, registered by family in this folder's modules.

`OpDef` ties an operator to its rules: shape inference on symbolic dims (`infer`), symbolic contents
of small integer tensors (`evaluate`), what the GPU can do (`supports`), and how (`elementwise`,
`view` or `lower`). An operator without an `OpDef` runs on the CPU, with onnx's own shape inference.
Rules see a node as a `NodeView`; `infer` and `lower` get more (`InferView`, `Lowering`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from engine import dims
from engine.dims import Dim, Guard, ceildiv, dmin
from engine.indexing import Place
from engine.ir import Array, Graph, Node, Shape, ValueType
from engine.ops._views import InferView as InferView
from engine.ops._views import Lowering as Lowering
from engine.ops._views import NodeView as NodeView
from engine.records import dataclass
from engine.target import MAX_WORKGROUPS
from engine.work import CpuWork, GpuWork

MAX_RANK = 8


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


Walk = tuple[Shape, Shape]


@dataclass(frozen=True)
class Elementwise:
    """An operator as one WGSL expression over its operands, all broadcast to one shape.

    `expr` is a format string, or a function of the node that returns one. Its fields: `{0}`, `{1}`,
    ... the operands (plain identifiers), `{T}` the output's type, `{S}` the type of operand 0,
    `{U}` u32, `{I}` i32, and each name in `params`. It must hold for scalars and for vec4 alike
    (types become vector types; write `{T}(0)` for literals, `select`, `&`, `|`), unless `scalar` is
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
        agree: what must hold of sizes so that operands fit each other: guards where they are
            symbols, as neither kernels nor `infer` look. Elementwise operands broadcast anyway.
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
    agree: Callable[[NodeView], Iterator[Guard]] | None = None
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


def is_random(node: Node) -> bool:
    """Whether equal inputs may give other values each time; an input may have Dropout do so."""
    op = definition(node)
    drops = node.op_type == "Dropout" and not node.domain and bool(node.input(2))
    return drops or (op is not None and op.random)


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


def kernel_inputs(node: Node) -> tuple[str, ...]:
    """The inputs of a node that kernels read: all but `OpDef.shape_inputs`, each once."""
    op = definition(node)
    planned = op.shape_inputs if op is not None else ()
    return tuple(dict.fromkeys(n for i, n in enumerate(node.inputs) if n and i not in planned))


def bound_inputs(graph: Graph, node: Node) -> tuple[str, ...]:
    """Of these the ones for which kernels bind buffers: not scalars that they have as words."""
    op, names = definition(node), kernel_inputs(node)
    if op is None or (op.elementwise is None and not op.inlines_scalars):
        return names
    return tuple(n for n in names if not is_scalar_constant(graph, n))


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
