"""One form per operator, where ONNX (or the version converter) leaves several.

Dropout outside training                 => Identity (its mask: all true)
Sum, Max, Min, Mean, Concat of one input => Identity
Sum of two inputs                        => Add
an empty constant for an optional input  => the input omitted
an optional output that nobody reads     => omitted
Cast that can't overflow to a float8     => without `saturate`
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine import dtypes
from engine.importer.opsets import PINNED, since_version
from engine.ir import Graph, Node, label
from engine.passes.base import PassResult, in_every_body

_ONE_INPUT = frozenset({"Sum", "Max", "Min", "Mean", "Concat"})
_OPTIONAL_OUTPUTS = frozenset(
    {
        "Attention",
        "BatchNormalization",
        "Dropout",
        "DynamicQuantizeLSTM",
        "GRU",
        "LSTM",
        "LayerNormalization",
        "MaxPool",
        "RNN",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "SoftmaxCrossEntropyLoss",
        "Unique",
    }
)
_EMPTY_MEANS_OMITTED = {
    "Resize": (1, 2, 3),
    "ReduceL1": (1,),
    "ReduceL2": (1,),
    "ReduceLogSum": (1,),
    "ReduceLogSumExp": (1,),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceProd": (1,),
    "ReduceSum": (1,),
    "ReduceSumSquare": (1,),
}

Rule = Callable[[Graph, Node], list[Node] | None]


def canonicalize(graph: Graph) -> PassResult:
    """Rewrites nodes, bodies included, to the one form that later stages know."""
    return in_every_body(graph, _canonicalize)


def _canonicalize(graph: Graph) -> PassResult:
    applied: list[str] = []
    nodes: list[Node] = []
    for node in graph.nodes:
        current = [node]
        for rule in _RULES:
            new = rule(graph, current[-1])
            if new is not None:
                applied.append(f"{label(node)}: {rule.__doc__}")
                current[-1:] = new
        nodes.extend(current)
    if not applied:
        return PassResult(graph)
    return PassResult(graph.rebuild(nodes), tuple(applied))


def _make(node: Node, op_type: str, inputs: tuple[str, ...], output: str, **attrs: object) -> Node:
    since = since_version(op_type, "", PINNED) or 1
    return Node(op_type, inputs, (output,), attrs, "", since, node.name, (), node.origin)


def _unread_outputs(graph: Graph, node: Node) -> list[Node] | None:
    """without outputs that nobody reads"""
    if node.op_type not in _OPTIONAL_OUTPUTS:
        return None
    outputs = [node.outputs[0]]
    outputs += [n if n in graph.consumers or graph.is_output(n) else "" for n in node.outputs[1:]]
    while outputs and not outputs[-1]:
        outputs.pop()
    new = tuple(outputs)
    return None if new == node.outputs or not any(new) else [node.replace(outputs=new)]


def _dropout(graph: Graph, node: Node) -> list[Node] | None:
    """outside training is Identity"""
    if node.op_type != "Dropout" or node.domain:
        return None
    training = graph.constant(node.input(2))
    if node.input(2) and (training is None or training.any()):
        return None
    x, nodes = node.inputs[0], []
    if len(node.outputs) > 1 and node.outputs[1]:
        mask = node.outputs[1]
        shape = f"{mask}/shape"
        nodes = [
            _make(node, "Shape", (x,), shape),
            _make(node, "ConstantOfShape", (shape,), mask, value=np.array([True])),
        ]
    if node.outputs[0]:
        nodes.append(_make(node, "Identity", (x,), node.outputs[0]))
    return nodes


def _one_input(graph: Graph, node: Node) -> list[Node] | None:
    """of one input is Identity"""
    if node.op_type not in _ONE_INPUT or node.domain or len(node.inputs) != 1:
        return None
    return [_make(node, "Identity", node.inputs, node.outputs[0])]


def _sum(graph: Graph, node: Node) -> list[Node] | None:
    """of two inputs is Add"""
    if node.op_type != "Sum" or node.domain or len(node.inputs) != 2:
        return None
    return [_make(node, "Add", node.inputs, node.outputs[0])]


def _empty_inputs(graph: Graph, node: Node) -> list[Node] | None:
    """an empty constant is an omitted input"""
    places = () if node.domain else _EMPTY_MEANS_OMITTED.get(node.op_type, ())
    if node.op_type != "Resize" and node.attrs.get("noop_with_empty_axes", 0):
        return None
    inputs = list(node.inputs)
    for index in places:
        array = graph.constant(node.input(index))
        unused = (
            node.op_type == "Resize"
            and index == 1
            and node.attrs.get("coordinate_transformation_mode") != "tf_crop_and_resize"
        )
        if node.input(index) and (unused or (array is not None and array.size == 0)):
            inputs[index] = ""
    while inputs and not inputs[-1]:
        inputs.pop()
    new = tuple(inputs)
    return None if new == node.inputs else [node.replace(inputs=new)]


def _saturate(graph: Graph, node: Node) -> list[Node] | None:
    """`saturate` is for float8 only"""
    if node.op_type != "Cast" or node.domain or "saturate" not in node.attrs:
        return None
    if dtypes.from_code(node.attrs["to"]).name.startswith("float8"):
        return None
    return [node.replace(attrs={k: v for k, v in node.attrs.items() if k != "saturate"})]


_RULES: tuple[Rule, ...] = (
    _unread_outputs,
    _dropout,
    _one_input,
    _sum,
    _empty_inputs,
    _saturate,
)
