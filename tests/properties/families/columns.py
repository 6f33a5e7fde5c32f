"""Col2Im and DeformConv."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, rounding


@draws("Col2Im")
def col2im(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.one_of([2, 1, 2, 3])
    block = [form.int(1, 3) for _ in range(rank)]
    attrs: dict[str, Any] = {}
    for name, count, low, high in (("strides", rank, 1, 2), ("dilations", rank, 1, 2)):
        attrs |= form.maybe({name: [form.int(low, high) for _ in range(count)]})
    attrs |= form.maybe({"pads": [form.int(0, 1) for _ in range(2 * rank)]})
    strides, dilations = (attrs.get(n, [1] * rank) for n in ("strides", "dilations"))
    pads = attrs.get("pads", [0] * (2 * rank))
    image, count = [], 1
    for axis, k in enumerate(block):
        reach = dilations[axis] * (k - 1) + 1
        image.append(reach + form.int(0, 4))
        count *= (image[-1] + pads[axis] + pads[axis + rank] - reach) // strides[axis] + 1
    shape = (data.int(1, 2), data.int(1, 3) * int(np.prod(block)), count)
    inputs = [data.floats(dtype, shape), np.asarray(image, np.int64), np.asarray(block, np.int64)]
    return Case(inputs, attrs, opset)


@draws("DeformConv")
def deform(op: str, form: Form, data: Data) -> Case:
    """Two axes of at least two pixels, which the reference needs; offsets of any size."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    kernel = [form.int(1, 3) for _ in range(2)]
    group, moved = form.one_of([1, 1, 2]), form.one_of([1, 1, 2])
    channels, filters = group * moved * form.int(1, 2), group * form.int(1, 3)
    attrs: dict[str, Any] = {"group": group} if group > 1 else {}
    attrs |= {"offset_group": moved} if moved > 1 else {}
    for name, count, low, high in (("strides", 2, 1, 2), ("dilations", 2, 1, 2), ("pads", 4, 0, 1)):
        attrs |= form.maybe({name: [form.int(low, high) for _ in range(count)]})
    steps, spread = attrs.get("strides", [1, 1]), attrs.get("dilations", [1, 1])
    pads, batch = attrs.get("pads", [0] * 4), data.int(1, 2)
    reach = [d * (k - 1) + 1 for d, k in zip(spread, kernel, strict=True)]
    sizes = [max(r + data.int(0, 5), 2) for r in reach]
    out = [(sizes[d] + pads[d] + pads[d + 2] - reach[d]) // steps[d] + 1 for d in range(2)]
    taps = kernel[0] * kernel[1]
    inputs: list[Array | None] = [
        data.floats(dtype, (batch, channels, *sizes)),
        Data(form).floats(dtype, (filters, channels // group, *kernel)),
        data.floats(dtype, (batch, moved * taps * 2, *out), -2, 2),
    ]
    masked = form.chance(0.4)
    if form.chance(0.6):
        inputs.append(data.floats(dtype, (filters,)))
    if masked:
        inputs += [None] * (4 - len(inputs))
        inputs.append(data.floats(dtype, (batch, moved * taps, *out), 0, 1))
    return Case(inputs, attrs, opset, constants=(1,), tol=rounding(dtype, 2e-5))
