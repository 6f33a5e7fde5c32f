"""Kernels with elementwise work in front of them: what the fused load computes, in every variant.

The chain maps zero to something else, so that padding with transformed zeros would show.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest

import engine
from engine.ir import Array
from tests.ops.harness import OPSET, compare

pytestmark = pytest.mark.gpu
CHANCE = np.random.default_rng(0)


def floats(*shape: int, dtype: str = "float32") -> Array:
    return CHANCE.standard_normal(shape).astype(dtype)


class Net:
    """A model under construction; names of values are what `add` returns."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.feeds: dict[str, Array] = {}
        self.fixed: dict[str, Array] = {}
        self.shapes: dict[str, Sequence[int | str]] = {}

    def feed(self, array: Array, shape: Sequence[int | str] = ()) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name], self.shapes[name] = array, shape or array.shape
        return name

    def constant(self, array: Array) -> str:
        name = f"c{len(self.fixed)}"
        self.fixed[name] = array
        return name

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(oh.make_node(op, list(inputs), [name], **attributes))
        return name

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        inputs = [
            oh.make_tensor_value_info(n, oh.np_dtype_to_tensor_dtype(a.dtype), self.shapes[n])
            for n, a in self.feeds.items()
        ]
        graph = oh.make_graph(
            self.nodes,
            "net",
            inputs,
            [oh.make_empty_tensor_value_info(n) for n in outputs],
            [onh.from_array(a, n) for n, a in self.fixed.items()],
        )
        opsets = [oh.make_opsetid("", OPSET)]
        return oh.make_model(graph, opset_imports=opsets, ir_version=10)


def labels(net: Net, *outputs: str, target: str = "baseline", tolerance: float = 2e-5) -> list[str]:
    """Groups of a model, once its outputs are those of the CPU."""
    model = net.model(outputs)
    with engine.InferenceSession(model, device="cpu") as session:
        wanted = session.run(None, net.feeds)
    with engine.InferenceSession(
        model, device="gpu", require_gpu=True, profile="integrated", target=target
    ) as session:
        got = session.run(None, net.feeds)
        dispatches = session.plan(net.feeds).dispatches
    for mine, right in zip(got, wanted, strict=True):
        assert mine.dtype == right.dtype
        compare(mine, right, tolerance)
    return list(dict.fromkeys(d.label for d in dispatches))


def scaled(net: Net, x: Array, shape: Sequence[int | str] = ()) -> str:
    """Sigmoid(x * scale + shift), scale of each channel and shift of each element a value fed."""
    channels = (1, x.shape[1], *(1,) * (x.ndim - 2)) if x.ndim > 1 else (1,)
    scale = net.feed(floats(*channels, dtype=x.dtype.name))
    shift = net.constant(floats(*channels[1:], dtype=x.dtype.name))
    product = net.add("Mul", net.feed(x, shape), scale)
    return net.add("Sigmoid", net.add("Add", product, shift))


IN_FRONT = "Mul + Add + Sigmoid + "


def conv(net: Net, x: str, *weights: int, dtype: str = "float32", **attributes: object) -> str:
    return net.add("Conv", x, net.constant(floats(*weights, dtype=dtype)), **attributes)


