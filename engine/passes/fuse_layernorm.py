"""Decomposed normalisation: `ReduceMean -> Sub -> Pow -> ReduceMean -> Add -> Sqrt -> Div =>
LayerNormalization`, with the Mul and Add behind it; without the Sub => RMSNormalization.

Told by its core, `d / sqrt(mean(d * d) + epsilon)` over trailing axes, in the forms that exporters
write: Pow or Mul for the square, Div, Reciprocal or a Pow for the root, Casts between, and the
`x * (scale / root) + (bias - mean * (scale / root))` of TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine.dims import is_static
from engine.ir import Graph, Node, Shape, label
from engine.passes.base import PassResult
from engine.passes.match import int_input, is_op, normal_axes, rank_of, scalar, standard
from engine.passes.rewrite import Editor, rewrite

FLOATS = ("float32", "float16", "bfloat16")


@dataclass
class Core:
    """`d / sqrt(mean(d * d) + epsilon)`.

    Attributes:
        nodes: those of the pattern, as far as it is matched.
        source: what is normalised: d, or x where d is `x - mean(x)` (then `centred`).
        axes: the axes of the mean.
        root: value of the root, or of its reciprocal if `inverse`.
        output: value of the result so far.
    """

    deviation: str
    epsilon: float
    axes: list[int]
    rank: int
    root: str
    inverse: bool
    nodes: list[Node] = field(default_factory=list)
    source: str = ""
    mean: str = ""
    output: str = ""
    scale: str = ""
    bias: str = ""

    @property
    def centred(self) -> bool:
        return bool(self.mean)

    @property
    def op_type(self) -> str:
        return "LayerNormalization" if self.centred else "RMSNormalization"


def fuse_layernorm(graph: Graph) -> PassResult:
    """Recognises layer and root-mean-square normalisation that is written as single steps."""
    return rewrite(graph, _edit)


def _edit(editor: Editor) -> None:
    for node in editor.nodes():
        if not is_op(node, "Sqrt", "Pow"):
            continue
        core = _match_core(editor, node)
        if core is None:
            continue
        reason = _fuse(editor, core)
        if reason:
            editor.near(node, f"{core.op_type} not recognised at {label(node)}: {reason}")


def _match_core(editor: Editor, node: Node) -> Core | None:
    """The square, mean, epsilon and root that end in `node`, None if they aren't there."""
    exponent = 0.5
    if is_op(node, "Pow"):
        found = scalar(editor, node.inputs[1], rank_of(editor, node.inputs[0]))
        if found not in (0.5, -0.5):
            return None
        exponent = found
    nodes = [node]
    add = _up(editor, node.inputs[0], nodes)
    if add is None or not is_op(add, "Add"):
        return None
    nodes.append(add)
    for side in (0, 1):
        mean = _up(editor, add.inputs[side], nodes)
        epsilon = scalar(editor, add.inputs[1 - side], rank_of(editor, add.inputs[side]))
        if mean is not None and is_op(mean, "ReduceMean") and epsilon is not None:
            break
    else:
        return None
    nodes.append(mean)
    square = _up(editor, mean.inputs[0], nodes)
    deviation = "" if square is None else _squared(editor, square)
    rank = rank_of(editor, deviation)
    if square is None or not deviation or rank is None:
        return None
    nodes.append(square)
    axes = _mean_axes(editor, mean, rank)
    if axes is None or epsilon < 0:
        return None
    core = Core(deviation, epsilon, axes, rank, node.outputs[0], exponent < 0, nodes)
    _reciprocal(editor, core)
    return core


def _up(editor: Editor, name: str, nodes: list[Node]) -> Node | None:
    """The producer of a value, past a Cast, which is added to `nodes`."""
    node = editor.producer(name)
    if node is not None and is_op(node, "Cast"):
        nodes.append(node)
        node = editor.producer(node.inputs[0])
    return node


