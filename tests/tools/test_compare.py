"""Compare: what it says where there is no fault, of infinities, of rounding, and as a command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from engine.cli import main
from engine.errors import EngineError
from engine.importer import load_model
from engine.runtime.session import InferenceSession
from engine.tools.compare import Setup, compare, find_nan
from engine.tools.compare.extract import load_inputs
from engine.tools.compare.others import own_movement
from tests.runtime.models import parse
from tests.tools import plants
from tests.tools.compare_cases import DOUBLE, IMAGE, NETWORK, examine, image, network, noise

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def rendered() -> Iterator[None]:
    yield from plants.clear_rendered()


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


RANDOM = "g (float[64] x) => (float[64] z) { r = RandomNormalLike(x) z = Add(x, r) }"
DRAWN = "g (float[64] x) => (float[64] z) { r = RandomNormalLike <seed = 3.0> (x) z = Add(x, r) }"
TRAINED = """g (float[64] x) => (float[64] z) <float ratio = {0.5}, bool training = {1}> {
  z = Dropout(x, ratio, training)
}"""
TURNS = """g (float[64] x) => (float[64] z) <int64 trips = {2}> {
  z = Loop <body = b (int64 i, bool go, float[64] v) => (bool on, float[64] w) {
    on = Identity(go)
    r = RandomNormalLike(v)
    w = Add(v, r)
  }> (trips, , x)
}"""


@pytest.mark.parametrize(
    ("text", "against", "problem"),
    [
        (RANDOM, "cpu", "draw other numbers in each call"),
        (TURNS, "cpu", "draw other numbers in each call"),
        (TRAINED, "cpu", "draw other numbers in each call"),
        (DRAWN, "onnxruntime", "draw other numbers there"),
    ],
)
def test_random_values_are_no_fault(text: str, against: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=problem):
        examine(tmp_path, text, {"x": noise(64)}, against)
    assert not (tmp_path / "wrong").exists()


def test_inputs_of_another_byte_order_are_no_fault(tmp_path: Path) -> None:
    text = "g (float[n] x) => (float[n] z) { y = Exp(x) z = Add(x, y) }"
    assert examine(tmp_path, text, {"x": noise(4).astype(">f4")}).ok


def test_rounding_that_adds_up_blames_no_node(tmp_path: Path) -> None:
    """A recurrence that doubles each error, in every turn."""
    x = np.linspace(0.1, 0.8, 5, dtype=np.float32)
    found = examine(tmp_path, CHAOS, {"x": x, "trips": np.array(50, np.int64)})
    assert not found.failed and found.checked >= 50
    assert found.finding is not None and found.finding.kind == "rounding"
    assert found.finding.model is None and "every kernel is right" in found.finding.notes[0]


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
    tmp_path = tmp_path / "with a space"
    tmp_path.mkdir()
    model = tmp_path / "model.onnx"
    onnx.save(parse(NETWORK), model)
    words = [str(model), "--dim", "n=5", "--output", str(tmp_path / "found")]
    assert command(capsys, *words).text.endswith("no difference beyond tolerance\n")
    with pytest.MonkeyPatch.context() as patch:
        plants.expression(patch, "Exp", "exp({0} * 1.001)")
        found = command(capsys, *words)
        assert found.status == 1 and "to blame: the GPU kernel" in found.text
        (again,) = [line for line in found.text.splitlines() if "rerun" in line]
        repeat = shlex.split(again.split("onnx-wgpu compare ")[1])
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
    found = find_nan(setup, {"x": x}, folder=tmp_path / "wrong")
    assert found.ok and not found.given and found.finding is None and not found.outputs
    x[1] = 20.0
    finding = find_nan(setup, {"x": x}, folder=tmp_path / "wrong").finding
    assert finding is not None and finding.kind == "nan" and "infinity" in finding.blame
    assert "Exp" in finding.op_types and finding.device == device
    said = [finding.node] if device == "cpu" else finding.notes
    assert any("Exp 'e'" in line for line in said)
    assert any("NumPy makes the same" in n for n in finding.notes) == (device == "gpu")
    again = shlex.split(finding.command.split("onnx-wgpu compare ")[1])
    assert "infinity" in command(capsys, *again, "--output", str(tmp_path / "again")).text
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    calm = [str(model), "--find", "nan", "--input", f"x={tmp_path / 'x.npy'}"]
    assert command(capsys, *calm).status == 0


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_first_infinity_of_a_body_is_found(device: str, tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[4] z) <int64 trips = {3}> {
      z = Loop <body = b (int64 i, bool go, float[4] v) => (bool on, float[4] w) {
        on = Identity(go)
        w = Log(v)
      }> (trips, , x)
    }"""
    onnx.save(parse(text), tmp_path / "model.onnx")
    x = np.full(4, np.e, np.float32)
    x[0] = 1.0  # its logarithm is 0 after the first turn, and that of 0 minus infinity
    found = find_nan(Setup(tmp_path / "model.onnx", device), {"x": x}, folder=tmp_path / "wrong")
    assert found.finding is not None and found.finding.op_types == ("Log",)
    assert found.finding.blame == "infinity" and "in turn" not in found.finding.node


