"""Measured times of explain: every kernel and every node on the CPU has one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from engine import InferenceSession
from engine.tools.measure import measure
from tests.runtime.models import parse

MIXED = """g (float[n,64] x) => (float[n,64] y) {
  a = MatMul(x, x)
  d = Cast<to = 11>(a)
  e = Erf(d)
  f = Cast<to = 1>(e)
  t = Tanh(f)
  y = Softmax(t)
}"""
FEED = {"x": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}


def times(found: Sequence[float]) -> bool:
    return all(ms > 0 for ms in found)


@pytest.mark.gpu
def test_kernels_and_nodes_are_measured() -> None:
    told: list[str] = []
    with InferenceSession(parse(MIXED), device="gpu") as session:
        found = measure(session, FEED, 3, told.append)
        report = session.explain(measured=found)
    assert found.calls == 3 and found.clock in ("timestamps", "host")
    assert found.kernels.keys() == set(range(len(report.kernels)))
    assert found.nodes.keys() == {"d", "e", "f"}
    assert times([*found.kernels.values(), *found.nodes.values(), found.total_ms])
    assert sum(found.kernels.values()) + sum(found.nodes.values()) < 5 * found.total_ms
    assert {n.op_type for n in report.nodes if n.measured_ms is None} == set()
    assert told == [
        "first call",
        *(f"measuring call {i} of 3" for i in (1, 2, 3)),
        *(f"timing call {i} of 3" for i in (1, 2, 3)),
    ]


def test_without_a_gpu_only_nodes_are_measured() -> None:
    with InferenceSession(parse(MIXED), device="cpu") as session:
        found = measure(session, FEED, 2)
        report = session.explain(measured=found)
    assert found.clock == "" and not found.kernels
    assert found.nodes.keys() == {n.key for n in report.nodes}
    assert "measured" in report.summary() and "clock" not in report.summary()


def test_control_flow_counts_with_its_bodies() -> None:
    text = """g (float[n] x, bool b) => (float[n] y) {
      z = Exp(x)
      y = If(b) <then_branch = t () => (float[n] p) { p = Neg(z) },
                 else_branch = e () => (float[n] q) { q = Abs(z) }>
    }"""
    with InferenceSession(parse(text), device="cpu") as session:
        found = measure(session, {"x": np.ones(4, np.float32), "b": np.array(True)}, 2)
    assert found.nodes.keys() == {"z", "y"}


def test_bodies_are_told_once_they_ran() -> None:
    text = """g (float[n] x, bool b) => (float[n] y) {
      y = If(b) <then_branch = t () => (float[n] p) { q = Neg(x) p = Exp(q) },
                 else_branch = e () => (float[n] r) { r = Abs(x) }>
    }"""
    feed = {"x": np.ones(4, np.float32), "b": np.array(True)}
    with InferenceSession(parse(text), device="cpu") as session:
        before = session.explain(feed)
        session.run(None, feed)
        after = session.explain()
    assert [(b.path, b.nodes, b.cpu_nodes) for b in before.bodies] == [
        (("y", "then_branch"), 2, None),
        (("y", "else_branch"), 1, None),
    ]
    assert [(b.gpu_nodes, b.cpu_nodes) for b in after.bodies] == [(0, 2), (None, None)]
    lines = after.summary().splitlines()
    assert "bodies     If y / then_branch: 2 nodes, 0 on the GPU, 2 on the CPU" in lines
    assert "           If y / else_branch: 1 node, planned when it first runs" in lines
