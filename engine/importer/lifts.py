"""Old operator forms that `onnx.version_converter` gets wrong or refuses, rewritten node by node.

A rule takes a node, may change it, and returns what takes its place. `LIFTS` run before the
converter, `REPAIRS` after it: each line holds the opset from which on it is not needed, the
operators it looks at, and the rule.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from engine.errors import ModelError


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """`graph` and every body below it."""
    yield graph
    for body in _bodies(graph):
        yield from graphs_of(body)


def _bodies(graph: GraphProto) -> Iterator[GraphProto]:
    for node in graph.node:
        for attribute in node.attribute:
            is_one = attribute.type == AttributeProto.GRAPH
            yield from [attribute.g] if is_one else attribute.graphs


Types = ChainMap[str, onnx.TypeProto.Tensor]
"""By name, those of a graph's values, then those of the graphs around it."""


class Context:
    """What rules need to know of the whole model: types of values, and names not yet taken.

    A name is that of a value in the graph that `scopes` gave last, or around it: graphs side by
    side may use it for others.
    """

    def __init__(self, model: ModelProto) -> None:
        self._model = ModelProto()
        self._model.CopyFrom(model)
        self._count = self._scope = 0

    def scopes(self, model: ModelProto, inner_first: bool = False) -> Iterator[GraphProto]:
        """`graphs_of` a model that has the same graphs; `inner_first` where nodes are replaced, as
        a graph that is in one may be a copy then."""
        graphs = list(enumerate(graphs_of(model.graph)))
        for self._scope, graph in reversed(graphs) if inner_first else graphs:
            yield graph

    @property
    def _types(self) -> Types:
        return self._types_of[self._scope]

    @cached_property
    def _types_of(self) -> list[Types]:
        """Of each graph, in the order of `graphs_of`."""
        inferred = onnx.shape_inference.infer_shapes(self._model)
        return list(_types_within(inferred.graph, ChainMap()))

    @cached_property
    def read(self) -> frozenset[str]:
        """Names that a node reads or a graph gives out."""
        graphs = list(graphs_of(self._model.graph))
        return frozenset(
            [o.name for g in graphs for o in g.output]
            + [name for g in graphs for n in g.node for name in n.input]
        )

    def type(self, name: str) -> onnx.TypeProto.Tensor | None:
        """Element type and shape of a value, or None if they can't be told."""
        return self._types.get(name)

    def rank(self, name: str) -> int | None:
        """Rank of a value, or None if it can't be told."""
        found = self._types.get(name)
        return len(found.shape.dim) if found is not None and found.HasField("shape") else None

    def sizes(self, name: str) -> list[int | None] | None:
        """Sizes of a value, None where unknown."""
        found = self._types.get(name)
        if found is None or not found.HasField("shape"):
            return None
        return [d.dim_value if d.HasField("dim_value") else None for d in found.shape.dim]

    def element(self, name: str) -> int:
        """Element type of a value; float32 if it can't be told."""
        found = self._types.get(name)
        return found.elem_type if found is not None and found.elem_type else TensorProto.FLOAT

    def fresh(self, base: str) -> str:
        """A new value name."""
        self._count += 1
        return f"{base}/lifted_{self._count}"


def _types_within(graph: GraphProto, around: Types) -> Iterator[Types]:
    """The types of a graph's values, and then those of every body below it."""
    found = around.new_child()
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            found[value.name] = value.type.tensor_type
    for tensor in graph.initializer:
        made = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        found[tensor.name] = made.tensor_type
    yield found
    for body in _bodies(graph):
        yield from _types_within(body, found)


Rule = Callable[[Context, GraphProto, NodeProto], list[NodeProto]]


def _attribute(node: NodeProto, name: str) -> object:
    for attribute in node.attribute:
        if attribute.name == name:
            return helper.get_attribute_value(attribute)
    return None


def _drop(node: NodeProto, *names: str) -> None:
    kept = [a for a in node.attribute if a.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)


