"""Sizes that data decide and control flow in the middle of a graph, GPU work on both sides.

Expected values come from ONNX Runtime where it runs the model, else they are worked out in NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from engine.errors import EngineError
from engine.ir import Array
from engine.runtime import runner as runner_module
from engine.runtime.session import InferenceSession
from tests.runtime.models import parse

DEVICES = (pytest.param("cpu"), pytest.param("gpu", marks=pytest.mark.gpu))
RNG = np.random.default_rng(11)


def noise(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def oracle(model: onnx.ModelProto, feed: Mapping[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feed)))


def check(got: list[Any], want: list[Any]) -> None:
    assert len(got) == len(want)
    for mine, right in zip(got, want, strict=True):
        if isinstance(right, list):
            check(mine, right)
            continue
        assert mine.dtype == right.dtype and mine.shape == right.shape
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, right, rtol=2e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(mine, right)


def executed(session: InferenceSession, place: str) -> set[str]:
    return {node.op_type for node, where in session.executed() if where == place}


NON_ZERO = """g (float[n,4] x) => (float[k,4] y, float[n,4] e, int64[2,count] places) {
  e = Exp(x)
  level = Constant <value_float = 1.0> ()
  big = Greater(e, level)
  places = NonZero(big)
  rows = Gather <axis = 0> (places, zero)
  picked = Gather <axis = 0> (e, rows)
  s = Sqrt(picked)
  y = Softmax(s)
}"""


@pytest.mark.parametrize("device", DEVICES)
def test_non_zero(device: str) -> None:
    zero = "zero = Constant <value_int = 0> ()\n"
    model = parse(NON_ZERO.replace("{\n", "{\n" + zero, 1))
    with InferenceSession(model, device=device) as session:
        for x in (noise(5, 4), noise(2, 4), -np.ones((3, 4), "f"), np.ones((1, 4), "f")):
            check(session.run(None, {"x": x}), oracle(model, {"x": x}))
        if device == "gpu":
            assert executed(session, "cpu") == {"NonZero"}
            assert {"Exp", "Softmax", "Sqrt"} <= executed(session, "gpu")
        assert session.plans_made == 1


BOXES = """g (float[1,n,4] raw, float[1,1,n] logits) => (float[k,4] found, int64[k,3] selected) {
  boxes = Abs(raw)
  scores = Sigmoid(logits)
  most = Constant <value_int = 3> ()
  overlap = Constant <value_float = 0.4> ()
  least = Constant <value_float = 0.3> ()
  last = Constant <value_int = 2> ()
  selected = NonMaxSuppression(boxes, scores, most, overlap, least)
  which = Gather <axis = 1> (selected, last)
  flat = Squeeze(boxes, first)
  kept = Gather <axis = 0> (flat, which)
  found = Sqrt(kept)
}"""


@pytest.mark.parametrize("device", DEVICES)
def test_non_max_suppression(device: str) -> None:
    model = parse(BOXES.replace("{\n", "{\n  first = Constant <value_ints = [0]> ()\n", 1))
    corner = np.array([[1, 1], [1.1, 1], [5, 5], [9, 2], [5.2, 5]], np.float32)
    raw = np.concatenate([corner, corner + 2], axis=1)[None]
    with InferenceSession(model, device=device) as session:
        for logits in ([1, 2, 3, -4, 0.5], [-9, -9, -9, -9, -9], [3, 2, 1, 0, 4]):
            feed = {"raw": raw, "logits": np.array([[logits]], np.float32)}
            want = oracle(model, feed)
            check(session.run(None, feed), want)
        assert len(want[1]) == 3
        if device == "gpu":
            assert executed(session, "cpu") == {"NonMaxSuppression"}
            assert {"Abs", "Sigmoid", "Sqrt", "Gather"} <= executed(session, "gpu")


@pytest.mark.parametrize("device", DEVICES)
def test_unique_and_compress(device: str) -> None:
    model = parse(
        """g (float[n] ids, float[n,3] rows, bool[n] keep)
        => (float[u] names, float[c,3] kept, int64[u] counts, float[c,u] table) {
      last = Constant <value_ints = [1]> ()
      doubled = Add(ids, ids)
      names, first, where, counts = Unique(doubled)
      e = Exp(rows)
      c = Compress <axis = 0> (e, keep)
      kept = Neg(c)
      total = ReduceSum <keepdims = 1> (kept, last)
      table = Add(total, names)
    }"""
    )
    with InferenceSession(model, device=device) as session:
        for ids, keep in (([3, 1, 3, 2], [1, 0, 1, 1]), ([5, 5, 5, 5], [0, 0, 0, 0]), ([7], [1])):
            feed = {
                "ids": np.array(ids, np.float32),
                "rows": noise(len(ids), 3),
                "keep": np.array(keep, bool),
            }
            check(session.run(None, feed), oracle(model, feed))
        assert session.plans_made == 1
        if device == "gpu":
            assert executed(session, "cpu") == {"Unique", "Compress"}


@pytest.mark.parametrize("device", DEVICES)
def test_if_with_captures_and_gpu_work_in_and_around_it(device: str) -> None:
    model = parse(
        """g (float[n] x, bool flag) => (float[m] y, float[n] before) {
      before = Exp(x)
      chosen = If (flag) <
        then_branch = grow () => (float[p] t) {
          u = Neg(before)
          t = Concat <axis = 0> (u, before)
        },
        else_branch = keep () => (float[n] f) { f = Sqrt(before) }
      >
      y = Tanh(chosen)
    }"""
    )
    with InferenceSession(model, device=device) as session:
        for n, flag in ((3, True), (5, False), (2, True), (4, False)):
            feed = {"x": noise(n), "flag": np.array(flag)}
            check(session.run(None, feed), oracle(model, feed))
        assert session.plans_made == 1
        if device == "gpu":
            assert executed(session, "cpu") == {"If"}
            assert {"Exp", "Tanh", "Sqrt"} <= executed(session, "gpu")


EMPTY_IF = """g (float[1,n] x, bool flag) => (float[m,n] y) {
  before = Exp(x)
  y = If (flag) <
    then_branch = grow () => (float[p,q] t) { t = Concat <axis = 0> (before, before) },
    else_branch = keep () => (float[r,s] f) { f = Sqrt(before) }
  >
}"""
EMPTY_LOOP = """g (float[1,n] x, int64 trips) => (float[m,n] last, float[t,1,n] all) {
  go = Constant <value = bool {1}> ()
  last, all = Loop (trips, go, x) <
    body = turn (int64 i, bool on, float[k,n] old) => (bool more, float[j,n] next, float[1,n] s) {
      more = Identity(on)
      s = Neg(x)
      next = Concat <axis = 0> (old, x)
    }
  >
}"""


@pytest.mark.parametrize("device", DEVICES)
def test_sizes_that_bodies_decide_for_values_without_elements(device: str) -> None:
    with InferenceSession(parse(EMPTY_IF), device=device) as session:
        for flag, rows in ((True, 2), (False, 1)):
            feed = {"x": np.zeros((1, 0), np.float32), "flag": np.array(flag)}
            assert session.run(None, feed)[0].shape == (rows, 0)
    with InferenceSession(parse(EMPTY_LOOP), device=device) as session:
        for trips in (2, 3, 0):
            feed = {"x": np.zeros((1, 0), np.float32), "trips": np.array(trips)}
            last, every = session.run(None, feed)
            assert last.shape == (1 + trips, 0)
            assert every.shape == (trips, 1, 0)


LOOP = """g (float[n] x, int64 trips, bool go) => (float[n] last, float[t,n] all, float[n] y) {
  start = Abs(x)
  step = Constant <value_float = 0.5> ()
  last, all = Loop (trips, go, start) <
    body = turn (int64 i, bool on, float[n] carried) => (bool more, float[n] next, float[n] seen) {
      scaled = Mul(carried, step)
      next = Add(scaled, x)
      seen = Exp(next)
      peak = ReduceMax <keepdims = 0> (next)
      limit = Constant <value_float = 4.0> ()
      more = Less(peak, limit)
    }
  >
  y = Neg(last)
}"""


@pytest.mark.parametrize("device", DEVICES)
def test_loop_with_carried_values_scans_and_captures(device: str) -> None:
    model = parse(LOOP)
    with InferenceSession(model, device=device) as session:
        for trips, go, x in (
            (4, True, noise(3)),
            (0, True, noise(2)),
            (3, False, noise(2)),
            (9, True, np.array([3, 0], np.float32)),
        ):
            feed = {"x": x, "trips": np.array(trips), "go": np.array(go)}
            last, seen, y = session.run(None, feed)
            carried, rows = np.abs(x), []
            while len(rows) < trips and go:
                carried = carried * np.float32(0.5) + x
                rows.append(np.exp(carried))
                go = bool(carried.max() < 4)
            check([last, y], [carried, -carried])
            check([seen], [np.array(rows, np.float32).reshape(len(rows), x.size)])
        assert len(rows) < 9


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("limit", ["", "trips"])
@pytest.mark.parametrize("condition", ["", "go"])
def test_loops_that_carry_nothing(device: str, limit: str, condition: str) -> None:
    """A limit and a condition that are left out end no loop; the body's own does after 3 turns."""
    given = [f"{kind} {name}" for kind, name in (("int64", limit), ("bool", condition)) if name]
    model = parse(
        f"""g ({", ".join(["float[n] x", *given])}) => (float[t,n] all) {{
  all = Loop ({limit or '""'}, {condition or '""'}) <
    body = turn (int64 i, bool on) => (bool more, float[n] seen) {{
      last = Constant <value_int = 2> ()
      more = Less(i, last)
      seen = Exp(x)
    }}
  >
}}"""
    )
    x = noise(3)
    feed = {"x": x, "trips": np.array(2), "go": np.array(True)}
    with InferenceSession(model, device=device) as session:
        (every,) = session.run(None, {name: feed[name] for name in ("x", limit, condition) if name})
    check([every], [np.stack([np.exp(x)] * (2 if limit else 3))])


