"""Sizes that do not agree are an error on the GPU too, whatever is known when planning."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import engine
from engine.dims import broadcast, dmin, symbol
from engine.errors import EngineError
from engine.ops import NodeView, definition
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
    "LayerNormalization": (
        "float[2, n] a, float[m] b",
        "y = LayerNormalization(a, b)",
        [(3, 3)],
        [(3, 2)],
    ),
}


RANKS = {"Add": 1, "Where": 1, "MatMul batch": 3, "Conv": 3}


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
    op = definition(node)
    assert op is not None
    guards = list(agreements(NodeView(graph, node), op.elementwise is not None))
    for n, m in good:
        assert all(g.holds({"n": n, "m": m}) for g in guards)
    for n, m in bad:
        assert not all(g.holds({"n": n, "m": m}) for g in guards)


def test_equal_symbols_need_no_guard() -> None:
    graph = typed("g (float[n, 3] a, float[n, 1] b) => (float[n, 3] y) { y = Add(a, b) }")
    assert not list(agreements(NodeView(graph, graph.nodes[0]), True))


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
