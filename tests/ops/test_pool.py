"""Pooling: NumPy, shape rules and kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from cpu_fallback import registry
from engine import dims
from engine.errors import ShapeError
from engine.windows import windows
from tests.cpu_fallback.oracle import ort_node
from tests.ops.harness import (
    OpCase,
    arrays,
    case_id,
    check_cpu,
    check_gpu,
    check_infer,
    inferred,
    supported,
)
from tests.ops.standard import for_each, node_suite

F = "float32"
WINDOWED = ("MaxPool", "AveragePool", "LpPool")
GLOBAL = ("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")


def ort(op: str, n_outputs: int, attrs: dict[str, Any]) -> Any:
    """An oracle: the node run by ONNX Runtime, which knows GlobalLpPool up to opset 18 only."""
    opset = 18 if op == "GlobalLpPool" else 22
    return lambda x: tuple(ort_node(op, [x], n_outputs, model_opset=opset, **attrs))


def pool(op: str, shape: tuple[int, ...], n_outputs: int = 1, **attrs: Any) -> OpCase:
    found = ort(op, n_outputs, attrs)
    return OpCase(op, ((shape, F),), attrs, n_outputs=n_outputs, oracle=found)


def rare_values() -> Any:
    x = np.random.default_rng(5).standard_normal((1, 2, 9, 11), dtype=np.float32)
    x[0, 0, 3, 4], x[0, 1, 0, 0], x[0, 1, 5:8, 5:9] = np.nan, np.inf, -np.inf
    return x


SHAPE = (2, 3, 9, 11)
GEOMETRY: list[dict[str, Any]] = [
    {"kernel_shape": [3, 3]},
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [2, 2], "strides": [3, 4], "pads": [0, 1, 1, 1], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"kernel_shape": [2, 3], "auto_pad": "SAME_LOWER"},
    {"kernel_shape": [4, 3], "auto_pad": "VALID"},
    {"kernel_shape": [3, 2], "dilations": [2, 3]},
    {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]},
]
CASES = [pool(op, SHAPE, **g) for op in WINDOWED for g in GEOMETRY]
CASES += [pool("MaxPool", SHAPE, 2, **g) for g in GEOMETRY]
CASES += [pool(op, (2, 3, 9, 12), **g) for op in WINDOWED[:2] for g in GEOMETRY]
CASES += [
    pool("MaxPool", (2, 3, 9, 13), 2, kernel_shape=[3, 2], strides=[2, 1], storage_order=1),
    *(pool("AveragePool", SHAPE, count_include_pad=1, **g) for g in GEOMETRY[2:6]),
    *(pool("LpPool", SHAPE, p=p, kernel_shape=[3, 3], pads=[1, 0, 1, 0]) for p in (1, 3)),
    *(pool(op, (1, 2, 17), kernel_shape=[3], pads=[1, 1]) for op in WINDOWED),
    *(
        pool(op, (1, 2, 5, 6, 7), kernel_shape=[2, 3, 2], strides=[2, 1, 2], pads=[1] * 6)
        for op in WINDOWED
    ),
    pool("MaxPool", (1, 2, 5, 6, 7), 2, kernel_shape=[2, 3, 2], strides=[2, 1, 2]),
    pool("MaxPool", (1, 2, 9, 1), 2, kernel_shape=[2, 1]),
    pool("MaxPool", (1, 1, 3, 40), kernel_shape=[1, 13], pads=[0, 6, 0, 6]),
    pool("AveragePool", (1, 3, 12, 16), kernel_shape=[2, 2], strides=[2, 2]),
    OpCase("MaxPool", (rare_values(),), {"kernel_shape": [3, 3]}, oracle="fallback", name="nan"),
    OpCase(
        "MaxPool",
        (rare_values(),),
        {"kernel_shape": [3, 3], "strides": [2, 2]},
        n_outputs=2,
        oracle="fallback",
        name="nan-indices",
    ),
    OpCase("MaxPool", (((0, 2, 9, 9), F),), {"kernel_shape": [2, 2]}, oracle="fallback"),
]
CASES += [pool(op, s) for op in GLOBAL for s in ((2, 37, 7, 7), (1, 3, 37, 41), (1, 5, 9))]
CASES += [
    pool("GlobalLpPool", (2, 5, 7, 7), p=1),
    pool("GlobalLpPool", (2, 5, 7, 7), p=3),
    *(
        OpCase(
            "LpPool",
            (rare_values(),),
            {"kernel_shape": [3, 3], "p": p},
            oracle="fallback",
            name=f"nan-{p}",
        )
        for p in (1, 2, 3, 4)
    ),
    *(
        OpCase("GlobalLpPool", (rare_values(),), {"p": p}, oracle="fallback", name=f"nan-{p}")
        for p in (1, 2, 3)
    ),
    OpCase("GlobalMaxPool", (rare_values(),), oracle="fallback", name="nan"),
    OpCase("GlobalAveragePool", (rare_values(),), oracle="fallback", name="nan"),
    OpCase("GlobalAveragePool", (((0, 3, 2, 2), F),), oracle="fallback"),
]


test_node_suite = node_suite(*WINDOWED, *GLOBAL[:2], "MaxUnpool")
test_cpu = for_each(CASES, check_cpu)
test_infer = for_each(CASES, check_infer)


@pytest.mark.gpu
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_gpu(case: OpCase, dynamic: bool) -> None:
    refused = dynamic and case.n_outputs == 2  # indices into unknown sizes may exceed 32 bits
    check_gpu(case.replace(cpu_only=refused), dynamic=dynamic)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("op", ["MaxPool", "GlobalMaxPool"])
def test_more_workgroups_than_one_grid_dimension_holds(op: str) -> None:
    attrs = {"kernel_shape": [1]} if op == "MaxPool" else {}
    shape = (1, 64 * 65535 + 1, 1)
    check_gpu(OpCase(op, ((shape, F),), attrs, oracle=lambda x: x))


@st.composite
def drawn(draw: st.DrawFn) -> OpCase:
    """A pool over one or two axes."""
    rank = draw(st.integers(1, 2))

    def ints(low: int, high: int, count: int = rank) -> list[int]:
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    op = draw(st.sampled_from(WINDOWED))
    attrs: dict[str, Any] = {"kernel_shape": ints(1, 5), "strides": ints(1, 3)}
    attrs |= {"dilations": ints(1, 3), "ceil_mode": draw(st.integers(0, 1))}
    padding = draw(st.sampled_from(("pads", "SAME_UPPER", "SAME_LOWER")))
    attrs |= {"pads": ints(0, 3, 2 * rank)} if padding == "pads" else {"auto_pad": padding}
    if op == "AveragePool":
        attrs["count_include_pad"] = draw(st.integers(0, 1))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), *ints(1, 21))
    return OpCase(op, ((shape, F),), attrs, oracle="fallback")


@pytest.mark.gpu
@settings(max_examples=15)
@given(drawn(), st.booleans())
def test_drawn_cases(case: OpCase, dynamic: bool) -> None:
    try:
        registry.run(case.op, "", 22, dict(case.attrs), arrays(case), 1)
    except ValueError:
        reject()
    check_gpu(case, dynamic=dynamic)


@pytest.mark.parametrize("op", ["MaxPool", "GlobalMaxPool"])
def test_nan_is_the_maximum(op: str) -> None:
    x = np.array([[[1, np.nan, 3, 2, np.inf, -np.inf]]], np.float32)
    attrs: dict[str, Any] = {"kernel_shape": [2]} if op == "MaxPool" else {}
    want = [np.nan, np.nan, 3, np.inf, np.inf] if attrs else [np.nan]
    np.testing.assert_array_equal(registry.run(op, "", 22, attrs, [x], 1)[0].ravel(), want)


def test_the_index_is_that_of_the_first_maximum() -> None:
    x = np.array([[[5, 5, 1, np.nan, np.nan, -np.inf, -np.inf]]], np.float32)
    attrs = {"kernel_shape": [2], "strides": [1]}
    value, index = registry.run("MaxPool", "", 22, attrs, [x], 2)
    np.testing.assert_array_equal(value.ravel(), [5, 5, np.nan, np.nan, np.nan, -np.inf])
    np.testing.assert_array_equal(index.ravel(), [0, 1, 3, 3, 4, 5])


BYTES = [
    OpCase("MaxPool", ((shape, dtype),), attrs, outputs, oracle="fallback")
    for dtype in ("int8", "uint8")
    for shape in (SHAPE, (1, 2, 9, 18))
    for attrs in (GEOMETRY[0], GEOMETRY[2], GEOMETRY[4], GEOMETRY[5])
    for outputs in (1, 2)
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", BYTES, ids=lambda c: f"{case_id(c)}-{c.n_outputs}")
def test_maximum_of_bytes_on_the_gpu(case: OpCase) -> None:
    check_gpu(case)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, np.float64])
def test_max_pool_of_other_types(dtype: Any) -> None:
    x = np.random.default_rng(1).integers(0, 100, (1, 2, 5, 5)).astype(dtype)
    attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    got = registry.run("MaxPool", "", 22, attrs, [x], 1)[0]
    want = registry.run("MaxPool", "", 22, attrs, [x.astype(np.float32)], 1)[0]
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(np.float32), want)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pads", "starts"),
    [
        (5, 2, 2, (0, 0), [0, 2, 4]),
        (4, 1, 3, (0, 1), [0, 3]),
        (3, 2, 3, (1, 2), [-1, 2]),
        (6, 3, 4, (0, 2), [0, 4]),
        (3, 1, 2, (1, 1), [-1, 1]),
    ],
)
def test_rounding_up_leaves_out_windows_that_start_behind(
    size: int, kernel: int, stride: int, pads: tuple[int, int], starts: list[int]
) -> None:
    exact = windows([size], [kernel], strides=[stride], pads=pads, ceil_mode=1)
    symbol = windows([dims.symbol("n")], [kernel], strides=[stride], pads=pads, ceil_mode=1)
    assert exact.out == (len(starts),)
    assert dims.evaluate(symbol.out[0], {"n": size}) == len(starts)
    assert [i * stride - pads[0] for i in range(exact.out[0])] == starts
    x = np.arange(1, size + 1, dtype=np.float32).reshape(1, 1, size)
    attrs = {"kernel_shape": [kernel], "strides": [stride], "pads": list(pads), "ceil_mode": 1}
    means = registry.run("AveragePool", "", 22, attrs, [x], 1)[0].ravel()
    inside = [[x[0, 0, i] for i in range(s, s + kernel) if 0 <= i < size] for s in starts]
    for mean, elements in zip(means, inside, strict=True):
        assert mean == np.mean(elements) if elements else np.isnan(mean)


def test_max_unpool_puts_back_what_max_pool_took() -> None:
    x = np.random.default_rng(2).standard_normal((1, 2, 6, 8), dtype=np.float32)
    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    value, index = registry.run("MaxPool", "", 22, attrs, [x], 2)
    back = registry.run("MaxUnpool", "", 22, attrs, [value, index], 1)[0]
    kept = back != 0
    assert kept.sum() == value.size
    np.testing.assert_array_equal(back[kept], x[kept])


def test_refusals_have_reasons() -> None:
    deep = OpCase("MaxPool", (((1, 2, 3, 3, 3, 3), F),), {"kernel_shape": [1] * 4})
    assert "three spatial axes" in supported(deep).reason
    huge = OpCase("AveragePool", (((1, 1, 300, 300), F),), {"kernel_shape": [300, 300]})
    assert "loop" in supported(huge).reason
    odd = OpCase("LpPool", (((1, 1, 3, 3), F),), {"kernel_shape": [2, 2], "p": 0})
    assert "p >= 1" in supported(odd).reason
    with pytest.raises(ShapeError, match="does not fit"):
        inferred(OpCase("MaxPool", (((1, 1, 2, 2), F),), {"kernel_shape": [5, 5]}))