def test_sequences_and_strings_are_compared(tmp_path: Path) -> None:
    text = """s (seq(float[n,2]) items, float[m,2] x) => (seq(float[n,2]) more, float[k,2] y) {
      e = Exp(x)
      more = SequenceInsert(items, e)
      y = ConcatFromSequence <axis = 0> (more)
    }"""
    feeds = {"items": [noise(1, 2), noise(3, 2)], "x": noise(2, 2)}
    found = examine(tmp_path, text, feeds)
    assert found.ok and {d.name.split("[")[0] for d in found.outputs} == {"more", "y"}


def test_what_cannot_be_compared_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(parse(DOUBLE), model)
    assert main(["compare", str(model), "--require-gpu"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
    assert main(["compare", str(model), "--data", str(tmp_path)]) == 2
    assert "input_0.pb" in capsys.readouterr().err
    with pytest.raises(EngineError, match="against one of"):
        compare(Setup(model), {}, against="nobody", folder=tmp_path)


def test_a_result_that_hangs_on_rounding_is_told_from_one_that_is_wrong() -> None:
    x = np.array([0.1, 2.7] + 20 * [0.5 + 1e-7], np.float32)
    for op, least, most in (("Round", 1.0, 1.0), ("Exp", 1e-9, 1e-3)):
        text = f"m (float[n] x) => (float[n] y) {{ y = {op}(x) }}"
        assert least <= own_movement(load_model(parse(text)).graph, {"x": x}, "y") <= most


MASKED = """m (float[4] x) => (float[4] y, float[4] z) {
  mask = Constant <value_floats = [0.0, 0.0, 0.0, -1.0]> ()
  a = Add(x, mask)
  y = Exp(a)
  b = Abs(x)
  c = Add(b, b)
  z = Sqrt(c)
}"""


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_what_inputs_and_constants_hold_is_told_from_what_arises(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = parse(MASKED)
    mask = np.array([0, 0, 0, -np.inf], np.float32)
    proto.graph.node[0].attribute[0].CopyFrom(
        onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(mask))
    )
    model = tmp_path / "model.onnx"
    onnx.save(proto, model)
    setup, folder = Setup(model, device), tmp_path / "wrong"
    calm = find_nan(setup, {"x": np.ones(4, np.float32)}, folder=folder)
    (held,) = calm.given
    assert (held.what, held.infinity, held.nan, held.size) == ("constant", 1, 0, 4) and calm.ok
    x = np.array([1, np.nan, np.nan, 1], np.float32)
    found = find_nan(setup, {"x": x}, folder=folder)
    assert found.given[0].text == "input x holds 2 times NaN in 4 elements"
    assert found.finding is None and not found.ok and found.passed_on >= 2
    assert [(held.name, held.nan) for held in found.outputs] == [("y", 2), ("z", 2)]
    np.save(tmp_path / "x.npy", x)
    words = [str(model), "--find", "nan", "--device", device, "--input", f"x={tmp_path}/x.npy"]
    said = command(capsys, *words)
    assert said.status == 1 and said.text.startswith("input x holds 2 times NaN in 4 elements\n")
    assert "  output z holds 2 times NaN in 4 elements\nnothing else makes" in said.text
    np.save(tmp_path / "x.npy", np.array([1, np.nan, 2e38, 1], np.float32))
    said = command(capsys, *words, "--json")
    found_json = json.loads(said.text)
    assert said.status == 1 and found_json["given"][0]["name"] == "x"
    assert found_json["finding"]["blame"] == "infinity"


def test_what_did_not_run_on_the_gpu_is_not_said_to_be_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "model.onnx")
    onnx.save(parse("g (double[n] x) => (double[n] y) { y = Exp(x) }"), model)
    assert main(["compare", model]) == 2
    captured = capsys.readouterr()
    assert "NumPy with passes against NumPy without passes" in captured.out
    assert "kernels" not in captured.out
    assert "nothing ran on the GPU (why: onnx-wgpu explain)" in captured.err
    assert main(["compare", model, "--device", "cpu", "--against", "reference"]) == 0
    assert "against onnx.reference" in capsys.readouterr().out
