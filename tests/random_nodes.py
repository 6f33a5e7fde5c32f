"""The operators that random graphs are made of: each maker proposes one node."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from tests.random_graphs import Array, Candidate, DroppedError, RandomGraph

Maker = Callable[[RandomGraph], Candidate]
MAKERS: list[Maker] = []


def maker(function: Maker) -> Maker:
    MAKERS.append(function)
    return function


def _span(array: Array) -> float:
    return float(np.abs(array).max()) if array.size else 0.0


def _least(array: Array) -> float:
    return float(np.abs(array).min()) if array.size else 1.0


def _need(condition: bool) -> None:
    if not condition:
        raise DroppedError


def _axis(g: RandomGraph, rank: int) -> int:
    _need(rank > 0)
    return g.int(-rank, rank - 1)


SMOOTH = (
    "LeakyRelu Elu Selu Celu Sigmoid HardSigmoid HardSwish Tanh Softplus Softsign Exp Erf Sin Cos "
    "Atan Mish Gelu Sinh Asinh"
).split()
EXACT = "Abs Neg Relu Identity Sign Floor Ceil Round Shrink ThresholdedRelu IsNaN IsInf".split()
JUMPS = {"Sign", "Floor", "Ceil", "Round", "Shrink", "ThresholdedRelu"}


@maker
def smooth(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: _span(a) < 6)
    op = g.one_of(SMOOTH)
    attrs = {"alpha": 0.3} if op in ("LeakyRelu", "Elu", "Celu") and g.chance(0.5) else {}
    if op == "Gelu" and g.chance(0.5):
        attrs = {"approximate": "tanh"}
    return Candidate(op, [x], attrs, keeps=False)


@maker
def exact(g: RandomGraph) -> Candidate:
    op = g.one_of(EXACT)
    kinds = "fi" if op in ("Abs", "Neg", "Identity", "Sign") else "f"
    return Candidate(op, [g.pick(kinds)], steady=op not in JUMPS)


@maker
def roots(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: bool(a.size == 0 or a.min() > 0.05))
    return Candidate(g.one_of(["Sqrt", "Log", "Reciprocal"]), [x], keeps=False)


@maker
def arithmetic(g: RandomGraph) -> Candidate:
    a = g.pick("ffiu")
    b = g.partner(a)
    pair = [a, b] if g.chance(0.5) else [b, a]
    return Candidate(g.one_of(["Add", "Sub", "Mul", "Add", "Mul"]), pair)


@maker
def division(g: RandomGraph) -> Candidate:
    a = g.pick("ffi")
    b = g.partner(a)
    _need(_least(g.array(b)) > 0.1)
    op = g.one_of(["Div", "Div", "Mod"])
    is_float = g.array(a).dtype.kind == "f"
    attrs = {"fmod": 1} if op == "Mod" and (is_float or g.chance(0.4)) else {}
    return Candidate(op, [a, b], attrs, steady=op == "Div", keeps=op == "Mod")


@maker
def power(g: RandomGraph) -> Candidate:
    base = g.pick("f", lambda a: bool(a.size == 0 or (a.min() > 0.1 and a.max() < 4)))
    exponent = g.partner(base)
    if g.chance(0.5):
        base = g.pick("f")
        exponent = g.constant(g.one_of([0, 1, 2, 3]), "float32")
    return Candidate("Pow", [base, exponent], keeps=False)


@maker
def many(g: RandomGraph) -> Candidate:
    a = g.pick("f")
    names = [a, *(g.partner(a) for _ in range(g.int(0, 2)))]
    op = g.one_of(["Min", "Max", "Sum", "Mean"])
    return Candidate(op, names, keeps=op != "Mean")


@maker
def compare(g: RandomGraph) -> Candidate:
    a = g.pick("fi", exact=True)
    op = g.one_of(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
    return Candidate(op, [a, g.partner(a)], steady=False)


@maker
def logic(g: RandomGraph) -> Candidate:
    a = g.pick("b")
    if g.chance(0.2):
        return Candidate("Not", [a])
    return Candidate(g.one_of(["And", "Or", "Xor", "Equal"]), [a, g.partner(a)])


@maker
def bits(g: RandomGraph) -> Candidate:
    a = g.pick("iu")
    if g.chance(0.2):
        return Candidate("BitwiseNot", [a])
    if g.array(a).dtype.kind == "u" and g.chance(0.4):
        direction = g.one_of(["LEFT", "RIGHT"])
        return Candidate("BitShift", [a, g.partner(a)], {"direction": direction})
    op = g.one_of(["BitwiseAnd", "BitwiseOr", "BitwiseXor"])
    return Candidate(op, [a, g.partner(a)])


@maker
def where(g: RandomGraph) -> Candidate:
    a = g.pick("ffi")
    shape = g.array(a).shape
    return Candidate("Where", [g.pick("b", shape=lambda: shape), a, g.partner(a)])


@maker
def clip(g: RandomGraph) -> Candidate:
    x = g.pick("f")
    low, high = sorted(g.rng.integers(-8, 9, 2) / 4)
    low_name = g.constant(low, "float32") if g.chance(0.8) else ""
    high_name = g.constant(high, "float32") if g.chance(0.8) else ""
    return Candidate("Clip", [x, low_name, high_name])


CASTS = {
    "FLOAT": TensorProto.FLOAT,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "INT8": TensorProto.INT8,
    "FLOAT16": TensorProto.FLOAT16,
    "DOUBLE": TensorProto.DOUBLE,
}


@maker
def cast(g: RandomGraph) -> Candidate:
    x = g.pick("fiub")
    kind = CASTS[g.one_of(["FLOAT", "FLOAT", "INT32", "INT64", "BOOL", "DOUBLE", "UINT8", "INT8"])]
    array = g.array(x)
    if kind == TensorProto.UINT8:
        _need(bool(array.size == 0 or array.astype(np.float64).min() >= 0))
    if kind in (TensorProto.UINT8, TensorProto.INT8):
        _need(_span(array.astype(np.float64)) < 127)
    return Candidate("Cast", [x], {"to": kind}, steady=kind in (1, 11))


@maker
def back_to_float(g: RandomGraph) -> Candidate:
    names = [n for n, k in g.known.items() if k.array.dtype != np.float32]
    _need(bool(names))
    return Candidate("Cast", [g.one_of(names)], {"to": TensorProto.FLOAT})


@maker
def concat(g: RandomGraph) -> Candidate:
    a = g.pick("fiub", lambda a: a.ndim > 0)
    first = g.array(a)
    axis = _axis(g, first.ndim)
    at = axis % first.ndim

    def fits(b: Array) -> bool:
        same = b.dtype == first.dtype and b.ndim == first.ndim
        return same and all(b.shape[i] == first.shape[i] for i in range(b.ndim) if i != at)

    names = [n for n, k in g.known.items() if fits(k.array)]
    chosen = [a, *(g.one_of(names) for _ in range(g.int(0, 3)))]
    if g.chance(0.4):
        shape = tuple(g.size() if i == at else s for i, s in enumerate(first.shape))
        chosen.append(g.new(g.content(str(first.dtype), shape)))
    g.rng.shuffle(chosen)
    return Candidate("Concat", chosen, {"axis": axis})


@maker
def split(g: RandomGraph) -> Candidate:
    x = g.pick("fib", lambda a: a.ndim > 0)
    axis = _axis(g, g.array(x).ndim)
    size = g.array(x).shape[axis]
    if g.chance(0.5) and size:
        count = g.int(1, min(size, 4))
        return Candidate("Split", [x], {"axis": axis, "num_outputs": count}, outputs=count)
    first = g.int(0, size)
    parts = [first, size - first]
    return Candidate("Split", [x, g.constant(parts)], {"axis": axis}, outputs=2)


@maker
def slicing(g: RandomGraph) -> Candidate:
    x = g.pick("fiub", lambda a: a.ndim > 0)
    rank = g.array(x).ndim
    axes = [int(a) for a in g.rng.permutation(rank)[: g.int(1, rank)]]
    steps = [g.one_of([1, 1, 1, 2, -1, -2, 3]) for _ in axes]
    starts = [g.one_of([0, 1, -1, -2, 2, 100, -100]) for _ in axes]
    ends = [g.one_of([0, 1, 3, -1, 100, 2**31 - 1, -(2**31), 2**63 - 1]) for _ in axes]
    # ONNX Runtime takes the largest integer for "all" going backwards too, the standard does not
    ends = [-(2**31) if s < 0 and e > 100 else e for e, s in zip(ends, steps, strict=True)]
    axes = [a - rank if g.chance(0.3) else a for a in axes]
    return Candidate("Slice", [x, *(g.constant(v) for v in (starts, ends, axes, steps))])


@maker
def pad(g: RandomGraph) -> Candidate:
    x = g.pick("ffi", lambda a: a.ndim > 0)
    array = g.array(x)
    mode = g.one_of(["constant", "constant", "edge", "reflect", "wrap"])
    low = -1 if mode == "constant" else 0
    pads = [g.int(low, 2) for _ in range(2 * array.ndim)]
    for axis, size in enumerate(array.shape):
        most = {"reflect": size - 1, "constant": 9}.get(mode, 9 if size else 0)
        pads[axis] = min(pads[axis], max(most, 0))
        pads[axis + array.ndim] = min(pads[axis + array.ndim], max(most, 0))
        _need(size + pads[axis] + pads[axis + array.ndim] >= 0)
    names = [x, g.constant(pads)]
    if mode == "constant" and g.chance(0.5):
        names.append(g.constant(2, str(array.dtype)))
    return Candidate("Pad", names, {"mode": mode})


@maker
def transpose(g: RandomGraph) -> Candidate:
    x = g.pick("fiub")
    perm = [int(p) for p in g.rng.permutation(g.array(x).ndim)]
    return Candidate("Transpose", [x], {"perm": perm} if perm and g.chance(0.8) else {})


def _factors(g: RandomGraph, size: int) -> list[int]:
    shape = []
    for _ in range(g.int(0, 3)):
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        shape.append(int(g.one_of(divisors)))
        size //= shape[-1]
    return [*shape, size]


@maker
def reshape(g: RandomGraph) -> Candidate:
    x = g.pick("fiub", lambda a: a.size > 0)
    array = g.array(x)
    target = _factors(g, array.size)
    if g.chance(0.5):
        target[g.int(0, len(target) - 1)] = -1
    if array.ndim and target[0] == array.shape[0] and g.chance(0.7):
        target[0] = 0
    return Candidate("Reshape", [x, g.constant(target)])


@maker
def dynamic_reshape(g: RandomGraph) -> Candidate:
    """Reshape to what another tensor's shape says: sizes stay symbols."""
    names = [n for n, k in g.known.items() if n.startswith("t") and k.array.dtype == np.int64]
    x = g.pick("f")
    fit = [n for n in names if g.array(n).ndim == 1 and g.array(n).size < 6]
    fit = [n for n in fit if np.prod(g.array(n)) == g.array(x).size and np.all(g.array(n) > 0)]
    _need(bool(fit))
    return Candidate("Reshape", [x, g.one_of(fit)])


