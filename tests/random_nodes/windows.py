"""Matrix products, convolutions, pools, Resize."""

from __future__ import annotations

import numpy as np

from tests.random_graphs import Array, Candidate, RandomGraph
from tests.random_nodes.makers import maker, need


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
    need(all(n + 2 * p >= k for n, p, k in zip(sizes, attrs["pads"], kernel, strict=False)))
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
