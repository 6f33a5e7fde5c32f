"""Sizes that differ from call to call: one plan, bound anew; guards, alternatives, eviction."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import pytest

from engine import lowering, ops, splits
from engine.bind import Binder
from engine.dims import Table, equal
from engine.errors import EngineError
from engine.ir import Array
from engine.ops import NodeView, Support, lookup
from engine.runtime import device as device_module
from engine.runtime import runner as runner_module
from engine.runtime.device import Device
from engine.runtime.session import InferenceSession
from tests.profiles import round_profile
from tests.runtime.models import parse

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(5)


def noise(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass
class Counts:
    rendered: list[str] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)
    groups: int = 0


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counts]:
    """Counts kernels rendered, shaders compiled and bind groups made."""
    counts = Counts()
    render, compile_, bind_group = lowering.render, Device.compile, Device.bind_group

    def counted_render(name: str, *args: Any, **options: Any) -> Any:
        counts.rendered.append(name)
        return render(name, *args, **options)

    def counted_compile(self: Device, kernel: Any) -> Any:
        if self in device_module._open.values():  # others help to compile
            counts.compiled.append(kernel.name)
        return compile_(self, kernel)

    def counted_group(self: Device, *args: Any) -> Any:
        counts.groups += 1
        return bind_group(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(lowering, "render", counted_render)
        patch.setattr(Device, "compile", counted_compile)
        patch.setattr(Device, "bind_group", counted_group)
        yield counts


JOIN = "join (float[n] x, float[m] w) => (float[k] y) { a = Abs(x) y = Concat <axis = 0> (a, w) }"


def test_one_plan_serves_batches_heights_and_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    model = parse(
        """image (float[batch,3,h,w] x, float[4,3,3,3] k, float[4] bias)
        => (float[batch,4,p,q] y, float[batch,4] pooled)
        <int64[2] axes = {2, 3}> {
      c = Conv <pads = [1,1,1,1], strides = [2,2]> (x, k, bias)
      y = Relu(c)
      pooled = ReduceMean <keepdims = 0> (y, axes)
    }"""
    )
    oracle = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    k, bias = noise(4, 3, 3, 3), noise(4)
    with InferenceSession(model, device="gpu", require_gpu=True) as session:
        session.run(None, {"x": noise(1, 3, 8, 8), "k": k, "bias": bias})
        session.run(None, {"x": noise(2, 3, 7, 9), "k": k, "bias": bias})
        with counting(monkeypatch) as counts:
            for shape in ((1, 3, 1, 1), (3, 3, 7, 12), (2, 3, 16, 5), (5, 3, 2, 3)):
                feed = {"x": noise(*shape), "k": k, "bias": bias}
                for got, want in zip(session.run(None, feed), oracle.run(None, feed), strict=True):
                    assert got.shape == want.shape
                    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        assert session.plans_made == 1
        assert counts.rendered == []


def test_zero_sizes() -> None:
    model = parse(
        """g (float[n,4] x) => (float[n,4] y, float[4] sum, int64[1] count) <int64[1] axes = {0}> {
      y = Exp(x)
      sum = ReduceSum <keepdims = 0> (x, axes)
      s = Shape <start = 0, end = 1> (y)
      count = Identity(s)
    }"""
    )
    with InferenceSession(model, device="gpu") as session:
        for n in (3, 0, 2, 0):
            x = noise(n, 4)
            y, total, count = session.run(None, {"x": x})
            np.testing.assert_allclose(y, np.exp(x), rtol=1e-5)
            np.testing.assert_allclose(total, x.sum(axis=0), rtol=1e-5, atol=1e-6)
            assert count.tolist() == [n]
        assert session.plans_made == 1


def test_a_size_of_one_broadcasts_in_the_call_where_it_is_one() -> None:
    model = parse(
        """g (float[a,b] x, float[c,d] y) => (float[p,q] sum, float[p,q] z) {
      sum = Add(x, y)
      z = Mul(sum, x)
    }"""
    )
    shapes = [((3, 4), (3, 4)), ((3, 4), (1, 4)), ((1, 4), (5, 1)), ((3, 1), (3, 7)), ((1, 1),) * 2]
    with InferenceSession(model, device="gpu", require_gpu=True) as session:
        for first, second in shapes:
            x, y = noise(*first), noise(*second)
            got, product = session.run(None, {"x": x, "y": y})
            np.testing.assert_array_equal(got, x + y)
            np.testing.assert_allclose(product, (x + y) * x, rtol=1e-6)
        assert session.plans_made == 1


def test_the_alternative_that_fits_is_chosen_when_sizes_are_bound() -> None:
    model = parse("g (float[m,k] x, float[k,n] w) => (float[m,n] y) { y = MatMul(x, w) }")
    kernels = set()
    with InferenceSession(model, device="gpu", require_gpu=True) as session:
        for m, k, n in ((8, 16, 32), (8, 15, 33), (1, 16, 32), (5, 7, 1), (64, 32, 64)):
            x, w = noise(m, k), noise(k, n)
            np.testing.assert_allclose(
                session.run(None, {"x": x, "w": w})[0], x @ w, rtol=1e-4, atol=1e-5
            )
            plan = session.plan()
            bound = Binder(plan).bind(0, {"m": m, "k": k, "n": n})
            kernels.add(
                plan.dispatches[-1].variants[bound.chosen[len(plan.dispatches) - 1][0]].kernel
            )
        assert session.plans_made == 1
    assert len(kernels) > 1


def guard_abs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets Abs have a kernel for even sizes only."""
    op = lookup("Abs")
    assert op is not None

    def supports(view: NodeView) -> Support:
        return Support(True, "", (equal(view.shape(0)[0] % 2, 0, "the size is even"),))

    changed = dataclasses.replace(op, supports=supports)
    monkeypatch.setattr(ops, "_REGISTRY", {**ops._REGISTRY, ("", "Abs"): [changed]})