@maker
def shape_of(g: RandomGraph) -> Candidate:
    if g.chance(0.2):
        return Candidate("Size", [g.pick("fib")])
    attrs = {"start": g.int(-2, 1)} if g.chance(0.3) else {}
    return Candidate("Shape", [g.pick("fib", lambda a: a.ndim > 0)], attrs)


@maker
def expand(g: RandomGraph) -> Candidate:
    x = g.pick("fib")
    shapes = [n for n, k in g.known.items() if k.array.dtype == np.int64 and k.array.ndim == 1]
    shapes = [n for n in shapes if g.array(n).size < 6 and np.all(g.array(n) >= 0)]
    shapes = [n for n in shapes if np.prod(g.array(n)) < 512]
    if shapes and g.chance(0.4):
        return Candidate("Expand", [x, g.one_of(shapes)])
    if g.chance(0.3) and shapes:
        return Candidate("ConstantOfShape", [g.one_of(shapes)])
    shape = [g.int(1, 3) if s == 1 else (1 if g.chance(0.3) else s) for s in g.array(x).shape]
    return Candidate("Expand", [x, g.constant([*([2] if g.chance(0.3) else []), *shape])])


@maker
def views(g: RandomGraph) -> Candidate:
    x = g.pick("fib")
    array = g.array(x)
    if g.chance(0.4):
        ones = [i for i, s in enumerate(array.shape) if s == 1 and g.chance(0.7)]
        _need(bool(ones))
        return Candidate("Squeeze", [x, g.constant(ones)])
    if g.chance(0.3):
        return Candidate("Flatten", [x], {"axis": g.int(0, array.ndim)})
    return Candidate("Unsqueeze", [x, g.constant([g.int(-array.ndim - 1, array.ndim)])])


