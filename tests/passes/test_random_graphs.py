"""Random graphs compute the same before and after the passes, bit for bit where nothing rounds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from engine.importer import load_model
from engine.passes import run_passes
from engine.passes.chains import chains
from engine.passes.cse import cse
from engine.passes.eliminate import eliminate
from engine.passes.infer import infer
from tests.passes.graphs import Array, run

VALUES = st.sampled_from([0.0, -0.0, 1.0, 1.0, 2.0, 0.5, 3.0, 6.0, -1.0])
BINARY = ("Add", "Sub", "Mul", "Div")
UNARY = ("Neg", "Identity", "Sigmoid", "Dropout", "Abs", "Relu", "Clip", "Sum", "Erf")
VIEWS = ("Transpose", "Flatten", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Slice", "Concat")


@dataclass
class Builder:
    """A model that grows: every value with its shape."""

    data: st.DataObject
    nodes: list[NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def add(self, op_type: str, inputs: list[str], shape: tuple[int, ...], **attrs: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attrs))
        self.shapes[name] = shape
        return name

    def any_value(self) -> str:
        return self.data.draw(st.sampled_from(sorted(self.shapes)))

    def model(self, outputs: list[str], inputs: dict[str, tuple[int, ...]]) -> ModelProto:
        kind = TensorProto.FLOAT
        graph = helper.make_graph(
            self.nodes,
            "random",
            [helper.make_tensor_value_info(n, kind, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, kind, self.shapes[n]) for n in outputs],
            [numpy_helper.from_array(a, n) for n, a in self.constants.items()],
        )
        opset = helper.make_opsetid("", 28)
        return helper.make_model(graph, opset_imports=[opset], ir_version=13)


def grow_arithmetic(builder: Builder) -> None:
    draw = builder.data.draw
    source = builder.any_value()
    shape = builder.shapes[source]
    op_type = draw(st.sampled_from(BINARY))
    if draw(st.booleans()):
        other = draw(st.sampled_from([n for n, s in builder.shapes.items() if s == shape]))
    else:
        cut = draw(st.integers(0, len(shape)))
        sizes = tuple(d if draw(st.booleans()) else 1 for d in shape[cut:])
        if draw(st.booleans()):
            sizes = (1,) * draw(st.integers(0, len(shape) + 1))
        array = np.full(sizes, draw(VALUES), np.float32)
        if array.size > 1 and draw(st.booleans()):
            array.reshape(-1)[0] = draw(VALUES)
        other = builder.constant(array)
    pair = [source, other] if draw(st.booleans()) else [other, source]
    sizes = builder.constants[other].shape if other in builder.constants else shape
    builder.add(op_type, pair, np.broadcast_shapes(shape, sizes))


def grow_unary(builder: Builder) -> None:
    source = builder.any_value()
    op_type = builder.data.draw(st.sampled_from(UNARY))
    builder.add(op_type, [source], builder.shapes[source])


def grow_view(builder: Builder) -> None:
    draw = builder.data.draw
    source = builder.any_value()
    shape = builder.shapes[source]

    def ints(*content: int) -> str:
        return builder.constant(np.array(content, np.int64))

    match draw(st.sampled_from(VIEWS)):
        case "Transpose" if shape:
            perm = draw(st.permutations(range(len(shape))))
            builder.add("Transpose", [source], tuple(shape[a] for a in perm), perm=perm)
        case "Flatten":
            axis = draw(st.integers(0, len(shape)))
            new = (int(np.prod(shape[:axis])), int(np.prod(shape[axis:])))
            builder.add("Flatten", [source], new, axis=axis)
        case "Unsqueeze":
            axis = draw(st.integers(0, len(shape)))
            builder.add("Unsqueeze", [source, ints(axis)], (*shape[:axis], 1, *shape[axis:]))
        case "Squeeze" if 1 in shape:
            axis = shape.index(1)
            builder.add("Squeeze", [source, ints(axis)], shape[:axis] + shape[axis + 1 :])
        case "Reshape":
            new = tuple(draw(st.permutations(shape)))
            copied = [
                0 if n == o and draw(st.booleans()) else n for n, o in zip(new, shape, strict=True)
            ]
            builder.add("Reshape", [source, ints(*copied)], new)
        case "Expand":
            builder.add("Expand", [source, ints(*shape)], shape)
        case "Slice" if shape:
            bounds = [ints(0), ints(draw(st.integers(1, 9))), ints(0)]
            size = min(shape[0], int(builder.constants[bounds[1]][0]))
            builder.add("Slice", [source, *bounds], (size, *shape[1:]))
        case "Concat" if shape:
            builder.add("Concat", [source], shape, axis=0)


def draw_model(data: st.DataObject) -> tuple[ModelProto, dict[str, Array]]:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3)))
    builder = Builder(data, shapes={"x": shape, "z": shape})
    for _ in range(data.draw(st.integers(3, 14))):
        data.draw(st.sampled_from([grow_arithmetic, grow_unary, grow_view]))(builder)
    if not builder.nodes:
        builder.add("Neg", ["x"], shape)
    names = [n.output[0] for n in builder.nodes]
    outputs = list(dict.fromkeys([names[-1], *data.draw(st.lists(st.sampled_from(names)))]))
    content = [0.0, -0.0, 1.0, -1.0, 2.5, -0.3, np.inf, -np.inf, np.nan]
    chance = np.random.default_rng(data.draw(st.integers(0, 99)))
    feed = {n: chance.choice(np.array(content, np.float32), shape) for n in ("x", "z")}
    return builder.model(outputs, {"x": shape, "z": shape}), feed


@given(st.data())
def test_same_bits(data: st.DataObject) -> None:
    """Zeros keep their signs, infinities and NaN their places."""
    model, feed = draw_model(data)
    graph = start = infer(load_model(model).graph).graph
    for change in (eliminate, cse, chains, eliminate, chains):
        graph = infer(change(graph).graph).graph
        graph.check()
    assert graph.outputs == start.outputs
    for want, got in zip(run(start, feed), run(graph, feed), strict=True):
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


@given(st.data())
def test_whole_pipeline(data: st.DataObject) -> None:
    model, feed = draw_model(data)
    feed = {k: np.nan_to_num(v, posinf=3, neginf=-3) for k, v in feed.items()}
    start = infer(load_model(model).graph).graph
    graph = run_passes(load_model(model).graph).graph
    for want, got in zip(run(start, feed), run(graph, feed), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@given(st.data())
def test_convolution_with_surroundings(data: st.DataObject) -> None:
    """Pads, scales, shifts and normalisations around a convolution or its transpose."""
    draw = data.draw
    group, rows, columns = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    chance = np.random.default_rng(draw(st.integers(0, 99)))

    def noise(*shape: int) -> Array:
        return chance.standard_normal(shape).astype(np.float32)

    builder = Builder(data)
    channels = group * columns
    shape = (2, group * rows, 6)
    name = "x"
    if draw(st.booleans()):
        pads = [0, 0, draw(st.integers(0, 2)), 0, 0, draw(st.integers(0, 2))]
        name = builder.add("Pad", [name, builder.constant(np.array(pads, np.int64))], ())
    bias = [builder.constant(noise(channels))] if draw(st.booleans()) else []
    pads = draw(st.lists(st.integers(0, 1), min_size=2, max_size=2))
    if draw(st.booleans()):
        weights = builder.constant(noise(channels, rows, 3))
        name = builder.add("Conv", [name, weights, *bias], (), group=group, pads=pads)
    else:
        weights = builder.constant(noise(group * rows, columns, 3))
        name = builder.add("ConvTranspose", [name, weights, *bias], (), group=group, pads=pads)
    for _ in range(draw(st.integers(1, 4))):
        op_type = draw(st.sampled_from([*BINARY, "BatchNormalization"]))
        if op_type == "BatchNormalization":
            operands = [noise(channels), noise(channels), noise(channels), noise(channels) ** 2]
            inputs = [name, *map(builder.constant, operands)]
        else:
            sizes = draw(st.sampled_from([(), (1,), (channels, 1), (1, channels, 1), (2, 1, 1)]))
            pair = [name, builder.constant(noise(*sizes) + np.float32(0.1))]
            inputs = pair if op_type == "Div" or draw(st.booleans()) else pair[::-1]
        name = builder.add(op_type, inputs, ())
    builder.shapes[name] = (None, None, None)  # type: ignore[assignment]
    model = builder.model([name], {"x": shape})
    feed = {"x": noise(*shape)}
    start = infer(load_model(model).graph).graph
    graph = run_passes(load_model(model).graph).graph
    (want,), (got,) = run(start, feed), run(graph, feed)
    scale = float(np.abs(want).max())
    np.testing.assert_allclose(got / scale, want / scale, rtol=0, atol=1e-4)
