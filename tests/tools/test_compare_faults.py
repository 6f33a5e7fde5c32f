"""Compare: planted faults are found and named, in kernels, rules, passes, buffers and NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.runtime import cache
from engine.runtime.session import InferenceSession
from engine.tools.compare import Finding, Setup, compare, find_nan, passes
from engine.tools.compare.report import to_text
from tests.runtime.models import parse
from tests.tools import plants
from tests.tools.compare_cases import (
    BODIES,
    DOUBLE,
    GELU,
    IMAGE,
    NETWORK,
    NORMALISED,
    RNG,
    examine,
    image,
    network,
    noise,
)

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def rendered() -> Iterator[None]:
    yield from plants.clear_rendered()


@dataclass(frozen=True)
class Plant:
    """A fault, and what has to be said of it."""

    name: str
    put: Callable[[pytest.MonkeyPatch], None]
    kind: str
    blame: str
    node: str
    text: str = NETWORK
    feeds: Callable[[], dict[str, Any]] = network


def _other_grid(call: Any) -> Any:
    """A kernel of which only one workgroup runs."""
    return replace(call, grid=(1, 1, 1))


def _other_operator(old: str, new: str) -> Any:
    """What a pass makes, with one operator in the place of another."""

    def change(before: Any, after: Any) -> Any:
        return plants.map_nodes(
            after,
            lambda n: n.replace(op_type=new, attrs={}, since_version=13) if n.op_type == old else n,
        )

    return change


def _other_order(before: Any, after: Any) -> Any:
    """What a pass makes, with transpositions by other permutations."""
    return plants.map_nodes(
        after,
        lambda n: n.replace(attrs={"perm": [2, 0, 1]}) if n.op_type == "Transpose" else n,
    )


def _scaled(text: str, anchored: bool, want_anchor: bool, term: int, terms: int) -> str:
    if anchored != want_anchor or terms <= term:
        return text
    return text.replace(f"let v{term} = ", f"let v{term} = 1.25 * ")


FAULTS = (
    Plant(
        "softmax",
        lambda p: plants.shader(
            p, "softmax", "let scale = scale_of(sum);", "let scale = scale_of(sum * 1.01);"
        ),
        "kernel",
        "softmax.wgsl",
        "Softmax 's'",
    ),
    Plant(
        "gather",
        lambda p: plants.shader(
            p,
            "gather",
            "/ params.picked * params.axis_size + at)",
            "/ params.picked * params.axis_size + at / 2u)",
        ),
        "kernel",
        "gather.wgsl",
        "Gather 'y'",
    ),
    Plant(
        "reduce",
        lambda p: plants.shader(p, "reduce", "acc = merge(acc, part);", "acc = merge(part, part);"),
        "kernel",
        "reduce.wgsl",
        "ReduceMean 'm'",
    ),
    Plant(
        "exp", lambda p: plants.expression(p, "Exp", "exp({0} * 1.001)"), "kernel", "Exp", "Exp 'e'"
    ),
    Plant("sub", lambda p: plants.expression(p, "Sub", "({1} - {0})"), "kernel", "", "Sub 'h'"),
    Plant(
        "conv",
        lambda p: plants.lowering(p, "Conv", _other_grid),
        "kernel",
        "conv",
        "Conv 'c'",
        IMAGE,
        image,
    ),
    Plant(
        "pool",
        lambda p: plants.shader(p, "pool", "load_x(", "1.01 * load_x("),
        "kernel",
        "pool.wgsl",
        "MaxPool 'y'",
        IMAGE,
        image,
    ),
    Plant(
        "chain",
        lambda p: plants.generated(p, lambda t, a, n: _scaled(t, a, False, 1, n)),
        "fusion",
        "elementwise-chain",
        "Exp 'e' + Sqrt 'y'",
        "m (float[n,5] x) => (float[n,5] y) { e = Exp(x) y = Sqrt(e) }",
        lambda: {"x": noise(4, 5)},
    ),
    Plant(
        "epilogue",
        lambda p: plants.generated(p, lambda t, a, n: _scaled(t, a, True, 0, n)),
        "fusion",
        "epilogue",
        "MatMul 'p' + Add 'q'",
    ),
    Plant(
        "prologue",
        lambda p: plants.loaded(p, "return ", "return 1.01 * "),
        "fusion",
        "prologue",
        "Exp 'e' + MatMul 'y'",
        "m (float[n,5] x, float[5,3] w) => (float[n,3] y) { e = Exp(x) y = MatMul(e, w) }",
        lambda: {"x": noise(4, 5), "w": noise(5, 3)},
    ),
    Plant(
        "eliminate",
        lambda p: plants.in_pass(p, "eliminate", _other_operator("Exp", "Neg")),
        "pass",
        "eliminate",
        "Neg 'e'",
        NETWORK.replace("e = Exp(s)", "s2 = Identity(s)\n  e = Exp(s2)"),
    ),
    Plant(
        "fuse_gelu",
        lambda p: plants.in_pass(p, "fuse_gelu", _other_operator("Gelu", "Relu")),
        "pass",
        "fuse_gelu",
        "Relu 'y'",
        GELU,
        lambda: {"x": noise(5, 7)},
    ),
    Plant(
        "fold_batchnorm",
        lambda p: plants.in_pass(p, "fold_batchnorm", lambda a, b: plants.new_constants(a, b, 1.1)),
        "pass",
        "fold_batchnorm",
        "Conv 'y'",
        NORMALISED,
        lambda: {"x": noise(1, 2, 5, 5)},
    ),
    Plant(
        "chains",
        lambda p: plants.in_pass(p, "chains", _other_order),
        "pass",
        "chains",
        "Transpose 't'",
        """m (float[3,3,3] x) => (float[3,3,3] y) {
          s = Transpose <perm = [1, 2, 0]> (x)
          t = Transpose <perm = [0, 2, 1]> (s)
          y = Softmax(t)
        }""",
        lambda: {"x": noise(3, 3, 3)},
    ),
    Plant(
        "body",
        lambda p: plants.expression(p, "Exp", "exp({0} * 1.001)"),
        "kernel",
        "Exp, an expression in softmax.wgsl",
        "Exp 'e' inside y / b",
        BODIES,
        lambda: {"x": noise(3), "trips": np.array(3, np.int64)},
    ),
    Plant(
        "view",
        lambda p: plants.lowering(p, "Gemm", _other_grid),
        "kernel",
        "matmul",
        "Gemm 'p'",
        """m (float[n,64] x, float[64,96] w) => (float[12,n,8] y) {
          p = Gemm(x, w)
          shape = Constant <value_ints = [0, 12, 8]> ()
          v = Reshape(p, shape)
          y = Transpose <perm = [1, 0, 2]> (v)
        }""",
        lambda: {"x": noise(40, 64), "w": noise(64, 96)},
    ),
    Plant(
        "pass-in-body",
        lambda p: plants.in_pass(p, "eliminate", _other_operator("Exp", "Neg")),
        "pass",
        "eliminate",
        "Neg 'e' inside y / b",
        BODIES.replace("e = Exp(a)", "a2 = Identity(a)\n e = Exp(a2)"),
        lambda: {"x": noise(3), "trips": np.array(3, np.int64)},
    ),
    Plant(
        "numpy",
        lambda p: plants.numpy_function(p, "Softmax", lambda y: y * np.float32(1.01)),
        "numpy",
        "Softmax",
        "Softmax 's'",
    ),
    Plant(
        "memory",
        lambda p: plants.short_life(p, "a"),
        "memory",
        "'a'",
        "Softmax 'd' + Mul 'y'",
        """m (float[4,16] x) => (float[4,16] y) {
          a = Softmax <axis = 1> (x)
          b = Softmax <axis = 0> (a)
          c = Softmax <axis = 1> (b)
          d = Softmax <axis = 0> (c)
          y = Mul(d, a)
        }""",
        lambda: {"x": noise(4, 16)},
    ),
    Plant(
        "upload",
        lambda p: plants.upload(p, (9, 6)),
        "memory",
        "'x'",
        "MatMul 'p' + Add 'q'",
    ),
)


QUICK = frozenset({"exp", "chain", "epilogue", "eliminate", "memory", "body"})
"""One of each kind; the others are slow together."""


@pytest.mark.parametrize(
    "plant",
    [pytest.param(p, id=p.name, marks=() if p.name in QUICK else pytest.mark.slow) for p in FAULTS],
)
def test_planted_faults_are_found_and_named(
    plant: Plant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds = plant.feeds()
    plant.put(monkeypatch)
    found = examine(tmp_path, plant.text, feeds)
    finding = found.finding
    assert finding is not None and not found.ok
    text = to_text(found, "m", "x")
    assert (finding.kind, finding.node.startswith(plant.node)) == (plant.kind, True), text
    assert finding.blame.startswith(plant.blame), text
    if plant.kind != "memory":
        assert finding.model is not None and finding.alone, text
        assert finding.differences and not finding.differences[0].ok


def test_outputs_that_change_on_the_way_back_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plants.download(monkeypatch)
    found = examine(tmp_path, IMAGE, image())
    assert found.finding is not None
    assert (found.finding.kind, found.finding.blame) == ("memory", "'y'")


@pytest.mark.parametrize("against", ["onnxruntime", "reference"])
def test_a_wrong_numpy_function_is_found_against_others(
    against: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plants.numpy_function(monkeypatch, "Softmax", lambda y: y * 1.01)
    feeds = {"x": RNG.standard_normal((3, 4))}
    assert examine(tmp_path, DOUBLE, feeds).ok, "both sides run it in NumPy"
    finding = examine(tmp_path, DOUBLE, feeds, against).finding
    assert finding is not None and (finding.kind, finding.blame) == ("numpy", "Softmax")
    assert finding.alone and f"--against {against}" in finding.command
    assert finding.node == "Softmax 'b'" and finding.differences[0].max_rel > 9e-3


def test_a_wrong_reference_is_told_from_a_wrong_numpy_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnx.reference takes BatchNormalization-9 with a momentum for training."""
    text = """old (float[n,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v)
    => (float[n,3,4] y) {
      y = BatchNormalization <momentum = 0.9> (x, s, b, m, v)
    }"""
    model = tmp_path / "model.onnx"
    onnx.save(parse(text, 9), model)
    feeds = {"x": noise(2, 3, 4), "v": np.abs(noise(3)), **{n: noise(3) for n in "sbm"}}

    def found() -> Finding:
        result = compare(Setup(model), feeds, against="reference", folder=tmp_path / "wrong")
        assert result.finding is not None and not result.finding.alone
        assert "onnx.reference agrees with NumPy about that" in result.finding.notes[0]
        return result.finding

    assert (found().kind, found().blame) == ("reference", "BatchNormalization")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert found().kind == "numpy", "without ONNX Runtime nobody decides"


