"""A size that data decide has one symbol, also after nodes were merged that each decided it."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import engine
from engine import dims
from engine.ir import Graph, TensorType
from engine.passes import run_passes
from engine.passes.bound_sizes import bound_sizes
from engine.passes.cse import cse
from tests.passes.graphs import typed

X = np.array([[1, 0, 2], [0, 0, 3]], np.float32)
TWICE = "n = NonZero(x)  m = NonZero(x)  f = Cast<to = 1>(n)  g = Cast<to = 1>(m)"
BODIES = {
    "each is read": f"{TWICE}  y = Exp(f)  z = Neg(g)",
    "one is an output": f"{TWICE}  y = Exp(f)  e = Exp(g)  h = Exp(e)  z = Cast<to = 7>(m)",
    "both meet": f"{TWICE}  y = Add(f, g)  h = Transpose<perm = [1, 0]>(g)  z = MatMul(f, h)",
    "their sizes": f"{TWICE}  y = Exp(f)  s = Shape(g)  a = Cast<to = 1>(s)  z = Exp(a)",
    "in a body": f"""{TWICE}  y = Exp(f)  s = ReduceSum<keepdims = 0>(g)  zero = Sub(s, s)
        c = Greater(s, zero)  z = If<
            then_branch = t () => (float[a] p) {{ h = Neg(g)  p = Add(h, f) }},
            else_branch = e () => (float[b] p) {{ p = Mul(g, f) }}>(c)""",
}


def operators(graph: Graph) -> list[str]:
    return [n.op_type for n in graph.nodes]


def test_a_merged_node_leaves_one_symbol() -> None:
    graph = typed(f"g (float[a, b] x) => (float[c] y, float[d] z) {{ {BODIES['each is read']} }}")
    assert graph.tensor("y") != graph.tensor("z")
    merged = cse(graph).graph
    assert merged.tensor("y") == merged.tensor("z") == graph.tensor("y")


def test_a_copy_of_an_output_has_its_symbol() -> None:
    graph = typed(
        "g (float[a, b] x) => (int64[c] n, int64[d] m) { n = NonZero(x)  m = NonZero(x) }"
    )
    merged = cse(graph).graph
    assert operators(merged) == ["NonZero", "Identity"]
    assert merged.tensor("n") == merged.tensor("m") == graph.tensor("n")


def test_sizes_are_those_of_the_operands_of_a_node() -> None:
    """As if passes had made another graph of what decided `other`."""
    graph = typed(
        "g (float[a, b] x) => (float[c] y, float[d] z, int64[2] s) "
        "{ n = NonZero(x)  f = Cast<to = 1>(n)  y = Add(f, f)  z = Neg(f)  s = Shape(y) }"
    )
    other = dims.symbol("other")
    known = graph.tensor("f")
    assert known is not None and known.shape is not None
    wide = (2, dims.broadcast(known.shape[1], other))
    changed = graph.replace(
        values=graph.values
        | {
            "y": graph.values["y"].replace(type=TensorType(known.dtype, wide)),
            "z": graph.values["z"].replace(type=TensorType(known.dtype, (2, other))),
            "s": graph.values["s"].replace(dims=np.array(wide, object)),
        }
    )
    found = bound_sizes(changed)
    assert found.tensor("y") == found.tensor("z") == known
    assert list(found.values["s"].dims) == list(known.shape)  # type: ignore[arg-type]
    assert bound_sizes(found) is found


def test_nothing_is_renamed_that_is_decided_by_itself() -> None:
    graph = typed("g (float[a] x, float[b] w) => (float[c] y) { n = NonZero(x)  y = NonZero(w) }")
    assert bound_sizes(graph) is graph


@pytest.mark.gpu
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("ends", ["y, z", "y, z, n, m"])
def test_what_is_decided_twice_runs(name: str, ends: str) -> None:
    integers = "nmz" if "to = 7" in BODIES[name] else "nm"
    outputs = ", ".join(
        f"{'int64' if n in integers else 'float'}[{n}_a] {n}" for n in ends.split(", ")
    )
    text = f'<ir_version: 10, opset_import: ["" : 20]> g (float[a, b] x) => ({outputs})'
    model = onnx.parser.parse_model(f"{text} {{ {BODIES[name]} }}")
    with (
        engine.InferenceSession(model, device="gpu") as gpu,
        engine.InferenceSession(model, device="cpu") as cpu,
    ):
        for x in (X, X.T, np.zeros((1, 2), np.float32)):
            for want, got in zip(cpu.run(None, {"x": x}), gpu.run(None, {"x": x}), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5)


def test_equal_results_of_merged_nodes_are_seen_to_fit() -> None:
    graph = typed(
        "g (float[a, b] x) => (float[c] y) "
        "{ n = NonZero(x)  m = NonZero(x)  f = Transpose(n)  h = Transpose(m)  y = Add(f, h) }"
    )
    assert operators(run_passes(graph).graph).count("NonZero") == 1