@maker
def tile(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: 0 < a.ndim and a.size < 200)
    return Candidate(
        "Tile", [x, g.constant([g.int(0 if g.chance(0.1) else 1, 3) for _ in g.array(x).shape])]
    )


@maker
def gather(g: RandomGraph) -> Candidate:
    x = g.pick("fib", lambda a: a.ndim > 0)
    array = g.array(x)
    axis = _axis(g, array.ndim)
    size = array.shape[axis]
    _need(size > 0)
    if g.chance(0.3):
        shape = tuple(g.int(1, s) if s else 0 for s in array.shape)
        indices = g.rng.integers(-size, size, shape)
        return Candidate("GatherElements", [x, g.new(indices)], {"axis": axis})
    dtype = g.one_of(["int64", "int32"])
    indices = g.rng.integers(-size, size, g.shape(g.int(0, 2))).astype(dtype)
    return Candidate("Gather", [x, g.new(np.asarray(indices))], {"axis": axis})


@maker
def gather_nd(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: a.ndim > 0 and a.size > 0)
    array = g.array(x)
    depth = g.int(1, array.ndim)
    rows = g.shape(g.int(0, 2))
    columns = [g.rng.integers(-s, s, rows) for s in array.shape[:depth]]
    return Candidate("GatherND", [x, g.new(np.stack(columns, axis=-1))])


