"""Operators that are run as their function bodies."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import onnx.parser
import pytest

from engine import ops
from engine.errors import ModelError
from engine.importer import load_model
from engine.importer.functions import ALWAYS, FOR_GPU
from engine.importer.opsets import MAX_NODES
from engine.ops._fit import FITS
from engine.runtime.session import InferenceSession

TEXT = """<ir_version: 13, opset_import: ["" : 28, "ai.onnx.preview" : 1]>
    g ({q} q, float[2,3,5,8] k, float[2,3,5,8] v) => (float[2,3,4,8] y) {{
        n = Neg(q)
        f = ai.onnx.preview.FlexAttention(n, k, v) <score_mod = m (float[B,H,L,S] s) =>
            (float[B,H,L,S] t) {{ half = Constant<value_float = 0.5>()  t = Mul(s, half) }}>
        y = Abs(f)
    }}"""


def model(q: str = "float[2,3,4,8]") -> onnx.ModelProto:
    made = onnx.parser.parse_model(TEXT.format(q=q))
    for node, name in zip(made.graph.node, ("first", "flex", "last"), strict=True):
        node.name = name
    return made


def test_the_body_has_the_name_of_the_call() -> None:
    origins = [n.origin for n in load_model(model()).graph.nodes]
    assert origins[0] == ("first",)
    assert origins[-1] == ("last",)
    assert len(origins) > 10
    assert set(origins[1:-1]) == {("flex",)}


def test_scores_are_modified() -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=(2, 3, n, 8)).astype(np.float32) for n in (4, 5, 5))
    scores = 0.5 * (-q @ k.swapaxes(2, 3)) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    (y,) = InferenceSession(model(), device="cpu").run(None, {"q": q, "k": k, "v": v})
    np.testing.assert_allclose(y, np.abs(weights @ v), rtol=1e-5, atol=1e-6)


def test_an_unknown_type_is_said() -> None:
    with pytest.raises(ModelError, match="flex"):
        load_model(model("string[2,3,4,8]"))


SWIGLU = """<ir_version: 13, opset_import: ["" : 28]>
    g ({0}[3,4] a, {0}[3,4] b, bool c) => ({0}[3,4] y) {{
        y = If(c) <then_branch = t () => ({0}[3,4] p) {{ p = SwiGLU(a, b) }},
                   else_branch = e () => ({0}[3,4] q) {{ q = Neg(a) }}>
    }}"""


def operators(dtype: str, for_gpu: bool) -> set[str]:
    made = onnx.parser.parse_model(SWIGLU.format(dtype))
    return {n.op_type for _, n in load_model(made, for_gpu=for_gpu).graph.walk()}


def test_parts_with_kernels_replace_what_has_none() -> None:
    assert operators("float", for_gpu=False) == {"If", "SwiGLU", "Neg"}
    assert operators("float", for_gpu=True) == {"If", FITS, "Swish", "Mul", "Neg"}


def test_parts_without_kernels_do_not() -> None:
    assert operators("double", for_gpu=True) == {"If", "SwiGLU", "Neg"}


def test_bodies_inside_bodies() -> None:
    text = """<ir_version: 13, opset_import: ["" : 28]>
        g (float[3,5] x, int64[3] t) => (float y) { y = SoftmaxCrossEntropyLoss(x, t) }"""
    graph = load_model(onnx.parser.parse_model(text), for_gpu=True).graph
    assert not {n.op_type for n in graph.nodes} & {op for _, op in FOR_GPU}


ATTENTION = """<ir_version: 13, opset_import: ["" : 28]>
    g ({0}[1,2,3,8] q, {0}[1,2,5,8] k, {0}[1,2,5,8] v) => ({0}[1,2,3,8] y, {0}[1,2,3,5] s) {{
        y = Attention(q, k, v)
        z, , , s = Attention<qk_matmul_output_mode = 0>(q, k, v)
    }}"""


@pytest.mark.parametrize(("dtype", "left"), [("float", 1), ("float16", 1), ("double", 2)])
def test_attention_keeps_its_kernel(dtype: str, left: int) -> None:
    graph = load_model(onnx.parser.parse_model(ATTENTION.format(dtype)), for_gpu=True).graph
    assert [n.op_type for n in graph.nodes].count("Attention") == left
    assert {n.domain for n in graph.nodes if n.op_type != FITS} == {""}


def test_there_are_bodies_and_no_kernels_of_what_is_expanded() -> None:
    """Whoever adds a kernel drops the line, and the status file shows that it runs."""
    for domain, op_type in FOR_GPU | ALWAYS:
        schema = onnx.defs.get_schema(op_type, domain)
        assert schema.has_function or schema.has_context_dependent_function
        op = ops.lookup(op_type, domain=domain)
        assert op is None or not op.on_gpu


def doubling(levels: int) -> onnx.ModelProto:
    """Functions of which each calls the next one twice."""
    imports = [oh.make_opsetid("", 20), oh.make_opsetid("own", 1)]
    functions = []
    for level in range(levels):
        called = f"f{level + 1}"
        nodes = [oh.make_node(called, [a], [b], domain="own") for a, b in ("xh", "hy")]
        if level + 1 == levels:
            nodes = [oh.make_node("Neg", ["x"], ["y"])]
        functions.append(oh.make_function("own", f"f{level}", ["x"], ["y"], nodes, imports))
    values = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = oh.make_graph(
        [oh.make_node("f0", ["x"], ["y"], domain="own")], "doubling", values[:1], values[1:]
    )
    return oh.make_model(graph, functions=functions, opset_imports=imports, ir_version=10)


def test_functions_that_double_each_other_are_bounded() -> None:
    assert len(load_model(doubling(7)).graph.nodes) == 2**6
    with pytest.raises(ModelError, match=rf"has {2**39} nodes.*up to {MAX_NODES}"):
        load_model(doubling(40))
