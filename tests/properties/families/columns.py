"""Col2Im."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Data, Form


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