@pytest.mark.slow
def test_a_plan_from_an_earlier_start_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_CACHE", str(tmp_path / "kept"))
    model, feeds = tmp_path / "model.onnx", network()
    onnx.save(parse(NETWORK), model)
    with pytest.MonkeyPatch.context() as patch:
        plants.expression(patch, "Exp", "exp({0} * 1.001)")
        with InferenceSession(model, device="gpu") as session:
            session.run(None, feeds)
        cache.flush(wait=True)
    for _ in plants.clear_rendered():
        found = compare(Setup(model), feeds, folder=tmp_path / "wrong")
        assert found.finding is not None and found.finding.kind == "cache"
        assert found.finding.blame == str(cache.folder()) and not found.finding.alone
        monkeypatch.setenv("ENGINE_CACHE", "off")
        assert compare(Setup(model), feeds, folder=tmp_path / "wrong").ok


def test_infinity_of_one_device_only_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plants.shader(
        monkeypatch, "softmax", "let scale = scale_of(sum);", "let scale = scale_of(sum - sum);"
    )
    model = tmp_path / "model.onnx"
    onnx.save(parse(NETWORK), model)
    finding = find_nan(Setup(model), network(), folder=tmp_path / "wrong").finding
    assert finding is not None and "Softmax" in finding.op_types
    assert any("NumPy makes something else" in n for n in finding.notes)