@maker
def scatter(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: a.ndim > 0 and a.size > 0)
    array = g.array(x)
    if g.chance(0.5):
        rows = g.rng.permutation(array.shape[0])[: g.int(0, array.shape[0])]
        updates = g.content("float32", (len(rows), *array.shape[1:]))
        attrs = {"reduction": g.one_of(["add", "mul", "max"])} if g.chance(0.4) else {}
        return Candidate("ScatterND", [x, g.new(rows[:, None]), g.new(updates)], attrs)
    axis = _axis(g, array.ndim)
    indices = g.rng.permuted(np.indices(array.shape)[axis], axis=axis)
    updates = g.content("float32", array.shape)
    return Candidate("ScatterElements", [x, g.new(indices), g.new(updates)], {"axis": axis})


@maker
def one_hot(g: RandomGraph) -> Candidate:
    x = g.pick("i", lambda a: a.ndim < 4)
    values = g.constant([0.5, 2], "float32")
    return Candidate("OneHot", [x, g.constant(g.int(1, 6)), values], {"axis": -1})


REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
    "ReduceLogSumExp"
).split()


@maker
def reduce(g: RandomGraph) -> Candidate:
    op = g.one_of(REDUCTIONS)
    kinds = "ffi" if op in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd") else "f"
    x = g.pick(kinds, lambda a: a.size > 0 and (op != "ReduceLogSumExp" or _span(a) < 20))
    rank = g.array(x).ndim
    keep = {"keepdims": g.int(0, 1)}
    if g.chance(0.2) or rank == 0:
        return Candidate(op, [x], {**keep, "noop_with_empty_axes": g.int(0, 1)})
    axes = g.rng.permutation(rank)[: g.int(1, rank)]
    axes = [int(a) - (rank if g.chance(0.3) else 0) for a in axes]
    names = [x, g.constant(axes)]
    return Candidate(op, names, keep, keeps=op in ("ReduceSum", "ReduceMax", "ReduceMin"))


@maker
def arg(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: a.ndim > 0 and a.size > 0, exact=True)
    attrs = {"axis": _axis(g, g.array(x).ndim), "keepdims": g.int(0, 1)}
    attrs["select_last_index"] = g.int(0, 1)
    return Candidate(g.one_of(["ArgMax", "ArgMin"]), [x], attrs, steady=False)


@maker
def top_k(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: a.ndim > 0 and a.size > 0, exact=True)
    axis = _axis(g, g.array(x).ndim)
    count = g.constant([g.int(1, g.array(x).shape[axis])])
    return Candidate("TopK", [x, count], {"axis": axis, "largest": g.int(0, 1)}, 2, steady=False)


@maker
def cumulative(g: RandomGraph) -> Candidate:
    x = g.pick("ffi", lambda a: a.ndim > 0)
    axis = g.constant(_axis(g, g.array(x).ndim))
    return Candidate("CumSum", [x, axis], {"exclusive": g.int(0, 1), "reverse": g.int(0, 1)})


