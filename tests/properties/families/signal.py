"""Windows."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, as_dtype

WEIGHTS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@draws("HannWindow", "HammingWindow", "BlackmanWindow")
def window(op: str, form: Form, data: Data) -> Case:
    """As long as an input, whose size is a symbol."""
    opset = form.opset(op)
    attrs = form.maybe({"periodic": form.int(0, 1)}, 0.7)
    if form.chance(0.5):
        name = form.one_of(["float32", "float16", "bfloat16"])
        attrs["output_datatype"] = int(helper.np_dtype_to_tensor_dtype(as_dtype(name)))
    x = np.zeros(data.one_of([65, 130, 2, 7, 257, 1]), np.float32)
    mean, first, second = WEIGHTS[op]

    def oracle(x: Array) -> Array:
        period = x.size if attrs.get("periodic", 1) else max(x.size - 1, 1)
        angles = 2 * np.pi * np.arange(x.size) / period
        return np.asarray(mean - first * np.cos(angles) + second * np.cos(2 * angles))

    because = "it computes short floats in their own precision"
    return Case(
        [x], attrs, opset, tol=2e-6, each=True, ahead="Size", oracle=oracle, because=because
    )
