"""Control flow on the host: If, Loop, Scan and SequenceMap over the runners of their bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from engine.errors import EngineError
from engine.ir import Array, Graph, Node

ShapeOf = Callable[[str], tuple[int, ...] | None]
RunBody = Callable[[Graph, Mapping[str, Any]], list[Any]]
"""Runs a body on its inputs by name (captures are added by the callee); returns its outputs."""


def run_control_flow(
    node: Node, inputs: Sequence[Any], run_body: RunBody, shape_of: ShapeOf
) -> list[Any]:
    """Outputs of a control flow node.

    Args:
        node: If, Loop, Scan or SequenceMap.
        inputs: in ONNX order, None if omitted.
        run_body: runs a body.
        shape_of: what is known of an output's shape, 0 for open sizes, for scans without a step.

    Raises: EngineError if the inputs break the specification.
    Source: ONNX If-25, Loop-25, Scan-25, SequenceMap-17.
    """
    drive = {"If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
    return drive[node.op_type](node, inputs, run_body, shape_of)


def _truth(node: Node, value: Any) -> bool:
    array = np.asarray(value)
    if array.size != 1:
        raise EngineError(f"{node.op_type} {node.name!r}: the condition has {array.size} elements")
    return bool(array.reshape(()))


def _if(node: Node, inputs: Sequence[Any], run_body: RunBody, shape_of: ShapeOf) -> list[Any]:
    branch = "then_branch" if _truth(node, inputs[0]) else "else_branch"
    return run_body(node.attrs[branch], {})


def _loop(node: Node, inputs: Sequence[Any], run_body: RunBody, shape_of: ShapeOf) -> list[Any]:
    body: Graph = node.attrs["body"]
    limit = int(np.asarray(inputs[0]).reshape(())) if inputs and inputs[0] is not None else None
    condition = True if len(inputs) < 2 or inputs[1] is None else _truth(node, inputs[1])
    carried = list(inputs[2:])
    scanned: list[list[Any]] = [[] for _ in body.outputs[1 + len(carried) :]]
    trip = 0
    while condition and (limit is None or trip < limit):
        values = [np.asarray(trip, np.int64), np.asarray(condition), *carried]
        outputs = run_body(body, dict(zip(body.inputs, values, strict=True)))
        condition = _truth(node, outputs[0])
        carried = outputs[1 : 1 + len(carried)]
        for items, item in zip(scanned, outputs[1 + len(carried) :], strict=True):
            items.append(item)
        trip += 1
    names = body.outputs[1 + len(carried) :]
    known = _known(node, len(carried), len(names), shape_of)
    stacked = [_stack(body, *found) for found in zip(names, scanned, known, strict=True)]
    return carried + stacked


def _known(node: Node, carried: int, count: int, shape_of: ShapeOf) -> list[tuple[int, ...] | None]:
    """What is known of the shapes of `count` scans, behind `carried` outputs."""
    names = [*node.outputs[carried:], *[""] * count][:count]
    return [shape_of(name) if name else None for name in names]


def _stack(
    body: Graph,
    name: str,
    items: Sequence[Any],
    known: tuple[int, ...] | None,
    axis: int = 0,
) -> Array:
    """The items of a scan along a new axis; without a step, of the shape that is known."""
    if items:
        return np.stack([np.asarray(i) for i in items], axis=axis)
    tensor = body.tensor(name)
    if tensor is None:
        return np.empty((0,), np.float32)
    shape = [d if isinstance(d, int) else 0 for d in tensor.shape or ()]
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 0)
    if known is not None and len(known) == len(shape) and 0 in known:
        shape = list(known)
    return np.empty(shape, tensor.dtype.numpy)


def _scan(node: Node, inputs: Sequence[Any], run_body: RunBody, shape_of: ShapeOf) -> list[Any]:
    body: Graph = node.attrs["body"]
    count = int(node.attrs["num_scan_inputs"])
    states, scans = list(inputs[: len(inputs) - count]), list(inputs[len(inputs) - count :])
    axes = list(node.attrs.get("scan_input_axes") or [0] * count)
    backwards = list(node.attrs.get("scan_input_directions") or [0] * count)
    lengths = {np.asarray(s).shape[a] for s, a in zip(scans, axes, strict=True)}
    if len(lengths) != 1:
        raise EngineError(f"Scan {node.name!r}: scan inputs have the lengths {sorted(lengths)}")
    length = lengths.pop()
    collected: list[list[Any]] = [[] for _ in body.outputs[len(states) :]]
    for step in range(length):
        slices = [
            np.asarray(np.take(s, length - 1 - step if b else step, axis=a), s.dtype)
            for s, a, b in zip(scans, axes, backwards, strict=True)
        ]
        outputs = run_body(body, dict(zip(body.inputs, [*states, *slices], strict=True)))
        states = outputs[: len(states)]
        for items, item in zip(collected, outputs[len(states) :], strict=True):
            items.append(item)
    out_axes = list(node.attrs.get("scan_output_axes") or [0] * len(collected))
    out_backwards = list(node.attrs.get("scan_output_directions") or [0] * len(collected))
    names = body.outputs[len(states) :]
    known = _known(node, len(states), len(names), shape_of)
    stacked = [
        _stack(body, n, items[::-1] if b else items, shape, a)
        for n, items, shape, a, b in zip(
            names, collected, known, out_axes, out_backwards, strict=True
        )
    ]
    return states + stacked


def _sequence_map(
    node: Node, inputs: Sequence[Any], run_body: RunBody, shape_of: ShapeOf
) -> list[Any]:
    body: Graph = node.attrs["body"]
    first, rest = inputs[0], inputs[1:]
    results: list[list[Any]] = [[] for _ in body.outputs]
    for index, item in enumerate(first):
        values = [item, *(x[index] if isinstance(x, list) else x for x in rest)]
        for items, value in zip(
            results, run_body(body, dict(zip(body.inputs, values, strict=True))), strict=True
        ):
            items.append(value)
    return list(results)