@maker
def softmax(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: a.ndim > 0 and _span(a) < 30)
    op = g.one_of(["Softmax", "LogSoftmax"])
    return Candidate(op, [x], {"axis": _axis(g, g.array(x).ndim)}, keeps=False)


def _varies(axes: tuple[int, ...]) -> Callable[[Array], bool]:
    def fits(a: Array) -> bool:
        if a.ndim <= max(axes) or a.size == 0:
            return False
        return bool(np.var(a, axis=axes).min() > 0.05)

    return fits


@maker
def normalise(g: RandomGraph) -> Candidate:
    if g.chance(0.5):
        x = g.pick("f", lambda a: a.ndim > 0 and _varies((a.ndim - 1,))(a))
        size = g.array(x).shape[-1]
        scale = g.new(g.content("float32", (size,)))
        names = [x, scale, *([g.new(g.content("float32", (size,)))] if g.chance(0.6) else [])]
        return Candidate("LayerNormalization", names, {"axis": -1}, keeps=False)
    x = g.pick("f", lambda a: a.ndim in (3, 4) and _varies(tuple(range(2, a.ndim)))(a))
    channels = (g.array(x).shape[1],)
    pair = [g.new(g.content("float32", channels)) for _ in range(2)]
    if g.chance(0.5):
        return Candidate("InstanceNormalization", [x, *pair], keeps=False)
    mean = g.new(g.content("float32", channels), True)
    variance = g.new(np.abs(g.content("float32", channels)) + np.float32(0.5), True)
    return Candidate("BatchNormalization", [x, *pair, mean, variance], keeps=False)


@maker
def matmul(g: RandomGraph) -> Candidate:
    a = g.pick("f", lambda a: a.ndim > 0)
    left = g.array(a)
    k = left.shape[-1]
    fits = [n for n, b in g.known.items() if _matmul_fits(left, b.array)]
    if fits and g.chance(0.6):
        return Candidate("MatMul", [a, g.one_of(fits)])
    batch = left.shape[:-2] if g.chance(0.3) else ()
    shape = (k,) if g.chance(0.1) else (*batch, k, g.size())
    return Candidate("MatMul", [a, g.new(g.content("float32", shape))])


def _matmul_fits(a: Array, b: Array) -> bool:
    return b.dtype == np.float32 and b.ndim > 0 and b.shape[-2 if b.ndim > 1 else 0] == a.shape[-1]


@maker
def gemm(g: RandomGraph) -> Candidate:
    a = g.pick("f", lambda a: a.ndim == 2, lambda: g.shape(2))
    flips = {"transA": g.int(0, 1), "transB": g.int(0, 1)}
    rows, k = g.array(a).shape[:: -1 if flips["transA"] else 1]
    columns = g.size()
    b = g.new(g.content("float32", (columns, k) if flips["transB"] else (k, columns)))
    names = [a, b]
    if g.chance(0.7):
        shape = g.one_of([(columns,), (rows, 1), (1, columns), (rows, columns), (1,), ()])
        names.append(g.new(g.content("float32", shape)))
    return Candidate("Gemm", names, {**flips, "alpha": 0.5, "beta": g.one_of([0.0, 1.0, 2.0])})


def _image(g: RandomGraph) -> str:
    def fits(a: Array) -> bool:
        return a.ndim in (3, 4) and all(s > 0 for s in a.shape)

    return g.pick("f", fits, lambda: tuple(g.int(1, 6) for _ in range(g.one_of([3, 4, 4]))))


