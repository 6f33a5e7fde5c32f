"""What is joined or cut in place: which values are parts, where, and that kernels reach them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import onnx
import pytest

from engine import InferenceSession
from engine.costs import DeviceProfile
from engine.dims import symbol
from engine.importer import load_model
from engine.indexing import Place, cut_place
from engine.options import Options
from engine.plan import Plan
from engine.runtime import targets
from engine.runtime.runner import Runner
from engine.serialize import dump, load
from tests.ops.harness import Array
from tests.runtime.models import parse


def planned(text: str, feeds: Mapping[str, Array], disable: frozenset[str] = frozenset()) -> Plan:
    graph = load_model(parse(text).SerializeToString(), for_gpu=True).graph
    options = Options("gpu", disable=disable)
    return Runner(graph, options, None, DeviceProfile.builtin(), None).plan(feeds)


def zeros(**shapes: tuple[int, ...]) -> dict[str, Array]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def labels(plan: Plan) -> list[str]:
    return [d.label for d in plan.dispatches]


def agrees(text: str, *calls: Mapping[str, Array], target: str = "baseline") -> Plan:
    """The plan of a model whose calls are the same on both devices."""
    model = parse(text)
    with (
        InferenceSession(model, device="gpu", require_gpu=True, target=target) as gpu,
        InferenceSession(model, device="cpu") as cpu,
    ):
        for feeds in calls:
            for mine, other in zip(gpu.run(None, feeds), cpu.run(None, feeds), strict=True):
                assert mine.dtype == other.dtype and mine.shape == other.shape
                np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)
        return gpu.plan()


def noise(*shape: int, dtype: str = "float32") -> Array:
    values = np.random.default_rng(sum(shape)).integers(-8, 9, shape) / 4
    return np.asarray(values > 0 if dtype == "bool" else values.astype(dtype))


JOIN = """join (float[{n},2,{w}] x) => (float[n,m,k] y) {{
  a = Exp(x)  b = Neg(x)  c = Concat <axis = {axis}> (a, b)  y = Softmax(c) }}"""


# places ---------------------------------------------------------------------------------------


def test_a_place_is_where_numpy_has_the_elements() -> None:
    whole = np.arange(2 * 5 * 3 * 4).reshape(2, 5, 3, 4)
    for axis, start, count in ((0, 1, 1), (1, 2, 3), (2, 1, 2), (3, 0, 3), (3, 3, 1)):
        part = np.take(whole, range(start, start + count), axis=axis)
        place = cut_place(whole.shape, axis, start, count)
        np.testing.assert_array_equal(place.indices(part.size, {}), part.reshape(-1))


def test_places_within_places() -> None:
    """Every pair of cuts: where it has a place, that is where NumPy has the elements."""
    shape = (2, 4, 3, 4)
    whole = np.arange(np.prod(shape)).reshape(shape)
    found = 0
    for outer, inner in itertools.product(range(4), repeat=2):
        middle = np.take(whole, [1, 2] if shape[outer] > 2 else [1], axis=outer)
        part = np.take(middle, [0], axis=inner)
        places = (
            cut_place(shape, outer, 1, middle.shape[outer]),
            cut_place(middle.shape, inner, 0, 1),
        )
        place = places[1].within(places[0])
        if place is not None:
            found += 1
            np.testing.assert_array_equal(place.indices(part.size, {}), part.reshape(-1))
    assert found == 16


def test_places_within_places_within_places() -> None:
    """As above, of three cuts of which the inner two are one place first, as those of a Slice are:
    the last elements, which lie behind rows that the outermost part skips."""
    shape = (3, 4, 3, 4)
    whole = np.arange(np.prod(shape)).reshape(shape)
    found = 0
    for axes in itertools.product(range(4), repeat=3):
        part, places = whole, list[Place]()
        for axis in axes:
            size = part.shape[axis]
            start = min(1, size - 1)
            places.append(cut_place(part.shape, axis, start, size - start))
            part = np.take(part, range(start, size), axis=axis)
        inner = places[2].within(places[1])
        place = None if inner is None else inner.within(places[0])
        if place is not None:
            found += 1
            np.testing.assert_array_equal(place.indices(part.size, {}), part.reshape(-1))
    assert found == 48


def test_what_is_no_place() -> None:
    assert Place(1).within(Place(0, ((4, 2),))) is None
    assert Place(0, ((3, 1),)).within(Place(0, ((6, 2),))) is None


def test_a_part_without_elements_lies_anywhere() -> None:
    for empty in (cut_place((2, 5), 1, 3, 0), cut_place((2, 0), 1, 0, 0)):
        for other in (cut_place((2, 7), 1, 1, 5), empty):
            for place in (empty.within(other), other.within(empty)):
                assert place is not None and place.indices(0, {}).size == 0


def test_a_place_with_open_sizes() -> None:
    n, w = symbol("n"), symbol("w")
    place = cut_place((n, 5, w), 1, 2, 3)
    assert place == Place(2 * w, ((3 * w, 2 * w),))
    whole = np.arange(2 * 5 * 7).reshape(2, 5, 7)
    found = place.indices(42, {"n": 2, "w": 7})
    np.testing.assert_array_equal(found, whole[:, 2:].reshape(-1))


# plans ----------------------------------------------------------------------------------------


def test_a_concat_costs_no_dispatch() -> None:
    plan = planned(JOIN.format(n=1, w=8, axis=1), zeros(x=(1, 2, 8)))
    assert labels(plan) == ["Exp", "Neg", "Softmax"]
    assert plan.parts.copied == {"c": ()}
    assert {n: p.place.begin for n, p in plan.parts.of.items()} == {"a": 0, "b": 16}
    assert [d.outputs for d in plan.dispatches] == [("a",), ("b",), ("y",)]
    assert [d.variants[0].values for d in plan.dispatches[:2]] == [("x", "c"), ("x", "c")]
    assert plan.memory.slot_of.keys() == {"x", "c", "y"}
    disabled = planned(JOIN.format(n=1, w=8, axis=1), zeros(x=(1, 2, 8)), frozenset({"in-place"}))
    assert labels(disabled) == ["Exp", "Neg", "Concat", "Softmax"]


def test_concats_in_concats_are_one_buffer() -> None:
    plan = planned(
        """nested (float[1,2,8] x) => (float[1,m,8] y) {
      a = Exp(x)  b = Softmax(x)  c = Concat <axis = 1> (a, b)  d = Softmax(c)
      e = Concat <axis = 1> (c, d)  f = Softmax(e)  g = Concat <axis = 1> (f, e)
      y = Softmax(g) }""",
        zeros(x=(1, 2, 8)),
    )
    assert "Concat" not in labels(plan)
    assert {p.whole for p in plan.parts.of.values()} == {"g"}
    begins = {n: p.place.begin for n, p in plan.parts.of.items()}
    assert begins == {"a": 64, "b": 80, "c": 64, "d": 96, "e": 64, "f": 0}


def test_a_whole_lives_from_its_first_part_to_its_last_reader() -> None:
    plan = planned(
        """long (float[64] x) => (float[m] y, float[64] z) {
      a = Exp(x)  p = Softmax(x)  q = Softmax(p)  r = Softmax(q)
      c = Concat <axis = 0> (a, r)  b = Softmax(a)  y = Softmax(c)  z = Softmax(b) }""",
        zeros(x=(64,)),
    )
    slot = plan.memory.slots[plan.memory.slot_of["c"]]
    assert not {"p", "q", "b"}.intersection(slot.values), "they live while it is made, or read"
    assert "r" not in plan.memory.slot_of


def test_cuts_cost_no_dispatch() -> None:
    text = """cuts (float[6,8] x) => (float[2,8] y, float[3,8] z, float[8] w) <
      int64[3] sizes = {1, 2, 3}, int64[1] zero = {0}, int64[1] one = {1},
      int64[1] minus = {-1}, int64 last = {-1}> {
      t = Exp(x)  a, b, c = Split <axis = 0> (t, sizes)  y = Softmax(b)  z = Softmax(c)
      s = Slice(t, zero, one)  g = Gather <axis = 0> (t, last)  u = Add(g, s)
      v = Softmax(u)  w = Reshape(v, minus) }"""
    plan = planned(text, zeros(x=(6, 8)))
    assert not {"Split", "Slice", "Gather"}.intersection(labels(plan))
    begins = {n: p.place.begin for n, p in plan.parts.of.items()}
    assert begins == {"b": 8, "c": 24, "s": 0, "g": 40}, "what nobody reads is no part"


REFUSED = {
    "it leaves the device by itself": "(float[2,8] x) => (float[4,8] y, float[2,8] a) { a = Exp(x)"
    "  b = Softmax(x)  c = Concat <axis = 0> (a, b)  y = Softmax(c) }",
    "no kernel writes it": "(float[2,8] x) => (float[4,8] y) { b = Softmax(x)"
    "  c = Concat <axis = 0> (x, b)  y = Softmax(c) }",
    "it is joined twice": "(float[2,8] x) => (float[6,8] y) { a = Exp(x)  b = Softmax(x)"
    "  c = Concat <axis = 0> (a, b, a)  y = Softmax(c) }",
    "it is part of something else": "(float[2,8] x) => (float[4,8] y, float[4,8] z) { a = Exp(x)"
    "  b = Softmax(x)  d = Softmax(b)  c = Concat <axis = 0> (a, b)  y = Softmax(c)"
    "  e = Concat <axis = 0> (a, d)  z = Softmax(e) }",
    "several of its elements share a word": "(float16[2,8] x) => (float16[4,8] y) { a = Exp(x)"
    "  b = Softmax(x)  c = Concat <axis = 0> (a, b)  y = Softmax(c) }",
    "a kernel that loads its elements many times would look for each": "(float[2,8] x) =>"
    " (float[2,16] y, float[2,8] z) { a = Exp(x)  b = Softmax(x)  c = Concat <axis = 1> (a, b)"
    "  y = Softmax(c)  z = Softmax(a) }",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_part_says_why(reason: str) -> None:
    text = f"refused {REFUSED[reason]}"
    dtype = np.float16 if "float16" in text else np.float32
    plan = planned(text, {"x": np.zeros((2, 8), dtype)})
    assert any(m.startswith("Concat") and reason in m for m in plan.fusion.near_misses)
    agrees(text, {"x": noise(2, 8).astype(dtype)})


def test_only_what_is_no_part_is_copied() -> None:
    plan = planned(
        """some (float[2,8] x) => (float[8,8] y) { a = Exp(x)  b = Softmax(x)
      c = Concat <axis = 0> (x, a, x, b)  y = Softmax(c) }""",
        zeros(x=(2, 8)),
    )
    (copy,) = (d for d in plan.dispatches if d.label == "Concat")
    assert plan.parts.copied == {"c": (0, 2)} and copy.variants[0].touches == ("x", "x", "c")


def test_a_concat_that_stores_what_follows_copies_all_or_nothing() -> None:
    plan = planned(
        """fused (float[2,8] x) => (float[4,8] y) { a = Exp(x)
      c = Concat <axis = 0> (x, a)  d = Relu(c)  y = Softmax(d) }""",
        zeros(x=(2, 8)),
        frozenset({"prologue"}),
    )
    assert "Concat + Relu" in labels(plan) and not plan.parts.of


def test_sizes_that_data_decide_are_no_parts() -> None:
    plan = planned(
        """late (float[8] x) => (float[m] y) <int64[1] flat = {-1}> { a = Exp(x)
      i = NonZero(x)  j = Reshape(i, flat)  s = Gather(a, j)  t = Neg(s)
      c = Concat <axis = 0> (a, t)  y = Softmax(c) }""",
        {"x": np.ones(8, np.float32)},
    )
    assert not plan.parts.of


def test_parts_are_kept_with_a_plan() -> None:
    plan = planned(JOIN.format(n=1, w=8, axis=1), zeros(x=(1, 2, 8)))
    assert load(*dump(plan.parts)) == plan.parts


# kernels --------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("width", [1, 5, 8])
def test_open_sizes_take_the_way_that_is_right(axis: int, width: int) -> None:
    """A plan made for one row is right for several, of any width, and for none."""
    text = JOIN.format(n="N", w="W", axis=axis)
    shapes = [(1, 2, width), (3, 2, width), (1, 2, 4), (2, 2, 7), (0, 2, 3)]
    plan = agrees(text, *({"x": noise(*shape)} for shape in shapes))
    assert plan.parts.of.keys() == {"a", "b"} and "Concat" not in labels(plan)


@pytest.mark.gpu
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2"])
def test_reductions_look_for_parts_in_pieces(op: str, axis: int) -> None:
    """Each element once, by itself and behind a chain in front of the reduction."""
    text = f"""cuts (float[N,6,W] x) => (float[p,q] y, float[p,q] z) <int64[1] at = {{1}},
      int64[1] from = {{2}}, int64[1] to = {{6}}, int64[1] axis = {{{axis}}}> {{
      t = Exp(x)  s = Slice(t, from, to, at)  y = {op}<keepdims = 0>(s, axis)
      u = Slice(t, at, to, at)  v = Neg(u)  m = Mul(v, u)  z = {op}<keepdims = 0>(m, axis) }}"""
    shapes = [(1, 6, 8), (2, 6, 5), (3, 6, 70), (2, 6, 16)]
    plan = agrees(text, *({"x": noise(*shape)} for shape in shapes[::-1]))
    assert labels(plan) == ["Exp", op, f"Neg + Mul + {op}"] and plan.parts.of.keys() == {"s", "u"}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "bool", "float16", "int8"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_every_type(dtype: str, rows: int) -> None:
    name = {"float32": "float"}.get(dtype, dtype)
    flip = "Not" if dtype == "bool" else "BitwiseNot" if "int" in dtype else "Neg"
    text = f"""types ({name}[{rows},3] x, {name}[{rows},4] z) => ({name}[{rows},k] y,
      {name}[{rows},m] w) <int64[2] sizes = {{4, 3}}> {{ a = {flip}(x)  b = {flip}(z)
      c = Concat <axis = 1> (a, b)  p, q = Split <axis = 1> (c, sizes)
      y = {flip}(p)  d = Concat <axis = 1> (q, b)  w = {flip}(d) }}"""
    feeds = {"x": noise(rows, 3, dtype=dtype), "z": noise(rows, 4, dtype=dtype)}
    assert bool(agrees(text, feeds).parts.of) == (dtype not in ("float16", "int8"))
    agrees(text, feeds, target="adapter")


@pytest.mark.gpu
@pytest.mark.parametrize("batch", ["3", "N"])
def test_products_add_where_parts_begin_once(batch: str) -> None:
    """Parts on both sides, aligned and not, in one piece and with gaps, and behind a chain."""
    text = f"""products (float[{batch},W,W] x) => (float[p,q,r] y, float[p,q,r] z, float[p,q,r] u)
      <int64[3] sizes = {{1, 1, 1}}, int64[1] one = {{1}}, int64[1] three = {{3}}> {{ t = Exp(x)
      a, b, c = Split <axis = 0> (t, sizes)  y = MatMul(a, b)  n = Neg(c)  z = MatMul(n, b)
      s = Slice(t, one, three, one)  u = MatMul(s, t) }}"""
    for width in (4, 7, 40):
        plan = agrees(text, {"x": noise(3, width, width)})
        assert {"b", "c"} <= plan.parts.of.keys()
        assert any("{ return params.part_b_begin; }" in kernel.wgsl for kernel in plan.kernels)
    text = """gemms (float[33,K] x) => (float[k,m] y, float[m,m] z)
      <int64[3] sizes = {11, 11, 11}> { t = Exp(x)  a, b, c = Split <axis = 0> (t, sizes)
      y = Gemm <transA = 1> (b, c)  z = Gemm <transB = 1> (c, b) }"""
    for width in (4, 7, 40):
        assert {"b", "c"} <= agrees(text, {"x": noise(33, width)}).parts.of.keys()


@pytest.mark.gpu
def test_nothing_is_joined_to_something() -> None:
    text = """empty (float[2,N] x, float[2,M] z) => (float[2,K] y) { a = Neg(x)  b = Exp(z)
      c = Concat <axis = 1> (a, b)  y = Softmax(c) }"""
    agrees(text, {"x": noise(2, 0), "z": noise(2, 3)}, {"x": noise(2, 3), "z": noise(2, 0)})


@pytest.mark.gpu
def test_a_kernel_reads_and_writes_parts_of_one_buffer() -> None:
    text = """both (float[1,3,9] x) => (float[1,m,9] y) { a = Softmax(x)  b = Neg(a)
      c = Concat <axis = 1> (a, b)  d = Relu(b)  e = Softmax(d)
      f = Concat <axis = 1> (e, c)  y = Softmax(f) }"""
    plan = agrees(text, {"x": noise(1, 3, 9)})
    assert any(kernel.riders for kernel in plan.kernels)


PLACES = """places (float[1,8,6,6] x) => (float[1,8,6,6] y)
  <float[8,8,1,1] v = {{{v}}}, float[8,16,1,1] w = {{{w}}}> {{
  a = Conv(x, v)  b = Conv(a, v)  c = Conv(b, v)
  d = Concat <axis = 1> (a, c)  y = Conv(d, w) }}"""


@pytest.mark.gpu
@pytest.mark.parametrize("software", [False, True])
def test_software_writes_all_places_by_one_kernel(
    software: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part, one behind it, and a value with a buffer of its own."""
    monkeypatch.setattr(targets, "is_software", lambda kind: software)
    values = {"v": noise(64), "w": noise(128)}
    text = PLACES.format(**{n: ", ".join(map(str, v)) for n, v in values.items()})
    plan = agrees(text, {"x": noise(1, 8, 6, 6)})
    used = {d.variants[0].kernel for d in plan.dispatches}
    assert len(plan.dispatches) == 4 and len(used) == (1 if software else 2)


