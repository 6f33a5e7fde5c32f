"""What a recording says of a call: every kernel, transfer and node once, on one clock."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from engine.errors import EngineError
from engine.runtime import timestamps
from engine.runtime.device import open_device
from engine.runtime.recording import Recording
from engine.runtime.session import InferenceSession
from engine.runtime.timestamps import Interval, align
from tests.runtime.models import AFFINE, parse

X = np.random.default_rng(5).standard_normal((50, 3)).astype(np.float32)
B = np.ones(3, np.float32)

PRODUCTS = """products (float[m,256] x, float[256,256] w) => (float[m,256] z) {
  y = MatMul(x, w)
  s = Softmax <axis = -1> (y)
  z = MatMul(s, w)
}"""

LOOP = """looped (float[3] x, int64 trips) => (float[3] y) {
  go = Constant <value = bool {1}> ()
  y = Loop (trips, go, x) <body = g (int64 i, bool c, float[3] a) => (bool d, float[3] b) {
    d = Identity(c)
    e = Exp(a)
    b = Softmax <axis = -1> (e)
  }>
}"""

CLOCKS = ("auto", "host")


def record(session: InferenceSession, feeds: dict[str, np.ndarray], clock: str) -> Recording:
    session.run(None, feeds)
    with session.recording(clock) as recording:
        session.run(None, feeds)
    return recording


@pytest.mark.gpu
@pytest.mark.parametrize("clock", CLOCKS)
def test_every_dispatch_and_transfer_is_there_once(
    clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # on a busy machine an empty submit, which is taken off, may take as long as a small dispatch
    monkeypatch.setattr(timestamps.HostClock, "_idle_ns", lambda self: 0)
    session = InferenceSession(parse(AFFINE), device="gpu")
    before, _ = session.run(None, {"x": X, "b": B})
    recording = record(session, {"x": X, "b": B}, clock)
    kernels = [e for e in recording.events if e.kind == "kernel"]
    assert recording.clock_used == ("host" if clock == "host" else "timestamps")
    assert [e.dispatch for e in kernels] == list(range(session.times.dispatches))
    assert {n for e in kernels for n in e.nodes} == {n.key for n, _ in session.executed()}
    assert all(e.elapsed_ns > 0 and e.binding["n"] == 50 for e in kernels)
    ups = {e.name: e.nbytes for e in recording.events if e.kind == "upload"}
    downs = {e.name: e.nbytes for e in recording.events if e.kind == "download"}
    assert ups == {"x": 600, "b": 12} and downs == {"y": 600, "z": 600}
    after, _ = session.run(None, {"x": X, "b": B})
    np.testing.assert_array_equal(before, after)


@pytest.mark.gpu
@pytest.mark.parametrize("clock", CLOCKS)
def test_kernels_lie_in_the_call_one_after_the_other(clock: str) -> None:
    session = InferenceSession(parse(PRODUCTS), device="gpu")
    rng = np.random.default_rng(1)
    feeds = {n: rng.random((256, 256), dtype=np.float32) for n in "xw"}
    recording = record(session, feeds, clock)
    kernels = [e for e in recording.events if e.kind == "kernel"]
    assert len(kernels) >= 3
    assert all(a.end_ns <= b.start_ns for a, b in pairwise(kernels))
    submitted = min(e.start_ns for e in recording.events if e.kind in ("submit", "kernel"))
    assert recording.start_ns <= submitted <= kernels[0].start_ns
    # clocks are aligned by the least offset, so the work ends before it was read
    assert kernels[-1].end_ns <= recording.end_ns
    products = [e.elapsed_ns for e in kernels if e.name.startswith("MatMul")]
    # 2 * 256**3 operations: no device that is known needs less than 1 us or more than 10 s
    assert all(1_000 < ns < 10_000_000_000 for ns in products)


@pytest.mark.gpu
def test_both_clocks_agree() -> None:
    session = InferenceSession(parse(PRODUCTS), device="gpu")
    feeds = {"x": np.ones((2048, 256), np.float32), "w": np.ones((256, 256), np.float32)}
    shortest = {}
    for clock in CLOCKS:
        runs = [record(session, feeds, clock) for _ in range(3)]
        shortest[clock] = min(
            sum(e.elapsed_ns for e in r.events if e.kind == "kernel") for r in runs
        )
    assert 0.3 < shortest["auto"] / shortest["host"] < 3.0


@pytest.mark.gpu
def test_an_adapter_without_timestamps_is_timed_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = InferenceSession(parse(AFFINE), device="gpu")
    monkeypatch.setattr(open_device(), "timestamps", False)
    recording = record(session, {"x": X, "b": B}, "auto")
    assert recording.clock_used == "host"
    assert [e.dispatch for e in recording.events if e.kind == "kernel"]


@pytest.mark.gpu
@pytest.mark.parametrize("clock", CLOCKS)
def test_bodies_say_where_they_are(clock: str) -> None:
    session = InferenceSession(parse(LOOP), device="gpu")
    feeds = {"x": np.ones(3, np.float32), "trips": np.array(4, np.int64)}
    recording = record(session, feeds, clock)
    inner = [e for e in recording.events if e.kind == "kernel"]
    (outer,) = [e for e in recording.events if e.kind == "bodies"]
    assert len(inner) % 4 == 0 and len(inner) >= 4
    assert {e.path for e in inner} == {outer.nodes} and outer.path == ()
    assert all(e.plan is not outer.plan for e in inner)
    if clock == "host":
        assert all(outer.start_ns <= e.start_ns <= e.end_ns <= outer.end_ns for e in inner)


@pytest.mark.gpu
def test_more_dispatches_than_a_query_set_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timestamps, "_PAIRS", 2)
    monkeypatch.setattr(timestamps, "MAX_QUERIES", 4)
    session = InferenceSession(parse(LOOP), device="gpu")
    feeds = {"x": np.ones(3, np.float32), "trips": np.array(5, np.int64)}
    recording = record(session, feeds, "auto")
    kernels = [e for e in recording.events if e.kind == "kernel"]
    assert len(kernels) >= 5 and len(kernels) % 5 == 0
    assert all(0 < e.elapsed_ns < 10_000_000_000 for e in kernels)


def test_nodes_on_the_cpu_are_recorded() -> None:
    session = InferenceSession(parse(LOOP), device="cpu")
    feeds = {"x": np.ones(3, np.float32), "trips": np.array(2, np.int64)}
    recording = record(session, feeds, "auto")
    nodes = [e.name for e in recording.events if e.kind == "node"]
    assert nodes == ["Exp", "Softmax"] * 2 and recording.clock_used == ""
    assert sum(e.elapsed_ns for e in recording.events if e.kind == "node") < (
        recording.end_ns - recording.start_ns
    )


def test_a_prompt_shows_events_without_their_plan() -> None:
    with InferenceSession(parse(AFFINE), device="cpu") as session:
        event = record(session, {"x": X, "b": B}, "auto").events[0]
    assert "plan=" not in repr(event) and event.plan.graph.inputs == ("x", "b")


def test_a_call_outside_the_block_is_not_recorded() -> None:
    session = InferenceSession(parse(AFFINE), device="cpu")
    with session.recording() as recording:
        pass
    session.run(None, {"x": X, "b": B})
    assert recording.events == []
    with pytest.raises(EngineError, match="clock is one of"), session.recording("sun"):
        pass


def test_clocks_are_aligned_by_the_least_offset() -> None:
    intervals = [Interval(100, 150), Interval(140, 180), Interval(400, 420)]
    assert align(intervals, [1000, 1000, 1400]) == [
        Interval(1100, 1150),
        Interval(1150, 1180),
        Interval(1400, 1420),
    ]
    assert align([], []) == []
    # a counter that went backwards gives nothing, not a negative time
    assert align([Interval(10, 5)], [0]) == [Interval(0, 0)]


@pytest.mark.gpu
def test_queries_that_were_not_written_are_not_resolved() -> None:
    device = open_device()
    clock = timestamps.QueryClock(device)
    clock.begin()
    number, writes = clock.begin()
    encoder = device.wgpu.create_command_encoder()
    encoder.begin_compute_pass(**writes).end()
    start = time.perf_counter()
    clock.resolve(encoder, [number])
    device.submit(encoder)
    assert list(clock.read()) == [1] and time.perf_counter() - start < 5
