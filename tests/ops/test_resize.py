"""Resize: NumPy, shape rules and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpu_fallback import registry
from cpu_fallback.resize import COORDINATE_MODES
from engine import dims
from engine.dtypes import FLOAT32, INT64
from engine.errors import ShapeError
from engine.ir import Graph, Node, TensorType, Value
from engine.ops import InferView, lookup, object_array
from tests.ops.harness import (
    OpCase,
    arrays,
    case_id,
    check_cpu,
    check_gpu,
    check_infer,
    expected,
    inferred,
    supported,
)
from tests.ops.standard import for_each, node_suite

F = "float32"
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def resize(
    shape: Sequence[int],
    *,
    scales: Sequence[float] | None = None,
    sizes: Sequence[int] | None = None,
    roi: Sequence[float] | None = None,
    dtype: str = F,
    cpu_only: bool = False,
    oracle: Any = None,
    **attrs: Any,
) -> OpCase:
    inputs: list[Any] = [
        (tuple(shape), dtype),
        None if roi is None else np.array(roi, np.float32),
        None if scales is None else np.array(scales, np.float32),
    ]
    if sizes is not None:
        inputs.append(np.array(sizes, np.int64))
    factors = ",".join(map(str, scales or sizes or ()))
    name = f"{'x'.join(map(str, shape))}{dtype}-{factors}-{'roi-' if roi else ''}" + ",".join(
        str(v) for v in attrs.values()
    )
    return OpCase(
        "Resize",
        tuple(inputs),
        attrs,
        constants=tuple(i for i in range(1, len(inputs)) if inputs[i] is not None),
        cpu_only=cpu_only,
        oracle=oracle,
        name=name,
    )


def positive_axes(x: Any, roi: Any, scales: Any) -> Any:
    """The reference, which is wrong on negative axes, given the same axes from the front."""
    twin = resize(x.shape, scales=list(scales), axes=[3, 2], mode="linear")
    return expected(twin.replace(inputs=(x, roi, scales)), [x, roi, scales])[0]


PLAIN = sorted(COORDINATE_MODES - {"tf_crop_and_resize"})
ROI = (0, 0, 0.1, 0.2, 1, 1, 0.93, 1.2)
CASES = [
    *(
        resize(
            (1, 2, 5, 7),
            sizes=(1, 2, 9, 11),
            mode="nearest",
            nearest_mode=rounding,
            coordinate_transformation_mode=mode,
        )
        for rounding in NEAREST
        for mode in PLAIN
    ),
    *(
        resize((2, 3, 8, 6), scales=(1, 1, 0.6, 1.5), mode=mode, coordinate_transformation_mode=c)
        for mode in ("nearest", "linear", "cubic")
        for c in PLAIN
    ),
    *(
        resize((1, 2, 5, 8), sizes=(1, 2, 3, 17), mode=mode, coordinate_transformation_mode=c)
        for mode in ("linear", "cubic")
        for c in PLAIN
    ),
    *(
        resize(
            (1, 2, 5, 8),
            sizes=(1, 2, *size),
            roi=ROI,
            mode=mode,
            coordinate_transformation_mode="tf_crop_and_resize",
            extrapolation_value=9.0,
        )
        for mode in ("nearest", "linear", "cubic")
        for size in ((3, 4), (7, 1))
    ),
    resize((1, 3, 4, 4), scales=(1, 1, 2, 2), coordinate_transformation_mode="asymmetric"),
    resize((1, 3, 4, 4), scales=(1, 1, 3, 3), mode="linear"),
    resize((1, 3, 1, 1), scales=(1, 1, 3, 4), mode="linear"),
    resize((1, 3, 5, 6), scales=(0.437125, 1.7071), axes=[2, 3], mode="linear"),
    resize((1, 3, 5, 6), scales=(1.5, 2.7), axes=[-1, -2], mode="linear", oracle=positive_axes),
    resize((1, 5, 6, 3), sizes=(10, 9), axes=[1, 2], mode="linear"),
    resize((1, 5, 6, 3), sizes=(10, 9), axes=[1, 2], nearest_mode="floor"),
    resize((3, 17), scales=(1, 2.5), mode="linear"),
    resize((17,), sizes=(40,), mode="cubic", cubic_coeff_a=-0.5),
    resize((1, 2, 3, 4, 5), sizes=(1, 2, 5, 3, 10), mode="linear"),
    resize((1, 2, 3, 4, 5), scales=(1, 1, 2, 2, 2), mode="nearest"),
    resize((1, 1, 4, 5), scales=(1, 1, 0.8, 1.6), mode="cubic", exclude_outside=1),
    resize((1, 1, 4, 5), scales=(1, 1, 0.5, 3), mode="linear", exclude_outside=1),
    *(
        resize((1, 1, 7, 5), sizes=(8, 13), axes=[2, 3], keep_aspect_ratio_policy=policy)
        for policy in ("not_larger", "not_smaller")
    ),
    *(
        resize((1, 1, 9, 8), scales=(1, 1, 0.4, 0.6), mode=m, antialias=1, cpu_only=True)
        for m in ("linear", "cubic")
    ),
    resize((2, 3, 4), scales=(1, 2, 2), dtype="int32", oracle="fallback"),
    resize((2, 3, 4), scales=(1, 2, 2), dtype="bool", oracle="fallback"),
    resize((2, 3, 4), scales=(1, 2, 2), dtype="uint8", mode="linear", cpu_only=True),
    resize((2, 3, 4, 5), scales=(1, 2, 2, 2), mode="cubic", cpu_only=True),
    resize((0, 3, 4, 4), scales=(1, 1, 2, 2), mode="linear", oracle="fallback"),
    resize((2, 3, 5), scales=(1, 1, 1), mode="linear"),
]


test_node_suite = node_suite("Resize")
test_cpu = for_each(CASES, check_cpu)


def needs_sizes(case: OpCase) -> bool:
    """Whether output sizes are no expressions in the input sizes."""
    return "keep_aspect_ratio_policy" in case.attrs or "0.437125" in case.name


test_infer = for_each([c for c in CASES if not needs_sizes(c)], check_infer)


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_gpu(case: OpCase, dynamic: bool) -> None:
    refused = dynamic and "keep_aspect_ratio_policy" in case.attrs
    check_gpu(case.replace(cpu_only=case.cpu_only or refused), dynamic=dynamic)


@st.composite
def drawn(draw: st.DrawFn) -> OpCase:
    """A resampling of the last two of three axes, by scales or sizes."""
    mode = draw(st.sampled_from(("nearest", "linear", "cubic")))
    attrs: dict[str, Any] = {"mode": mode, "axes": [1, 2]}
    attrs["coordinate_transformation_mode"] = draw(st.sampled_from(PLAIN))
    if mode == "nearest":
        attrs["nearest_mode"] = draw(st.sampled_from(NEAREST))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 13)), draw(st.integers(1, 13)))
    if draw(st.booleans()):
        sizes = draw(st.lists(st.integers(1, 17), min_size=2, max_size=2))
        return resize(shape, sizes=sizes, oracle="fallback", **attrs)
    factors = st.sampled_from((0.5, 0.6, 1 / 3, 1.0, 1.5, 2.0, 2.3, 3.0))
    scales = draw(st.lists(factors, min_size=2, max_size=2))
    return resize(shape, scales=scales, oracle="fallback", **attrs)


@pytest.mark.gpu
@settings(max_examples=20)
@given(drawn(), st.booleans())
def test_drawn_cases(case: OpCase, dynamic: bool) -> None:
    check_gpu(case, dynamic=dynamic)


@pytest.mark.gpu
def test_sizes_of_all_axes_keep_batch_and_channels_under_a_guard() -> None:
    case = resize((2, 3, 4, 5), sizes=(2, 3, 6, 7), mode="cubic")
    check_gpu(case, dynamic=True)
    other = resize((2, 3, 4, 5), sizes=(4, 3, 6, 7), mode="cubic", cpu_only=True)
    check_gpu(other, dynamic=True)


def symbolic(
    shape: Sequence[Any], scales: Any, sizes: Sequence[Any] | None = None, **attrs: Any
) -> TensorType:
    """Type that the rule gives for an input with symbols among its sizes."""
    values = {"x": Value("x", TensorType(FLOAT32, tuple(shape))), "y": Value("y")}
    inputs = ["x", "", ""]
    if scales is not None:
        array = np.array(scales, np.float32)
        values["scales"] = Value("scales", TensorType(FLOAT32, array.shape), array)
        inputs[2] = "scales"
    if sizes is not None:
        kind = TensorType(INT64, (len(sizes),))
        values["sizes"] = Value("sizes", kind, None, object_array(sizes))
        inputs.append("sizes")
    node = Node("Resize", tuple(inputs), ("y",), attrs, since_version=19)
    graph = Graph((node,), values, ("x",), ("y",))
    op = lookup("Resize")
    assert op is not None and op.infer is not None
    (kind,) = op.infer(InferView(graph, node, dims.symbol))
    assert isinstance(kind, TensorType)
    return kind


N, H, W = (dims.symbol(s) for s in "nhw")


def test_sizes_stay_symbolic() -> None:
    assert symbolic((N, 3, H, W), [1, 1, 2, 0.5]).shape == (N, 3, 2 * H, W // 2)
    assert symbolic((N, 3, H, W), [1, 1, 1.7, 1 / 3]).shape == (N, 3, H * 17 // 10, W // 3)
    assert symbolic((N, 3, H, W), None, [N, 3, 2 * H, 7]).shape == (N, 3, 2 * H, 7)


def test_sizes_that_are_no_expressions_are_left_open() -> None:
    assert symbolic((N, 3, H, W), [1, 1, 1.2345678, 2]).shape is None
    policy = {"keep_aspect_ratio_policy": "not_larger"}
    assert symbolic((N, 3, H, W), None, [N, 3, 5, 7], **policy).shape is None
    assert symbolic((1, 3, H, W), None, None, axes=[2]).shape == (1, 3, dims.symbol("resized2"), W)


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.6, 0.7, 1 / 3, 1 / 7, 1.1, 1.9, 2.3])
def test_sizes_are_those_of_exact_arithmetic(scale: float) -> None:
    (_, out) = symbolic((1, H), [1, scale]).shape or ()
    exact = round(scale * 210)
    for size in range(1, 60):
        assert dims.evaluate(out, {"h": size}) == size * exact // 210
        assert symbolic((1, size), [1, scale]).shape == (1, size * exact // 210)


def test_integers_are_rounded_half_to_even_and_saturate() -> None:
    x = np.array([[0, 255, 255, 2]], np.uint8)
    attrs = {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"}
    scales = np.array([1, 2], np.float32)
    got = registry.run("Resize", "", 19, attrs, [x, None, scales], 1)[0]
    exact = registry.run("Resize", "", 19, attrs, [x.astype(np.float64), None, scales], 1)[0]
    assert exact.min() < 0 and exact.max() > 255
    np.testing.assert_array_equal(got, np.clip(np.rint(exact), 0, 255).astype(np.uint8))


def test_strings_are_resized_by_nearest_element() -> None:
    x = np.array(["a", "b"], object)
    scales = np.array([2], np.float32)
    got = registry.run("Resize", "", 19, {}, [x, None, scales], 1)[0]
    assert list(got) == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (resize((1, 2, 3, 4), scales=(1, 2)), "axes"),
        (resize((1, 2), scales=(1, -2)), "positive"),
        (resize((1, 0), sizes=(1, 3)), "empty"),
        (resize((1, 2), scales=(1, 2), mode="sinc"), "sinc"),
        (resize((1, 2), scales=(1, 2), coordinate_transformation_mode="odd"), "odd"),
    ],
    ids=["count", "sign", "empty", "mode", "coordinates"],
)
def test_contradictions_are_refused(case: OpCase, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        inferred(case)
    with pytest.raises(ValueError):
        registry.run("Resize", "", 19, dict(case.attrs), arrays(case), 1)


def test_gpu_refusals_have_reasons() -> None:
    assert "antialiasing" in supported(resize((1, 8), scales=(1, 0.5), antialias=1)).reason
    whole = resize((1, 8), scales=(1, 0.5), dtype="int32", mode="linear")
    assert "int32" in supported(whole).reason
    many = resize((2, 2, 2), scales=(2, 2, 2), mode="cubic")
    assert "2 axes, not 3" in supported(many).reason
    long = resize((1, 30000), sizes=(1, 50001))
    assert "too long" in supported(long).reason
