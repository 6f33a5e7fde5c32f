"""Pools over windows and over whole planes, and MaxUnpool."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form

BECAUSE = "it is wrong where sizes are rounded up, with SAME_LOWER and with dilations"
SINCE = {
    "ceil_mode": {"MaxPool": 10, "AveragePool": 10, "LpPool": 18},
    "dilations": {"MaxPool": 10, "AveragePool": 19, "LpPool": 18},
}


@draws("MaxPool", "AveragePool", "LpPool")
def windowed(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.one_of([2, 1, 2, 3])
    kernel = [form.int(1, 3) for _ in range(rank)]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    attrs |= form.maybe({"strides": [form.int(1, 3) for _ in kernel]}, 0.7)
    dilations = [1] * rank
    if opset >= SINCE["dilations"][op] and form.chance(0.3):
        attrs["dilations"] = dilations = [form.int(1, 2) for _ in kernel]
    if opset >= SINCE["ceil_mode"][op]:
        attrs |= form.maybe({"ceil_mode": form.int(0, 1)}, 0.4)
    if form.chance(0.25) and not attrs.get("ceil_mode"):
        # ONNX Runtime makes other sizes of dilated windows and SAME
        kinds = ["SAME_UPPER", "SAME_LOWER"] if dilations == [1] * rank else []
        attrs["auto_pad"] = form.one_of(["VALID", *kinds])
    elif form.chance(0.6):
        attrs["pads"] = [form.int(0, k - 1) for k in kernel * 2]
    if op == "AveragePool" and opset >= 7:
        attrs |= form.maybe({"count_include_pad": form.int(0, 1)})
    if op == "LpPool":
        attrs |= form.maybe({"p": form.int(1, 3)})
    outputs = (True,)
    if op == "MaxPool" and opset >= 8:
        outputs = form.one_of([(True,), (True, True)])
        attrs |= form.maybe({"storage_order": form.int(0, 1)}, 0.3)
    spatial = [
        d * (k - 1) + 1 + data.one_of([0, 1, 2, 3, 5, 8, 16] if rank < 3 else [0, 1, 4])
        for d, k in zip(dilations, kernel, strict=True)
    ]
    shape = (data.int(1, 2), data.int(1, 4), *spatial)
    x = data.array(dtype, shape)
    return Case([x], attrs, opset, outputs, oracle="runtime", because=BECAUSE)


@draws("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def whole(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    shape = data.shape(form.rank(3, 5), 1)
    attrs = form.maybe({"p": form.int(1, 3)}) if op == "GlobalLpPool" else {}
    x = data.floats(dtype, shape)
    power = attrs.get("p", 2)

    def oracle(x: Array) -> Array:
        wide, axes = x.astype(np.float64), tuple(range(2, x.ndim))
        if op == "GlobalLpPool":
            sums = (np.abs(wide) ** power).sum(axis=axes, keepdims=True)
            return np.asarray(sums ** (1 / power))
        return np.asarray((wide.mean if "Average" in op else wide.max)(axis=axes, keepdims=True))

    because = "there is no GlobalLpPool"
    return Case([x], attrs, opset, tol=1e-5, oracle=oracle, because=because)


@draws("MaxUnpool")
def unpool(op: str, form: Form, data: Data) -> Case:
    """Indices as MaxPool gives them: each once, within the natural size."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.one_of([2, 1, 2, 3])
    kernel = [form.int(1, 3) for _ in range(rank)]
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    attrs |= form.maybe({"strides": [form.int(1, 3) for _ in kernel]}, 0.7)
    strides = attrs.get("strides", [1] * rank)
    shape = (data.int(1, 2), data.int(1, 3), *(data.int(1, 4) for _ in kernel))
    out = [(n - 1) * s + k for n, s, k in zip(shape[2:], strides, kernel, strict=True)]
    extra = data.int(0, 1) if form.chance(0.3) else 0
    sizes = [*shape[:2], *(n + extra for n in out)]
    count = int(np.prod(shape))
    places = data.generator().permutation(int(np.prod([*shape[:2], *out])))[:count]
    indices = places.reshape(shape).astype(np.int64)
    x = data.floats(dtype, shape)

    def oracle(x: Array, indices: Array, *_: Array) -> Array:
        y = np.zeros([*shape[:2], *out], x.dtype)
        y.reshape(-1)[indices.reshape(-1)] = x.reshape(-1)
        larger = np.zeros(sizes, x.dtype)
        larger[tuple(slice(n) for n in y.shape)] = y
        return larger

    inputs = [x, indices]
    if extra or form.chance(0.3):
        inputs.append(np.asarray(sizes, np.int64))
    because = "it is told here from the definition"
    return Case(inputs, attrs, opset, tol=0, oracle=oracle, because=because)