@pytest.mark.parametrize("device", DEVICES)
def test_loop_whose_carried_shape_grows(device: str) -> None:
    model = parse(
        """g (float[n] x, int64 trips) => (float[m] y, float sum) {
      e = Exp(x)
      grown = Loop (trips, , e) <
        body = turn (int64 i, bool on, float[c] carried) => (bool on_, float[d] next) {
          on_ = Identity(on)
          half = Sqrt(carried)
          next = Concat <axis = 0> (half, x)
        }
      >
      y = Neg(grown)
      sum = ReduceSum <keepdims = 0> (y)
    }"""
    )
    with InferenceSession(model, device=device) as session:
        for n, trips in ((2, 5), (3, 0), (1, 20)):
            x = np.abs(noise(n))
            want = np.exp(x)
            for _ in range(trips):
                want = np.concatenate([np.sqrt(want), x])
            check(
                session.run(None, {"x": x, "trips": np.array(trips)}),
                [-want, np.asarray(-want.sum(dtype=np.float32))],
            )
        assert session.plans_made == 1
        assert sum(r.compiled for _, r in session._runner._bodies.values()) <= 2


@pytest.mark.parametrize("device", DEVICES)
def test_loops_nest_and_capture_from_both_levels(device: str) -> None:
    model = parse(
        """g (float[2] x, int64 outer_trips) => (float[2] y, float[t,2] trace) {
      base = Exp(x)
      zero = Sub(base, base)
      y0, trace = Loop (outer_trips, , zero) <
        body = out (int64 i, bool on, float[2] acc) => (bool on_, float[2] acc_, float[2] row) {
          on_ = Identity(on)
          row = Add(acc, base)
          acc_ = Loop (i, , row) <
            body = inn (int64 j, bool on2, float[2] deep) => (bool on2_, float[2] deep_) {
              on2_ = Identity(on2)
              f = Cast <to = 1> (i)
              a = Add(row, base)
              b = Mul(a, f)
              deep_ = Add(deep, b)
            }
          >
        }
      >
      y = Neg(y0)
    }"""
    )
    with InferenceSession(model, device=device) as session:
        for trips in (0, 1, 4):
            x = noise(2)
            base, acc, rows = np.exp(x), np.zeros(2, np.float32), []
            for i in range(trips):
                rows.append(acc + base)
                acc = rows[-1]
                for _ in range(i):
                    acc = acc + (rows[-1] + base) * np.float32(i)
            got = session.run(None, {"x": x, "outer_trips": np.array(trips)})
            check(got, [-acc, np.array(rows, np.float32).reshape(trips, 2)])


