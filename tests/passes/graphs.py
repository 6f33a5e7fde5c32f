"""Small models as ONNX text, what two graphs have in common, and what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnxruntime
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from engine.exporter import to_model
from engine.importer import load_model
from engine.ir import Graph, Node
from engine.passes.base import PassResult
from engine.passes.canonicalize import canonicalize
from engine.passes.infer import infer

Array = npt.NDArray[Any]
Weights = Mapping[str, Array]

WITHOUT_KERNEL = frozenset({"Attention", "Swish"})
"""Operators that ONNX Runtime lacks in opset 28."""

HEADER = '<ir_version: 13, opset_import: ["" : 28]>\n'


def parse(text: str, weights: Weights | None = None) -> Graph:
    """A graph from ONNX text of opset 28; inputs that `weights` names become initializers."""
    model = onnx.parser.parse_model(HEADER + text)
    for name, array in (weights or {}).items():
        declared = [v for v in model.graph.input if v.name == name]
        assert declared, f"{name} is no input of the text"
        model.graph.input.remove(declared[0])
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return load_model(model).graph


def typed(text: str, weights: Weights | None = None) -> Graph:
    """The graph as passes get it: canonical, with types and constants."""
    return infer(canonicalize(parse(text, weights)).graph).graph


def numbers(kind: str, content: Mapping[str, float]) -> tuple[str, dict[str, Array]]:
    """Scalar constants, of which the text form has no float16: declarations, and the arrays."""
    dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
    declared = "".join(f", {kind} {name}" for name in content)
    return declared, {k: np.array(v, dtype) for k, v in content.items()}


def random_weights(seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, Array]:
    """Normal float32 numbers by name."""
    chance = np.random.default_rng(seed)
    return {k: chance.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def run(graph: Graph, feed: Mapping[str, Array]) -> list[Array]:
    """Outputs of ONNX Runtime, or of onnx's reference where it has no kernel."""
    model = to_model(graph)
    if any(node.op_type in WITHOUT_KERNEL for _, node in graph.walk()):
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(model).run(None, dict(feed)))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feed)))


def random_feed(graph: Graph, seed: int = 1, **symbols: int) -> dict[str, Array]:
    """Random inputs where there is no default; symbolic dims are 3 unless given."""
    chance = np.random.default_rng(seed)
    feed = {}
    for name in (n for n in graph.inputs if graph.constant(n) is None):
        tensor = graph.values[name].tensor
        assert tensor is not None and tensor.shape is not None
        sizes = [d if isinstance(d, int) else symbols.get(str(d), 3) for d in tensor.shape]
        drawn = chance.standard_normal(sizes) * 3
        feed[name] = (
            np.asarray(drawn > 0)
            if tensor.dtype.numpy == np.bool_
            else drawn.astype(tensor.dtype.numpy)
        )
    return feed


def check_same_results(before: Graph, after: Graph, rtol: float = 1e-5, **symbols: int) -> None:
    """Both graphs give the same arrays on random inputs, up to rounding."""
    assert before.outputs == after.outputs
    assert before.inputs == after.inputs
    feed = random_feed(before, **symbols)
    for want, got in zip(run(before, feed), run(after, feed), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if want.dtype.kind in "biuO":
            np.testing.assert_array_equal(got, want)
        else:
            scale = float(np.abs(want[np.isfinite(want)]).max(initial=0)) + 1e-30
            np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=rtol)


def check_equal(graph: Graph, expected: Graph) -> None:
    """Same operators, attributes, constants and wiring, whatever the inner names are."""
    assert [_form(graph, n) for n in graph.outputs] == [
        _form(expected, n) for n in expected.outputs
    ]
    assert sorted(n.op_type for n in graph.nodes) == sorted(n.op_type for n in expected.nodes)
    mine, theirs = list(_constants(graph)), list(_constants(expected))
    assert [(a.shape, a.dtype) for a in mine] == [(a.shape, a.dtype) for a in theirs]
    for a, b in zip(mine, theirs, strict=True):
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(a, b)


def _form(graph: Graph, name: str) -> Any:
    """A value as nested tuples down to inputs; constants are told apart by `_constants`."""
    if not name:
        return ""
    node = graph.producer.get(name)
    if node is None:
        return "constant" if name not in (*graph.inputs, *graph.captures) else name
    inputs = tuple(_form(graph, n) for n in node.inputs)
    return node.op_type, node.outputs.index(name), _attributes(node), inputs


def _attributes(node: Node) -> Any:
    found = []
    for name, value in sorted(node.attrs.items()):
        if isinstance(value, Graph):
            value = [_form(value, n) for n in value.outputs]
        elif isinstance(value, float):
            value = float(f"{value:.5g}")
        found.append((name, value))
    return found


def _constants(graph: Graph) -> Iterator[Array]:
    """Constants in the order in which nodes read them."""
    for node in graph.nodes:
        for body in node.bodies.values():
            yield from _constants(body)
        for name in node.inputs:
            array = graph.constant(name) if name not in graph.captures else None
            if array is not None:
                yield array


def check_rewrite(
    change: Callable[[Graph], PassResult],
    before: str,
    after: str,
    weights: Weights | None = None,
    new_weights: Weights | None = None,
    rtol: float = 1e-5,
    **symbols: int,
) -> PassResult:
    """`change` turns `before` into `after`, says so, computes the same, and is done after that."""
    start = typed(before, weights)
    result = change(start)
    result.graph.check()
    assert result.applied
    check_equal(result.graph, parse(after, new_weights))
    check_same_results(start, result.graph, rtol, **symbols)
    again = change(infer(result.graph).graph)
    assert not again.applied
    return result


def check_untouched(
    change: Callable[[Graph], PassResult],
    text: str,
    weights: Weights | None = None,
    reason: str = "",
) -> None:
    """`change` returns the very graph, and a near miss that has `reason` in it (or none)."""
    graph = typed(text, weights)
    result = change(graph)
    assert result.graph is graph
    assert not result.applied
    if reason:
        assert any(reason in line for line in result.near_misses), result.near_misses
    else:
        assert not result.near_misses
