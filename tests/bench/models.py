"""The benchmark models: single kernels, and nets in the shapes of well-known ones.

    python -m tests.bench.models FOLDER [NAME ...]

Weights are drawn from a fixed seed, of a scale that keeps activations near 1. The nets named
`light_` have the graphs that the onnx package ships for its own tests, but drawn weights. Those two
that end in a softmax which saturates give what it reads as an output too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

OPSET, IR_VERSION = 17, 8
SQUARE = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
VIEWS = frozenset({"Unsqueeze", "Reshape", "Identity"})


class Net:
    """A graph being written; methods append nodes and return the names of their outputs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.chance = np.random.default_rng(0)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Appends a node of one output."""
        made = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [made], made, **attributes))
        return made

    def constant(self, array: Any) -> str:
        """Appends an initializer; floats become float32."""
        value = np.asarray(array)
        value = value.astype(np.float32) if value.dtype.kind == "f" else value
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def normal(self, *shape: int, fan: int = 0, scale: float = 1.0) -> str:
        """Normal weights; with `fan`, of the scale that keeps activations behind a ReLU."""
        scale = (2.0 / fan) ** 0.5 if fan else scale
        return self.constant(self.chance.standard_normal(shape) * scale)

    def model(self, shape: Sequence[int], output: str, result: Sequence[int]) -> ModelProto:
        """The model of input "x" and one output. Raises: onnx's errors if it is not valid."""
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, result)]
        graph = helper.make_graph(self.nodes, self.name, inputs, outputs, self.weights)
        return finished(graph)


def finished(graph: onnx.GraphProto, opset: int = OPSET) -> ModelProto:
    """A checked model of a graph, with the shapes of its values."""
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model)
    return model


def matmul(size: int = 1024) -> ModelProto:
    """One product of square matrices."""
    net = Net(f"matmul{size}")
    y = net.add("MatMul", "x", net.normal(size, size, scale=size**-0.5))
    return net.model([size, size], y, [size, size])


def conv3x3(channels: int = 64, size: int = 56) -> ModelProto:
    """One convolution of the kind that most time of a ResNet goes to."""
    net = Net("conv3x3")
    weight = net.normal(channels, channels, 3, 3, fan=channels * 9)
    y = net.add("Conv", "x", weight, net.constant(np.zeros(channels)), **SQUARE)
    return net.model([1, channels, size, size], y, [1, channels, size, size])


