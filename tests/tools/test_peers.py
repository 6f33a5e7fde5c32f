"""The comparison with other engines: wrong or missing ones are named, figures add up right."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.bench import models
from tests.bench.peers import engines, report, starts, worker
from tests.bench.peers.__main__ import bench_case, other_array, peers_of
from tests.bench.peers.contest import Case, Setup, WorkerError, contest, summary
from tests.bench.peers.engines import CPU, GPU, GPU_BASELINE, NCNN, ORT_CPU, ORT_WEBGPU, Peer
from tests.bench.peers.host import host_costs
from tests.bench.peers.plans import plan_costs
from tests.bench.peers.starts import cold_starts

SMALL = """small (float[2,6] x) => (float[2,6] y, float[2,6] before) {{
  before = Mul(x, x)
  large = Mul(before, scale)
  y = Softmax(large)
}}"""


def small(folder: Path, scale: float) -> Case:
    """A model whose first output is a softmax, saturated if `scale` is large."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> '
        + SMALL.format().replace("(float[2,6] x)", f"(float[2,6] x, float scale = {{{scale}}})")
    )
    onnx.save(model, folder / "small.onnx")
    first = np.arange(12, dtype=np.float32).reshape(2, 6) - 3
    feeds = ({"x": first}, {"x": first * np.float32(0.5)})
    return Case("small", folder / "small.onnx", feeds, ("y", "before"))


def measured(name: str, **times: float) -> report.Result:
    peers: dict[str, Any] = {
        k: {"median_ms": v, "cpu_ms": 2 * v, "create_s": 0.5, "first_ms": 9.0}
        for k, v in times.items()
    }
    return {
        "model": name,
        "machine": {"processor": "some", "cores": "2", "system": "here"},
        "adapter": "some GPU",
        "software": False,
        "versions": {"Python": "3"},
        "threads": 2,
        "date": "today",
        "engines": {GPU: "ours", NCNN: "not installed"},
        "peers": peers,
    }


def test_engines_take_turns_and_are_checked(tmp_path: Path) -> None:
    peers = (
        *(p for p in engines.PEERS if p.name in (CPU, ORT_CPU, engines.REFERENCE)),
        Peer("absent", "own", "", packages=("absent==1",)),
        Peer("unknown", "unknown", ""),
    )
    found = contest(
        small(tmp_path, 1e6), Setup(tmp_path, 1, peers), time.monotonic(), lambda text: None
    )
    rows = found["peers"]
    assert found["inputs"] == "float32[2, 6]"
    for name in (CPU, ORT_CPU):
        assert rows[name]["error"] < 1e-6 and rows[name]["calls"] >= 2
        assert 0 < rows[name]["min_ms"] <= rows[name]["median_ms"] <= rows[name]["p90_ms"]
        assert rows[name]["create_s"] > 0 and rows[name]["first_ms"] > 0
    assert rows[engines.REFERENCE]["calls"] == 1
    assert rows["absent"] == {"problem": "not installed"}
    assert rows["unknown"] == {"problem": "KeyError: 'unknown'"}


def test_an_output_that_says_nothing_is_not_proof(tmp_path: Path) -> None:
    case = small(tmp_path, 1e6)
    model = onnx.load(case.path)
    del model.graph.output[1]
    onnx.save(model, case.path)
    with pytest.raises(WorkerError, match="hardly differ"):
        contest(case, Setup(tmp_path, 1, ()), time.monotonic(), lambda text: None)


def test_a_wrong_engine_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = (engines.HERE / "worker.py").read_text()
    assert "found = call(feeds[asked" in worker
    wrong = worker.replace(
        'found = call(feeds[asked["feeds"]])',
        'found = {n: a + (kind == "own") for n, a in call(feeds[asked["feeds"]]).items()}',
    )
    (tmp_path / "worker.py").write_text(wrong)
    monkeypatch.setattr(engines, "HERE", tmp_path)
    peers = tuple(p for p in engines.PEERS if p.name == CPU)
    setup = Setup(tmp_path, 1, peers)
    found = contest(small(tmp_path, 1.0), setup, time.monotonic(), lambda text: None)
    assert found["peers"][CPU]["problem"].startswith("wrong: error ")
    assert "median_ms" not in found["peers"][CPU] and "median_ms" in found["peers"][ORT_CPU]


