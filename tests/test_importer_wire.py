"""Models are read without their large weights, and what is left parses as the whole would."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto, TensorProto, helper

from engine.errors import ModelError
from engine.importer import load_model
from engine.importer.wire import WireError, without_weights
from tests.test_importer import model, value

LARGE = np.arange(3000, dtype=np.float32)


def varint(number: int) -> bytes:
    head = b""
    while number >= 0x80:
        head += bytes([number & 0x7F | 0x80])
        number >>= 7
    return head + bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def add(weights: dict[str, np.ndarray]) -> ModelProto:
    """A model that adds up its input and weights, which all have one shape."""
    nodes = [helper.make_node("Sum", ["x", *weights], ["y"])]
    return model(nodes, [value("x", None)], ["y"], weights)


def whole(data: bytes) -> ModelProto:
    """The parsed rest of a model, with what was taken out put back."""
    light, raw = without_weights(io.BytesIO(data))
    found = ModelProto.FromString(light)
    for number, array in raw.items():
        found.graph.initializer[number].raw_data = array.tobytes()
    return found


def test_large_weights_are_taken_out_and_small_ones_left() -> None:
    proto = add({"a": LARGE, "b": np.ones(1, np.float32), "c": LARGE + 1})
    light, raw = without_weights(io.BytesIO(proto.SerializeToString()))
    assert len(light) < 500
    assert sorted(raw) == [0, 2]
    assert np.array_equal(raw[2].view(np.float32), LARGE + 1)
    assert not raw[2].flags.writeable
    left = ModelProto.FromString(light).graph.initializer
    assert [t.HasField("raw_data") for t in left] == [False, True, False]
    assert whole(proto.SerializeToString()) == proto


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, np.int64, np.uint8, np.bool_]
)
def test_graphs_are_those_of_the_parsed_model(tmp_path: Path, dtype: type) -> None:
    weights = {n: np.random.default_rng(i).integers(0, 2, 9000) for i, n in enumerate("abc")}
    proto = add({n: w.astype(dtype) for n, w in weights.items()})
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    for source in (proto, proto.SerializeToString(), tmp_path / "m.onnx"):
        graph = load_model(source).graph
        for name, want in weights.items():
            found = graph.constant(name)
            assert found is not None
            assert found.dtype == dtype
            assert found.flags.aligned
            assert not found.flags.writeable
            assert np.array_equal(found, want.astype(dtype))


def test_packed_elements_are_unpacked(tmp_path: Path) -> None:
    nibbles = np.random.default_rng(0).integers(0, 16, 20000)
    tensor = TensorProto(name="w", data_type=TensorProto.UINT4, dims=[20000])
    tensor.raw_data = (nibbles[::2] | nibbles[1::2] << 4).astype(np.uint8).tobytes()
    proto = model([helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)], [], ["y"])
    proto.graph.initializer.append(tensor)
    found = load_model(proto.SerializeToString()).graph.constant("w")
    assert found is not None
    assert np.array_equal(found.astype(int), nibbles)


def test_weights_that_do_not_fit_their_dims_are_refused() -> None:
    proto = add({"a": LARGE})
    proto.graph.initializer[0].dims[0] = 3001
    with pytest.raises(ModelError, match=r"'a' float32.* needs 12004 bytes of data and has 12000"):
        load_model(proto.SerializeToString())


def test_a_message_may_come_in_parts_in_any_order_and_with_unknown_fields() -> None:
    proto = add({"a": LARGE, "b": LARGE + 1})
    first, second = (t.SerializeToString() for t in proto.graph.initializer)
    del proto.graph.initializer[:]
    rest = proto.graph.SerializeToString()
    proto.ClearField("graph")
    unknown = varint(900 << 3) + varint(1 << 63) + varint(901 << 3 | 1) + bytes(8)
    unknown += varint(902 << 3 | 5) + bytes(4) + field(903, b"\x09" * 5000)
    twice = field(9, bytes(6000)) + second + field(8, b"b")
    parts = [field(7, unknown + field(5, first + unknown)), proto.SerializeToString(), unknown]
    parts += [field(7, field(5, twice) + rest), field(7, b"")]
    graph = load_model(b"".join(parts)).graph
    for name, want in (("a", LARGE), ("b", LARGE + 1)):
        assert np.array_equal(graph.constant(name), want)


def test_the_last_of_several_raw_data_counts() -> None:
    head = TensorProto(name="a", data_type=TensorProto.FLOAT, dims=[2]).SerializeToString()
    proto = add({})
    proto.graph.node[0].input.append("a")
    small = np.float32([1, 2]).tobytes()
    tensor = head + field(9, bytes(8000)) + field(9, small)
    data = proto.SerializeToString() + field(7, field(5, tensor))
    assert load_model(data).graph.constant("a").tolist() == [1, 2]


@pytest.mark.parametrize("size", [20, 200, 5000, -1, -20, -200])
def test_what_ends_early_is_damaged(tmp_path: Path, size: int) -> None:
    data = add({"a": LARGE}).SerializeToString()[:size]
    with pytest.raises(WireError):
        without_weights(io.BytesIO(data))
    (tmp_path / "m.onnx").write_bytes(data)
    for source in (data, tmp_path / "m.onnx"):
        with pytest.raises(ModelError, match=f"damaged or truncated .{len(data)} bytes"):
            load_model(source)


def test_damaged_messages_are_what_protobuf_makes_of_them() -> None:
    data = add({"a": LARGE[:1100]}).SerializeToString()
    rng = random.Random(0)
    alike = 0
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            place = rng.choice((rng.randrange(90), rng.randrange(len(data))))
            changed[place] = rng.randrange(256)
        try:
            want = ModelProto.FromString(bytes(changed))
        except DecodeError:
            with pytest.raises((WireError, DecodeError)):
                whole(bytes(changed))
            continue
        try:
            assert whole(bytes(changed)) == want
            alike += 1
        except WireError:
            pass  # it has groups, of which ONNX has none: then protobuf parses all of it
    assert alike > 100