@pytest.mark.gpu
def test_a_whole_may_be_an_output_and_stay_on_the_device() -> None:
    model = parse(JOIN.format(n=1, w=5, axis=1).replace("[n,m,k] y)", "[n,m,k] c)"))
    x = noise(1, 2, 5)
    with InferenceSession(model, device="gpu", require_gpu=True) as session:
        (kept,) = session.run(None, {"x": x}, outputs_on_device=["c"])
        (other,) = session.run(None, {"x": -x}, outputs_on_device=["c"])
        for value, fed in ((kept, x), (other, -x)):
            want = np.concatenate([np.exp(fed), -fed], axis=1)
            np.testing.assert_allclose(value.numpy(), want, rtol=1e-5)
        assert len(session.plan().parts.of) == 2


@pytest.mark.gpu
def test_cuts_of_a_value_on_the_device() -> None:
    model = parse("""cut (float[2,6] x) => (float[2,6] z, float[6] y) <int64 one = {1}> {
      a = Gather(x, one)  y = Exp(a)  z = Neg(x) }""")
    with InferenceSession(model, device="gpu", require_gpu=True) as session:
        x = noise(2, 6)
        z, y = session.run(None, {"x": x}, outputs_on_device=["z"])
        np.testing.assert_allclose(y, np.exp(x[1]), rtol=1e-5)
        np.testing.assert_allclose(session.run(["y"], {"x": z})[0], np.exp(-x[1]), rtol=1e-5)
        assert session.plan().parts.of.keys() == {"a"}