def test_what_counts_of_the_calls_of_all_turns() -> None:
    turns = [
        {"wall_ms": [1.0, 2.0, 3.0], "cpu_ms": [1.0, 1.0, 1.0], "peak_nbytes": 5},
        {"wall_ms": [4.0, 5.0], "cpu_ms": [1.0, 1.0], "peak_nbytes": 7},
    ]
    found = summary(turns)
    assert (found["median_ms"], found["min_ms"], found["calls"]) == (3.0, 1.0, 5)
    assert (found["cpu_ms"], found["peak_nbytes"]) == (1.0, 7)
    assert summary([*turns, {"problem": "gone"}]) == {"problem": "gone"}


def test_a_short_first_call_of_a_turn_is_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    found = worker.timed(lambda feeds: done.append(1) or feeds, {}, 1000.0, 3)
    assert (len(done), len(found["wall_ms"]), len(found["cpu_ms"])) == (4, 3, 3)
    monkeypatch.setattr(worker, "WARM_MS", -1.0)
    assert len(worker.timed(lambda feeds: done.append(1) or feeds, {}, 1000.0, 3)["wall_ms"]) == 1
    assert len(done) == 5


def test_the_page_has_means_goals_losses_and_failures(tmp_path: Path) -> None:
    one = measured("one", **{GPU: 1.0, GPU_BASELINE: 2.0, ORT_WEBGPU: 4.0, CPU: 10.0, ORT_CPU: 5.0})
    two = measured("two", **{GPU: 1.0, GPU_BASELINE: 2.0, ORT_WEBGPU: 25.0, CPU: 9.0, ORT_CPU: 0.5})
    two["peers"][NCNN] = {"problem": "wrong: error 1.0e+00", "median_ms": 1.0}
    one["peers"]["wonnx"] = {"problem": "not installed"}
    bad = {"model": "three", "problem": "no reference", "peers": {}}
    report.write(tmp_path / "page.md", [one, two, bad])
    page = (tmp_path / "page.md").read_text()
    goals = {
        cells[1]: cells[2:-1]
        for line in page.splitlines()
        if " against " in line and (cells := [c.strip() for c in line.split("|")])
    }
    assert goals[f"{GPU} against {ORT_WEBGPU}"] == [
        *("2", "10.00", "10.00", "4.00 (one)", "8", "yes"),
    ]
    assert goals[f"{GPU_BASELINE} against {ORT_WEBGPU}"][-1] == "yes"
    assert goals[f"{CPU} against {ORT_CPU}"][-1] == "no", "one model is 18 times as slow"
    assert f"{GPU} against {NCNN}" not in goals
    assert f"- {ORT_CPU}: two (2.0)" in page
    assert f"- {NCNN}: not installed" in page
    assert f"- two, {NCNN}: wrong: error 1.0e+00" in page and "- three: no reference" in page
    assert "wonnx: not" not in page
    assert "| one | 1.00 | 2.00 | 10.0 | 5.00 | 4.00 |" in page
    drawing = (tmp_path / "page.svg").read_text()
    assert ">two</text>" in drawing and ">three</text>" not in drawing


def test_peers_are_named() -> None:
    assert [p.name for p in peers_of("wonnx; " + CPU)] == ["wonnx", CPU]
    assert all(not p.extra for p in peers_of(None)) and any(p.extra for p in engines.PEERS)
    with pytest.raises(SystemExit, match="no engines are named"):
        peers_of("nothing")


