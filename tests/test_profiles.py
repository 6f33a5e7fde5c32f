"""What plans would be on devices that are not at hand, by the profiles of the engine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine import InferenceSession
from engine.compiler import compile_graph, optimise
from engine.errors import EngineError
from engine.importer import load_model
from engine.options import Options
from engine.plan import Plan
from engine.rates import DeviceProfile, builtin_names
from engine.runtime import session as session_module
from engine.runtime.feeds import bind_inputs, typed
from engine.target import Target
from tests.real_models import RealModel, real_models

LAPTOPS = ("vega8", "xe_lp", "m1")
PHONE, PI4, PI5 = "adreno640", "v3d_pi4", "v3d_pi5"


def planned(
    model: object,
    feeds: dict[str, np.ndarray],
    name: str,
    target: Target = Target.baseline(),  # noqa: B008  (frozen)
) -> Plan:
    graph = typed(load_model(model, for_gpu=True).graph, feeds)
    binding = bind_inputs(graph, feeds, {})
    options = Options(device="auto")
    passed = optimise(graph, options, binding)
    return compile_graph(passed, options, target, DeviceProfile.builtin(name), binding)


def share(plan: Plan) -> float:
    """Of the nodes that could be on either device, those on the GPU."""
    found = [v.device for v in plan.partition.verdicts.values() if v.device in ("gpu", "cpu")]
    return found.count("gpu") / len(found)


def dense(width: int, layers: int, rows: int = 1) -> onnx.ModelProto:
    """A chain of products with square matrices, and a Relu behind each."""
    chance = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(layers):
        array = chance.standard_normal((width, width), np.float32)
        weights.append(onnx.numpy_helper.from_array(array, f"w{i}"))
        nodes.append(onnx.helper.make_node("MatMul", [f"r{i}", f"w{i}"], [f"p{i}"]))
        nodes.append(onnx.helper.make_node("Relu", [f"p{i}"], [f"r{i + 1}"]))
    x, y = (
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (rows, width))
        for n in ("r0", f"r{layers}")
    )
    graph = onnx.helper.make_graph(nodes, "dense", [x], [y], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)])


@pytest.mark.parametrize("name", builtin_names())
def test_each_figure_has_a_source(name: str) -> None:
    profile = DeviceProfile.builtin(name)
    figures = {
        f"{part}.{field}"
        for part in ("gpu", "cpu")
        for field in dataclasses.asdict(getattr(profile, part))
    }
    assert set(profile.sources) == figures
    kinds = ("published: ", "derived: ", "assumed: ", "measured: ")
    assert all(source.startswith(kinds) for source in profile.sources.values())


def test_profiles_are_ordered_as_their_devices_are() -> None:
    gpus = [DeviceProfile.builtin(n).gpu for n in ("v3d_pi4", "v3d_pi5", "adreno640", "m1")]
    for field in ("fma_per_s", "bytes_per_s"):
        rates = [getattr(gpu, field) for gpu in gpus]
        assert rates == sorted(rates)
    assert all(g.readback_ns <= g.download_latency_ns for g in gpus)


@pytest.mark.parametrize("name", builtin_names())
def test_a_tiny_network_stays_on_the_cpu(name: str) -> None:
    """Three products with 32 x 32 matrices take microseconds, a wait for the GPU many more."""
    plan = planned(dense(32, 3), {"r0": np.ones((1, 32), np.float32)}, name)
    assert share(plan) == 0
    assert plan.partition.decision.startswith("the CPU: ")


@pytest.mark.parametrize("name", ["vega8", "xe_lp", PHONE])
def test_a_wide_network_moves_to_the_gpu(name: str) -> None:
    plan = planned(dense(1024, 3, rows=512), {"r0": np.ones((512, 1024), np.float32)}, name)
    assert share(plan) == 1
    assert len(plan.partition.crossings) == 2, "in and out, and nothing between"
    assert plan.partition.decision.startswith("the GPU, ")


def test_a_software_gpu_loses_to_blas() -> None:
    plan = planned(dense(256, 2, rows=128), {"r0": np.ones((128, 256), np.float32)}, "lavapipe")
    assert share(plan) == 0
    assert "the GPU would take" in plan.partition.decision


@real_models()
@pytest.mark.slow
def test_software_vulkan_gets_no_real_model(model: RealModel) -> None:
    plan = planned(model.fetch(), dict(model.inputs()), "lavapipe", Target(software=True))
    assert share(plan) == 0
    assert plan.partition.decision.startswith("the CPU")
    assert plan.partition.predicted_ms == plan.partition.all_cpu_ms


CONVNETS = {"ppocrv4_det", "layout_cdla"}


@real_models(lambda model: model.name in CONVNETS)
@pytest.mark.parametrize("name", [*LAPTOPS, PHONE])
@pytest.mark.slow
def test_convnets_move_to_integrated_gpus(model: RealModel, name: str) -> None:
    placed = planned(model.fetch(), dict(model.inputs()), name).partition
    assert placed.predicted_ms < placed.all_cpu_ms / 3
    on_gpu = sum(v.device == "gpu" for v in placed.verdicts.values())
    assert on_gpu > 0.9 * sum(v.device in ("gpu", "cpu") for v in placed.verdicts.values())


@real_models(lambda model: model.name == "dnsmos_p835")
@pytest.mark.slow
def test_dense_convolutions_stay_with_blas_on_a_raspberry_pi(model: RealModel) -> None:
    for name in (PI4, PI5):
        plan = planned(model.fetch(), dict(model.inputs()), name)
        assert share(plan) == 0, "wide 3 x 3 kernels are products, which NEON is faster at"
    assert share(planned(model.fetch(), dict(model.inputs()), "m1")) > 0.8


@real_models(lambda model: model.name == "ppocrv4_det")
@pytest.mark.slow
def test_depthwise_convolutions_move_even_there(model: RealModel) -> None:
    plan = planned(model.fetch(), dict(model.inputs()), PI5)
    moved = {
        node.op_type
        for node in plan.graph.nodes
        if plan.partition.verdicts[node.key].device == "gpu"
    }
    assert {"Conv", "HardSwish"} <= moved
    assert 0.5 < share(plan) < 1, "it splits"
    assert plan.partition.predicted_ms < plan.partition.all_cpu_ms


def without_delays(name: str) -> DeviceProfile:
    """A profile with a GPU that starts at once."""
    found = DeviceProfile.builtin(name)
    delays = [f.name for f in dataclasses.fields(found.gpu) if f.name.endswith("_ns")]
    gpu = dataclasses.replace(found.gpu, **dict.fromkeys(delays, 0))
    return dataclasses.replace(found, gpu=gpu)


def test_without_a_gpu_explain_is_about_the_device_of_the_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "adapters", lambda: [])
    feeds = {"r0": np.ones((1, 64), np.float32)}
    with InferenceSession(dense(64, 2), profile=without_delays("v3d_pi4")) as session:
        found = session.explain(feeds)
        assert found.decision.startswith("the GPU, ") and found.count("gpu") == 4
        assert found.device.startswith("CPU (NumPy), planned as for Broadcom")
        session.run(None, feeds)
        assert {where for _, where in session.executed()} == {"cpu"}


@pytest.mark.gpu
def test_a_session_plans_as_for_another_device(tmp_path: Path) -> None:
    model = dense(64, 2)
    feeds = {"r0": np.ones((1, 64), np.float32)}
    far, fast = DeviceProfile.builtin("v3d_pi4"), without_delays("v3d_pi4")
    (tmp_path / "fast.json").write_text(fast.to_json())
    results = []
    for profile, place in ((far, "cpu"), ("v3d_pi4", "cpu"), (tmp_path / "fast.json", "gpu")):
        with InferenceSession(model, profile=profile) as session:
            results += session.run(None, feeds)
            assert {where for _, where in session.executed()} == {place}
            chosen = session.explain(feeds).summary()
            assert f"chosen     the {place.upper()}" in chosen
            assert not session.plan().target.software
    np.testing.assert_allclose(results[0], results[2], rtol=1e-4, atol=1e-3)
    with pytest.raises(EngineError, match="no device profile 'abacus'"):
        InferenceSession(model, profile="abacus")