CONVOLUTIONS = [
    ((1, 8, 5, 8), (6, 8, 1, 1), {}),
    ((2, 5, 3, 7), (9, 5, 1, 1), {}),
    ((1, 6, 9, 9), (4, 6, 1, 1), {"strides": [2, 2]}),
    ((2, 6, 4, 4), (4, 3, 1, 1), {"group": 2}),
    ((2, 6, 70, 61), (16, 6, 1, 1), {}),
    ((1, 3, 141, 131), (32, 3, 1, 1), {"strides": [2, 2]}),
    ((1, 4, 8, 8), (8, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 7, 5), (5, 3, 3, 3), {"pads": [2, 1, 0, 1], "strides": [2, 1]}),
    ((1, 4, 6, 12), (4, 2, 5, 3), {"pads": [2, 0, 2, 2], "group": 2, "dilations": [1, 2]}),
    ((1, 8, 9, 8), (8, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 8}),
    ((2, 3, 7, 7), (6, 1, 5, 5), {"pads": [2, 2, 2, 2], "group": 3, "strides": [2, 2]}),
    ((1, 3, 17), (4, 3, 4), {"pads": [3, 0]}),
    ((1, 2, 3, 4, 5), (3, 2, 2, 2, 2), {"pads": [1, 0, 1, 0, 1, 1]}),
    ((1, 16, 12, 12), (16, 16, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 20, 160), (16, 20, 5), {"strides": [5]}),
    ((2, 3, 300), (4, 3, 40), {"pads": [9, 3]}),
]


@pytest.mark.parametrize(
    ("shape", "weights", "attributes", "target"),
    [(*c, "baseline") for c in CONVOLUTIONS] + [(*c, "adapter") for c in CONVOLUTIONS[::3]],
)
def test_convolutions(
    shape: tuple[int, ...], weights: tuple[int, ...], attributes: dict[str, object], target: str
) -> None:
    net = Net()
    y = conv(net, scaled(net, floats(*shape)), *weights, **attributes)
    assert labels(net, y, target=target) == [IN_FRONT + "Conv"]


def test_what_is_one_for_a_channel_takes_no_division() -> None:
    """Of images that are alike, also if it is not known how many there are."""
    for weights, pads in (
        ((16, 3, 1, 1), [0] * 4),
        ((4, 3, 5, 3), [0] * 4),
        ((4, 3, 3, 3), [1] * 4),
    ):
        net = Net()
        shift = net.constant(floats(3, 1, 1))
        x = net.add("Add", net.feed(floats(2, 3, 9, 12), ["n", 3, 9, 12]), shift)
        y = conv(net, x, *weights, pads=pads)
        assert labels(net, y) == ["Add + Conv"]
        with engine.InferenceSession(
            net.model([y]), device="gpu", profile="integrated", target="baseline"
        ) as session:
            for kernel in session.plan(net.feeds).kernels:
                loads = kernel.wgsl[kernel.wgsl.index("fn channel_") :]
                assert "params." not in loads[: loads.index("}")]


@pytest.mark.parametrize(
    ("a", "b", "side"),
    [
        ((7, 9), (9, 5), "left"),
        ((1, 64), (64, 40), "left"),
        ((1, 64), (64, 40), "right"),
        ((3, 16, 12), (3, 12, 8), "both"),
        ((16, 32), (32, 64), "both"),
    ],
)
def test_products(a: tuple[int, ...], b: tuple[int, ...], side: str) -> None:
    net = Net()
    names = [net.add("Exp", net.feed(floats(*s))) for s in (a, b)]
    plain = [net.feed(floats(*s)) for s in (a, b)]
    left = names[0] if side != "right" else plain[0]
    right = names[1] if side != "left" else plain[1]
    y = net.add("Relu", net.add("MatMul", left, right))
    alone = {"left": names[0], "right": names[1]}.get(side)
    net.nodes = [n for n in net.nodes if n.op_type != "Exp" or alone in (None, n.output[0])]
    assert labels(net, y)[-1:] == ["Exp + " * (2 if side == "both" else 1) + "MatMul + Relu"]


def test_the_product_of_a_value_with_itself() -> None:
    net = Net()
    e = net.add("Sigmoid", net.feed(floats(6, 6)))
    assert labels(net, net.add("MatMul", e, e)) == ["Sigmoid + MatMul"]


@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(transposed: int) -> None:
    net = Net()
    x = scaled(net, floats(*((5, 12), (12, 5))[transposed]))
    w, c = net.constant(floats(12, 7)), net.constant(floats(7))
    y = net.add("Gemm", x, w, c, transA=transposed, alpha=0.5)
    assert labels(net, y) == [IN_FRONT + "Gemm"]