@pytest.mark.parametrize("device", DEVICES)
def test_scan_forwards_backwards_and_on_another_axis(device: str) -> None:
    model = parse(
        """g (float[4] start, float[4,t] columns, float[t,4] rows)
        => (float[4] last, float[t,4] sums, float[4,t] products) {
      s = Neg(start)
      c = Exp(columns)
      state, sums_, products_ = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0],
          scan_input_directions = [1, 0], scan_output_axes = [0, 1],
          scan_output_directions = [0, 1],
        body = turn (float[4] a, float[4] column, float[4] row)
            => (float[4] b, float[4] seen, float[4] product) {
          w = Add(a, column)
          b = Tanh(w)
          seen = Add(b, row)
          product = Mul(b, start)
        }> (s, c, rows)
      last = Abs(state)
      sums = Exp(sums_)
      products = Identity(products_)
    }"""
    )
    with InferenceSession(model, device=device) as session:
        for length in (3, 1, 6):
            feed = {"start": noise(4), "columns": noise(4, length), "rows": noise(length, 4)}
            check(session.run(None, feed), oracle(model, feed))
        assert session.plans_made == 1
        if device == "gpu":
            assert "Tanh" in executed(session, "gpu")


@pytest.mark.parametrize("device", DEVICES)
def test_sequence_map_with_a_capture(device: str) -> None:
    model = parse(
        """g (seq(float[k]) xs, float[1] w) => (float[n] y, seq(float[k]) mapped) {
      weight = Exp(w)
      mapped = SequenceMap (xs) <
        body = turn (float[c] x) => (float[c] z) { t = Mul(x, weight) z = Sqrt(t) }
      >
      joined = ConcatFromSequence <axis = 0> (mapped)
      y = Neg(joined)
    }"""
    )
    with InferenceSession(model, device=device) as session:
        for sizes in ((2, 3, 1), (4,)):
            parts = [np.abs(noise(n)) for n in sizes]
            w = noise(1)
            want = [np.sqrt(p * np.exp(w)) for p in parts]
            y, mapped = session.run(None, {"xs": parts, "w": w})
            check([y, mapped], [-np.concatenate(want), want])


