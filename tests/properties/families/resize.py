"""Resize by scales or to sizes, every mode and choice of coordinates."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form, is_float
from tests.properties.oracles import reference, runtime

COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@draws("Resize")
def resize(op: str, form: Form, data: Data) -> Case:
    """By scales that leave whole sizes, and coordinates that are the same in any precision."""
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    modes = ["nearest", *(["linear"] if opset < 11 else ["linear", "cubic"])]
    mode = form.one_of(modes) if is_float(dtype) else "nearest"
    spatial = form.one_of([2, 1, 2, 3]) if mode != "cubic" else form.int(1, 2)
    shape = (data.int(1, 2), data.int(1, 3), *(2 * data.int(1, 4) for _ in range(spatial)))
    scales = [form.one_of([2.0, 0.5, 1.0, 4.0, 3.0, 1.5]) for _ in range(spatial)]
    x = data.array(dtype, shape)
    attrs: dict[str, Any] = {"mode": mode}
    if opset < 11:
        return first(op, Case([x, np.asarray([1, 1, *scales], np.float32)], attrs, opset))
    choices = [*COORDINATES, *(["half_pixel_symmetric"] if opset >= 19 else [])]
    attrs |= form.maybe({"coordinate_transformation_mode": form.one_of(choices)}, 0.8)
    if mode == "cubic" and attrs.get("coordinate_transformation_mode") == "pytorch_half_pixel":
        # the reference takes another element than the first where one is left
        scales = [max(s, 1.0) for s in scales]
    if mode == "nearest":
        attrs |= form.maybe({"nearest_mode": form.one_of(NEAREST)})
    if mode == "cubic":
        attrs |= form.maybe({"cubic_coeff_a": -0.5}) | form.maybe({"exclude_outside": 1}, 0.4)
    none = np.zeros(0, np.float32) if opset < 13 else None
    numbers: list[Array | None] = [none, np.asarray([1, 1, *scales], np.float32)]
    if form.chance(0.4):
        sizes = [*shape[:2], *(int(n * s) for n, s in zip(shape[2:], scales, strict=True))]
        numbers = [none, none, np.asarray(sizes, np.int64)]
    if opset >= 18 and form.chance(0.4):
        attrs["axes"] = list(range(2, 2 + spatial))
        numbers = [None if n is None else n[2:] for n in numbers]
    case = Case([x, *numbers], attrs, opset, tol=1e-5)
    if dtype != np.bool_:
        return case

    def oracle(x: Array, *_: Array | None) -> Array:
        found = reference(op, dataclasses.replace(case, inputs=[x.astype(np.uint8), *numbers]))
        return found[0].astype(np.bool_)

    return dataclasses.replace(case, oracle=oracle, because="it has no limits for bools")


def first(op: str, case: Case) -> Case:
    """A case of version 10, which ONNX Runtime has for float32 only."""

    def oracle(x: Array, scales: Array) -> Array:
        found = runtime(op, dataclasses.replace(case, inputs=[x.astype(np.float32), scales]))
        return found[0] if is_float(x.dtype) else found[0].astype(x.dtype)

    because = "it knows the inputs of version 11 only"
    return dataclasses.replace(case, tol=1e-5, oracle=oracle, because=because)