def _squared(editor: Editor, node: Node) -> str:
    """What a node squares, "" if it does not."""
    if is_op(node, "Mul") and node.inputs[0] == node.inputs[1]:
        return node.inputs[0]
    if is_op(node, "Pow") and scalar(editor, node.inputs[1], rank_of(editor, node.inputs[0])) == 2:
        return node.inputs[0]
    return ""


def _mean_axes(editor: Editor, mean: Node, rank: int) -> list[int] | None:
    """The axes of a ReduceMean that keeps them, None if they aren't known."""
    if not mean.attrs.get("keepdims", 1):
        return None
    axes = int_input(editor, mean.input(1)) if mean.input(1) else []
    if axes is None or (not axes and mean.attrs.get("noop_with_empty_axes", 0)):
        return None
    return normal_axes(axes, rank) if axes else list(range(rank))


def _reciprocal(editor: Editor, core: Core) -> None:
    """Steps past `1 / root`, and past a Cast."""
    for _ in range(2):
        node = editor.only_consumer(core.root)
        if node is not None and is_op(node, "Cast"):
            core.nodes.append(node)
            core.root = node.outputs[0]
        elif node is not None and not core.inverse and _is_reciprocal(editor, node, core.root):
            core.nodes.append(node)
            core.root, core.inverse = node.outputs[0], True


def _is_reciprocal(editor: Editor, node: Node, name: str) -> bool:
    if is_op(node, "Reciprocal"):
        return True
    if not is_op(node, "Div") or node.inputs[1] != name:
        return False
    return scalar(editor, node.inputs[0], rank_of(editor, name)) == 1


def _fuse(editor: Editor, core: Core) -> str:
    """Replaces the whole pattern, or returns why not; "" also where there is none."""
    _find_mean(editor, core)
    if not _normalized(editor, core) and not _tensorflow(editor, core):
        return _unmatched(editor, core)
    reason = _refusal(editor, core)
    if reason:
        return reason
    shape = editor.shape(core.source)
    if shape is None:
        return f"the shape of {core.source!r} is unknown"
    normalized = shape[core.axes[0] :]
    if not core.scale and not core.bias:
        _narrow(editor, core)
        _affine(editor, core, normalized)
    if not core.scale and not is_static(normalized):
        return f"it has no scale, and the size of one for {list(map(str, normalized))} is unknown"
    return _replace(editor, core, normalized)


def _unmatched(editor: Editor, core: Core) -> str:
    """Why the end of the pattern is missing, where a quotient shows that it is there."""
    for node in editor.consumers(core.root):
        if is_op(node, "Div", "Mul") and core.deviation in node.inputs:
            others = editor.uses_beyond(core.root, (node,))
            return f"{core.root!r} inside of it is needed as it is: {others}" if others else ""
    return ""


def _find_mean(editor: Editor, core: Core) -> None:
    """Sets `source`, and `mean` if the deviation is one from a mean over the same axes."""
    core.source = core.deviation
    start: list[Node] = []
    sub = _up(editor, core.deviation, start)
    if sub is None or not is_op(sub, "Sub"):
        return
    mean = _up(editor, sub.inputs[1], start)
    if mean is None or not is_op(mean, "ReduceMean"):
        return
    if _stripped(editor, mean.inputs[0]) != _stripped(editor, sub.inputs[0]):
        return
    if _mean_axes(editor, mean, core.rank) != core.axes:
        return
    core.nodes += [*start, sub, mean]
    core.source, core.mean = sub.inputs[0], sub.inputs[1]
    inner = editor.producer(mean.inputs[0])
    if inner is not None and mean.inputs[0] != sub.inputs[0] and is_op(inner, "Cast"):
        core.nodes.append(inner)
    core.deviation = _stripped(editor, core.deviation) if start else core.deviation


def _stripped(editor: Editor, name: str) -> str:
    """The value before a Cast."""
    node = editor.producer(name)
    return node.inputs[0] if node is not None and is_op(node, "Cast") else name