@pytest.mark.slow
def test_values_are_held_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = passes.collect

    def counted(session: Any, feeds: Any, wanted: Any) -> Any:
        found = plain(session, feeds, wanted)
        sizes.append(sum(v.nbytes for v in found.values()))
        return found

    monkeypatch.setattr(passes, "collect", counted)
    text = (
        "m (float[64] x) => (float[64] y) { "
        + " ".join(
            f"v{i + 1} = {op}(v{i})"
            for i, op in enumerate(["Exp", "Identity"] + ["Tanh", "Neg"] * 8)
        )
        + " y = Abs(v18) }"
    )
    feeds = {"x": noise(64)}
    plants.in_pass(monkeypatch, "eliminate", _other_operator("Abs", "Neg"))
    model = tmp_path / "model.onnx"
    onnx.save(parse(text.replace("v0", "x", 1)), model)
    found = compare(Setup(model), feeds, folder=tmp_path / "wrong", budget=512)
    assert found.finding is not None and found.finding.blame == "eliminate"
    assert len(sizes) > 5 and max(sizes) <= 512


@pytest.mark.slow
def test_a_user_can_ask_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plants.expression(monkeypatch, "Exp", "exp({0} * 1.001)")
    model = tmp_path / "model.onnx"
    onnx.save(parse(NETWORK), model)
    setup, feeds = Setup(model), network()
    assert compare(setup, feeds, folder=tmp_path / "wrong", tolerance=0.1).ok
    assert not compare(setup, feeds, folder=tmp_path / "wrong", tolerance=1e-5).ok
