"""Bench: what is measured, how it is shown, and how a failing process is reported."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from engine.errors import EngineError
from engine.tools import bench as bench_module
from engine.tools import bench_report
from engine.tools.bench import PHASES, Measurement, Results, Settings, bench, largest_error
from engine.tools.bench_start import Start, resident_peak, starts
from engine.tools.inputs import make_inputs
from tests.runtime.models import AFFINE, parse

QUICK = Settings(repeats=4, cold=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parse(AFFINE), tmp_path / "affine.onnx")
    return tmp_path / "affine.onnx"


def timed(device: str, *warm_ms: float, **phases: float) -> Measurement:
    """A measurement whose every call has the same phases."""
    spent = {p: [phases.get(p, 0.0)] * len(warm_ms) for p in PHASES} if phases else {}
    times = list(warm_ms)
    made = Measurement(device, "it", 1.0, 2.0, warm_ms=times, cpu_ms=times, phases_ms=spent)
    made.gpu_nodes = int(device == "gpu")
    return made


@pytest.mark.gpu
def test_every_warm_call_is_recorded_by_phase(model: Path) -> None:
    told: list[str] = []
    results = bench(model, lambda s: make_inputs(s, {}, {"n": "4"}), QUICK, told.append)
    cpu, gpu, peer = results.measured
    assert not results.missing
    for result in (cpu, gpu):
        assert {p: len(v) for p, v in result.phases_ms.items()} == dict.fromkeys(PHASES, 4)
        assert sum(result.phase_ms(p) for p in PHASES) <= 1.5 * max(result.warm_ms)
    for result in (cpu, gpu, peer):
        assert len(result.warm_ms) == len(result.cpu_ms) == 4
        assert result.cold is None and result.warm_start is None and result.peak_nbytes is None
        assert 0 < result.min_ms <= result.median_ms <= result.p90_ms <= max(result.warm_ms)
        assert result.error < 1e-5
        assert result.inputs == "x float32[4, 3], b float32[3]"
    assert (cpu.cpu_nodes, cpu.gpu_nodes, cpu.dispatches, cpu.device_nbytes) == (3, 0, 0, 0)
    assert (gpu.cpu_nodes, gpu.gpu_nodes, gpu.dispatches, gpu.submits) == (0, 3, 1, 1)
    assert (gpu.uploaded_nbytes, gpu.downloaded_nbytes) == (60, 96)
    assert gpu.device_nbytes >= 60 + 48
    assert (len(cpu.hollow_ms), len(gpu.hollow_ms), len(peer.hollow_ms)) == (0, 4, 0)
    assert len(gpu.moving_ms) == 4 and not cpu.moving_ms and not peer.moving_ms
    assert all(0 < part < whole for part, whole in zip(gpu.moving_ms, gpu.hollow_ms, strict=True))
    assert peer.device == "onnxruntime" and peer.overhead_ms is None
    assert told[0] == "cpu: creating the session" and told[-1] == "warm call 4 of 4"


def test_without_a_gpu_the_others_are_measured(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_module, "adapters", lambda: [])
    results = bench(model, lambda s: make_inputs(s, {}, {"n": "4"}), QUICK)
    assert [m.device for m in results.measured] == ["cpu", "onnxruntime"]
    assert "GPU: no adapter was found" in bench_report.heading("affine.onnx", results)
    assert bench_report.verdict(results.measured) == []


def test_a_model_that_onnx_runtime_refuses_is_still_measured(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "small",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.BFLOAT16, [3])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.BFLOAT16, [3])],
    )
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]),
        tmp_path / "small.onnx",
    )
    settings = Settings(("cpu",), repeats=1, cold=False)
    results = bench(tmp_path / "small.onnx", lambda s: make_inputs(s, {}, {}), settings)
    assert [r.device for r in results.measured] == ["cpu"]
    assert "Relu" in results.missing["onnxruntime"]
    assert any(line.startswith("ORT CPU: ") for line in bench_report.heading("small.onnx", results))


def test_calls_rest_before_they_start(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr("engine.tools.bench.time.sleep", rests.append)
    settings = Settings(("cpu",), peer=False, repeats=3, cold=False, cool_down_s=1.5)
    bench(model, lambda s: make_inputs(s, {}, {}), settings)
    assert rests == [1.5] * 3


def test_the_p90_is_not_the_median() -> None:
    result = timed("cpu", *map(float, range(1, 12)))
    assert (result.median_ms, result.min_ms) == (6.0, 1.0)
    assert result.p90_ms == pytest.approx(np.percentile(range(1, 12), 90))


def test_overhead_is_what_is_neither_compute_nor_transfer() -> None:
    result = timed("gpu", 10.0, 12.0, wait=4.0, host=1.0, upload=0.5, download=0.5, encode=2.0)
    assert result.overhead_ms == pytest.approx(5.0)
    assert result.phase_ms("upload", "download") == pytest.approx(1.0)


def test_the_verdict_says_when_the_gpu_loses_and_why() -> None:
    gpu = timed("gpu", 4.0, 4.0, wait=1.0, encode=2.0, bind=1.0)
    won, lost, why = bench_report.verdict([timed("cpu", 8.0), gpu, timed("onnxruntime", 1.0)])
    assert won == "warm, the GPU is 2.00 times as fast as the CPU"
    assert lost == "warm, the GPU takes 4.00 times as long as ONNX Runtime"
    assert why.endswith("25% compute, 0% transfers, 75% the host's own work")
    assert bench_report.verdict([timed("cpu", 8.0), gpu]) == [won]


def test_figures_of_a_busy_machine_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    load = {"load": "0.9"}
    monkeypatch.setattr(bench_report, "machine", lambda: load)
    monkeypatch.setattr("engine.tools.bench_report.os.cpu_count", lambda: 2)
    steady, restless = timed("cpu", 1.0, 1.5, 1.5), timed("gpu", 1.0, 5.0, 6.0)
    assert bench_report.disturbances([steady]) == []
    unsteady, advice = bench_report.disturbances([steady, restless])
    assert "the GPU were unsteady: the median is 5.0 times the least" in unsteady
    assert "least" in advice
    load["load"] = "4.0"
    busy, _ = bench_report.disturbances([steady])
    assert busy == "the machine was busy: load 4.0 on 2 cores"


def test_errors_are_relative_and_shapes_count() -> None:
    whole = np.array([1.0, -8.0, np.nan, np.inf], np.float32)
    near = np.array([1.5, -8.0, np.nan, np.inf], np.float32)
    assert largest_error([whole], [whole]) == 0.0
    assert largest_error([near], [whole]) == pytest.approx(0.5 / 8)
    assert np.isnan(largest_error([whole[:3]], [whole]))
    assert np.isnan(largest_error([np.nan_to_num(whole)[:3]], [whole[:3]]))
    assert largest_error([np.zeros((0, 2))], [np.zeros((0, 2))]) == 0.0
    low = np.array([1, 2], ml_dtypes.bfloat16)
    assert largest_error([low], [low[::-1]]) == 0.5
    turned = np.array([1j, 2])
    assert largest_error([turned], [turned]) == 0.0
    assert largest_error([turned], [turned * 1j]) == pytest.approx(2**0.5)
    assert largest_error([[whole, near]], [[whole, whole]]) == pytest.approx(0.5 / 8)
    assert np.isnan(largest_error([[whole]], [[whole, whole]]))
    words = np.array(["a", "b"], object)
    assert largest_error([words, None], [words, None]) == 0.0
    assert np.isnan(largest_error([whole, words], [whole, words[::-1]]))
    assert np.isnan(largest_error([words, whole], [words[::-1], whole]))


def test_the_chart_is_drawn_to_scale(tmp_path: Path) -> None:
    gpu = timed("gpu", 4.0, wait=1.0, upload=1.0, encode=2.0)
    drawing = bench_report.chart("a<b.onnx", [gpu, timed("onnxruntime", 2.0)])
    drawing.save(tmp_path / "c.svg")
    root = ElementTree.fromstring((tmp_path / "c.svg").read_text())
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert texts[0] == "a<b.onnx: a warm call, median in ms"
    assert "4.00 ms, p90 4.00" in texts and "ORT CPU" in texts
    widths = [float(e.get("width", 0)) for e in root.iter() if e.get("height") == "16.0"]
    compute, transfers, own, *peer = widths
    assert own == pytest.approx(2 * compute) == pytest.approx(2 * transfers)
    assert peer == pytest.approx([0, 0, 0, own])
    drawing.save(tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(EngineError, match=r"an \.svg or a \.png, not 'c.pdf'"):
        drawing.save(tmp_path / "c.pdf")


def test_figures_are_plain_data() -> None:
    start = Start(9.0, 3.0, 2.0, 1.0, 5 << 20)
    result = timed("cpu", 2.0, 3.0)
    result.warm_start = start
    found = bench_report.as_json("m.onnx", Results((result,), {"onnxruntime": "not installed"}))
    again = json.loads(json.dumps(found))
    assert again["measured"][0]["warm_start"]["total_ms"] == 9.0
    assert again["measured"][0]["peak_nbytes"] == 5 << 20
    assert again["missing"] == {"onnxruntime": "not installed"}
    assert {"processor", "cores", "system"} <= again["machine"].keys()


@pytest.mark.slow
def test_a_process_is_timed_from_its_start(model: Path) -> None:
    feeds = {"x": np.ones((2, 3), np.float32), "b": np.ones(3, np.float32)}
    for kind, arguments in (("cpu", {"device": "cpu"}), ("onnxruntime", {})):
        for start in starts(kind, str(model), arguments, feeds):
            assert start.total_ms > start.import_ms + start.create_ms + start.first_ms > 0
            assert start.peak_nbytes is not None and 10 << 20 < start.peak_nbytes < 1 << 30
    peak = resident_peak()
    assert peak is not None and peak > 10 << 20


def test_a_cold_start_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"cold start with device='cpu' failed: error: .*absent"):
        starts("cpu", str(tmp_path / "absent.onnx"), {"device": "cpu"}, {})


def test_shares_of_the_gpu_add_up_and_an_error_says_against_what() -> None:
    gpu = timed("gpu", 3.0, 5.0, 1.0, wait=1.0, upload=0.5, encode=0.1)
    gpu.warm_ms, gpu.error = [3.0, 5.0, 16.0], 0.25
    cpu = timed("cpu", 1.0, 1.0, 1.0)
    *_, shares = bench_report.verdict([cpu, gpu])
    assert shares.endswith(": 12% compute, 6% transfers, 82% the host's own work")
    assert bench_report.rows([cpu, gpu])[-1] == ("error against the CPU", [None, "2.5e-01"])
    assert "error" not in bench_report.rows([cpu])[-1][0]


def test_without_a_node_on_the_gpu_nothing_is_said_of_its_speed() -> None:
    cpu, gpu = timed("cpu", 1.0, 1.0), timed("gpu", 2.0, 2.0, host=1.5)
    gpu.gpu_nodes, gpu.cpu_nodes = 0, 3
    (line,) = bench_report.verdict([cpu, gpu])
    assert line.startswith("no node runs on the GPU: all run in NumPy (why: onnx-wgpu explain)")
    gpu.cpu_nodes = 0
    (line,) = bench_report.verdict([cpu, gpu])
    assert line.startswith("no node runs on the GPU: nothing has to")
