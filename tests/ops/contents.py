"""Known contents of small integer tensors: `evaluate` against the NumPy function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine import dims
from engine.dims import Dim
from engine.ops import InferView, NodeView, definition, object_array
from tests.ops.harness import OpCase, arrays, inferred, node_graph, run_fallback


def check_evaluate(case: OpCase, symbolic: Sequence[int] = (0,)) -> None:
    """`evaluate` gives what the NumPy function gives, for numbers and for symbols.

    Args:
        case: all inputs are small integers; those that are not constants are known contents.
        symbolic: inputs whose elements are symbols in the second run.
    """
    values = arrays(case)
    want = run_fallback(case, values)
    for with_symbols in (False, True):
        got, binding = _evaluated(case, symbolic if with_symbols else ())
        assert got is not None, "the contents are known"
        for mine, expected in zip(got, want, strict=True):
            assert mine is not None and mine.dtype == object
            assert mine.shape == expected.shape
            numbers = [dims.evaluate(d, binding) for d in mine.reshape(-1)]
            assert all(type(d) in (int, bool, dims.Expr) for d in mine.reshape(-1))
            np.testing.assert_array_equal(np.reshape(numbers, mine.shape), expected)


def _evaluated(
    case: OpCase, symbolic: Sequence[int]
) -> tuple[Sequence[Any] | None, dict[str, int]]:
    graph, node, binding = node_graph(case, arrays(case))
    values = dict(graph.values)
    for i, array in enumerate(arrays(case)):
        if array is None or values[f"x{i}"].constant is not None:
            continue
        items: list[Dim] = [int(v) for v in array.reshape(-1)]
        if i in symbolic:
            names = [f"e{i}_{k}" for k in range(array.size)]
            binding |= dict(zip(names, (int(v) for v in items), strict=True))
            items = [dims.symbol(name) for name in names]
        values[f"x{i}"] = values[f"x{i}"].replace(dims=object_array(items, array.shape))
    graph = graph.replace(values=values)
    op = definition(node)
    assert op is not None and op.infer is not None and op.evaluate is not None
    types = op.infer(InferView(graph, node, lambda hint: dims.symbol(hint)))
    for name, kind in zip(node.outputs, types, strict=False):
        values[name] = values[name].replace(type=kind)
    return op.evaluate(NodeView(graph.replace(values=values), node)), binding


def unknown(case: OpCase) -> bool:
    """Whether `evaluate` says that it does not know, of a case without known contents."""
    graph, node, _ = inferred(case)
    op = definition(node)
    assert op is not None and op.evaluate is not None
    got = op.evaluate(NodeView(graph, node))
    return got is None or all(item is None for item in got)