def _normalized(editor: Editor, core: Core) -> bool:
    """Whether the deviation is divided by the root; sets `output`, and `scale` if it comes first.

    `d * (scale / root)` is taken too.
    """
    node = editor.only_consumer(core.root)
    if node is None:
        return False
    if not core.inverse:
        fits = is_op(node, "Div") and node.inputs[1] == core.root
        return fits and _is_deviation(editor, core, node, 0)
    if not is_op(node, "Mul"):
        return False
    side = 1 - node.inputs.index(core.root)
    if _is_deviation(editor, core, node, side):
        return True
    product = editor.only_consumer(node.outputs[0])
    if product is None or not is_op(product, "Mul"):
        return False
    other = 1 - product.inputs.index(node.outputs[0])
    scale = _operand(editor, core, node.inputs[side])
    if not scale or not _is_deviation(editor, core, product, other):
        return False
    core.scale = scale
    core.nodes.append(node)
    return True


def _is_deviation(editor: Editor, core: Core, node: Node, side: int) -> bool:
    """Whether operand `side` of the last node is the deviation, perhaps cast."""
    name = node.inputs[side]
    if name != core.deviation and _stripped(editor, name) != _stripped(editor, core.deviation):
        return False
    if name != core.deviation:
        cast = editor.producer(name)
        if cast is not None and is_op(cast, "Cast"):
            core.nodes.append(cast)
            if not core.centred:
                core.source = name
        elif not core.centred:
            core.source = name
    core.nodes.append(node)
    core.output = node.outputs[0]
    return True


def _tensorflow(editor: Editor, core: Core) -> bool:
    """`x * g + (bias - mean * g)` with `g = scale / root` or `1 / root`."""
    if not core.centred or not core.inverse:
        return False
    factor, nodes = core.root, []
    scaling = editor.only_consumer(factor)
    scale = ""
    if scaling is not None and is_op(scaling, "Mul"):
        scale = _operand(editor, core, scaling.inputs[1 - scaling.inputs.index(factor)])
        if not scale:
            return False
        nodes.append(scaling)
        factor = scaling.outputs[0]
    products = {}
    for node in editor.consumers(factor):
        if is_op(node, "Mul"):
            products[node.inputs[1 - node.inputs.index(factor)]] = node
    if set(products) != {core.source, core.mean}:
        return False
    scaled, shift = products[core.source], products[core.mean]
    last = editor.only_consumer(scaled.outputs[0])
    sub = editor.only_consumer(shift.outputs[0])
    if last is None or sub is None:
        return False
    if last is sub and is_op(last, "Sub") and last.inputs[0] == scaled.outputs[0]:
        core.nodes += [*nodes, scaled, shift, last]
    elif is_op(last, "Add") and is_op(sub, "Sub") and sub.outputs[0] in last.inputs:
        core.bias = _operand(editor, core, sub.inputs[0])
        if not core.bias or sub.inputs[1] != shift.outputs[0]:
            return False
        core.nodes += [*nodes, scaled, shift, sub, last]
    else:
        return False
    core.scale, core.output = scale, last.outputs[0]
    return True


def _operand(editor: Editor, core: Core, name: str) -> str:
    """The name of `name` as a scale or bias of exactly the normalised shape, "" if it isn't one."""
    shape, dtype = editor.shape(core.source), editor.dtype(core.output or core.source)
    own = editor.shape(name)
    if shape is None or own is None or editor.dtype(name) != dtype or core.axes != _trailing(core):
        return ""
    normalized = shape[core.axes[0] :]
    if own == normalized:
        return name
    array = editor.const(name)
    if array is None or array.ndim > core.rank or not is_static(normalized):
        return ""
    while array.ndim > len(normalized) and array.shape[0] == 1:
        array = array[0]
    sizes: tuple[int, ...] = tuple(int(d) for d in normalized)  # type: ignore[arg-type]
    try:
        full = np.broadcast_to(array, sizes)
    except ValueError:
        return ""
    return editor.constant(f"{name}.full", np.array(full))


