"""Convolutions over one to three axes, and transposed ones."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.properties.cases import Case, draws
from tests.properties.drawing import Array, Data, Form

CHANNELS = (1, 2, 3, 4, 8, 16)


def window(form: Form, rank: int, most: int = 3) -> dict[str, Any]:
    """Strides, dilations and pads, each given or not."""
    attrs: dict[str, Any] = {}
    for name, count, low, high in (
        ("strides", rank, 1, 3),
        ("dilations", rank, 1, 2),
        ("pads", 2 * rank, 0, most - 1),
    ):
        attrs |= form.maybe({name: [form.int(low, high) for _ in range(count)]})
    return attrs


def sizes(data: Data, kernel: list[int], attrs: dict[str, Any]) -> list[int]:
    """Spatial sizes into which the windows fit at least once."""
    found = []
    for axis, k in enumerate(kernel):
        dilation = attrs.get("dilations", [1] * len(kernel))[axis]
        more = data.one_of([0, 1, 2, 3, 5, 8, 15, 31] if len(kernel) < 3 else [0, 1, 3, 4])
        found.append(dilation * (k - 1) + 1 + more)
    return found


def weights(form: Form, data: Data) -> tuple[tuple[int, ...], Data]:
    """Which inputs are constants (weights and bias, or none), and what their contents come from."""
    constant = form.chance(0.7)
    return ((1, 2) if constant else ()), Data(form) if constant else data


@draws("Conv")
def conv(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.one_of([2, 1, 2, 3])
    kernel = [form.int(1, 3) for _ in range(rank)]
    attrs = window(form, rank)
    group, per_group, out = form.one_of([1, 1, 2, 3, 4]), form.one_of(CHANNELS), form.int(1, 4)
    if form.chance(0.3):
        per_group = 1
    if form.chance(0.25):
        attrs.pop("pads", None)
        attrs["auto_pad"] = form.one_of(["SAME_UPPER", "SAME_LOWER", "VALID"])
    attrs |= form.maybe({"kernel_shape": kernel}) | ({"group": group} if group > 1 else {})
    constants, source = weights(form, data)
    shape = (data.int(0, 2), group * per_group, *sizes(data, kernel, attrs))
    inputs: list[Array | None] = [
        data.floats(dtype, shape),
        source.floats(dtype, (group * out, per_group, *kernel)),
    ]
    if form.chance(0.5):
        inputs.append(source.floats(dtype, (group * out,)))
    sized = () if constants else (1,)
    return Case(inputs, attrs, opset, constants=constants, sized=sized, tol=1e-5)


@draws("ConvTranspose")
def conv_transpose(op: str, form: Form, data: Data) -> Case:
    opset = form.opset(op)
    dtype = form.dtype(op, opset)
    rank = form.one_of([2, 1, 2, 3])
    kernel = [form.int(1, 3) for _ in range(rank)]
    attrs = window(form, rank, 2)
    group, per_group, out = form.one_of([1, 1, 2, 3]), form.one_of(CHANNELS), form.int(1, 4)
    attrs |= form.maybe({"kernel_shape": kernel}) | ({"group": group} if group > 1 else {})
    strides = attrs.get("strides", [1] * rank)
    if form.chance(0.15):
        attrs.pop("pads", None)
        # strides longer than the kernel leave gaps, of which ONNX Runtime drops the last one
        gaps = any(s > k for s, k in zip(strides, kernel, strict=True))
        same = [] if gaps else ["SAME_UPPER", "SAME_LOWER"]
        attrs["auto_pad"] = form.one_of([*same, "VALID"])
    elif form.chance(0.3):
        attrs["output_padding"] = [form.int(0, max(s - 1, 0)) for s in strides]
    constants, source = weights(form, data)
    shape = (data.int(1, 2), group * per_group, *(data.int(2, 6) for _ in kernel))
    inputs: list[Array | None] = [
        data.floats(dtype, shape),
        source.floats(dtype, (group * per_group, out, *kernel)),
    ]
    if form.chance(0.5):
        inputs.append(source.floats(dtype, (group * out,)))
    sized = () if constants else (1,)
    case = Case(inputs, attrs, opset, constants=constants, sized=sized, tol=1e-5)
    if group > 1 or {"output_padding", "auto_pad"} & attrs.keys():
        because = "it is wrong with groups and added sizes"
        return dataclasses.replace(case, oracle="runtime", because=because)
    return case
