"""Explain and bench on trained models: what they say is what runs, and how it is drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.cli import main
from engine.runtime.session import InferenceSession
from engine.tools.bench import Settings, bench
from engine.tools.page import explain_page
from tests.real_models import RealModel, real_models
from tests.tools.browser import visit

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SOME = ("ppocr_cls", "magika", "silero_vad_plain", "tashkeel_bilstm_int8", "minilm_w8")
CONTROL_FLOW = "oww_hey_jarvis"


@real_models(lambda m: m.name in SOME)
def test_explain_says_what_a_call_does(model: RealModel) -> None:
    feeds = model.inputs()
    with InferenceSession(model.fetch(), device="gpu") as session:
        session.run(None, feeds)
        found, times = session.explain(feeds), session.times
        ran = {node.key: place for node, place in session.executed(views=False)}
    said = {n.key: n.device for n in found.nodes if n.device in ("gpu", "cpu")}
    assert said and said == ran
    for kind, moved in (("upload", times.uploaded_nbytes), ("download", times.downloaded_nbytes)):
        count, nbytes = found.moved(kind)
        assert count > 0 and moved == nbytes
    summary = json.loads(found.to_json())["summary"]
    assert summary["gpu_nodes"] == list(said.values()).count("gpu") > 0
    assert 0 < summary["predicted_ms"] < 1e5 and summary["peak_nbytes"] > 0


@real_models(lambda m: m.name in SOME)
def test_the_page_draws_each_node(model: RealModel, tmp_path: Path) -> None:
    feeds = model.inputs()
    with InferenceSession(model.fetch(), device="gpu") as session:
        found = session.explain(feeds)
    seen = visit(
        explain_page(found, model.name),
        tmp_path,
        "return document.querySelectorAll('.card').length;",
    )
    assert seen.problems == []
    assert seen.found == len(found.nodes)


@real_models(lambda m: m.name == CONTROL_FLOW)
def test_the_branch_that_ran_is_told(model: RealModel) -> None:
    feeds = model.inputs()
    with InferenceSession(model.fetch(), device="gpu") as session:
        session.run(None, feeds)
        found = session.explain(feeds)
    (ran,) = (body for body in found.bodies if body.gpu_nodes is not None)
    (left,) = (body for body in found.bodies if body.gpu_nodes is None)
    assert {ran.path[-1], left.path[-1]} == {"then_branch", "else_branch"}
    assert ran.path[0] == left.path[0] and ran.cpu_nodes is not None and left.cpu_nodes is None


@real_models(lambda m: m.name == "ppocr_cls")
def test_bench_measures_each_device(model: RealModel) -> None:
    settings = Settings(repeats=2, cold=False)
    cpu, gpu, peer = bench(model.fetch(), lambda session: model.inputs(), settings).measured
    assert (cpu.device, gpu.device, peer.device) == ("cpu", "gpu", "onnxruntime")
    assert cpu.gpu_nodes == 0 < gpu.gpu_nodes and gpu.cpu_nodes == 0 < gpu.dispatches
    for result in (cpu, gpu, peer):
        assert result.error < 1e-4 and len(result.warm_ms) == 2 and result.min_ms > 0


@real_models(lambda m: m.name == CONTROL_FLOW)
def test_what_the_gpu_lacks_is_listed(model: RealModel, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(model.fetch())
    assert main(["run", path, "--require-gpu"]) == 1
    assert "If" in capsys.readouterr().err