@pytest.mark.parametrize("device", DEVICES)
def test_an_empty_sequence(device: str) -> None:
    model = parse(
        """g (seq(float[k]) xs, float[n] x) => (int64 count, float[n] y) {
      mapped = SequenceMap (xs) <body = turn (float[c] a) => (float[c] b) { b = Neg(a) }>
      count = SequenceLength(mapped)
      y = Exp(x)
    }"""
    )
    with InferenceSession(model, device=device) as session:
        x = noise(3)
        for parts in ([], [noise(2), noise(1)], []):
            check(session.run(None, {"xs": parts, "x": x}), [np.array(len(parts)), np.exp(x)])


@pytest.mark.parametrize("device", DEVICES)
def test_a_failing_body_names_its_node_and_leaves_the_session_usable(device: str) -> None:
    model = parse(
        """g (float[n] x, int64[2] size, bool flag) => (float[m,k] y) {
      e = Abs(x)
      one = Constant <value_ints = [1]> ()
      r = If (flag) <
        then_branch = a () => (float[p,q] t) { t = Reshape(e, size) },
        else_branch = b () => (float[n,1] f) { f = Unsqueeze(e, one) }
      >
      y = Neg(r)
    }"""
    )
    x = noise(4)
    with InferenceSession(model, device=device) as session:
        feed = {"x": x, "size": np.array([3, 2]), "flag": np.array(True)}
        with pytest.raises(EngineError, match="Reshape"):
            session.run(None, feed)
        (y,) = session.run(None, {**feed, "size": np.array([2, 2])})
        np.testing.assert_array_equal(y, -np.abs(x).reshape(2, 2))


