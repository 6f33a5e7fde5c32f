"""Profile: sums that must agree, rates from sizes, and traces that a viewer accepts."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from rich.console import Console

from engine.cli import main
from engine.runtime.recording import Event
from engine.runtime.session import InferenceSession
from engine.tools.profile import Call, Profile, _least, own_ns, profile
from engine.tools.profile_text import NARROW, header, tables
from engine.tools.trace import BODIES, CPU, GPU, TRANSFERS, chrome_trace
from tests.profiles import round_profile
from tests.real_models import RealModel, real_models
from tests.runtime.models import AFFINE, parse
from tests.runtime.test_recording import LOOP, PRODUCTS

MIXED = """mixed (float[n,64] x, float[64,64] w) => (float[n,64] y, double[n,64] d) {
  p = MatMul(x, w)
  y = Relu(p)
  big = Cast <to = 11> (p)
  d = Exp(big)
}"""


def measure(text: str, feeds: dict[str, Any], device: str = "gpu", clock: str = "auto") -> Profile:
    with InferenceSession(parse(text), device=device) as session:
        return profile(session, feeds, repeats=3, clock=clock)


def mixed_feeds(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(2)
    return {
        "x": rng.standard_normal((n, 64)).astype(np.float32),
        "w": rng.standard_normal((64, 64)).astype(np.float32),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("clock", ["auto", "host"])
def test_work_and_time_are_counted_once(clock: str) -> None:
    found = measure(MIXED, mixed_feeds(100), clock=clock)
    (product,) = [row for row in found.kernels if row.name.startswith("MatMul")]
    assert product.origin == ("MatMul(p)", "Relu(y)")
    # 2 * m * n * k, and an operation per element of Relu
    assert product.flops == 2 * 100 * 64 * 64 + 100 * 64
    assert product.shader.startswith("matmul") and product.bound in ("compute", "memory", "launch")
    assert product.gflops_per_s == pytest.approx(product.flops / product.ms / 1e6)
    (exp,) = [row for row in found.nodes if row.name == "Exp"]
    assert exp.device == "cpu" and exp.nbytes == 2 * 8 * 100 * 64
    for rows in (found.kernels, found.nodes, found.types):
        gpu_ms = sum(row.ms for row in rows if row.device == "gpu")
        assert gpu_ms == pytest.approx(found.totals["gpu"], rel=0.5)
        assert [r.ms for r in rows] == sorted((r.ms for r in rows), reverse=True)
    crossing = {(row.name, row.shader): row.nbytes for row in found.transfers}
    assert crossing["x", "upload"] == 100 * 64 * 4 and crossing["y", "download"] == 100 * 64 * 4
    assert found.totals["rest"] >= 0 and found.call_ms > 0


@pytest.mark.gpu
def test_stages_share_the_work_of_their_group() -> None:
    text = """g (float[4,300000] x) => (float[4] y) {
      axes = Constant <value_ints = [1]> ()
      y = ReduceSum <keepdims = 0> (x, axes)
    }"""
    found = measure(text, {"x": np.ones((4, 300_000), np.float32)})
    (node,) = found.nodes
    assert sum(row.flops for row in found.kernels) == pytest.approx(node.flops, abs=2)
    assert sum(row.nbytes for row in found.kernels) == pytest.approx(node.nbytes, abs=2)
    assert node.nbytes == 4 * (4 * 300_000 + 4)


def test_the_cpu_is_profiled_without_a_gpu() -> None:
    found = measure(LOOP, {"x": np.ones(3, np.float32), "trips": np.array(3, np.int64)}, "cpu")
    assert found.kernels == () and found.transfers == () and found.clock == ""
    counts = {row.name: row.count for row in found.nodes}
    assert counts == {"Exp": 3, "Softmax": 3, "Loop (around its bodies)": 1}
    assert sum(r.ms for r in found.nodes) < found.recorded_ms * 1.5


def event(kind: str, start: int, end: int, path: tuple[str, ...] = (), node: str = "") -> Event:
    return Event(kind, kind, start, end, None, path, (node,))  # type: ignore[arg-type]


def test_a_control_flow_node_is_charged_only_for_what_its_bodies_leave() -> None:
    events = [
        event("bodies", 0, 100, (), "loop"),
        event("node", 10, 30, ("loop",), "a"),
        event("bodies", 30, 80, ("loop",), "if"),
        event("node", 40, 75, ("loop", "if"), "b"),
        event("kernel", 0, 1000, ("loop",), "k"),
    ]
    own = own_ns(events, lambda e: e.kind != "kernel")
    assert own == {0: 100 - 20 - 50, 1: 20, 2: 50 - 35, 3: 35, 4: 1000}


def test_the_bound_is_what_takes_longest() -> None:
    rates = round_profile(
        launch_ns=1000,
        fma_per_s=5 * 10**8,
        bytes_per_s=10**9,
        flops_per_s=10**9,
        memory_bytes_per_s=10**9,
        node_ns=500,
    )
    assert _least("gpu", 1, 5000, 10, rates) == ("compute", pytest.approx(0.005))
    assert _least("gpu", 1, 10, 5000, rates) == ("memory", pytest.approx(0.005))
    assert _least("gpu", 3, 10, 20, rates) == ("launch", pytest.approx(0.003))
    assert _least("cpu", 3, 10, 20, rates) == ("overhead", pytest.approx(0.0015))
    assert _least("transfer", 1, 0, 5000, rates) == ("", 0.0)


def slices(trace: dict[str, Any], track: int) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == track]


def check_trace(trace: dict[str, Any]) -> None:
    """The fields that viewers need, in order, and no overlap within a track."""
    assert trace["displayTimeUnit"] == "ms"
    assert json.loads(json.dumps(trace)) == trace
    names = {
        e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["tid"]
    }
    tracks = {e["tid"] for e in trace["traceEvents"] if e["ph"] == "X"}
    assert tracks <= names.keys() and names[CPU] == "CPU" and names[GPU] == "GPU"
    for found in trace["traceEvents"]:
        assert {"ph", "name", "pid", "tid", "args"} <= found.keys()
        if found["ph"] == "X":
            assert isinstance(found["ts"], float) and isinstance(found["dur"], float)
            assert found["ts"] >= 0 and found["dur"] >= 0 and found["name"] and found["cat"]
    for track in tracks:
        for a, b in pairwise(slices(trace, track)):
            assert a["ts"] + a["dur"] <= b["ts"] + 1e-3, (a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("clock", ["auto", "host"])
@pytest.mark.parametrize("text", [MIXED, PRODUCTS, LOOP], ids=["mixed", "products", "loop"])
def test_traces_are_well_formed(text: str, clock: str) -> None:
    feeds: dict[str, Any] = {
        MIXED: mixed_feeds(30),
        PRODUCTS: {n: np.ones((256, 256), np.float32) for n in "xw"},
        LOOP: {"x": np.ones(3, np.float32), "trips": np.array(3, np.int64)},
    }[text]
    found = measure(text, feeds, clock=clock)
    trace = chrome_trace(found.calls, "m.onnx", found.device)
    check_trace(trace)
    assert len(slices(trace, GPU)) == sum(
        e.kind == "kernel" for call in found.calls for e in call.events
    )
    assert slices(trace, GPU) and slices(trace, TRANSFERS) and slices(trace, CPU)
    assert bool(slices(trace, BODIES)) == (text is LOOP)
    assert slices(trace, GPU)[0]["args"]["shader"]


def test_overlaps_are_seen() -> None:
    events = [event("node", 0, 2000), event("node", 1000, 3000)]
    call = Call(0, 3000, tuple(replace(e, nodes=()) for e in events))
    with pytest.raises(AssertionError):
        check_trace(chrome_trace([call], "m", "d"))


@pytest.fixture
def model(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "affine.onnx"
    onnx.save(parse(AFFINE), path)
    yield str(path)


@pytest.mark.gpu
def test_the_command_prints_tables_and_writes_files(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    trace = tmp_path / "trace.json"
    assert main(["profile", model, "--require-gpu", "--repeats", "2", "--trace", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "kernels timed by the device's timestamps" in text
    assert "GFLOP/s" in text and "Tanh" in text and "transfers" in text
    assert "[elementwise" in text
    assert "GPU busy" in text and "kernels by their bound" in text
    assert text.endswith(f"wrote {trace}\n")
    check_trace(json.loads(trace.read_text()))
    assert main(["profile", model, "--device", "gpu", "--json", "--clock", "host"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clock"] == "host" and found["totals"]["gpu"] > 0
    assert {"ms", "flops", "gflops_per_s", "bound", "origin"} <= found["kernels"][0].keys()


def test_the_command_refuses_what_the_gpu_cannot_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(parse(MIXED), tmp_path / "mixed.onnx")
    assert main(["profile", str(tmp_path / "mixed.onnx"), "--require-gpu"]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.gpu
@pytest.mark.slow
@real_models(lambda m: m.name in ("ppocr_cls", "silero_vad_16k", "magika"))
def test_real_models(model: RealModel) -> None:
    with InferenceSession(model.fetch(), device="gpu") as session:
        found = profile(session, model.inputs(), repeats=2)
        again = session.run(None, model.inputs())
    kernels = sum(e.kind == "kernel" for call in found.calls for e in call.events)
    assert sum(row.count for row in found.kernels) == pytest.approx(kernels / 2)
    assert found.totals["gpu"] > 0 and found.clock == "timestamps"
    check_trace(chrome_trace(found.calls, model.name, found.device))
    for got, want in zip(again, model.reference(model.inputs()), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("narrow", [False, True])
def test_nodes_stand_below_operators_in_a_narrow_terminal(narrow: bool) -> None:
    found = measure(AFFINE, {"x": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)}, "cpu")
    assert header(found, "m.onnx")[1].endswith("; no kernel ran")
    why = " (why: onnx-wgpu explain; --device gpu puts there what can be)"
    assert header(found, "m.onnx", "auto")[1].endswith("; no kernel ran" + why)
    width = NARROW - 20 if narrow else NARROW
    first = tables(found, 10, width)[0]
    names = [str(column.header) for column in first.columns]
    assert ("nodes of the model" in names) != narrow
    out = Console(width=width, file=io.StringIO())
    out.print(first)
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert any("CPU: Add" in line for line in lines)
    assert max(map(len, lines)) <= width and len(lines) < 20
