"""Compare: planted faults are found and named, in kernels, rules, passes, buffers and NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.cli import main
from engine.errors import EngineError
from engine.importer import load_model
from engine.runtime import cache
from engine.runtime.session import InferenceSession
from engine.tools.compare import Comparison, Setup, compare, find_nan, passes
from engine.tools.compare.extract import load_inputs
from engine.tools.compare.passes import own_movement
from engine.tools.compare.report import to_text
from tests.runtime.models import parse
from tests.tools import plants

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(17)


def noise(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(autouse=True)
def rendered() -> Iterator[None]:
    yield from plants.clear_rendered()


def examine(
    folder: Path, text: str, feeds: dict[str, Any], against: str = "cpu", **more: Any
) -> Comparison:
    model = folder / "model.onnx"
    onnx.save(parse(text), model)
    return compare(Setup(model, **more), feeds, against=against, folder=folder / "wrong")


NETWORK = """network (float[n,6] x, float[6,8] w, float[8] b) => (float[n,3] y, float[n,8] g) {
  p = MatMul(x, w)
  q = Add(p, b)
  r = Relu(q)
  s = Softmax <axis = -1> (r)
  e = Exp(s)
  t = Sqrt(e)
  h = Sub(t, b)
  i = Constant <value_ints = [0, 5, 2]> ()
  y = Gather <axis = 1> (h, i)
  axes = Constant <value_ints = [0]> ()
  m = ReduceMean <keepdims = 1> (h, axes)
  d = Transpose <perm = [1, 0]> (h)
  dd = Transpose <perm = [1, 0]> (d)
  g = Mul(dd, m)
}"""


def network() -> dict[str, Any]:
    return {"x": noise(9, 6), "w": noise(6, 8), "b": noise(8)}


IMAGE = """image (float[1,3,9,11] x, float[4,3,3,3] w) => (float[1,4,4,5] y) {
  c = Conv <pads = [1, 1, 1, 1]> (x, w)
  y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
}"""


def image() -> dict[str, Any]:
    return {"x": noise(1, 3, 9, 11), "w": noise(4, 3, 3, 3)}


GELU = """gelu (float[5,7] x) => (float[5,7] y) {
  half = Constant <value_float = 0.5> ()
  one = Constant <value_float = 1.0> ()
  root = Constant <value_float = 1.4142135> ()
  a = Div(x, root)
  b = Erf(a)
  c = Add(b, one)
  d = Mul(x, c)
  y = Mul(d, half)
}"""

NORMALISED = """n (float[1,2,5,5] x) => (float[1,3,3,3] y)
<float[3,2,3,3] w = {WEIGHTS}, float[3] scale = {1, 2, 3}, float[3] shift = {1, 0, 1},
 float[3] mean = {0.5, 0.25, 0}, float[3] variance = {1, 2, 1}> {
  c = Conv(x, w)
  y = BatchNormalization(c, scale, shift, mean, variance)
}""".replace("WEIGHTS", ", ".join(str(i % 7) for i in range(54)))

BODIES = """looped (float[3] x, int64 trips) => (float[3] y) {
  go = Constant <value = bool {1}> ()
  y = Loop (trips, go, x) <body = g (int64 i, bool c, float[3] a) => (bool d, float[3] b) {
    d = Identity(c)
    b = If (c) <then_branch = t () => (float[3] z) {
      e = Exp(a)
      z = Softmax <axis = -1> (e)
    }, else_branch = f () => (float[3] z) { z = Neg(a) }>
  }>
}"""


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


@pytest.mark.parametrize(
    "against",
    ["cpu", *(pytest.param(a, marks=pytest.mark.slow) for a in ("onnxruntime", "reference"))],
)
def test_without_a_fault_nothing_is_found(against: str, tmp_path: Path) -> None:
    for text, feeds in ((NETWORK, network()), (IMAGE, image())):
        found = examine(tmp_path, text, feeds, against)
        assert found.ok and found.finding is None and found.checked > 1 and not found.failed
        assert {d.name for d in found.outputs} == {"y", "g"} & {d.name for d in found.outputs}
        assert all(d.ok and d.size for d in found.outputs) and not (tmp_path / "wrong").exists()


def test_outputs_that_change_on_the_way_back_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plants.download(monkeypatch)
    found = examine(tmp_path, IMAGE, image())
    assert found.finding is not None
    assert (found.finding.kind, found.finding.blame) == ("memory", "'y'")


DOUBLE = """double (double[n,4] x) => (double[n,4] y) {
  a = Abs(x)
  b = Softmax(a)
  y = Sqrt(b)
}"""


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


CHAOS = """chaos (float[5] x, int64 trips) => (float[5] y) {
  go = Constant <value = bool {1}> ()
  y = Loop (trips, go, x) <body = g (int64 i, bool c, float[5] a) => (bool d, float[5] b) {
    d = Identity(c)
    one = Constant <value_float = 1.0> ()
    rate = Constant <value_float = 3.9> ()
    left = Sub(one, a)
    scaled = Mul(rate, a)
    m = Mul(scaled, left)
    l = Log(m)
    b = Exp(l)
  }>
}"""


def test_random_values_are_no_fault(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] z) { r = RandomNormalLike(x) z = Add(x, r) }"
    with pytest.raises(EngineError, match="draw other numbers in each call"):
        examine(tmp_path, text, {"x": noise(4)})
    assert not (tmp_path / "wrong").exists()


def test_rounding_that_adds_up_blames_no_node(tmp_path: Path) -> None:
    """A recurrence that doubles each error, in every turn."""
    x = np.linspace(0.1, 0.8, 5, dtype=np.float32)
    found = examine(tmp_path, CHAOS, {"x": x, "trips": np.array(50, np.int64)})
    assert not found.failed and found.checked >= 50
    assert found.finding is not None and found.finding.kind == "rounding"
    assert found.finding.model is None and "every kernel is right" in found.finding.notes[0]


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
        assert found.finding.blame == str(tmp_path / "kept") and not found.finding.alone
        monkeypatch.setenv("ENGINE_CACHE", "off")
        assert compare(Setup(model), feeds, folder=tmp_path / "wrong").ok


@dataclass(frozen=True)
class _Result:
    """Exit status and what was printed."""

    status: int
    text: str


def command(capsys: pytest.CaptureFixture[str], *words: str) -> _Result:
    status = main(["compare", *words])
    captured = capsys.readouterr()
    assert not captured.err, captured.err
    return _Result(status, captured.out)


def test_the_command_writes_a_folder_and_says_how_to_run_it_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(parse(NETWORK), model)
    words = [str(model), "--dim", "n=5", "--output", str(tmp_path / "found")]
    assert command(capsys, *words).text.endswith("no difference beyond tolerance\n")
    with pytest.MonkeyPatch.context() as patch:
        plants.expression(patch, "Exp", "exp({0} * 1.001)")
        found = command(capsys, *words)
        assert found.status == 1 and "to blame: the GPU kernel" in found.text
        (again,) = [line for line in found.text.splitlines() if "rerun" in line]
        repeat = again.split("onnx-wgpu compare ")[1].split()
        assert command(capsys, *repeat).status == 1
        as_json = command(capsys, *words, "--json")
        assert json.loads(as_json.text)["finding"]["kind"] == "kernel"
        kernels = "\n".join(line for line in found.text.splitlines() if "kernels" in line)
        assert "1 beyond tolerance" in kernels
    for _ in plants.clear_rendered():
        assert command(capsys, *repeat).status == 0
    folder = tmp_path / "found"
    with InferenceSession(folder / "model.onnx", device="cpu") as session:
        (want,) = session.run(None, load_inputs(folder / "test_data_set_0", session))
    proto = onnx.TensorProto.FromString((folder / "test_data_set_0/output_0.pb").read_bytes())
    np.testing.assert_allclose(onnx.numpy_helper.to_array(proto), want, rtol=1e-6)
    got = np.load(folder / "test_data_set_0/got_0.npy")
    assert got.shape == want.shape and not np.allclose(got, want, rtol=1e-5)


OVERFLOW = """o (float[n,4] x) => (float[n,1] y, float[n,1] e) {
  a = Mul(x, x)
  m = ReduceMean <keepdims = 1> (a, axes)
  e = Exp(m)
  y = Tanh(e)
}""".replace("{\n", "{\n  axes = Constant <value_ints = [1]> ()\n", 1)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_first_infinity_is_found(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(parse(OVERFLOW), model)
    setup = Setup(model, device)
    x = np.full((2, 4), 3.0, np.float32)
    assert find_nan(setup, {"x": x}, folder=tmp_path / "wrong") is None
    x[1] = 20.0
    finding = find_nan(setup, {"x": x}, folder=tmp_path / "wrong")
    assert finding is not None and finding.kind == "nan" and "infinity" in finding.blame
    assert "Exp" in finding.op_types and finding.device == device
    said = [finding.node] if device == "cpu" else finding.notes
    assert any("Exp 'e'" in line for line in said)
    assert any("NumPy makes the same" in n for n in finding.notes) == (device == "gpu")
    again = finding.command.split("onnx-wgpu compare ")[1].split()
    assert "infinity" in command(capsys, *again, "--output", str(tmp_path / "again")).text
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    calm = [str(model), "--find", "nan", "--input", f"x={tmp_path / 'x.npy'}"]
    assert command(capsys, *calm).status == 0


def test_infinity_of_one_device_only_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plants.shader(
        monkeypatch, "softmax", "let scale = scale_of(sum);", "let scale = scale_of(sum - sum);"
    )
    model = tmp_path / "model.onnx"
    onnx.save(parse(NETWORK), model)
    finding = find_nan(Setup(model), network(), folder=tmp_path / "wrong")
    assert finding is not None and "Softmax" in finding.op_types
    assert any("NumPy makes something else" in n for n in finding.notes)


def test_sequences_and_strings_are_compared(tmp_path: Path) -> None:
    text = """s (seq(float[n,2]) items, float[m,2] x) => (seq(float[n,2]) more, float[k,2] y) {
      e = Exp(x)
      more = SequenceInsert(items, e)
      y = ConcatFromSequence <axis = 0> (more)
    }"""
    feeds = {"items": [noise(1, 2), noise(3, 2)], "x": noise(2, 2)}
    found = examine(tmp_path, text, feeds)
    assert found.ok and {d.name.split("[")[0] for d in found.outputs} == {"more", "y"}


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


def test_what_cannot_be_compared_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(parse(DOUBLE), model)
    assert main(["compare", str(model), "--require-gpu"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert main(["compare", str(model), "--data", str(tmp_path)]) == 1
    assert "input_0.pb" in capsys.readouterr().err
    with pytest.raises(EngineError, match="against one of"):
        compare(Setup(model), {}, against="nobody", folder=tmp_path)


@pytest.mark.slow
def test_a_user_can_ask_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plants.expression(monkeypatch, "Exp", "exp({0} * 1.001)")
    model = tmp_path / "model.onnx"
    onnx.save(parse(NETWORK), model)
    setup, feeds = Setup(model), network()
    assert compare(setup, feeds, folder=tmp_path / "wrong", tolerance=0.1).ok
    assert not compare(setup, feeds, folder=tmp_path / "wrong", tolerance=1e-5).ok


def test_a_result_that_hangs_on_rounding_is_told_from_one_that_is_wrong() -> None:
    x = np.array([0.1, 2.7] + 20 * [0.5 + 1e-7], np.float32)
    for op, least, most in (("Round", 1.0, 1.0), ("Exp", 1e-9, 1e-3)):
        text = f"m (float[n] x) => (float[n] y) {{ y = {op}(x) }}"
        assert least <= own_movement(load_model(parse(text)).graph, {"x": x}, "y") <= most