def mobilenet(classes: int = 1000) -> ModelProto:
    """MobileNetV2 at 224 pixels, batch normalisation folded. Source: arXiv:1801.04381, table 2."""
    net = Net("mobilenet")
    bounds = net.constant(np.float32(0)), net.constant(np.float32(6))

    def conv(x: str, read: int, made: int, size: int, stride: int, groups: int, clip: bool) -> str:
        fan = read // groups * size * size
        y = net.add(
            "Conv",
            x,
            net.normal(made, read // groups, size, size, fan=fan),
            net.normal(made, scale=0.01),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
            group=groups,
        )
        return net.add("Clip", y, *bounds) if clip else y

    x, width = conv("x", 3, 32, 3, 2, 1, True), 32
    blocks = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)]
    for widen, made, repeats, first in [*blocks, (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]:
        for stride in (first, *[1] * (repeats - 1)):
            inner = width * widen
            y = conv(x, width, inner, 1, 1, 1, True) if widen > 1 else x
            y = conv(y, inner, inner, 3, stride, inner, True)
            y = conv(y, inner, made, 1, 1, 1, False)
            x = net.add("Add", x, y) if stride == 1 and width == made else y
            width = made
    x = net.add("GlobalAveragePool", conv(x, width, 1280, 1, 1, 1, True))
    weight, bias = net.normal(classes, 1280, fan=1280), net.constant(np.zeros(classes))
    y = net.add("Gemm", net.add("Flatten", x, axis=1), weight, bias, transB=1)
    return net.model([1, 3, 224, 224], y, [1, classes])


def transformer(
    layers: int = 4, width: int = 256, length: int = 128, heads: int = 8, inner: int = 1024
) -> ModelProto:
    """An encoder that normalises first, as exporters write it. Source: arXiv:2002.04745, fig. 1."""
    net = Net("transformer")
    apart = net.constant(np.array([1, length, heads, width // heads]))
    together = net.constant(np.array([1, length, width]))
    scale = net.constant(np.float32((width // heads) ** -0.5))
    root, one, half = (net.constant(np.float32(v)) for v in (2**0.5, 1, 0.5))

    def dense(x: str, read: int, made: int) -> str:
        y = net.add("MatMul", x, net.normal(read, made, scale=read**-0.5))
        return net.add("Add", y, net.normal(made, scale=0.01))

    def norm(x: str) -> str:
        gain, bias = net.constant(np.ones(width)), net.constant(np.zeros(width))
        return net.add("LayerNormalization", x, gain, bias, axis=-1, epsilon=1e-5)

    x = "x"
    for _ in range(layers):
        read = norm(x)
        query, key, value = (
            net.add("Transpose", net.add("Reshape", dense(read, width, width), apart), perm=perm)
            for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
        )
        scores = net.add("Mul", net.add("MatMul", query, key), scale)
        mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), value)
        mixed = net.add("Reshape", net.add("Transpose", mixed, perm=[0, 2, 1, 3]), together)
        x = net.add("Add", x, dense(mixed, width, width))
        read = dense(norm(x), width, inner)
        bend = net.add("Add", net.add("Erf", net.add("Div", read, root)), one)
        bend = net.add("Mul", net.add("Mul", read, bend), half)
        x = net.add("Add", x, dense(bend, inner, width))
    return net.model([1, length, width], norm(x), [1, length, width])


def light(name: str, before_softmax: bool = False) -> ModelProto:
    """A net of the onnx package, its constant weights drawn, and what is constant folded."""
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    model = version_converter.convert_version(onnx.load(folder / f"light_{name}.onnx"), OPSET)
    graph = model.graph
    chance = np.random.default_rng(1)
    known = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    renamed: dict[str, str] = {}
    kept: list[NodeProto] = []
    for node in graph.node:
        node.input[:] = [renamed.get(n, n) for n in node.input]
        if node.op_type == "ConstantOfShape" and node.input[0] in known:
            shape = [int(d) for d in known[node.input[0]]]
            known[node.output[0]] = drawn(chance, shape, *reader(graph, node.output[0]))
        elif all(n in known for n in node.input):
            results = onnx.reference.ReferenceEvaluator(node).run(
                None, {n: known[n] for n in node.input}
            )
            known.update(zip(node.output, results, strict=True))
        elif node.op_type in ("Dropout", "Identity"):
            renamed[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    read = {n for node in kept for n in node.input}
    weights = [numpy_helper.from_array(v, n) for n, v in known.items() if n in read]
    outputs = list(graph.output)
    if before_softmax:
        last = kept[-1]
        if last.op_type != "Softmax":
            raise ValueError(f"light_{name} ends in {last.op_type}")
        outputs.append(helper.make_tensor_value_info(last.input[0], TensorProto.FLOAT, None))
    inputs = [i for i in graph.input if i.name in read and i.name not in known]
    return finished(helper.make_graph(kept, f"light_{name}", inputs, outputs, weights))


def reader(graph: onnx.GraphProto, name: str) -> tuple[str, int]:
    """The operator that reads a value, through views, and as which of its inputs."""
    for node in graph.node:
        if name in node.input:
            if node.op_type in VIEWS:
                return reader(graph, node.output[0])
            return node.op_type, list(node.input).index(name)
    return "", 0


def drawn(chance: np.random.Generator, shape: Sequence[int], op_type: str, place: int) -> Any:
    """Weights of the scale that fits what reads them, as float32."""
    noise = chance.standard_normal(shape)
    if op_type == "BatchNormalization":
        found = (noise, 1 + 0.1 * noise, 0.1 * noise, 0.1 * noise, 1 + 0.2 * np.abs(noise))[place]
    elif op_type == "Mul":
        found = 1 + 0.1 * noise
    elif op_type == "Add" or len(shape) < 2:
        found = 0.01 * noise
    else:
        found = noise * (2.0 / float(np.prod(shape[1:]))) ** 0.5
    return np.asarray(found, np.float32)


MODELS: dict[str, Callable[[], ModelProto]] = {
    "conv3x3": conv3x3,
    "matmul1024": matmul,
    "mobilenet": mobilenet,
    "transformer": transformer,
    "light_squeezenet": lambda: light("squeezenet"),
    "light_shufflenet": lambda: light("shufflenet", before_softmax=True),
    "light_inception_v1": lambda: light("inception_v1"),
    "light_densenet121": lambda: light("densenet121"),
    "light_resnet50": lambda: light("resnet50", before_softmax=True),
}


def write(folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """The files of models in a folder; those that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in names or MODELS:
        path = folder / f"{name}.onnx"
        if not path.exists():
            partial = path.with_suffix(".part")
            onnx.save(MODELS[name](), partial)
            partial.replace(path)
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], metavar="NAME")
    arguments = parser.parse_args()
    for path in write(arguments.folder, arguments.names):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
