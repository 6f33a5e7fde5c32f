"""BitCast: the same bits as another type."""

from __future__ import annotations

import numpy as np
import pytest

import engine
from cpu_fallback import registry
from engine import dtypes
from engine.errors import ShapeError
from tests.ops.harness import (
    OpCase,
    arrays,
    build_model,
    case_id,
    check_engine_cpu,
    check_infer,
    inferred,
    run_fallback,
    supported,
)
from tests.ops.standard import gpu_node_suite, on_gpu
from tests.ops.test_elementwise import SPECIAL, WHOLE

CODES = {d.name: d.code for d in dtypes.DTYPES}
BYTES = np.arange(256, dtype=np.uint8)
SHORTS = np.array([0, 1, 255, 256, 32767, 32768, 65535], np.uint16)


def bits(x: np.ndarray, to: str) -> OpCase:
    wanted = np.dtype(to)
    return OpCase(
        "BitCast",
        (x,),
        {"to": CODES[to]},
        oracle=lambda a: a.reshape(-1).view(wanted).reshape(a.shape),
        name=f"{x.dtype}-{to}-{x.ndim}",
    )


CASES = [
    bits(SPECIAL, "int32"),
    bits(SPECIAL, "uint32"),
    bits(SPECIAL.reshape(2, -1), "float32"),
    bits(SPECIAL.view(np.int32), "float32"),
    bits(SPECIAL.view(np.uint32), "float32"),
    bits(WHOLE, "uint32"),
    bits(WHOLE.view(np.uint32).reshape(1, -1), "int32"),
    bits(BYTES, "int8"),
    bits(BYTES.view(np.int8), "uint8"),
    bits(SHORTS, "int16"),
    bits(SHORTS.view(np.int16), "uint16"),
    bits(np.array([True, False, True]), "uint8"),
    bits(np.array([True, False, True]), "int8"),
    bits(np.array(1.5, np.float32), "int32"),
    bits(np.zeros((0, 3), np.float32), "int32"),
]
HOST = [
    bits(np.array([1.5, -0.0, np.nan]), "int64"),
    bits(np.array([1, -2, 2**62]), "float64"),
    bits(np.array([1, 2], np.uint8), "bool"),
    bits(SHORTS, "float16"),
    bits(np.array([1.5, -0.0], np.float16), "uint16"),
]


@pytest.mark.parametrize("case", [*CASES, *HOST], ids=case_id)
def test_cpu(case: OpCase) -> None:
    (x,) = arrays(case)
    (got,) = run_fallback(case, [x])
    assert got.shape == case.inputs[0].shape  # type: ignore[union-attr]
    assert got.tobytes() == np.ascontiguousarray(x).tobytes()
    check_engine_cpu(case)
    check_infer(case)


test_gpu = on_gpu(CASES)


@pytest.mark.gpu
def test_bits_survive_both_ways() -> None:
    numbers = [0, 1, 0x7FC00001, 0x7F800000, 0x80000000, 0x00000001, 0xFF800000, 0x3F800000]
    given = np.array(numbers, np.uint32)
    case = bits(given, "float32")
    with engine.InferenceSession(build_model(case), device="gpu", require_gpu=True) as session:
        (got,) = session.run(None, {"x0": given})
    assert got.dtype == np.float32 and got.tobytes() == given.tobytes()


@pytest.mark.parametrize("case", HOST[1:], ids=case_id)
def test_what_is_not_exact_is_refused(case: OpCase) -> None:
    assert not supported(case).ok and supported(case).reason


def test_other_sizes_are_errors() -> None:
    with pytest.raises(ShapeError, match="differ in size"):
        inferred(bits(WHOLE, "int8"))
    with pytest.raises(ValueError, match="differ in size"):
        registry.run("BitCast", "", 26, {"to": CODES["int8"]}, [WHOLE], 1)


def test_packed_types_go_to_the_reference() -> None:
    given = np.arange(16).astype(dtypes.from_name("uint4").numpy)
    (got,) = registry.run("BitCast", "", 26, {"to": CODES["int4"]}, [given], 1)
    np.testing.assert_array_equal(np.asarray(got).astype(int), [*range(8), *range(-8, 0)])


test_node_suite = gpu_node_suite("BitCast")
