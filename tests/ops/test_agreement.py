"""Sizes that do not agree are an error on the GPU too, whatever is known when planning."""

from __future__ import annotations

import numpy as np
import onnx.defs
import onnx.parser
import pytest

import engine
from engine.dims import broadcast, dmin, symbol
from engine.errors import EngineError
from engine.importer.opsets import PINNED
from engine.ops import NodeView, OpDef, registered
from engine.ops._agreement import agreements
from tests.passes.graphs import HEADER, typed

CASES = {
    "Add": ("float[n] a, float[m] b", "y = Add(a, b)", [(3, 3), (1, 3), (3, 1)], [(2, 3)]),
    "Where": (
        "float[n] a, float[m] b",
        "c = Cast<to = 9>(a)  y = Where(c, a, b)",
        [(3, 3), (3, 1)],
        [(3, 2)],
    ),
    "MatMul": ("float[2, n] a, float[m, 2] b", "y = MatMul(a, b)", [(3, 3)], [(1, 3), (3, 1)]),
    "MatMul batch": (
        "float[n, 2, 3] a, float[m, 3, 2] b",
        "y = MatMul(a, b)",
        [(2, 2), (1, 2)],
        [(2, 3)],
    ),
    "Gemm": ("float[2, n] a, float[4, m] b", "y = Gemm<transB = 1>(a, b)", [(3, 3)], [(3, 2)]),
    "Concat": ("float[2, n] a, float[2, m] b", "y = Concat<axis = 0>(a, b)", [(3, 3)], [(3, 1)]),
    "Conv": ("float[1, n, 5] a, float[2, m, 3] b", "y = Conv(a, b)", [(3, 3)], [(1, 3), (2, 3)]),
    "Conv kernel": (
        "float[1, 2, n] a, float[2, 2, m] b",
        "y = Conv<kernel_shape = [3]>(a, b)",
        [(5, 3), (3, 3)],
        [(5, 2), (5, 4)],
    ),
    "Conv without": ("float[1, 2, n] a, float[2, 2, m] b", "y = Conv(a, b)", [(5, 3)], [(5, 0)]),
    "ConvTranspose kernel": (
        "float[1, 2, n] a, float[2, 2, m] b",
        "y = ConvTranspose<kernel_shape = [3]>(a, b)",
        [(5, 3), (1, 3)],
        [(5, 2), (5, 4), (5, 0)],
    ),
    "LayerNormalization": (
        "float[2, n] a, float[m] b",
        "y = LayerNormalization(a, b)",
        [(3, 3)],
        [(3, 2)],
    ),
    "RotaryEmbedding": (
        "float[2, 3, n] a, float[2, 3, m] b",
        "y = RotaryEmbedding<num_heads = 1, rotary_embedding_dim = 4>(a, b, b)",
        [(4, 2), (7, 2)],
        [(4, 1), (2, 2), (8, 4)],
    ),
}


RANKS = {"Add": 1, "Where": 1, "MatMul batch": 3, "Conv": 3, "RotaryEmbedding": 3}
RANKS |= {"Conv kernel": 3, "Conv without": 3, "ConvTranspose kernel": 3}


def model_text(name: str) -> str:
    inputs, body, _, _ = CASES[name]
    sizes = ", ".join("pqr"[: RANKS.get(name, 2)])
    return f"g ({inputs}) => (float[{sizes}] y) {{ {body} }}"


def session(name: str, device: str) -> engine.InferenceSession:
    model = onnx.parser.parse_model(HEADER + model_text(name))
    return engine.InferenceSession(model.SerializeToString(), device=device)


@pytest.mark.parametrize("name", CASES)
def test_guards_say_when_sizes_agree(name: str) -> None:
    _, _, good, bad = CASES[name]
    graph = typed(model_text(name))
    node = graph.nodes[-1]
    guards = list(agreements(NodeView(graph, node)))
    for n, m in good:
        assert all(g.holds({"n": n, "m": m}) for g in guards)
    for n, m in bad:
        assert not all(g.holds({"n": n, "m": m}) for g in guards)


