"""A Transpose behind a kernel is done where the kernel stores, if nothing gets mixed up."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import engine
from engine.ir import Array
from engine.runtime import targets

pytestmark = pytest.mark.gpu
CHANCE = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return CHANCE.standard_normal(shape).astype(np.float32)


def labels(text: str, *disable: str, **feeds: Array) -> list[str]:
    """What the dispatches of a model compute, once its outputs are those of the reference."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    with engine.InferenceSession(model, device="gpu", disable=disable) as session:
        found = session.run(None, feeds)
        wanted = ReferenceEvaluator(model).run(None, feeds)
        for mine, right in zip(found, wanted, strict=True):
            assert mine.dtype == right.dtype and mine.shape == right.shape
            np.testing.assert_allclose(
                mine.astype(np.float64), right.astype(np.float64), rtol=1e-5, atol=1e-5
            )
        return list(dict.fromkeys(d.label for d in session.plan().dispatches))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("width", [8, 7])
def test_heads_are_split_by_the_product_that_makes_them(n: int, width: int) -> None:
    text = f"""g (float[n, 5, 8] x, float[8, {3 * width}] w, int64[4] s = {{0, 5, 3, {width}}})
        => (float[n, 3, 5, {width}] y) {{
        a = MatMul(x, w)  b = Relu(a)  r = Reshape(b, s)
        y = Transpose<perm = [0, 2, 1, 3]>(r) }}"""
    feeds = {"x": floats(n, 5, 8), "w": floats(8, 3 * width)}
    assert labels(text, **feeds) == ["MatMul + Relu + Transpose"]
    assert labels(text, "transposed-store", **feeds) == ["MatMul + Relu", "Transpose"]


def test_channels_go_last() -> None:
    text = """g (float[2, 3, 7, 5] x, float[6, 3, 3, 3] w) => (float[2, 7, 5, 6] y) {
        a = Conv<pads = [1, 1, 1, 1]>(x, w)  y = Transpose<perm = [0, 2, 3, 1]>(a) }"""
    assert labels(text, x=floats(2, 3, 7, 5), w=floats(6, 3, 3, 3)) == ["Conv + Transpose"]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (3, 0, 1, 2), (2, 1, 3, 0)])
def test_neighbours_go_to_places_as_far_apart(perm: tuple[int, ...], batch: int) -> None:
    shape = ", ".join(("n", "6", "3", "8")[axis] for axis in perm)
    text = f"""g (float[n, 3, 3, 8] x, float[6, 3, 1, 1] w) => (float[{shape}] y) {{
        a = Conv(x, w)  y = Transpose<perm = {list(perm)}>(a) }}"""
    feeds = {"x": floats(batch, 3, 3, 8), "w": floats(6, 3, 1, 1)}
    assert labels(text, **feeds) == ["Conv + Transpose"]


@pytest.mark.parametrize("software", [False, True])
@pytest.mark.parametrize("width", [8, 7])
@pytest.mark.parametrize("n", [1, 2])
def test_software_stores_in_all_orders_by_one_kernel(
    n: int, width: int, software: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neighbours are as far apart in fours: rows of heads, and their columns."""
    monkeypatch.setattr(targets, "is_software", lambda kind: software)
    text = f"""g (float[n, 5, 8] x, float[8, {3 * width}] v, float[8, {3 * width}] w,
        int64[4] s = {{0, 5, 3, {width}}})
        => (float[n, 3, 5, {width}] q, float[n, 3, {width}, 5] k) {{
        a = MatMul(x, v)  b = MatMul(x, w)  c = Reshape(a, s)  d = Reshape(b, s)
        q = Transpose<perm = [0, 2, 1, 3]>(c)  k = Transpose<perm = [0, 2, 3, 1]>(d) }}"""
    feeds = {"x": floats(n, 5, 8), "v": floats(8, 3 * width), "w": floats(8, 3 * width)}
    assert labels(text, **feeds) == ["MatMul + Transpose"]
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    with engine.InferenceSession(model, device="gpu") as session:
        session.run(None, feeds)
        kernels = {d.variants[-1].kernel for d in session.plan().dispatches}
    assert len(kernels) == (1 if software and width == 8 else 2)


def test_neighbours_past_the_end_are_not_stored() -> None:
    """Seven elements are computed in two fours, and the eighth has a place inside the output."""
    text = """g (float[7, 3, 1] x) => (float[3, 7, 1] y) {
        a = Exp(x)  y = Transpose<perm = [1, 0, 2]>(a) }"""
    assert labels(text, x=floats(7, 3, 1)) == ["Exp + Transpose"]


def test_what_is_needed_in_both_orders_is_stored_twice() -> None:
    text = """g (float[4, 6] x) => (float[6, 4] y, float[1, 24] q) {
        a = Exp(x)  y = Transpose(a)  q = Flatten<axis = 0>(a) }"""
    assert labels(text, x=floats(4, 6)) == ["Exp + Transpose"]


def test_what_follows_a_transpose_may_have_it_in_front() -> None:
    text = """g (float[5, 3] x, float[5] w) => (float[3, 5] z) {
        a = Exp(x)  y = Transpose(a)  z = Add(y, w) }"""
    assert labels(text, x=floats(5, 3), w=floats(5)) == ["Exp", "Transpose + Add"]


@pytest.mark.parametrize(
    ("rest", "groups"),
    [
        ("y = Add(a, t)", ["Exp", "Transpose + Add"]),
        ("m = MatMul(t, t)  y = Add(a, m)", ["Exp + Transpose", "MatMul + Add"]),
    ],
)
def test_a_kernel_does_not_read_what_it_stores(rest: str, groups: list[str]) -> None:
    text = f"g (float[5, 5] x) => (float[5, 5] y) {{ a = Exp(x)  t = Transpose(a)  {rest} }}"
    assert labels(text, x=floats(5, 5)) == groups


@pytest.mark.parametrize("kind", ["float16", "int32", "uint8"])
def test_narrow_types(kind: str) -> None:
    text = f"g ({kind}[5, 7] x) => ({kind}[7, 5] y) {{ a = Mul(x, x)  y = Transpose(a) }}"
    feeds = {"x": CHANCE.integers(0, 9, (5, 7)).astype(kind)}
    assert labels(text, **feeds) == ["Mul + Transpose"]


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("hidden", [6, 150], ids=["in a workgroup", "step by step"])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_recurrences_store_steps_where_they_belong(op: str, hidden: int, direction: str) -> None:
    """Elementwise work too; the states that they go on from are those without it."""
    gates, both = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 1 + (direction == "bidirectional")
    rows = gates * hidden
    text = f"""g (float[n, b, 5] x, float[{both}, {rows}, 5] w, float[{both}, {rows}, {hidden}] r,
          float[{both}, {2 * rows}] c, float[{hidden}] s)
        => (float[n, b, {both}, {hidden}] y, float[{both}, b, {hidden}] last) {{
        a, last = {op}<hidden_size = {hidden}, direction = "{direction}">(x, w, r, c)
        m = Mul(a, s)  t = Neg(m)  y = Transpose<perm = [0, 2, 1, 3]>(t) }}"""
    feeds = {
        "x": floats(4, 3, 5),
        "w": floats(both, rows, 5),
        "r": floats(both, rows, hidden) * np.float32(0.1),
        "c": floats(both, 2 * rows),
        "s": floats(hidden),
    }
    assert labels(text, **feeds) == [f"{op} + Mul + Neg + Transpose"]
    assert labels(text, "epilogue", "transposed-store", **feeds)[0] == op
