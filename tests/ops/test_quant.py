"""Quantisation on the GPU: levels and integer sums equal those of the NumPy functions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine
from tests.ops.harness import (
    Array,
    OpCase,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    supported,
)
from tests.ops.standard import for_each, on_gpu
from tests.runtime.models import parse

F = "float32"
MICROSOFT = "com.microsoft"
UINT8, INT8, UINT16, INT16 = 2, 3, 4, 5
TYPES = ("uint8", "int8", "uint16", "int16")


def levels(dtype: str, *shape: int, seed: int = 0) -> Array:
    """All levels of an integer type are equally likely."""
    info, rng = np.iinfo(dtype), np.random.default_rng(seed + sum(shape))
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def floats(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed + sum(shape))
    return np.asarray(rng.standard_normal(shape) * scale, np.float32)


def scales(*shape: int) -> Array:
    """Powers of two and others, none so small that all saturates."""
    rng = np.random.default_rng(sum(shape))
    return rng.choice(np.array([0.25, 0.1, 0.03125, 0.7], np.float32), shape)


def one(value: float, dtype: str = F) -> Array:
    return np.array(value, dtype)


EDGES = np.array(
    "0.5 1.5 2.5 -0.5 -1.5 127.5 128.5 254.5 255.5 300 -300 7e4 -7e4 3e9 nan inf -inf -0".split(),
    np.float32,
)


def linear_cases() -> list[OpCase]:
    found = []
    for index, dtype in enumerate(TYPES):
        zero = one(3, dtype)
        axis: dict[str, Any] = {"axis": index - 2}
        size = (5, 6, 7, 8)[index]
        x, data = floats(5, 6, 7, 8, scale=9), levels(dtype, 5, 6, 7, 8)
        found += [
            OpCase("QuantizeLinear", (EDGES, one(1), zero), name=f"edges-{dtype}"),
            OpCase("QuantizeLinear", (floats(3, 37, scale=50), one(0.3), zero)),
            OpCase(
                "QuantizeLinear",
                (x, scales((5, 6, 7, 8)[index - 2]), levels(dtype, (5, 6, 7, 8)[index - 2])),
                axis,
            ),
            OpCase("DequantizeLinear", (data, one(0.3), zero)),
            OpCase("DequantizeLinear", (levels(dtype, 37), one(0.3))),
            OpCase(
                "DequantizeLinear",
                (data, scales((5, 6, 7, 8)[index - 2]), levels(dtype, (5, 6, 7, 8)[index - 2])),
                axis,
            ),
            OpCase(
                "DequantizeLinear",
                (levels(dtype, 3, 12, 5), scales(3, 4, 5), levels(dtype, 3, 4, 5)),
                {"axis": 1, "block_size": 3},
            ),
            OpCase(
                "QuantizeLinear",
                (floats(3, 8 * size, scale=9), scales(3, 8), levels(dtype, 3, 8)),
                {"axis": -1, "block_size": size},
            ),
        ]
    half = floats(4, 9, scale=20).astype(np.float16)
    brain = floats(4, 9, scale=20).astype(ml_dtypes.bfloat16)
    found += [
        OpCase("QuantizeLinear", (floats(9), one(0.1)), name="no-zero"),
        OpCase("QuantizeLinear", (floats(9), one(0.1)), {"output_dtype": INT16}),
        OpCase("QuantizeLinear", (floats(), one(0.1), one(1, "int8")), name="scalar"),
        OpCase("QuantizeLinear", (floats(), scales(1), levels("int8", 1)), name="scalar-by-one"),
        OpCase("DequantizeLinear", (levels("int8"), scales(1)), name="scalar-by-one"),
        OpCase("QuantizeLinear", (floats(0, 3), one(0.1), one(1, "int8")), name="empty"),
        OpCase("QuantizeLinear", (levels("int32", 30) // 100000, one(7.0), one(1, "int8"))),
        OpCase("QuantizeLinear", (half, one(0.3, "float16"), one(7, "uint8")), name="half"),
        OpCase("QuantizeLinear", (half, one(0.3), one(7, "uint8")), name="half-by-float"),
        OpCase("QuantizeLinear", (brain, one(0.3).astype(brain.dtype), one(7, "int8"))),
        OpCase("DequantizeLinear", (levels("int32", 40) // 7, one(0.01)), name="int32"),
        OpCase(
            "DequantizeLinear",
            (levels("int32", 40) // 7, one(0.01), one(0, "int32")),
            constants=(2,),
            name="int32-zero",
        ),
        OpCase("DequantizeLinear", (levels("int8", 40), one(0.3, "float16"), one(3, "int8"))),
        OpCase(
            "DequantizeLinear", (levels("int8", 40), one(0.3)), {"output_dtype": 10}, name="to-half"
        ),
    ]
    return [c.replace(oracle="fallback") for c in found]


def dynamic_cases() -> list[OpCase]:
    inputs = [
        floats(1),
        floats(3, 37, scale=4),
        np.abs(floats(5, 5)) + 1,
        -np.abs(floats(5, 5)) - 1,
        np.zeros((2, 3), np.float32),
        floats(70_001, scale=0.1),
        floats(1025),
    ]
    return [OpCase("DynamicQuantizeLinear", (x,), n_outputs=3, oracle="fallback") for x in inputs]


def matmul_cases() -> list[OpCase]:
    found = []
    for a, b in (("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8"), ("int8", "int8")):
        for rows, inner, columns in ((1, 1, 1), (3, 37, 5), (8, 64, 32), (17, 300, 64), (2, 4, 4)):
            zeros = (one(3, a), one(5, b))
            pair = (levels(a, rows, inner), levels(b, inner, columns))
            found.append(OpCase("MatMulInteger", (*pair, *zeros)))
            found.append(
                OpCase(
                    "MatMulInteger",
                    (*pair, *zeros),
                    constants=(2, 3),
                    name=f"fixed-{a}-{b}-{rows}x{inner}x{columns}",
                )
            )
        pair = (levels(a, 7, 40), levels(b, 40, 12))
        found.append(OpCase("MatMulInteger", (*pair, levels(a, 7), levels(b, 12))))
        found.append(OpCase("MatMulInteger", pair))
        found.append(OpCase("MatMulInteger", (*pair, None, levels(b, 12)), constants=(1, 3)))
    batch = (levels("uint8", 2, 3, 5, 9), levels("int8", 3, 9, 4))
    found += [
        OpCase("MatMulInteger", (*batch, one(9, "uint8"), one(1, "int8"))),
        OpCase("MatMulInteger", (levels("uint8", 2, 3, 5, 9), levels("int8", 9, 1))),
        OpCase("MatMulInteger", (levels("uint8", 9), levels("int8", 9, 6), one(2, "uint8"))),
        OpCase("MatMulInteger", (levels("uint8", 4, 9), levels("int8", 9), one(2, "uint8"))),
        OpCase("MatMulInteger", (levels("uint8", 4, 3000), levels("uint8", 3000, 8))),
        OpCase("MatMulInteger", (levels("uint8", 0, 3), levels("uint8", 3, 8)), name="empty"),
    ]
    for y in ("uint8", "int8"):
        for fixed in ((), (1, 2, 4, 5, 6, 7)):
            scalar = (one(0.02), one(3, "uint8"), one(0.01), one(1, "int8"), one(0.7), one(7, y))
            a, b = levels("uint8", 5, 40), levels("int8", 40, 12)
            inputs = (a, *scalar[:2], b, *scalar[2:])
            name = f"{y}-{'fixed' if fixed else 'given'}"
            cases = [OpCase("QLinearMatMul", inputs, constants=fixed, name=name)]
            inputs = (a, scales(5), levels("uint8", 5), b, scales(12), levels("int8", 12))
            cases.append(
                OpCase(
                    "QLinearMatMul",
                    (*inputs, one(90), one(7, y)),
                    constants=(*fixed, 6, 7),
                    name=f"{name}-axes",
                )
            )
            found += [c for c in cases if fixed]
    a, b = (levels("uint8", 9), scales(1), levels("uint8", 1)), (levels("int8", 9), one(0.1))
    dot = (*a, *b, one(1, "int8"), scales(1), levels("int8", 1))
    found.append(OpCase("QLinearMatMul", dot, constants=(2, 4, 5), name="dot"))
    a, b = levels("uint8", 5, 40), levels("int8", 40, 12)
    for more in ((), (one(3, "uint8"), one(1, "int8")), (one(3, "uint8"), levels("int8", 12))):
        bias = (floats(12),) if len(more) == 2 else ()
        found += [
            OpCase("MatMulIntegerToFloat", (a, b, one(0.1), scale, *more, *bias), domain=MICROSOFT,
                   opset=1, constants=(2, 4) if more else ())
            for scale in (one(0.2), scales(12))
        ]  # fmt: skip
    return [c.replace(oracle="fallback") for c in found]


def conv_cases() -> list[OpCase]:
    found = []
    shapes: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ((1, 3, 8, 8), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((2, 4, 7, 9), (6, 2, 3, 2), {"group": 2, "strides": [2, 1], "dilations": [1, 2]}),
        ((1, 6, 5, 13), (6, 1, 3, 3), {"group": 6, "auto_pad": "SAME_UPPER"}),
        ((1, 8, 4, 12), (16, 8, 1, 1), {}),
        ((2, 2, 11), (3, 2, 4), {"pads": [0, 3]}),
        ((1, 2, 3, 4, 5), (2, 2, 2, 2, 2), {"auto_pad": "SAME_LOWER"}),
    ]
    for index, (x, w, attrs) in enumerate(shapes):
        kind = ("int8", "uint8")[index % 2] if index else "uint8"
        pair = (levels("uint8", *x), levels(kind, *w))
        zeros = (one(100, "uint8"), levels(kind, w[0]))
        found += [
            OpCase("ConvInteger", pair, attrs),
            OpCase("ConvInteger", (*pair, one(100, "uint8")), attrs),
            OpCase("ConvInteger", (*pair, *zeros), attrs, constants=(1, 2, 3)),
            OpCase("ConvInteger", (*pair, zeros[0], one(4, kind)), attrs),
        ]
        inputs = (
            pair[0],
            one(0.02),
            zeros[0],
            pair[1],
            scales(w[0]),
            zeros[1],
            one(9),
            one(8, "uint8"),
        )
        bias = levels("int32", w[0]) // 100_000
        found.append(OpCase("QLinearConv", inputs, attrs, constants=(1, 2, 6, 7)))
        found.append(OpCase("QLinearConv", (*inputs, bias), attrs, constants=(1, 2, 3, 4, 5, 6, 7)))
    return [c.replace(oracle="fallback") for c in found]


def level_cases() -> list[OpCase]:
    found = []
    for dtype in ("uint8", "int8"):
        a = (levels(dtype, 4, 9), one(0.1), one(3, dtype))
        b = (levels(dtype, 9, seed=1), one(0.07), one(5, dtype))
        y = (one(0.11), one(9, dtype))
        fixed = (1, 2, 4, 5, 6, 7)
        found += [OpCase(op, (*a, *b, *y), constants=fixed) for op in ("QLinearAdd", "QLinearMul")]
        found.append(OpCase("QLinearMul", (*a, *b, one(0.5)), constants=(1, 2)))
        found.append(OpCase("QLinearSigmoid", (*a, one(1 / 256), one(0, dtype))))
        found.append(OpCase("QLinearLeakyRelu", (*a, *y), {"alpha": 0.2}))
        condition = np.arange(36).reshape(4, 9) % 3 == 0
        found.append(
            OpCase("QLinearWhere", (condition, *a, *b, *y), constants=tuple(i + 1 for i in fixed))
        )
    return [c.replace(oracle="fallback", domain=MICROSOFT, opset=1) for c in found]


def block_cases() -> list[OpCase]:
    found = []
    for bits, size, inner, columns, zero in (
        (4, 32, 64, 7, ""),
        (4, 16, 48, 12, "uint8"),
        (4, 32, 40, 5, F),
        (8, 32, 64, 8, "uint8"),
        (8, 16, 37, 20, ""),
        (4, 64, 320, 65, "uint8"),
    ):
        blocks = -(-inner // size)
        b = levels("uint8", columns, blocks, size * bits // 8)
        points: Array | None = None
        if zero == "uint8":
            points = levels("uint8", columns * -(-blocks * bits // 8))
        elif zero:
            points = np.asarray(floats(columns * blocks) + 8, np.float32)
        attrs = {"K": inner, "N": columns, "bits": bits, "block_size": size}
        rest = (b, scales(columns, blocks), points)
        fixed = (1, 2, 3) if zero else (1, 2)
        found += [
            OpCase("MatMulNBits", (floats(1, inner), *rest), attrs, constants=fixed),
            OpCase("MatMulNBits", (floats(2, 9, inner), *rest), attrs, constants=fixed),
            OpCase("MatMulNBits", (floats(3, inner), *rest, None, floats(columns)), attrs),
        ]
    return [c.replace(oracle="fallback", domain=MICROSOFT, opset=1) for c in found]


CASES = (
    block_cases() + linear_cases() + dynamic_cases() + matmul_cases() + conv_cases() + level_cases()
)


test_cpu = for_each(CASES, check_cpu, check_engine_cpu)
test_infer = for_each(CASES, check_infer)
test_gpu = on_gpu(CASES)
test_gpu_with_unknown_sizes = on_gpu(CASES[::5], dynamic=True)


def test_refusals_have_reasons() -> None:
    data, zero = levels("int32", 9), one(4, "int32")
    wide = OpCase("DequantizeLinear", (data, one(0.1), zero), constants=())
    assert "more than 32 bits" in supported(wide).reason
    a, b = levels("uint8", 2, 3, 4), levels("int8", 2, 4, 5)
    rows = OpCase("MatMulInteger", (a, b, levels("uint8", 2, 3, 1)))
    assert "input 2" in supported(rows).reason
    x, w = levels("uint8", 1, 2, 2, 2, 2, 2), levels("int8", 1, 2, 1, 1, 1, 1)
    assert "three spatial axes" in supported(OpCase("ConvInteger", (x, w))).reason
    odd = OpCase(
        "QuantizeLinear",
        (floats(2, 7), scales(2, 3), levels("int8", 2, 3)),
        {"axis": 1, "block_size": 3},
    )
    assert "blocks of 3" in supported(odd).reason


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [True, False])
def test_a_quantised_layer_is_one_product(fused: bool) -> None:
    """Exporters write MatMulInteger, Cast and Mul: the scale and the bias join the product."""
    model = parse(
        """g (float[n,40] x, int8[40,12] w, float[12] s, float[12] b) => (float[n,12] y) {
            q, scale, zero = DynamicQuantizeLinear(x)
            sums = MatMulInteger(q, w, zero)
            numbers = Cast <to = 1> (sums)
            both = Mul(scale, s)
            scaled = Mul(numbers, both)
            y = Add(scaled, b)
        }"""
    )
    x, w, s, b = floats(9, 40), levels("int8", 40, 12), scales(12), floats(12)
    feed = {"x": x, "w": w, "s": s, "b": b}
    disable = () if fused else ("elementwise-chain", "epilogue")
    with engine.InferenceSession(model, device="cpu") as session:
        (want,) = session.run(None, feed)
    with engine.InferenceSession(model, device="gpu", require_gpu=True, disable=disable) as session:
        (got,) = session.run(None, feed)
        dispatches = session.times.dispatches
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert dispatches == (5 if fused else 8)


@pytest.mark.gpu
@given(
    rows=st.integers(1, 9),
    inner=st.integers(1, 70),
    columns=st.integers(1, 40),
    a=st.sampled_from(["uint8", "int8"]),
    b=st.sampled_from(["uint8", "int8"]),
    points=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_any_product_is_exact(
    rows: int,
    inner: int,
    columns: int,
    a: str,
    b: str,
    points: tuple[bool, bool, bool],
    seed: int,
) -> None:
    of_a, of_b, fixed = points
    case = OpCase(
        "MatMulInteger",
        (
            levels(a, rows, inner, seed=seed),
            levels(b, inner, columns, seed=seed),
            levels(a, *((rows,) if of_a else ())),
            levels(b, *((columns,) if of_b else ())),
        ),
        constants=(2, 3) if fixed else (),
        oracle="fallback",
    )
    check_gpu(case)


@pytest.mark.gpu
@given(
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    axis=st.integers(0, 3),
    dtype=st.sampled_from(TYPES),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_any_axis_is_quantised_and_back(shape: list[int], axis: int, dtype: str, seed: int) -> None:
    axis %= len(shape)
    factors, zeros = scales(shape[axis]), levels(dtype, shape[axis], seed=seed)
    x, attrs = floats(*shape, scale=20, seed=seed), {"axis": axis}
    check_gpu(OpCase("QuantizeLinear", (x, factors, zeros), attrs, oracle="fallback"))
    data = levels(dtype, *shape, seed=seed)
    check_gpu(OpCase("DequantizeLinear", (data, factors, zeros), attrs, oracle="fallback"))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [9, 40])
def test_long_sums_of_bytes_are_exact(rows: int) -> None:
    """Largest levels, and more of them than float32 can count."""
    b = np.random.default_rng(0).integers(250, 256, (1027, 300), dtype=np.uint8)
    a = np.full((rows, 1027), 255, np.uint8)
    a[:, ::7] = 254
    check_gpu(OpCase("MatMulInteger", (a, b), {}, constants=(1,)))
