"""Types of less than 32 bits on the GPU: every kernel, every packing, whatever is fused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine
from engine.dtypes import from_numpy
from engine.layout import Storage, storage_of
from tests.ops import (
    test_attention,
    test_conv,
    test_elementwise,
    test_gather,
    test_layout,
    test_matmul,
    test_norm,
    test_pad,
    test_pool,
    test_recurrent,
    test_reduce,
    test_resize,
    test_slice,
    test_softmax,
)
from tests.ops.harness import OpCase, arrays, build_model, check_gpu, feeds, run_fallback
from tests.runtime.models import parse

FAMILIES = (
    test_attention,
    test_conv,
    test_elementwise,
    test_gather,
    test_layout,
    test_matmul,
    test_norm,
    test_pad,
    test_pool,
    test_recurrent,
    test_reduce,
    test_resize,
    test_slice,
    test_softmax,
)
HALF, BRAIN = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
SMALL = tuple(np.dtype(t) for t in ("int8", "uint8", "int16", "uint16"))


def _is_single(value: Any) -> bool:
    return value is not None and value.dtype == np.float32


def _float_cases() -> list[OpCase]:
    """Two cases of each operator with float32 inputs that the GPU takes."""
    found: dict[str, list[OpCase]] = {}
    for case in (c for family in FAMILIES for c in family.CASES):
        values = arrays(case)
        if case.cpu_only or not any(map(_is_single, values)) or case.op in ("Cast", "CastLike"):
            continue
        if all(v is None or v.size for v in values) and case.definition is not None:
            found.setdefault(case.op, []).append(case)
    return [case for cases in found.values() for case in cases[:2]]


def _close(mine: Any, want: Any, dtype: np.dtype[Any]) -> None:
    assert mine.dtype == want.dtype and mine.shape == want.shape
    if mine.dtype.kind in "biu":
        np.testing.assert_array_equal(mine, want)
        return
    mine, want = mine.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    np.testing.assert_array_equal(mine[~finite], want[~finite])
    assert np.isfinite(mine[finite]).all()
    largest = np.abs(want[finite]).max(initial=0)
    worst = np.abs(mine[finite] - want[finite]).max(initial=0)
    assert worst <= 2 * float(ml_dtypes.finfo(dtype).eps) * largest


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "target"),
    [(HALF, "baseline"), (HALF, "adapter"), (BRAIN, "baseline")],
    ids=["half", "native", "brain"],
)
@pytest.mark.parametrize("case", _float_cases(), ids=lambda c: c.op)
def test_short_floats(case: OpCase, dtype: np.dtype[Any], target: str) -> None:
    with np.errstate(over="ignore"):
        values = [v.astype(dtype) if _is_single(v) else v for v in arrays(case)]
    short = case.replace(inputs=tuple(values))
    schema = onnx.defs.get_schema(case.op, case.opset, case.domain)
    allowed = {t for constraint in schema.type_constraints for t in constraint.allowed_type_strs}
    if f"tensor({dtype})" not in allowed:
        pytest.skip(f"{case.op} does not take {dtype}")
    with engine.InferenceSession(
        build_model(short, values), device="gpu", require_gpu=True, target=target
    ) as session:
        got = session.run(None, feeds(short, values))
    with np.errstate(all="ignore"):
        expected = run_fallback(short, values)
    for mine, want in zip(got, expected, strict=True):
        _close(mine, np.asarray(want), dtype)


def _levels(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int = 0) -> Any:
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def _integer_cases(dtype: np.dtype[Any]) -> list[OpCase]:
    a, b = _levels(dtype, (5, 37)), _levels(dtype, (37,), 1)
    two = np.array([1, 4, 0, -1])
    low, high = np.array(3, dtype), np.array(100, dtype)
    cases = [
        *(OpCase(op, (a, b)) for op in ("Add", "Sub", "Mul", "Div", "Mod")),
        *(OpCase(op, (a, b)) for op in ("Equal", "Less", "GreaterOrEqual")),
        *(OpCase(op, (a, b)) for op in ("Max", "Min", "BitwiseAnd", "BitwiseXor")),
        OpCase("BitwiseNot", (a,)),
        OpCase("Clip", (a, low, high)),
        OpCase("Abs", (a,)),
        OpCase("Sign", (a,)),
        OpCase("Where", (a > b, a, b)),
        OpCase("Transpose", (a,)),
        OpCase("Transpose", (_levels(dtype, (4, 6, 8)),), {"perm": [1, 0, 2]}),
        OpCase("Gather", (a, two), {"axis": 1}),
        OpCase("GatherElements", (a, np.zeros((5, 2), np.int64)), {"axis": 1}),
        OpCase("Concat", (a, a), {"axis": 1}),
        OpCase("Concat", (_levels(dtype, (3, 4)), _levels(dtype, (3, 8))), {"axis": 1}),
        OpCase("Slice", (a, np.array([1]), np.array([30]), np.array([1]), np.array([3]))),
        OpCase("Split", (_levels(dtype, (5, 38)),), {"axis": 1, "num_outputs": 2}, 2),
        OpCase("Pad", (a, np.array([1, 2, 0, 1]), low)),
        OpCase("Expand", (b, np.array([3, 37]))),
        OpCase("Tile", (b, np.array([3]))),
        OpCase("Reshape", (a, np.array([37, 5]))),
        OpCase("Resize", (a, None, np.array([1, 2], np.float32)), constants=(2,)),
    ]
    if dtype.kind == "u":
        shifts = np.array([0, 1, 7, 8, 15, 40], dtype)
        for direction in ("LEFT", "RIGHT"):
            given = _levels(dtype, (4, 6))
            cases.append(OpCase("BitShift", (given, shifts), {"direction": direction}))
    else:
        cases.append(OpCase("Neg", (a,)))
    if dtype.itemsize == 1:
        cases += [OpCase(op, (a, np.array([1]))) for op in ("ReduceMax", "ReduceMin")]
        cases.append(OpCase("ArgMax", (a,), {"axis": 1}))
    kept = [c for c in cases if c.op not in ("Div", "Mod") or dtype.kind == "u"]
    return [c.replace(oracle="fallback") for c in kept]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [c for d in SMALL for c in _integer_cases(d)],
    ids=lambda c: f"{c.op}-{c.inputs[0].dtype}",
)
def test_small_integers(case: OpCase) -> None:
    check_gpu(case)


EDGES = [0.5, -0.5, 1.5, -2.7, 127.9, 128, 300, -129, 70000, -40000, 2147483520, 2147483648]
EDGES += [3e9, 6e9 + 768, 1e12, -1e13, 9.3e18, -9.3e18, 3e38, np.inf, -np.inf, np.nan, -0.0]
ROUNDING = [1e-8, 3e-8, 6e-8, 3.1e-5, 6.1e-5, 0.1, 1 + 2**-11, 1 + 3 * 2**-11, 2049, 2051]
ROUNDING += [65504, 65519.99, 65520, -65520, 3.39e38, np.inf, -np.inf, np.nan, -0.0, -3e-8]


@pytest.mark.gpu
@pytest.mark.parametrize("code", [2, 3, 4, 5])
def test_floats_wrap_to_small_integers(code: int) -> None:
    check_gpu(OpCase("Cast", (np.array(EDGES, np.float32),), {"to": code}, oracle="fallback"))


@pytest.mark.gpu
@pytest.mark.parametrize("code", [10, 16])
def test_short_floats_round_half_to_even(code: int) -> None:
    x = np.array(ROUNDING, np.float32)
    check_gpu(OpCase("Cast", (x,), {"to": code}, oracle="fallback", tol=0.0, rtol=0.0))


@pytest.mark.gpu
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=40),
    st.sampled_from(["x", "s"]),
    st.sampled_from(["baseline", "adapter"]),
)
@settings(max_examples=40, deadline=None)
def test_any_float_rounds_as_in_numpy(numbers: list[float], kind: str, target: str) -> None:
    """Packed (elementwise) and unpacked (behind Transpose, which may store single elements)."""
    node = {"x": "y = Cast <to = 10> (x)", "s": "t = Transpose(x) y = Cast <to = 10> (t)"}[kind]
    model = parse(f"g (float[n] x) => (float16[n] y) {{ {node} }}")
    x = np.array(numbers, np.float32)
    x[(np.abs(x) < np.finfo(np.float32).tiny)] = 0
    with engine.InferenceSession(model, device="gpu", require_gpu=True, target=target) as session:
        (got,) = session.run(None, {"x": x})
    with np.errstate(all="ignore"):
        want = x.astype(np.float16)
    np.testing.assert_array_equal(
        np.where(np.isnan(got), 0x7E00, got.view(np.uint16)),
        np.where(np.isnan(want), 0x7E00, want.view(np.uint16)),
    )


@pytest.mark.gpu
@pytest.mark.parametrize("disable", [(), ("elementwise-chain", "epilogue")])
def test_chains_round_and_wrap_as_if_unfused(disable: tuple[str, ...]) -> None:
    model = parse(
        """g (uint8[n] a, uint8[n] b, float16[n] h) => (int32[n] wide, float[n] f, uint8[n] s) {
            s = Add(a, b) wide = Cast <to = 6> (s)
            big = Mul(h, h) f = Cast <to = 1> (big)
        }"""
    )
    a, b = _levels(SMALL[1], (71,)), _levels(SMALL[1], (71,), 1)
    h = np.linspace(0, 300, 71).astype(np.float16)
    feed = {"a": a, "b": b, "h": h}
    with engine.InferenceSession(model, device="gpu", require_gpu=True, disable=disable) as session:
        wide, f, s = session.run(None, feed)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(s, a + b)
        np.testing.assert_array_equal(wide, (a + b).astype(np.int32))
        np.testing.assert_array_equal(f, (h * h).astype(np.float32))
    assert np.isinf(f[-1])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*SMALL, HALF, BRAIN], ids=str)
def test_values_stay_on_the_device_in_any_packing(dtype: np.dtype[Any]) -> None:
    """Cumulative sums and transposes store single elements; elementwise kernels whole words."""
    name = str(dtype)
    loose = parse(f"g ({name}[n,m] x) => ({name}[p,q] y) {{ y = Transpose(x) }}")
    packed = parse(f"g ({name}[p,q] x) => ({name}[p,q] y) {{ y = Max(x, x) }}")
    x = _levels(np.dtype(np.int8), (7, 9)).astype(dtype)
    with (
        engine.InferenceSession(loose, device="gpu", require_gpu=True) as first,
        engine.InferenceSession(packed, device="gpu", require_gpu=True) as second,
    ):
        (kept,) = first.run(None, {"x": x}, outputs_on_device=["y"])
        (words,) = second.run(None, {"x": kept}, outputs_on_device=["y"])
        assert words.storage.packing == from_numpy(dtype).packing
        np.testing.assert_array_equal(kept.numpy(), x.T)
        np.testing.assert_array_equal(words.numpy(), x.T)
        (back,) = first.run(None, {"x": words})
        np.testing.assert_array_equal(back, x)


@pytest.mark.gpu
def test_small_integers_cross_as_bytes() -> None:
    model = parse("g (uint8[n] x) => (uint8[n] y) { y = Max(x, x) }")
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        session.run(None, {"x": np.zeros(4096, np.uint8)})
        times = session.times
    assert (times.uploaded_nbytes, times.downloaded_nbytes) == (4096, 4096)


@pytest.mark.gpu
def test_float16_takes_two_bytes_where_kernels_have_it() -> None:
    """A sum along an axis stores single elements."""
    model = parse("g (float16[n,m] x, int64 a) => (float16[n,m] y) { y = CumSum(x, a) }")
    x = np.ones((32, 32), np.float16)
    feed = {"x": x, "a": np.array(1)}
    for target, nbytes in (("baseline", 4), ("adapter", 2)):
        with engine.InferenceSession(model, device="gpu", target=target) as session:
            (got,) = session.run(None, feed)
            if session.plan().target.features >= {"shader-f16"} or nbytes == 4:
                assert session.times.downloaded_nbytes == nbytes * x.size
        np.testing.assert_array_equal(got, x.cumsum(1))


@pytest.mark.parametrize("dtype", [*SMALL, HALF, BRAIN], ids=str)
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 17])
@pytest.mark.parametrize("packed", [True, False])
def test_storage_keeps_the_elements(dtype: np.dtype[Any], size: int, packed: bool) -> None:
    kind = from_numpy(dtype)
    storage = storage_of(kind, packed)
    x = _levels(np.dtype(np.int8), (size,)).astype(dtype)
    words = storage.to_device(x)
    nbytes = storage.nbytes((size,))
    assert isinstance(nbytes, int) and words.nbytes % 4 == 0 and words.nbytes <= nbytes
    buffer = np.zeros(nbytes, np.uint8)
    buffer[: words.nbytes] = words.view(np.uint8)
    np.testing.assert_array_equal(storage.from_device(memoryview(buffer), kind, (size,)), x)
    assert storage == Storage(kind.wgsl, 4 // kind.nbytes if packed else 1, narrow=kind.narrow)