@pytest.mark.parametrize(
    ("op", "shape", "axis"),
    [
        ("ReduceSum", (4, 6, 37), 2),
        ("ReduceMean", (3, 5, 512), 2),
        ("ReduceMax", (5, 6, 8), 1),
        ("ReduceL2", (2, 70000), 1),
        ("ReduceLogSumExp", (3, 5, 16), 2),
    ],
)
def test_reductions(op: str, shape: tuple[int, ...], axis: int) -> None:
    net = Net()
    y = net.add(op, scaled(net, floats(*shape)), net.constant(np.array([axis])))
    assert IN_FRONT + op in labels(net, y)


def test_places_of_extremes() -> None:
    net = Net()
    y = net.add("ArgMax", scaled(net, floats(3, 5, 17)), axis=2)
    assert labels(net, y) == [IN_FRONT + "ArgMax"]


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
        ("AveragePool", {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("LpPool", {"kernel_shape": [2, 2], "p": 2}),
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 7, 5), (1, 4, 8, 8)])
def test_pools(op: str, attributes: dict[str, object], shape: tuple[int, ...]) -> None:
    net = Net()
    y = net.add(op, scaled(net, floats(*shape)), **attributes)
    assert labels(net, y) == [IN_FRONT + op]


@pytest.mark.parametrize("shape", [(3, 5, 37), (3, 5, 16), (3, 300)])
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_softmax(op: str, shape: tuple[int, ...]) -> None:
    net = Net()
    assert labels(net, net.add(op, scaled(net, floats(*shape)), axis=-1)) == [IN_FRONT + op]


@pytest.mark.parametrize("size", [37, 256])
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_normalisations(op: str, size: int) -> None:
    net = Net()
    x = scaled(net, floats(3, size))
    y = net.add(op, x, net.constant(floats(size)))
    assert labels(net, y) == [IN_FRONT + op]