def test_the_second_input_is_another_one() -> None:
    first = np.arange(6, dtype=np.int64).reshape(2, 3)
    assert other_array(first).tolist() == [[5, 4, 3], [2, 1, 0]]
    assert np.ptp(other_array(np.zeros((2, 4), np.float32))) > 0
    assert other_array(np.array(16_000)).item() == 16_000


def test_costs_of_plans_are_shares_of_the_least(tmp_path: Path) -> None:
    found = plan_costs(small(tmp_path, 1.0))
    assert found["kernels"] == (2, 1) and found["bytes"][1] == 2 * 12 * 4
    page = report.text([measured("one") | {"plan": found}], "chart.svg")
    assert "| one | 2 / 1 | " in page and "| goal |  |  |  | 1.15 | 1.3 | 1.2 |" in page


@pytest.mark.gpu
def test_costs_of_the_host_are_those_of_calls_without_work(tmp_path: Path) -> None:
    said = list[str]()
    found = host_costs(small(tmp_path, 1.0), said.append)
    assert found["dispatches"] == 2 and found["submits"] == 1 and not said
    assert 0 < found["idle_ms"] and 0 < found["host_ms"]
    found |= {"host_ms": 0.31, "idle_ms": 0.125}
    rows = [measured("one") | {"host": found}, measured("two") | {"host": found | {"host_ms": 0.4}}]
    page = report.text(rows, "chart.svg")
    assert "| one | 2 | 1 | 0.31 | 0.32 | 0.12 |" in page
    assert "| within the goal |  |  | 1 of 2 |  |  |" in page
    assert host_costs(replace(small(tmp_path, 1.0), path=tmp_path / "none.onnx"), said.append) == {}
    assert "none.onnx" in said[0]


@pytest.mark.gpu
def test_starts_are_counted_with_empty_and_warm_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's CPU provider stands in for the one that may not be installed."""
    own = next(p for p in engines.PEERS if p.name == GPU)
    runtime = next(p for p in engines.PEERS if p.name == ORT_CPU)
    peers = (own, replace(runtime, name=ORT_WEBGPU))
    case, said = small(tmp_path, 1.0), list[str]()
    monkeypatch.delenv("ENGINE_CACHE", raising=False)
    monkeypatch.setattr(starts, "LONG_S", 1e9)
    assert cold_starts(case, Setup(tmp_path, 1, peers), said.append) == {}
    monkeypatch.setattr(starts, "LONG_S", -1e9)
    found = cold_starts(case, Setup(tmp_path, 1, peers), said.append)
    assert list(found) == [GPU, ORT_WEBGPU], said
    assert all(set(f) == {"empty_s", "warm_s", "device_s"} for f in found.values())
    assert 0 < found[GPU]["device_s"] and 0 < found[GPU]["warm_s"]
    assert cold_starts(case, Setup(tmp_path, 1, peers[:1]), said.append) == {}
    page = report.text([measured("one") | {"starts": found}], "chart.svg")
    assert "| goal |" in page and f"| {GPU}, empty | {GPU}, warm |" in page


@pytest.mark.slow
def test_bench_models_are_valid_and_kept(tmp_path: Path) -> None:
    names = ["conv3x3", "transformer", "light_shufflenet"]
    paths = models.write(tmp_path, names)
    written = [p.stat().st_mtime_ns for p in paths]
    assert [p.stat().st_mtime_ns for p in models.write(tmp_path, names)] == written
    conv, transformer, shuffle = (bench_case(p) for p in paths)
    assert conv.feeds[0]["x"].shape == (1, 64, 56, 56)
    assert transformer.feeds[0]["x"].shape == (1, 128, 256)
    assert len(shuffle.outputs) == 2, "the softmax and what it reads"
    graph = onnx.load(shuffle.path).graph
    assert all(n.op_type not in ("ConstantOfShape", "Dropout") for n in graph.node)
    weights = [onnx.numpy_helper.to_array(t) for t in graph.initializer]
    assert all(np.ptp(w) > 0 for w in weights if w.dtype == np.float32 and w.size > 8)