@pytest.mark.gpu
def test_in_the_body_of_a_loop() -> None:
    body = parse("""step (int64 i, bool go, float[1,4] s) => (bool on, float[1,4] next) <
      int64[2] sizes = {2, 2}> { on = Identity(go)  a = Neg(s)  b = Exp(s)
      c = Concat <axis = 0> (a, b)  p, q = Split <axis = 1> (c, sizes)
      r = Sub(p, q)  t = ReduceSum <keepdims = 0> (r)  next = Add(s, t) }""").graph
    loop = onnx.helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [loop],
        "loop",
        [info("x", 1, [1, 4])],
        [info("y", 1, [1, 4])],
        [onnx.numpy_helper.from_array(np.array(3), "count")],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=9
    )
    x = noise(1, 4) / 8
    with (
        InferenceSession(model, device="gpu") as gpu,
        InferenceSession(model, device="cpu") as cpu,
    ):
        mine, other = gpu.run(None, {"x": x}), cpu.run(None, {"x": x})
        np.testing.assert_allclose(mine[0], other[0], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
def test_nodes_in_place_are_on_the_gpu_and_explained() -> None:
    model = parse(JOIN.format(n=1, w=8, axis=1))
    with InferenceSession(model, device="gpu", require_gpu=True) as session:
        session.run(None, {"x": noise(1, 2, 8)})
        assert {place for _, place in session.executed()} == {"gpu"}
        report = session.explain()
        (row,) = (r for r in report.nodes if r.op_type == "Concat")
        assert row.device == "gpu" and not row.kernels and row.subgraph == 0
        assert "written where they belong" in row.reason