def test_instance_normalisation() -> None:
    net = Net()
    x = scaled(net, floats(2, 3, 4, 5))
    y = net.add("InstanceNormalization", x, net.constant(floats(3)), net.constant(floats(3)))
    assert labels(net, y) == [IN_FRONT + "InstanceNormalization"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize(mode: str) -> None:
    net = Net()
    x = scaled(net, floats(1, 3, 5, 8))
    y = net.add("Resize", x, "", "", net.constant(np.array([1, 3, 10, 12])), mode=mode)
    assert labels(net, y) == [IN_FRONT + "Resize"]


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_pad(mode: str) -> None:
    net = Net()
    x = scaled(net, floats(2, 3, 5))
    y = net.add("Pad", x, net.constant(np.array([0, 1, 2, 0, 0, 1])), mode=mode)
    assert labels(net, y) == [IN_FRONT + "Pad"]


@pytest.mark.parametrize("target", ["baseline", "adapter"])
def test_float16_is_rounded_as_if_it_had_been_stored(target: str) -> None:
    net = Net()
    x = scaled(net, floats(1, 4, 6, 8, dtype="float16"))
    y = conv(net, x, 4, 4, 3, 3, dtype="float16", pads=[1, 1, 1, 1])
    assert labels(net, y, target=target, tolerance=2e-3) == [IN_FRONT + "Conv"]
    net = Net()
    total = net.add("Add", net.feed(np.full((1, 8), 2048, np.float16)), net.feed(one_half()))
    assert labels(net, net.add("ReduceSum", total, keepdims=1), target=target) == [
        "Add + ReduceSum"
    ]


def one_half() -> Array:
    """Added to 2048 in float16 it vanishes, added eight times in float32 it does not."""
    return np.full((1, 8), 0.5, np.float16)


@pytest.mark.parametrize("shape", [(1, 2, 6, 8), (1, 3, 5, 7)])
def test_packed_bytes_wrap_as_if_they_had_been_stored(shape: tuple[int, ...]) -> None:
    net = Net()
    bytes_ = CHANCE.integers(0, 256, shape).astype(np.uint8)
    x = net.add("Add", net.feed(bytes_), net.feed(bytes_[::-1]))
    y = net.add("MaxPool", x, kernel_shape=[2, 2])
    assert labels(net, y, tolerance=0) == ["Add + MaxPool"]


@pytest.mark.parametrize("inner", [3, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_indices_of_gather(axis: int, inner: int) -> None:
    net = Net()
    ids = net.feed(CHANCE.integers(-40, 40, (2, 5)).astype(np.int32))
    low, high = net.constant(np.array(-3, np.int32)), net.constant(np.array(4, np.int32))
    inside = net.add("Sub", net.add("Clip", ids, low, high), net.constant(np.array(1, np.int32)))
    y = net.add(
        "Gather",
        net.feed(floats(*((6, 2, inner) if axis == 0 else (2, 6, inner)))),
        inside,
        axis=axis,
    )
    assert labels(net, net.add("Relu", y)) == ["Clip + Sub + Gather + Relu"]


def test_integers_and_bools() -> None:
    net = Net()
    x, y = (net.feed(CHANCE.integers(-9, 9, (4, 7)).astype(np.int32)) for _ in range(2))
    same = net.add("Cast", net.add("Equal", x, y), to=onnx.TensorProto.INT32)
    total = net.add("ReduceSum", same, net.constant(np.array([1])))
    assert labels(net, total, tolerance=0) == ["Equal + Cast + ReduceSum"]


def test_views_between() -> None:
    net = Net()
    x = scaled(net, floats(2, 6, 4))
    flat = net.add("Reshape", x, net.constant(np.array([4, 12])))
    y = net.add("MatMul", flat, net.constant(floats(12, 5)))
    assert labels(net, y) == [IN_FRONT + "MatMul"]


def test_a_view_between_has_other_planes() -> None:
    net = Net()
    x = scaled(net, floats(2, 6, 4, 2))
    turned = net.add("Reshape", x, net.constant(np.array([3, 4, 2, 4])))
    assert labels(net, conv(net, turned, 5, 4, 1, 1)) == [IN_FRONT + "Conv"]


def test_sizes_are_open() -> None:
    net = Net()
    x = scaled(net, floats(2, 3, 7, 5), ["n", 3, "h", "w"])
    y = net.add("Relu", conv(net, x, 4, 3, 3, 3, pads=[1, 1, 1, 1]))
    model = net.model([y])
    with (
        engine.InferenceSession(model, device="gpu", profile="integrated") as gpu,
        engine.InferenceSession(model, device="cpu") as cpu,
    ):
        for shape in ((2, 3, 7, 5), (1, 3, 8, 8), (3, 3, 1, 12)):
            feeds = {**net.feeds, "x1": floats(*shape)}
            (found,), (wanted,) = gpu.run(None, feeds), cpu.run(None, feeds)
            compare(found, wanted, 2e-5)
        plans = {d.label for d in gpu.plan(feeds).dispatches}
    assert plans == {IN_FRONT + "Conv + Relu"}


def test_both_ends_of_a_kernel() -> None:
    """What is computed behind reads what is read in front: buffers are bound for each."""
    net = Net()
    x = net.feed(floats(1, 4, 6, 8))
    before = net.add("Mul", x, net.feed(floats(1, 4, 1, 1)))
    y = net.add("Add", conv(net, before, 4, 4, 1, 1), x)
    assert labels(net, net.add("Relu", y)) == ["Mul + Conv + Add + Relu"]


def test_squeeze_and_excite() -> None:
    net = Net()
    x = net.add("Relu", conv(net, net.feed(floats(2, 5, 6, 8)), 6, 5, 3, 3, pads=[1, 1, 1, 1]))
    small = net.add("Relu", conv(net, net.add("GlobalAveragePool", x), 3, 6, 1, 1))
    gate = net.add("Sigmoid", conv(net, small, 6, 3, 1, 1))
    y = conv(net, net.add("Mul", x, gate), 4, 6, 1, 1)
    found = labels(net, y)
    assert found[-1] == "Mul + Conv" and "Mul" not in found


@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 700), (5, 1000)])
def test_quantisation_by_the_range_of_what_is_computed(shape: tuple[int, ...]) -> None:
    """Both of its passes compute the chain: that for the range, and that for the levels."""
    net = Net()
    names = [net.add("Tanh", net.add("Add", net.feed(floats(*shape)), net.feed(floats(shape[-1]))))]
    names += ["levels", "scale", "zero"]
    net.nodes.append(oh.make_node("DynamicQuantizeLinear", names[:1], names[1:]))
    numbers = net.add("DequantizeLinear", *names[1:])
    (group, last) = labels(net, numbers, "scale", "zero", tolerance=1e-2)
    assert group == "Add + Tanh + DynamicQuantizeLinear" and last == "DequantizeLinear"


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scalars_are_computed_where_larger_chains_read_them(dtype: str) -> None:
    """In front of a kernel, in a chain alone, and in one that is not behind the kernel then."""
    net, tolerance = Net(), 2e-3 if dtype == "float16" else 2e-5
    scale = net.add("Mul", net.feed(floats(1, dtype=dtype)), net.feed(floats(1, dtype=dtype)))
    x = net.feed(floats(3, 4, dtype=dtype))
    sums = net.add("MatMul", net.add("Mul", x, scale), net.constant(floats(4, 6, dtype=dtype)))
    outputs = [net.add("Mul", sums, scale), net.add("Neg", net.add("Add", x, scale))]
    assert labels(net, *outputs, tolerance=tolerance) == [
        "Mul + Mul + MatMul",
        "Mul + Mul",
        "Mul + Add + Neg",
    ]