@maker
def conv(g: RandomGraph) -> Candidate:
    x = _image(g)
    shape = g.array(x).shape
    rank = len(shape) - 2
    groups = g.one_of([1, 1, shape[1]])
    kernel = [g.int(1, 3) for _ in range(rank)]
    attrs = {
        "group": groups,
        "strides": [g.int(1, 2) for _ in kernel],
        "dilations": [g.int(1, 2) for _ in kernel],
        "pads": [g.int(0, 2) for _ in range(2 * rank)],
    }
    per_group = g.int(1, 3)
    if g.chance(0.25):
        weights = (shape[1], per_group, *kernel)
        names = [x, g.new(g.content("float32", weights))]
        return Candidate("ConvTranspose", names, attrs)
    weights = (groups * per_group, shape[1] // groups, *kernel)
    names = [x, g.new(g.content("float32", weights))]
    if g.chance(0.5):
        names.append(g.new(g.content("float32", weights[:1])))
    if g.chance(0.2):
        attrs = {"auto_pad": g.one_of(["SAME_UPPER", "SAME_LOWER", "VALID"]), "group": groups}
    return Candidate("Conv", names, attrs)


@maker
def pool(g: RandomGraph) -> Candidate:
    x = _image(g)
    rank = g.array(x).ndim - 2
    if g.chance(0.3):
        return Candidate(g.one_of(["GlobalAveragePool", "GlobalMaxPool"]), [x], keeps=False)
    kernel = [g.int(1, 3) for _ in range(rank)]
    attrs = {
        "kernel_shape": kernel,
        "strides": [g.int(1, 3) for _ in kernel],
        "pads": [g.int(0, k - 1) for k in kernel] * 2,
        "ceil_mode": g.int(0, 1),
    }
    op = g.one_of(["MaxPool", "AveragePool"])
    sizes = g.array(x).shape[2:]
    _need(all(n + 2 * p >= k for n, p, k in zip(sizes, attrs["pads"], kernel, strict=False)))
    if op == "AveragePool":
        attrs["count_include_pad"] = g.int(0, 1)
    return Candidate(op, [x], attrs, keeps=op == "MaxPool")


@maker
def resize(g: RandomGraph) -> Candidate:
    x = _image(g)
    shape = g.array(x).shape
    mode = g.one_of(["nearest", "linear"])
    where = g.one_of(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    attrs = {"mode": mode, "coordinate_transformation_mode": where}
    if g.chance(0.5):
        scales = [1.0, 1.0, *(g.one_of([0.5, 1.0, 2.0, 3.0]) for _ in shape[2:])]
        return Candidate("Resize", [x, "", g.constant(scales, "float32")], attrs, keeps=False)
    sizes = [*shape[:2], *(g.int(1, 7) for _ in shape[2:])]
    return Candidate("Resize", [x, "", "", g.constant(sizes)], attrs, keeps=False)


@maker
def blocks(g: RandomGraph) -> Candidate:
    if g.chance(0.5):
        x = g.pick(
            "f", lambda a: a.ndim == 4 and a.shape[1] % 4 == 0 and a.size > 0, lambda: (1, 4, 2, 3)
        )
        mode = g.one_of(["DCR", "CRD"])
        return Candidate("DepthToSpace", [x], {"blocksize": 2, "mode": mode})
    x = g.pick(
        "f",
        lambda a: a.ndim == 4 and a.shape[2] % 2 == a.shape[3] % 2 == 0 and a.size > 0,
        lambda: (2, 3, 2, 4),
    )
    return Candidate("SpaceToDepth", [x], {"blocksize": 2})


@maker
def triangle(g: RandomGraph) -> Candidate:
    x = g.pick("fi", lambda a: a.ndim >= 2)
    names = [x, g.constant(g.int(-2, 2))] if g.chance(0.6) else [x]
    return Candidate("Trilu", names, {"upper": g.int(0, 1)})


@maker
def selected(g: RandomGraph) -> Candidate:
    if g.chance(0.5):
        return Candidate("NonZero", [g.pick("fib", lambda a: a.ndim > 0, exact=True)], steady=False)
    x = g.pick("fi", lambda a: a.ndim > 0)
    axis = _axis(g, g.array(x).ndim)
    size = g.array(x).shape[axis]
    return Candidate("Compress", [x, g.new(g.content("bool", (size,)))], {"axis": axis})


@maker
def contraction(g: RandomGraph) -> Candidate:
    a = g.pick("f", lambda a: a.ndim == 2, lambda: g.shape(2))
    k = g.array(a).shape[1]
    b = g.new(g.content("float32", (k, g.int(1, 4))))
    return Candidate(
        "Einsum", [a, b], {"equation": g.one_of(["ij,jk->ik", "ij,jk->ki", "ij,jk->j"])}
    )


@maker
def prelu(g: RandomGraph) -> Candidate:
    x = g.pick("f", lambda a: a.ndim > 0)
    tail = g.array(x).shape[-g.int(1, g.array(x).ndim) :]
    return Candidate("PRelu", [x, g.new(g.content("float32", tail))])


MAKERS.extend(
    [
        smooth,
        smooth,
        arithmetic,
        arithmetic,
        arithmetic,
        exact,
        many,
        where,
        clip,
        softmax,
        matmul,
        conv,
        reduce,
    ]
)