def _trailing(core: Core) -> list[int]:
    return list(range(core.axes[0], core.rank)) if core.axes else []


def _refusal(editor: Editor, core: Core) -> str:
    """Why the core can't become one node, "" if it can."""
    if not core.axes or core.axes != _trailing(core):
        return f"it normalises axes {core.axes} of {core.rank}, which are not the last ones"
    dtype = editor.dtype(core.source)
    if dtype is None or dtype.name not in FLOATS:
        return f"{core.source!r} is {dtype}, and the statistics would be computed in float32"
    for node in core.nodes:
        inner = editor.dtype(node.outputs[0])
        if inner is None or not inner.is_float or inner.nbytes < dtype.nbytes:
            return f"{label(node)} computes in {inner}, less than {dtype}"
    if editor.dtype(core.output) != dtype:
        return f"the result is {editor.dtype(core.output)}, not {dtype}"
    return ""


def _narrow(editor: Editor, core: Core) -> None:
    """`Cast(float16 -> float32) -> core -> Cast(float32 -> float16)`: takes the Casts in."""
    before, after = editor.producer(core.source), editor.only_consumer(core.output)
    if before is None or after is None or not is_op(before, "Cast") or not is_op(after, "Cast"):
        return
    start, end = editor.dtype(before.inputs[0]), editor.dtype(after.outputs[0])
    between = editor.dtype(core.source)
    widens = start is not None and between is not None and start.nbytes <= between.nbytes
    if start is not None and start == end and start.name in FLOATS and widens:
        core.nodes.append(after)
        if before not in core.nodes and not editor.uses_beyond(core.source, core.nodes):
            core.nodes.append(before)
        core.source, core.output = before.inputs[0], after.outputs[0]


def _affine(editor: Editor, core: Core, normalized: Shape) -> None:
    """Takes the Mul and the Add behind the core in, where they are a scale and a bias."""
    for op_type in ("Mul", "Add"):
        if op_type == "Add" and not core.centred:
            return
        node = editor.only_consumer(core.output)
        if node is None or not is_op(node, op_type) or node.inputs[0] == node.inputs[1]:
            continue
        name = _operand(editor, core, node.inputs[1 - node.inputs.index(core.output)])
        if not name:
            if op_type == "Mul":
                return
            continue
        if op_type == "Mul":
            core.scale = name
        elif not core.scale and not is_static(normalized):
            return
        else:
            core.bias = name
        core.nodes.append(node)
        core.output = node.outputs[0]


def _replace(editor: Editor, core: Core, normalized: Shape) -> str:
    last = editor.producer(core.output)
    for node in core.nodes:
        for name in node.writes:
            if node is last or not editor.is_used(name):
                continue
            others = editor.uses_beyond(name, core.nodes)
            if others and not (is_op(node, "Cast") and name == core.source):
                return f"{name!r} inside of it is needed as it is: {others}"
    scale = core.scale
    if not scale:
        dtype = editor.dtype(core.source)
        sizes = tuple(int(d) for d in normalized)  # type: ignore[arg-type]
        ones = np.ones(sizes, None if dtype is None else dtype.numpy)
        scale = editor.constant(f"{core.output}.ones", ones)
    inputs = [core.source, scale, *([core.bias] if core.bias else [])]
    attrs = {"axis": core.axes[0] - core.rank, "epsilon": core.epsilon, "stash_type": 1}
    new = standard(core.op_type, inputs, core.output, attrs, like=last)
    names = ", ".join(dict.fromkeys(label(n) for n in core.nodes))
    editor.fuse(core.nodes, new, f"{core.op_type} of {core.source!r} recognised in {names}")
    return ""