def test_a_broken_guard_makes_another_plan_and_the_first_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard_abs(monkeypatch)
    model = parse("g (float[n] x) => (float[n] y) { a = Abs(x) y = Neg(a) }")
    with InferenceSession(model, device="gpu") as session:
        devices = {}
        for n, plans in ((4, 1), (5, 2), (6, 2), (7, 2), (8, 2)):
            x = noise(n)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], -np.abs(x))
            assert session.plans_made == plans
            devices[n] = session.explain().nodes[0]
        assert devices[4].device == devices[8].device == "gpu"
        assert devices[5].device == "cpu"
        assert devices[5].reason == "it needs that the size is even, which is not so at n=5"


def test_a_guard_on_a_size_that_data_decide_is_checked_in_mid_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard_abs(monkeypatch)
    model = parse(
        """g (float[n] x, bool[n] keep) => (float[k] y, float[n] e) {
      e = Exp(x)
      c = Compress <axis = 0> (e, keep)
      a = Abs(c)
      y = Neg(a)
    }"""
    )
    with InferenceSession(model, device="gpu") as session:
        for kept in (4, 3, 2, 5, 0):
            x, keep = noise(6), np.arange(6) < kept
            y, e = session.run(None, {"x": x, "keep": keep})
            np.testing.assert_allclose(e, np.exp(x), rtol=1e-5)
            np.testing.assert_array_equal(y, -e[keep])
            row = next(r for r in session.explain().nodes if r.op_type == "Abs")
            assert row.device == ("cpu" if kept % 2 else "gpu")
            if kept % 2:
                assert "needs that the size is even, which is not so at" in row.reason
        assert session.plans_made == 2


def test_a_first_call_that_breaks_a_guard_does_not_decide_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    guard_abs(monkeypatch)
    model = parse("g (float[n] x) => (float[n] y) { a = Abs(x) y = Neg(a) }")
    with InferenceSession(model, device="gpu") as session:
        for n, device in ((5, "cpu"), (4, "gpu"), (7, "cpu"), (2, "gpu")):
            x = noise(n)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], -np.abs(x))
            assert session.explain().nodes[0].device == device
        assert session.plans_made == 2


def test_the_plan_for_sizes_seen_before_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    guard_abs(monkeypatch)
    model = parse("g (float[n] x) => (float[n] y) { a = Abs(x) y = Neg(a) }")
    with InferenceSession(model, device="gpu") as session:
        for _ in range(2):
            for n, device in ((4, "gpu"), (5, "cpu"), (6, "gpu")):
                x = noise(n)
                np.testing.assert_array_equal(session.run(None, {"x": x})[0], -np.abs(x))
                assert session.explain().nodes[0].device == device
            monkeypatch.setattr(runner_module, "bind_inputs", None)  # is not called any more


def test_plans_are_evicted_by_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "MAX_PLANS", 2)
    with InferenceSession(parse(JOIN), device="gpu") as session:
        runner, made = session._runner, []
        feeds = {"x": noise(3), "w": noise(2)}
        for refused in ("a", "y", "a", "z", "a", "y"):
            options = dataclasses.replace(runner.options, refused={refused: "for this test"})
            runner._prepare(feeds, options, {})
            made.append(session.plans_made)
        assert len(runner.prepared) == 2
        assert made == [1, 2, 2, 3, 3, 4]
        np.testing.assert_array_equal(
            session.run(None, feeds)[0], np.concatenate([abs(feeds["x"]), feeds["w"]])
        )


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_a_later_call_whose_data_do_not_fit_says_so(device: str) -> None:
    model = parse(
        """data (float[n] x) => (float[k] y) {
      a = NonZero(x)  b = Cast <to = 1> (a)  s = Shape(x)  y = Reshape(b, s)
    }"""
    )
    with InferenceSession(model, device=device) as session:
        for x in ([1, 2, 3], [4, 5, 6]):
            (y,) = session.run(None, {"x": np.array(x, np.float32)})
            np.testing.assert_array_equal(y, [0, 1, 2])
        with pytest.raises(EngineError, match="Reshape 'y'"):
            session.run(None, {"x": np.array([0, 1, 2], np.float32)})