def _constant(name: str, value: Sequence[int] | np.ndarray) -> NodeProto:
    array = value if isinstance(value, np.ndarray) else np.array(value, np.int64)
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def _broadcast(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Add(A, B, broadcast=1, axis=k) => Add(A, Unsqueeze(B))"""
    axis = _attribute(node, "axis")
    wanted = _attribute(node, "broadcast")
    _drop(node, "axis", "broadcast", "consumed_inputs")
    if not wanted or axis is None:
        return [node]
    ranks = context.rank(node.input[0]), context.rank(node.input[1])
    if ranks[0] is None or ranks[1] is None:
        raise ModelError(
            f"{node.op_type} {node.name or node.output[0]!r} broadcasts along axis {axis} as in "
            "opset 6, which needs the ranks of its inputs, and they are unknown"
        )
    start = int(axis) + (ranks[0] if int(axis) < 0 else 0)  # type: ignore[call-overload]
    missing = ranks[0] - start - ranks[1]
    if missing <= 0:
        return [node]
    name = context.fresh(node.input[1])
    axes = list(range(ranks[1], ranks[1] + missing))
    unsqueeze = helper.make_node("Unsqueeze", [node.input[1]], [name], axes=axes)
    node.input[1] = name
    return [unsqueeze, node]


def _prelu(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """PRelu(X, slope [C]) => PRelu(X, Unsqueeze(slope)), whose slope lies along the channels"""
    _drop(node, "consumed_inputs")
    rank, sizes = context.rank(node.input[0]), context.sizes(node.input[1])
    if sizes is not None and (len(sizes) != 1 or sizes[0] == 1):
        return [node]
    if rank is None or sizes is None:
        raise ModelError(
            f"PRelu {node.name or node.output[0]!r} of opset 6 has a slope per channel, which "
            "needs the ranks of its inputs, and they are unknown"
        )
    if rank <= 2:
        return [node]
    name = context.fresh(node.input[1])
    axes = list(range(1, rank - 1))
    unsqueeze = helper.make_node("Unsqueeze", [node.input[1]], [name], axes=axes)
    node.input[1] = name
    return [unsqueeze, node]


def _strip(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Attributes that later forms don't have and that change nothing in inference."""
    _drop(node, "broadcast", "is_test", "consumed_inputs", "output_sequence")
    return [node]


def _upsample_6(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Upsample(width_scale, height_scale) => Upsample(scales)"""
    height, width = _attribute(node, "height_scale"), _attribute(node, "width_scale")
    if _attribute(node, "mode") == b"bilinear":
        _drop(node, "mode")
        node.attribute.append(helper.make_attribute("mode", "linear"))
    if height is not None and width is not None:
        _drop(node, "height_scale", "width_scale")
        scales = [1.0, 1.0, float(height), float(width)]  # type: ignore[arg-type]
        node.attribute.append(helper.make_attribute("scales", scales))
    return [node]


def _batch_normalization(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Drops outputs that nobody reads; spatial=0 => Sub, Div, Mul, Add"""
    while len(node.output) > 1 and node.output[-1] not in context.read:
        del node.output[-1]
    spatial = _attribute(node, "spatial")
    epsilon = _attribute(node, "epsilon")
    _drop(node, "is_test", "spatial")
    if len(node.output) > 1:
        if any(node.output[3:]):
            raise ModelError(
                f"BatchNormalization {node.name or node.output[0]!r}: the saved mean and variance "
                "of a training step are not computed"
            )
        node.attribute.append(helper.make_attribute("training_mode", 1))
    if spatial is None or spatial == 1:
        return [node]
    x, scale, bias, mean, var = node.input
    element = helper.tensor_dtype_to_np_dtype(context.element(x))
    value = np.array(1e-5 if epsilon is None else epsilon, element)
    names = {k: context.fresh(node.output[0]) for k in ("e", "v", "d", "c", "n", "s")}
    steps = [
        ("Add", (var, names["e"]), names["v"]),
        ("Sqrt", (names["v"],), names["d"]),
        ("Sub", (x, mean), names["c"]),
        ("Div", (names["c"], names["d"]), names["n"]),
        ("Mul", (names["n"], scale), names["s"]),
        ("Add", (names["s"], bias), node.output[0]),
    ]
    made = [helper.make_node(op, ins, [out], name=node.name) for op, ins, out in steps]
    return [_constant(names["e"], value), *made]


def _hardmax(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Hardmax(X, axis) => Reshape(Hardmax(Flatten(X, axis)), Shape(X))"""
    axis = _attribute(node, "axis")
    shape, flat, hard = (context.fresh(node.output[0]) for _ in range(3))
    return [
        helper.make_node("Shape", node.input, [shape], name=node.name),
        helper.make_node(
            "Flatten", node.input, [flat], axis=1 if axis is None else axis, name=node.name
        ),
        helper.make_node("Hardmax", [flat], [hard], axis=1, name=node.name),
        helper.make_node("Reshape", [hard, shape], node.output, name=node.name),
    ]


def _constant_type(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Clip, Pad: bounds and value get the type of the data; an unbounded side gets no input."""
    element = context.element(node.input[0])
    if element == TensorProto.FLOAT:
        return [node]
    dtype = helper.tensor_dtype_to_np_dtype(element)
    producers = {n.output[0]: n for n in graph.node if n.op_type == "Constant"}
    made = []
    for index in range(1 if node.op_type == "Clip" else 2, len(node.input)):
        producer = producers.get(node.input[index])
        if producer is None:
            continue
        value = numpy_helper.to_array(helper.get_attribute_value(producer.attribute[0]))
        if node.op_type == "Clip" and abs(value) >= np.finfo(np.float32).max:
            node.input[index] = ""
            continue
        name = context.fresh(node.input[index])
        made.append(_constant(name, value.astype(dtype)))
        node.input[index] = name
    return [*made, node]


def _resize(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Resize that was an Upsample, or of opset 10: asymmetric, and nearest rounds down."""
    node.input[1] = ""
    node.attribute.extend(
        [
            helper.make_attribute("coordinate_transformation_mode", "asymmetric"),
            helper.make_attribute("nearest_mode", "floor"),
        ]
    )
    return [node]


def _scan(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Scan-8(states [B, ...], xs [B, T, ...]) => Scan over the batch of Scan over time"""
    reads = [context.fresh(n) for n in node.input]
    writes = [context.fresh(n or "unused") for n in node.output]
    inner = NodeProto()
    inner.CopyFrom(node)
    del inner.input[:], inner.output[:]
    inner.input.extend(reads)
    inner.output.extend(writes)
    body = helper.make_graph(
        [inner],
        "batch",
        [onnx.ValueInfoProto(name=n) for n in reads],
        [onnx.ValueInfoProto(name=n) for n in writes],
    )
    outer = helper.make_node("Scan", node.input, node.output, name=node.name, body=body)
    outer.attribute.append(helper.make_attribute("num_scan_inputs", len(reads)))
    return [outer]


def _scan_lengths(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Refuses Scan-8 with a length per sequence, which no later form has."""
    if node.input[0]:
        raise ModelError(
            f"Scan {node.name or node.output[0]!r} of opset 8 has the input sequence_lens, which "
            "ONNX dropped in opset 9: export the model again with opset_version 9 or later"
        )
    return [node]


def _group_normalization(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """GroupNormalization-18, with a scale per group => -21, with a scale per channel"""
    node.domain = ""
    groups = int(_attribute(node, "num_groups") or 1)  # type: ignore[call-overload]
    x = node.input[0]
    count, channels, per, shape, one, flat = (context.fresh(node.output[0]) for _ in range(6))
    made = [
        _constant(count, [groups]),
        _constant(one, [1]),
        _constant(flat, [-1]),
        helper.make_node("Shape", [x], [channels], start=1, end=2),
        helper.make_node("Div", [channels, count], [per]),
        helper.make_node("Concat", [count, per], [shape], axis=0),
    ]
    for index in (1, 2):
        column, wide, done = (context.fresh(node.input[index]) for _ in range(3))
        made += [
            helper.make_node("Unsqueeze", [node.input[index], one], [column]),
            helper.make_node("Expand", [column, shape], [wide]),
            helper.make_node("Reshape", [wide, flat], [done]),
        ]
        node.input[index] = done
    return [*made, node]


def _mask_column(context: Context, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
    """Attention-23 with a mask of one column, which is that of all keys, where later forms have it
    for the first key only => Attention(..., Expand(mask))"""
    mask, past = (node.input[i] if i < len(node.input) else "" for i in (3, 4))
    sizes = context.sizes(mask) if mask else None
    rank = context.rank(node.input[1]) if sizes and sizes[-1] == 1 else None
    if rank is None:
        return [node]
    before, keys, total, wide = (context.fresh(node.output[0]) for _ in range(4))
    made = [helper.make_node("Shape", [node.input[1]], [keys], start=rank - 2, end=rank - 1)]
    if past:
        made.append(helper.make_node("Shape", [past], [before], start=2, end=3))
        made.append(helper.make_node("Add", [before, keys], [total]))
    made.append(helper.make_node("Expand", [mask, total if past else keys], [wide]))
    node.input[3] = wide
    return [*made, node]


_BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less")

LIFTS: tuple[tuple[int, frozenset[str], Rule], ...] = (
    (7, frozenset(_BINARY), _broadcast),
    (7, frozenset({"PRelu"}), _prelu),
    (7, frozenset({"Upsample"}), _upsample_6),
    (
        7,
        frozenset({"Gemm", "BatchNormalization", "Dropout", "RNN", "GRU", "LSTM"}),
        _strip,
    ),
    (14, frozenset({"BatchNormalization"}), _batch_normalization),
    (13, frozenset({"Hardmax"}), _hardmax),
    (9, frozenset({"Scan"}), _scan_lengths),
    (24, frozenset({"Attention"}), _mask_column),
)

REPAIRS: tuple[tuple[int, frozenset[str], Rule], ...] = (
    (11, frozenset({"Clip", "Pad"}), _constant_type),
    (11, frozenset({"Resize"}), _resize),
    (9, frozenset({"Scan"}), _scan),
    (21, frozenset({"GroupNormalization"}), _group_normalization),
)
