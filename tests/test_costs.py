"""Profiles survive JSON and refuse nonsense; work and times follow from sizes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from engine import costs, dims, ops
from engine.costs import ASSUMED_SIZE, DeviceProfile, Sizes, Work
from engine.errors import EngineError
from engine.ops import OpDef
from tests.small_graphs import Builder

PROFILE = DeviceProfile(
    name="round figures",
    launch_ns=10,
    submit_ns=100,
    gpu_flops_per_s=2_000_000_000,
    gpu_bytes_per_s=4_000_000_000,
    upload_latency_ns=1000,
    upload_bytes_per_s=1_000_000_000,
    download_latency_ns=3000,
    download_bytes_per_s=500_000_000,
    cpu_flops_per_s=1_000_000_000,
    cpu_bytes_per_s=1_000_000_000,
    cpu_op_ns=7,
)


def test_json_round_trip(tmp_path: Path) -> None:
    assert DeviceProfile.from_json(PROFILE.to_json()) == PROFILE
    (tmp_path / "p.json").write_text(PROFILE.to_json())
    assert DeviceProfile.load(tmp_path / "p.json") == PROFILE


@pytest.mark.parametrize("name", ["integrated", "lavapipe"])
def test_builtin_profiles_load(name: str) -> None:
    assert DeviceProfile.builtin(name).name
    assert DeviceProfile.builtin() == DeviceProfile.builtin("integrated")


def _without(field: str) -> str:
    fields = json.loads(PROFILE.to_json())
    del fields[field]
    return json.dumps(fields)


def _with(**changes: object) -> str:
    return json.dumps({**json.loads(PROFILE.to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[1]", "object with a name"),
        (_without("launch_ns"), r"missing \['launch_ns'\]"),
        (_with(speed=1), r"unknown \['speed'\]"),
        (_with(gpu_flops_per_s=0), "gpu_flops_per_s must be an integer of at least 1"),
        (_with(launch_ns=-1), "launch_ns must be an integer of at least 0"),
        (_with(cpu_op_ns=1.5), "cpu_op_ns must be an integer"),
        (_with(cpu_op_ns=True), "cpu_op_ns must be an integer"),
    ],
)
def test_damaged_profiles_are_refused(text: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        DeviceProfile.from_json(text)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EngineError, match="not UTF-8"):
        DeviceProfile.load(tmp_path / "p.json")


def test_an_unknown_builtin_names_the_known_ones() -> None:
    with pytest.raises(EngineError, match="integrated, lavapipe"):
        DeviceProfile.builtin("abacus")


def test_times_add_up_and_round_up() -> None:
    work = Work(flops=3, gpu_nbytes=9, cpu_nbytes=5)
    assert costs.node_ns("gpu", work, PROFILE) == 10 + 2 + 3
    assert costs.node_ns("cpu", work, PROFILE) == 7 + 3 + 5
    assert costs.node_ns("gpu", dataclasses.replace(work, launches=3), PROFILE) == 30 + 2 + 3
    assert costs.transfer_ns("upload", 8, PROFILE) == 1008
    assert costs.transfer_ns("download", 8, PROFILE) == 3016
    assert costs.fused_ns(9, PROFILE) == 2


def test_views_are_free() -> None:
    work = Work(0, 0, 0, free=True)
    assert costs.node_ns("gpu", work, PROFILE) == costs.node_ns("cpu", work, PROFILE) == 0


def test_work_counts_elements_at_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    product = OpDef("Product", domain="test", flops=lambda v: v.shape(0)[0] * 1000)
    view = OpDef("Look", domain="test", view=True)
    shaped = OpDef("Shaped", domain="test", shape_inputs=(1,), scratch=1)
    for op in (product, view, shaped):
        monkeypatch.setitem(ops._REGISTRY, (op.domain, op.op_type), [op])
    n = dims.symbol("n")
    b = Builder()
    b.input("x", (n, 4))
    b.input("ids", (3,), "int64")
    b.constant("sizes", [1, 2])
    b.node("Product", ("x", "x"), "p", (n, n), domain="test")
    b.node("Look", ("p",), "q", (n * n,), domain="test")
    b.node("Shaped", ("x", "sizes"), "s", (n,), "bool", domain="test")
    b.node("Gather", ("x", "ids"), "g", (3, 4))
    b.node("Shape", ("x",), "shape", (2,), "int64")
    b.node("Mystery", ("x",), "m", None)
    graph = b.graph("q", "s", "g", "shape", "m")
    binding = {"n": 10}
    sizes = Sizes(graph, binding)
    assert sizes.count("p") == 100
    assert (sizes.gpu_nbytes("ids"), sizes.cpu_nbytes("ids")) == (12, 24)
    found = costs.works(graph, sizes, binding)
    assert found["p"] == Work(flops=10_000, gpu_nbytes=400 + 160, cpu_nbytes=400 + 160)
    assert found["q"].free
    assert found["s"] == Work(flops=10, gpu_nbytes=40 + 160, cpu_nbytes=10 + 160, launches=2)
    assert found["g"].gpu_nbytes == 48 + 48 + 12, "a gather reads the rows it takes"
    assert found["shape"].cpu_nbytes == 16, "a shape is known without reading the content"
    assert found["m"].flops == 0


def test_unbound_symbols_are_assumed() -> None:
    b = Builder()
    b.input("x", (dims.symbol("n"), 2))
    graph = b.graph("x")
    assert Sizes(graph).count("x") == 2 * ASSUMED_SIZE
    assert Sizes(graph, {"m": 1}).count("x") == 2 * ASSUMED_SIZE
    assert Sizes(graph, {"n": 3}).count("x") == 6