@pytest.mark.parametrize("device", DEVICES)
def test_a_size_bound_twice_in_one_run(device: str) -> None:
    model = parse(
        """g (float[n] x, float[n] w) => (float[b] y, float[a] z) {
      level = Constant <value_float = 0.0> ()
      e = Sin(x)
      first = Greater(e, level)
      c = Compress <axis = 0> (e, first)
      z = Exp(c)
      mean = ReduceMean <keepdims = 0> (z)
      second = Greater(z, mean)
      d = Compress <axis = 0> (z, second)
      s = Sqrt(d)
      top = ReduceMax <keepdims = 0> (w)
      y = Mul(s, top)
    }"""
    )
    with InferenceSession(model, device=device) as session:
        for n in (9, 30, 2000, 5):
            feed = {"x": noise(n), "w": noise(n)}
            check(session.run(None, feed), oracle(model, feed))
        assert session.plans_made == 1


@pytest.mark.parametrize("device", DEVICES)
def test_bodies_go_with_their_plans(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "MAX_PLANS", 2)
    model = parse(
        """g (float[n] x, bool flag) => (float[m] y) {
      y = If (flag) <
        then_branch = a () => (float[p] t) { t = Abs(x) },
        else_branch = b () => (float[q] f) { f = Neg(x) }
      >
    }"""
    )
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    with InferenceSession(model, device=device) as session:
        runner = session._runner
        for rank in range(5):
            for flag in (True, False):
                x = noise(*[2] * rank)
                (y,) = session.run(None, {"x": x, "flag": np.array(flag)})
                np.testing.assert_array_equal(y, np.abs(x) if flag else -x)
        assert session.plans_made == 5
        assert len(runner.prepared) == 2
        assert len(runner._bodies) == 4


BODIES = [
    ("If(c)", "then_branch = t (float q) => (float r) { r = Neg(x) }, "
     "else_branch = e () => (float s) { s = Abs(x) }", "takes 1 inputs, 0 are given"),
    ("Loop(n, c, x)", "body = b (int64 i, bool k) => (bool k) { }", "takes 2 inputs, 3 are given"),
    ("Scan(x)", "num_scan_inputs = 1, scan_input_axes = [0, 1], "
     "body = b (float e) => (float r) { r = Neg(e) }", "not of the operator's form"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "attributes", "message"), BODIES)
def test_bodies_that_do_not_fit_their_node(call: str, attributes: str, message: str) -> None:
    op_type, operands = call.rstrip(")").split("(")
    text = f"""<ir_version: 9, opset_import: ["": 20]>
    g (float[2] x, bool c, int64 n) => (float y) {{ y = {op_type}<{attributes}>({operands}) }}"""
    feeds = {"x": np.ones(2, np.float32), "c": np.array(True), "n": np.array(2)}
    with pytest.raises(EngineError, match=message):
        InferenceSession(onnx.parser.parse_model(text), device="cpu").run(None, feeds)