def test_later_calls_lower_nothing_compile_nothing_and_make_no_bind_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = "\n".join(f"t{i + 1} = Tanh(s{i})  s{i + 1} = Softmax(t{i + 1})" for i in range(100))
    model = parse(f"deep (float[rows,n] s0) => (float[rows,n] y) {{ {layers} y = Neg(s100) }}")
    with InferenceSession(model, device="gpu", require_gpu=True) as session:
        with counting(monkeypatch) as first:
            for n in (40, 37, 4, 5):  # each takes other variants of the kernels
                session.run(None, {"s0": noise(7, n)})
        assert session.times.dispatches >= 100
        assert 0 < len(first.compiled) < 20 <= len(first.rendered)
        with counting(monkeypatch) as counts:
            for rows, n in ((1, 5), (3, 37), (7, 36), (2, 2)):
                x = noise(rows, n)
                (y,) = session.run(None, {"s0": x})
                assert y.shape == (rows, n)
                np.testing.assert_allclose(y.sum(axis=1), -1, rtol=1e-4)
        assert counts == Counts()
        assert session.plans_made == 1


def test_binding_400_kernels_evaluates_one_table(
    monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    nodes = "\n".join(
        f"t{i} = Softmax(s{i})  s{i + 1} = Slice(t{i}, zero, end, one)" for i in range(200)
    )
    model = parse(
        f"""deep (float[rows,n] s0) => (float[rows,m] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] end = {{100000}}> {{
      {nodes} y = Neg(s200) }}""".replace("zero, end, one", "zero, end, one")
    )
    disable = ["eliminate", "in-place"]
    with InferenceSession(model, device="gpu", require_gpu=True, disable=disable) as session:
        plan = session.plan()
    assert len(plan.dispatches) >= 400
    binder = Binder(plan)
    tables = []
    evaluate = Table.evaluate
    monkeypatch.setattr(Table, "evaluate", lambda self, b: tables.append(self) or evaluate(self, b))
    sizes = [{"rows": r, "n": n} for r, n in ((1, 8), (3, 12), (1, 1), (9, 640))]
    seconds = []
    for binding in sizes * 5:
        tables.clear()
        start = time.perf_counter()
        assert binder.guards.broken(binding) == []
        bound = binder.bind(0, binding)
        seconds.append(time.perf_counter() - start)
        assert len(tables) == 2
        assert len(bound.chosen) == len(plan.dispatches)
    record_property("binding_ms", min(seconds) * 1e3)
    print(f"binding {len(plan.dispatches)} dispatches: {min(seconds) * 1e3:.2f} ms")


FAST_GPU = round_profile(
    "a fast GPU far away",
    launch_ns=1_000,
    submit_ns=50_000,
    fma_per_s=10**13,
    bytes_per_s=10**12,
    upload_latency_ns=100_000,
    upload_bytes_per_s=10**11,
    readback_ns=100_000,
    download_latency_ns=100_000,
    download_bytes_per_s=10**11,
    flops_per_s=10**10,
    panel_bytes_per_s=10**10,
    memory_bytes_per_s=10**10,
    node_ns=1_000,
)


def test_auto_plans_anew_where_sizes_make_another_split_better() -> None:
    model = parse(
        "g (float[n,n] a, float[n,n] b) => (float[n,n] y) { c = MatMul(a, b) y = Abs(c) }"
    )
    with InferenceSession(model) as session:
        session._runner.profile = FAST_GPU
        for n, place, plans in ((4, "cpu", 1), (600, "gpu", 2), (5, "cpu", 2), (500, "gpu", 2)):
            a, b = noise(n, n), noise(n, n)
            np.testing.assert_allclose(
                session.run(None, {"a": a, "b": b})[0], np.abs(a @ b), rtol=1e-3, atol=1e-3
            )
            assert {where for _, where in session.executed()} == {place}
            assert session.plans_made == plans


def test_a_split_that_stays_the_best_is_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    ask = splits.split_ms
    monkeypatch.setattr(splits, "split_ms", lambda *a: asked.append(a) or ask(*a))
    model = parse("g (float[n] a) => (float[n] y) { y = Abs(a) }")
    with InferenceSession(model) as session:
        session._runner.profile = FAST_GPU
        for n in (4, 5, 9, 60, 70, 50, 4, 61):
            session.run(None, {"a": noise(n)})
        assert session.plans_made == 1
    assert len(asked) == 1


def test_symbols_named_alike_in_the_model_stay_apart() -> None:
    model = parse(JOIN.replace("float[n]", "float[x_0]").replace("float[m]", "float[n]"))
    with InferenceSession(model, device="gpu") as session:
        x, w = noise(3), noise(2)
        np.testing.assert_array_equal(
            session.run(None, {"x": x, "w": w})[0], np.concatenate([abs(x), w])
        )


def test_an_input_without_a_shape_beside_a_size_that_sounds_alike() -> None:
    model = parse("g (float[x_0] w, float[n] x) => (float[k] y) { y = Concat <axis = 0> (x, w) }")
    model.graph.input[1].type.tensor_type.ClearField("shape")
    with InferenceSession(model, device="gpu") as session:
        x, w = noise(3), noise(2)
        (y,) = session.run(None, {"x": x, "w": w})
        np.testing.assert_array_equal(y, np.concatenate([x, w]))
