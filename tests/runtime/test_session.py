"""The session as a caller sees it: what it accepts, what it refuses in words, what it tells."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import engine
from engine.errors import (
    DeviceError,
    EngineError,
    InputError,
    ModelError,
    ShapeError,
    UnsupportedOpError,
)
from engine.ir import Array
from engine.runtime import session as session_module
from engine.runtime.session import InferenceSession
from tests.runtime.models import AFFINE, SCALED, parse

DEVICES = (pytest.param("cpu"), pytest.param("gpu", marks=pytest.mark.gpu))

FEED = {
    "x": np.array([[1, 2, 3], [-4, 0.5, 0]], np.float32),
    "b": np.array([0.25, -1, 2], np.float32),
}
SUM = FEED["x"] + FEED["b"]


def affine(device: str = "cpu", **options: Any) -> InferenceSession:
    return InferenceSession(parse(AFFINE), device=device, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_outputs_by_name_in_the_order_asked_for(device: str) -> None:
    with affine(device) as session:
        y, z = session.run(None, FEED)
        np.testing.assert_allclose(y, np.tanh(SUM), rtol=1e-5)
        np.testing.assert_array_equal(z, -SUM)
        again = session.run(["z", "y", "z"], FEED)
        for got, want in zip(again, (z, y, z), strict=True):
            np.testing.assert_array_equal(got, want)
        (only,) = session.run(["z"], FEED)
        np.testing.assert_array_equal(only, z)
        assert len(session.run([], FEED)) == 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": FEED["b"]}, r"no inputs \['w'\]; it has \['x', 'b'\]"),
        ({"b": None}, "input 'b' is a NoneType; expected a NumPy array of float32\\[3\\]"),
        ({"b": [0.25, -1.0, 2.0]}, "input 'b' is a list; expected a NumPy array"),
        ({"b": FEED["b"].astype(np.float64)}, "'b' has dtype float64; expected float32\\[3\\]"),
        ({"b": FEED["b"].astype("M8[s]")}, "'b' has dtype datetime64\\[s\\]; expected float32"),
        ({"b": FEED["b"][None]}, r"'b' has rank 2 \(shape \(1, 3\)\); expected float32\[3\]"),
        ({"b": FEED["b"][:2]}, "'b' has size 2 on axis 0; expected 3 of float32\\[3\\]"),
        ({"x": FEED["x"][:, :2]}, "'x' has size 2 on axis 1; expected 3 of float32\\[n, 3\\]"),
    ],
)
def test_wrong_inputs_are_told(device: str, change: Mapping[str, Any], message: str) -> None:
    with affine(device) as session:
        with pytest.raises(InputError, match=message):
            session.run(None, {**FEED, **change})
        np.testing.assert_array_equal(session.run(["z"], FEED)[0], -SUM)


def test_missing_inputs_are_told() -> None:
    with affine() as session, pytest.raises(InputError, match="'b' is missing; expected float32"):
        session.run(None, {"x": FEED["x"]})


def test_sizes_of_one_name_must_agree() -> None:
    model = parse("g (float[n,2] a, float[n,2] b) => (float[n,2] y) { y = Add(a, b) }")
    with InferenceSession(model, device="cpu") as session:
        with pytest.raises(InputError, match="'b' has size 3 on axis 0; expected 2"):
            session.run(None, {"a": np.ones((2, 2), "f"), "b": np.ones((3, 2), "f")})


@pytest.mark.parametrize(
    ("names", "message"),
    [(["w"], r"no outputs \['w'\]; it has \['y', 'z'\]"), ("y", "not the string 'y'")],
)
def test_unknown_outputs_are_told(names: Any, message: str) -> None:
    with affine() as session:
        with pytest.raises(InputError, match=message):
            session.run(names, FEED)
        if not isinstance(names, str):
            with pytest.raises(InputError, match=message):
                session.run(None, FEED, outputs_on_device=names)


def test_a_closed_session_says_so() -> None:
    with affine() as session:
        session.run(None, FEED)
    for use in (lambda: session.run(None, FEED), session.explain, session.plan):
        with pytest.raises(EngineError, match="the session is closed"):
            use()
    session.close()


def test_bytes_paths_and_protos_are_models(tmp_path: Path) -> None:
    model = parse(AFFINE)
    path = tmp_path / "affine.onnx"
    onnx.save(model, path)
    for source in (model, model.SerializeToString(), path, str(path)):
        with InferenceSession(source, device="cpu") as session:
            np.testing.assert_array_equal(session.run(["z"], FEED)[0], -SUM)
    with pytest.raises(ModelError):
        InferenceSession(b"no model", device="cpu")
    with pytest.raises((ModelError, OSError), match="absent"):
        InferenceSession(tmp_path / "absent.onnx", device="cpu")


def test_an_operator_that_nobody_knows_is_refused_by_name() -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Quux", ["x"], ["y"], name="odd", domain="strange.domain")],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [2])],
        [onnx.helper.make_tensor_value_info("y", 1, [2])],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("strange.domain", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with pytest.raises(UnsupportedOpError, match=r"'odd'.*strange\.domain.*Quux-1"):
        InferenceSession(model, device="cpu")


def test_what_the_model_declares() -> None:
    model = parse(SCALED)
    model.producer_name, model.model_version, model.doc_string = "tester", 7, "scales rows"
    model.metadata_props.add(key="author", value="someone")
    with InferenceSession(model, device="cpu") as session:
        (x,) = session.get_inputs()
        assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["n", 4])
        (y,) = session.get_outputs()
        assert (y.name, y.type, y.shape) == ("y", "tensor(float)", ["n", 4])
        meta = session.get_modelmeta()
        assert (meta.producer_name, meta.version, meta.graph_name) == ("tester", 7, "scaled")
        assert meta.description == "scales rows"
        assert meta.custom_metadata_map == {"author": "someone"}
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert session.device_name == "CPU (NumPy)"


@pytest.mark.parametrize("device", DEVICES)
def test_an_initializer_that_is_an_input_can_be_overridden(device: str) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    default, other = np.array([1, 2, 3, 4], "f"), np.array([-1, 0, 5, 2], "f")
    model = parse(SCALED)
    if "scale" not in [i.name for i in model.graph.input]:
        model.graph.input.append(onnx.helper.make_tensor_value_info("scale", 1, [4]))
    with InferenceSession(model, device=device) as session:
        assert [a.name for a in session.get_inputs()] == ["x"]
        assert [a.name for a in session.get_overridable_initializers()] == ["scale"]
        for scale in (default, other, default):
            feed = {"x": x} if scale is default else {"x": x, "scale": scale}
            np.testing.assert_array_equal(session.run(None, feed)[0], x * scale)
        assert session.plans_made == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_byte_order_that_is_not_the_machines_is_understood(device: str) -> None:
    with affine(device) as session:
        swapped = {k: v.astype(v.dtype.newbyteorder(">")) for k, v in FEED.items()}
        np.testing.assert_array_equal(session.run(["z"], swapped)[0], -SUM)


@pytest.mark.parametrize("device", DEVICES)
def test_inputs_need_not_be_contiguous_and_are_never_written(device: str) -> None:
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    x = wide[::2, ::-2]
    before = wide.copy()
    with affine(device) as session:
        (z,) = session.run(["z"], {**FEED, "x": x})
        np.testing.assert_array_equal(z, -(x + FEED["b"]))
    np.testing.assert_array_equal(wide, before)


def test_options_of_onnx_runtime_are_accepted() -> None:
    with affine(
        sess_options=object(), providers=["CPUExecutionProvider"], provider_options=[{}]
    ) as session:
        np.testing.assert_array_equal(session.run(["z"], FEED, None)[0], -SUM)
        assert session.get_providers() == ["CPUExecutionProvider"]


@pytest.mark.gpu
def test_providers_choose_the_device(caplog: pytest.LogCaptureFixture) -> None:
    cpu = [("CPUExecutionProvider", {"arena": 1})]
    with InferenceSession(parse(AFFINE), providers=cpu, device="gpu") as session:
        assert session.get_providers() == ["CPUExecutionProvider"]
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    with InferenceSession(parse(AFFINE), providers=both, device="gpu") as session:
        assert session.get_providers()[0] == "WgpuExecutionProvider"
    assert "CUDAExecutionProvider" in caplog.text


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("Reluu(x)", "Reluu-17; is Relu meant"),
        ("Frobnicate(x)", "`onnx-wgpu ops` lists"),
        ("com.acme.MyOp(x)", "if the model brings them as functions"),
    ],
)
def test_an_unknown_operator_says_what_can_be_done(node: str, words: str) -> None:
    head = '<ir_version: 8, opset_import: ["": 17, "com.acme": 1]>'
    model = onnx.parser.parse_model(f"{head} g (float[2] x) => (float[2] y) {{ y = {node} }}")
    with pytest.raises(UnsupportedOpError, match=words):
        engine.InferenceSession(model, device="cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("node", ["Conv(x, w)", "Transpose(x)", "Identity(x)"])
def test_outputs_lie_in_order_in_memory(node: str, device: str) -> None:
    head = '<ir_version: 8, opset_import: ["": 17]>'
    text = f"g (float[1, 8, 9, 9] x, float[8, 8, 1, 1] w) => (float[a, b, c, d] y) {{ y = {node} }}"
    x = np.arange(648, dtype=np.float32).reshape(9, 9, 8, 1).T.reshape(1, 8, 9, 9)
    feeds = {"x": np.asfortranarray(x), "w": np.ones((8, 8, 1, 1), np.float32)}
    with InferenceSession(onnx.parser.parse_model(head + text), device=device) as session:
        (y,) = session.run(None, feeds)
    assert y.flags.c_contiguous


def test_a_string_is_the_name_of_one_rule() -> None:
    with pytest.raises(EngineError, match=r"named \['fusion'\]"):
        affine(disable="fusion")


def test_unknown_devices_and_rules_are_refused() -> None:
    with pytest.raises(EngineError, match=r"'gpu'.*not 'tpu'"):
        affine("tpu")
    with pytest.raises(EngineError, match=r"\['fuse_everything'\]; there are .*'epilogue'"):
        affine(disable=["fuse_everything"])
    with pytest.raises(EngineError, match="can't be left out"):
        with affine(disable=["infer"]) as session:
            session.run(None, FEED)


@pytest.mark.gpu
def test_a_disabled_fusion_rule_does_not_fire() -> None:
    with affine("gpu") as session, affine("gpu", disable=["elementwise-chain"]) as plain:
        want, got = session.run(None, FEED), plain.run(None, FEED)
        assert (len(session.plan().dispatches), len(plain.plan().dispatches)) == (1, 3)
        fusions = [s.explain().changes["fusion"].applied for s in (session, plain)]
        assert fusions[0] and not fusions[1]
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_disabled_pass_does_not_fire() -> None:
    model = parse("g (float[4] x) => (float[4] y) { a = Identity(x) b = Identity(a) y = Abs(b) }")
    with InferenceSession(model, device="cpu") as session:
        assert [n.op_type for n in session.explain().nodes] == ["Abs"]
    with InferenceSession(model, device="cpu", disable=["eliminate"]) as session:
        report = session.explain()
        assert [n.op_type for n in report.nodes] == ["Identity", "Identity", "Abs"]
        assert "eliminate" not in report.changes


@pytest.mark.parametrize("device", DEVICES)
def test_explain_before_and_after_a_call(device: str) -> None:
    with affine(device) as session:
        before = session.explain()
        assert before.binding == {"n": 1}
        session.run(None, FEED)
        assert {n.device for n in before.nodes} == {device}
        given = session.explain({**FEED, "x": np.ones((5, 3), np.float32)})
        assert [n.op_type for n in given.nodes] == ["Add", "Tanh", "Neg"]
        assert session.plans_made == 1


@pytest.mark.gpu
def test_explain_speaks_of_the_last_call() -> None:
    model = parse("g (float[n] x) => (float[n] y, float[k] z) { y = Abs(x) z = Shrink(x) }")
    with InferenceSession(model, device="gpu") as session:
        session.run(None, {"x": np.ones(4, np.float32)})
        first = session.plan()
        session.run(None, {"x": np.ones(9, np.float32)})
        assert session.plan() is first


@pytest.mark.gpu
def test_require_gpu_lists_nodes_and_reasons() -> None:
    text = "g (float[4] x) => (float[k] y) { a = Abs(x) y = Unique(a) }"
    with pytest.raises(UnsupportedOpError) as caught:
        InferenceSession(parse(text), device="gpu", require_gpu=True)
    assert "1 of 2 nodes" in str(caught.value)
    assert "Unique" in str(caught.value) and "no GPU kernel" in str(caught.value)
    open_size = parse(text.replace("[4]", "[n]"))
    with InferenceSession(open_size, device="gpu", require_gpu=True) as session:
        with pytest.raises(UnsupportedOpError, match="no GPU kernel for Unique"):
            session.run(None, {"x": np.ones(4, np.float32)})
    with affine("gpu", require_gpu=True) as session:
        np.testing.assert_array_equal(session.run(["z"], FEED)[0], -SUM)


def test_require_gpu_contradicts_the_cpu() -> None:
    with pytest.raises(EngineError, match="require_gpu is set, and so is"):
        affine("cpu", require_gpu=True)


def test_without_an_adapter_that_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "adapters", lambda: [])
    with affine("auto") as session:
        found = session.explain(FEED)
    assert found.mode == "auto" and found.decision == "the CPU: no GPU adapter was found"
    assert {n.reason for n in found.nodes} == {"no GPU adapter was found"}


@pytest.mark.gpu
def test_adapters_by_index_name_and_wrong_name() -> None:
    first = engine.runtime.device.adapters()[0]
    part = first.name.split()[0].upper()
    for adapter in (0, part):
        with affine("gpu", adapter=adapter) as session:
            assert first.name in session.device_name
    with pytest.raises(DeviceError, match=f"'absent'; the adapters are 0: {first.name[:5]}"):
        affine("gpu", adapter="absent")
    with pytest.raises(DeviceError, match="no adapter matches 99"):
        affine("gpu", adapter=99)


def test_auto_without_an_adapter_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "adapters", lambda: ())
    monkeypatch.setattr(engine.runtime.device, "adapters", lambda: ())
    with affine("auto") as session:
        np.testing.assert_array_equal(session.run(["z"], FEED)[0], -SUM)
        assert session.device_name == "CPU (NumPy)"
        with pytest.raises(DeviceError, match=r"'y'.* cannot stay on a device.*there is no GPU"):
            session.run(None, FEED, outputs_on_device=["y"])
    with affine("cpu") as session:
        with pytest.raises(DeviceError, match=r"cannot stay on a device.*as device='cpu' asks"):
            session.run(None, FEED, outputs_on_device=["y"])
        assert session.run(["z"], FEED, outputs_on_device=["y"])[0].shape == SUM.shape
    for options in ({"device": "gpu"}, {"device": "auto", "adapter": "radeon"}):
        with pytest.raises(DeviceError, match="mesa-vulkan-drivers"):
            affine(**options)


@pytest.mark.gpu
def test_auto_gives_the_same_numbers() -> None:
    with affine("auto") as session:
        y, z = session.run(None, FEED)
    np.testing.assert_allclose(y, np.tanh(SUM), rtol=1e-5)
    np.testing.assert_array_equal(z, -SUM)


@pytest.mark.parametrize("device", DEVICES)
def test_a_failing_node_is_named_with_its_shapes(device: str) -> None:
    model = parse("g (float[n] x, int64[k] s) => (float[p,q] y) { a = Abs(x) y = Reshape(a, s) }")
    feed: dict[str, Array] = {"x": np.ones(6, np.float32), "s": np.array([4, 2])}
    with InferenceSession(model, device=device) as session:
        with pytest.raises(EngineError, match=r"Reshape 'y' .*float32\[6\], int64\[2\]"):
            session.run(None, feed)
        feed["s"] = np.array([3, 2])
        assert session.run(None, feed)[0].shape == (3, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_sequences_optionals_and_strings(device: str) -> None:
    joined = parse(
        "g (seq(float[k]) xs) => (float[n] y) { y = ConcatFromSequence <axis = 0> (xs) }"
    )
    with InferenceSession(joined, device=device) as session:
        (arg,) = session.get_inputs()
        assert (arg.type, arg.shape) == ("seq(tensor(float))", None)
        parts = [np.array([1, 2], np.float32), np.array([3], np.float32)]
        np.testing.assert_array_equal(session.run(None, {"xs": parts})[0], [1, 2, 3])
        with pytest.raises(InputError, match="'xs' is a ndarray; expected a list"):
            session.run(None, {"xs": parts[0]})
        with pytest.raises(InputError, match="'xs' has dtype float64"):
            session.run(None, {"xs": [np.ones(2)]})
    text = parse("g (string[n] a, string[n] b) => (string[n] y) { y = StringConcat(a, b) }")
    with InferenceSession(text, device=device) as session:
        a, b = np.array(["on", "ä"], object), np.array(["nx", "ß"], object)
        assert session.run(None, {"a": a, "b": b})[0].tolist() == ["onnx", "äß"]


@pytest.mark.parametrize(
    "words",
    [
        np.array(["é", "", "b c", "é"]),
        np.array(["é", "", "b c", "é"], ">U5"),
        np.array(["é", "", "b c", "é"], object),
        np.array([w.encode() for w in ("é", "", "b c", "é")]),
        np.array(["é".encode(), "", b"b c", "é"], object),
        np.array(["é", "", "b c", "é"], np.dtypes.StringDType()),
    ],
    ids=lambda words: str(words.dtype),
)
def test_strings_come_in_arrays_of_any_kind(words: Array) -> None:
    text = """g (string[n] a, string[n] b) => (string[n] y, string[k] z, int64[n] count) {
      y = StringConcat(a, b)
      big = StringNormalizer <case_change_action = "UPPER"> (a)
      z = Unique <axis = 0> (big)
      parts, count = StringSplit(a)
    }"""
    with InferenceSession(parse(text), device="cpu") as session:
        y, z, count = session.run(None, {"a": words, "b": words[::-1]})
        assert y.tolist() == ["éé", "b c", "b c", "éé"]
        assert z.tolist() == ["", "B C", "É"]
        assert count.tolist() == [1, 0, 2, 1]
        with pytest.raises(InputError, match="'a' holds bytes that are no UTF-8"):
            session.run(None, {"a": np.array([b"\xff"]), "b": words[:1]})
    with pytest.raises(InputError, match="'x' has dtype string"):
        affine().run(None, {**FEED, "x": words})


@pytest.mark.parametrize("made", ["t = Identity(s)", "t = Gather(s, i)", "t = Cast <to = 8> (i)"])
def test_strings_have_any_length(made: str) -> None:
    """NumPy's own strings are cut off where longer ones are written to them."""
    text = f"""g (string[1] s, int64 i, string[1] u) => (string[1] y, string[1] z) {{
      zero = Constant <value_ints = [0]> ()
      minus = Constant <value_ints = [-1]> ()
      {made}
      one = Reshape(t, minus)
      y = ScatterElements(one, zero, u)
      z = Scan(s) <num_scan_inputs: int = 1, body: graph = b (string a) => (string c) {{
        c = StringConcat(a, a)
      }}>
    }}"""
    feed = {"s": np.array(["a"]), "i": np.array(0), "u": np.array(["much longer " * 3])}
    with InferenceSession(parse(text), device="cpu") as session:
        y, z = session.run(None, feed)
    assert (y.tolist(), z.tolist()) == (["much longer " * 3], ["aa"])
    assert y.dtype == z.dtype == object


def test_a_plan_before_any_call_says_that_sizes_were_made_up() -> None:
    text = """windows (float[1,1,n] x) => (float[1,1,m] y) {
      y = MaxPool <kernel_shape = [3]> (x)
    }"""
    session = InferenceSession(parse(text), device="cpu")
    with pytest.raises(ShapeError, match=r"^MaxPool .*a window of 3 .*; nothing ran yet.*sizes"):
        session.explain()
    assert session.explain({"x": np.ones((1, 1, 5), np.float32)}).nodes[0].device == "cpu"


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_left_as_it_was(enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ModelError):
            InferenceSession(b"no model", device="cpu")
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
