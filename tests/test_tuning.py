"""Tuning: what operators are known by, files, and which style of kernel a node gets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from engine import tuning
from engine.dims import symbols_of
from engine.errors import EngineError
from engine.fusion import fuse
from engine.ir import Graph
from engine.lowering import Lowerer
from engine.ops import lookup
from engine.parts import NO_PARTS
from engine.runtime import tunings
from engine.runtime.device import AdapterInfo
from engine.target import Target
from engine.tuning import Trial, Tuning, tuned_as
from tests.graphs import GraphBuilder, N

KNOWN_BY = "Gemm(float32[3x64], float32[64x32]) alpha=0.5"
SIZES = dict.fromkeys(symbols_of(N), 3)
INFO = AdapterInfo(0, "Some GPU 7", "Driver 1.2", "Vulkan", "IntegratedGPU", frozenset(), {})


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tunings.VARIABLE)


def product() -> Graph:
    b = GraphBuilder()
    b.input("x", N, 64)
    b.input("w", 64, 32)
    b.node("Gemm", "x", "w", out="y", alpha=0.5)
    return b.graph(["y"])


def test_what_is_tuned_names_operator_attributes_types_and_sizes() -> None:
    graph = product()
    assert tuned_as(graph, graph.nodes[0], SIZES) == KNOWN_BY
    assert tuned_as(graph, graph.nodes[0], {}) == "", "a size that nobody knows"


def test_styles_that_an_operator_does_not_offer_are_not_chosen() -> None:
    found = Tuning({"a": "large", "b": "gone"})
    assert [found.choose(s, ("small", "large")) for s in "abc"] == ["large", "", ""]
    assert Trial(place=1).choose("any", ("small", "large")) == "large"
    assert Trial(place=2).choose("any", ("small", "large")) == ""


def test_the_style_of_what_is_tuned_is_lowered() -> None:
    def kernels(found: Tuning) -> tuple[str, list[str]]:
        graph = product()
        lowerer = Lowerer(graph, Target.baseline(), lambda n: n, {}, found, SIZES, NO_PARTS)
        (group,) = fuse(graph, lambda node: True, Target.baseline()).groups
        (dispatch,) = lowerer.lower(group)
        assert dispatch.tuned_as == KNOWN_BY
        return dispatch.style, [k.key for k in lowerer.rendered]

    plain, small = kernels(Tuning()), kernels(Tuning({KNOWN_BY: "square-4x4"}))
    assert plain[0] == "" and small[0] == "square-4x4" and plain[1] != small[1]
    assert kernels(Tuning({KNOWN_BY: "no such style"})) == plain
    assert kernels(Tuning({"Gemm(other)": "square-4x4"})) == plain


def test_files_are_for_an_adapter_its_features_and_a_version(tmp_path: Path) -> None:
    target = Target(features=frozenset({"subgroups"}))
    path = tunings.user_file(INFO, target, tmp_path)
    tunings.keep(Tuning({"a": "x", "b": "x"}), path, INFO.title, target.features)
    tunings.keep(Tuning({"b": "y"}), path, INFO.title, target.features)
    assert tunings.resolve(None, INFO, target, tmp_path).styles == {"a": "x", "b": "y"}
    assert tunings.resolve(None, INFO, Target.baseline(), tmp_path).styles == {}
    other = dataclasses.replace(INFO, driver="Driver 1.3")
    assert tunings.resolve(None, other, target, tmp_path).styles == {}
    assert tuning.load(path, other.title, target.features).styles == {}
    path.write_text(path.read_text().replace('"version": 1', '"version": 0'))
    assert tuning.load(path, INFO.title, target.features).styles == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1, "adapter": "", "styles": [1]}'])
def test_a_damaged_file_is_left_out_and_replaced(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = Target.baseline()
    path = tunings.user_file(INFO, target, tmp_path)
    path.write_text(text)
    with pytest.raises(EngineError, match="no file of tuned kernels"):
        tuning.load(path, INFO.title, target.features)
    assert tunings.resolve(None, INFO, target, tmp_path).styles == {}
    assert "ignoring tuned kernels" in caplog.text
    tunings.keep(Tuning({"a": "x"}), path, INFO.title, target.features)
    assert tunings.resolve(None, INFO, target, tmp_path).styles == {"a": "x"}


def test_what_a_session_asks_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = Target.baseline()
    path = tunings.user_file(INFO, target, tmp_path)
    tunings.keep(Tuning({"a": "x"}), path, INFO.title, target.features)
    assert tunings.resolve(None, INFO, target, tmp_path).styles == {"a": "x"}
    assert tunings.resolve("off", INFO, target, tmp_path).styles == {}
    assert tunings.resolve(Tuning({"c": "z"}), INFO, target, tmp_path).styles == {"c": "z"}
    monkeypatch.setenv(tunings.VARIABLE, "off")
    assert tunings.resolve(None, INFO, target, tmp_path).styles == {}
    with pytest.raises(EngineError, match="tuning is a Tuning"):
        tunings.resolve("on", INFO, target, tmp_path)


def test_shipped_files_can_be_read_and_name_styles_that_exist() -> None:
    for path in tunings.SHIPPED.glob("*.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["version"] == tuning.VERSION
        found = tuning.load(path, content["adapter"], frozenset(content["features"]))
        assert found.styles == content["styles"] != {}
        for known_by, style in found.styles.items():
            op = lookup(known_by.split("(")[0])
            assert op is not None and style in op.styles, (path.name, known_by, style)