def test_a_scalar_that_is_needed_itself_is_stored() -> None:
    net = Net()
    scale = net.add("Exp", net.feed(floats(1)))
    y = net.add("Mul", net.feed(floats(3, 4)), scale)
    assert labels(net, y, scale) == ["Exp", "Mul"]


def test_a_scalar_that_a_kernel_makes_is_made_there() -> None:
    net = Net()
    x = net.feed(floats(3, 40))
    total = net.add("ReduceSum", x, net.constant(np.array([0, 1])), keepdims=1)
    y = net.add("Mul", x, net.add("Sqrt", net.add("Abs", total)))
    assert labels(net, y) == ["ReduceSum + Abs + Sqrt", "Mul"]


def test_what_two_nodes_read_is_stored() -> None:
    net = Net()
    e = net.add("Exp", net.feed(floats(3, 8)))
    outputs = (net.add("Softmax", e), net.add("ReduceMax", e))
    assert labels(net, *outputs)[0] == "Exp"


def test_an_output_is_stored() -> None:
    net = Net()
    e = net.add("Exp", net.feed(floats(3, 8)))
    assert labels(net, e, net.add("Softmax", e)) == ["Exp", "Softmax"]


def test_a_scale_of_one_element_in_front_of_a_scalar() -> None:
    net = Net()
    levels = net.feed(np.array(200, np.uint8))
    x = net.add("DequantizeLinear", levels, net.feed(np.array([0.1], np.float32)))
    assert labels(net, net.add("ReduceL2", x)) == ["DequantizeLinear + ReduceL2"]


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_scales_of_any_axis_in_front_of_a_pointwise_convolution(axis: int) -> None:
    net, shape = Net(), (2, 6, 4, 8)
    levels = net.feed(CHANCE.integers(0, 256, shape, np.uint8))
    scales = net.feed(CHANCE.random(shape[axis], np.float32))
    x = net.add("DequantizeLinear", levels, scales, axis=axis)
    assert labels(net, conv(net, x, 5, 6, 1, 1)) == ["DequantizeLinear + Conv"]