def test_equal_symbols_need_no_guard() -> None:
    graph = typed("g (float[n, 3] a, float[n, 1] b) => (float[n, 3] y) { y = Add(a, b) }")
    assert not list(agreements(NodeView(graph, graph.nodes[0])))


ANY_SIZES = {
    "Gather": "indices of any shape",
    "Einsum": "inference compares what letters stand for",
}
"""Operators with kernels whose operands fit each other whatever their sizes, and why."""


def tensors(op: OpDef) -> int:
    """How many tensors the kernels of an operator take at most."""
    if op.domain:
        return 2
    inputs = onnx.defs.get_schema(op.op_type, PINNED, op.domain).inputs
    variadic = any(i.option == i.option.Variadic for i in inputs)
    return 2 if variadic else len(set(range(len(inputs))) - set(op.shape_inputs))


@pytest.mark.parametrize("op", registered(), ids=lambda op: f"{op.op_type}-{op.since}")
def test_kernels_of_several_tensors_say_when_they_fit(op: OpDef) -> None:
    if op.lower is not None and tensors(op) > 1:
        assert op.agree is not None or op.op_type in ANY_SIZES


VALUES = "i = Cast<to = 7>(a)  d = Constant<value_ints = [3]>()  y = OneHot(i, d, b)"


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_one_hot_takes_two_values(count: int, device: str) -> None:
    text = f"g (float[n] a, float[m] b) => (float[p, 3] y) {{ {VALUES} }}"
    model = onnx.parser.parse_model(HEADER + text)
    made = engine.InferenceSession(model.SerializeToString(), device=device)
    feeds = {"a": np.ones(2, np.float32), "b": np.arange(5, 5 + count).astype(np.float32)}
    if count == 2:
        np.testing.assert_array_equal(made.run(None, feeds)[0], [[5, 6, 5]] * 2)
        return
    with pytest.raises(EngineError, match="values of shape"):
        made.run(None, feeds)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_pad_takes_one_value(count: int, device: str) -> None:
    body = "p = Constant<value_ints = [0, 1]>()  y = Pad(a, p, b)"
    text = f"g (float[n] a, float[m] b) => (float[q] y) {{ {body} }}"
    model = onnx.parser.parse_model(HEADER + text)
    made = engine.InferenceSession(model.SerializeToString(), device=device)
    feeds = {"a": np.ones(2, np.float32), "b": np.full(count, 7, np.float32)}
    if count == 1:
        np.testing.assert_array_equal(made.run(None, feeds)[0], [1, 1, 7])
        return
    with pytest.raises(EngineError, match="one value"):
        made.run(None, feeds)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["Add", "MatMul", "Concat"])
def test_calls(name: str) -> None:
    """First sizes that fit, then some that don't, in one session."""
    inputs, _, good, bad = CASES[name]
    run, plain = session(name, "gpu"), session(name, "cpu")

    def feed(n: int, m: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
        chance = np.random.default_rng(n)
        shapes = [
            [int(s) if s.isdigit() else {"n": n, "m": m}[s] for s in part.split("]")[0].split(", ")]
            for part in inputs.split("float[")[1:]
        ]
        return {
            k: chance.standard_normal(s).astype(np.float32)
            for k, s in zip("ab", shapes, strict=True)
        }

    for sizes in good:
        want, got = plain.run(None, feed(*sizes)), run.run(None, feed(*sizes))
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    for sizes in bad:
        with pytest.raises(EngineError):
            run.run(None, feed(*sizes))


def test_capped_size_broadcasts_to_what_it_caps() -> None:
    """min(512, s) and s fit each other only where they are equal."""
    s = symbol("s")
    assert broadcast(dmin(512, s), s) == s
    assert broadcast(s, dmin(s, 512)) == s
    assert str(broadcast(dmin(symbol("k"), s), s)).startswith("bcast")
