"""float16, bfloat16 and float64 in NumPy: the dtype stays, short floats are rounded once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ops import test_elementwise, test_norm, test_reduce, test_softmax
from tests.ops.harness import OpCase, arrays, run_fallback


def _cases() -> list[OpCase]:
    """One case of each operator that has float32 inputs."""
    found: dict[str, OpCase] = {}
    families = (test_elementwise, test_reduce, test_softmax, test_norm)
    for case in (c for family in families for c in family.CASES):
        values = [v for v in arrays(case) if v is not None]
        is_float = any(v.dtype == np.float32 for v in values)
        if is_float and all(v.size for v in values) and case.op not in ("Cast", "CastLike"):
            found.setdefault(case.op, case)
    return list(found.values())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.op)
def test_other_float_types(case: OpCase, dtype: Any) -> None:
    with np.errstate(all="ignore"):
        given = [v.astype(dtype) if _is_single(v) else v for v in arrays(case)]
        single = [v.astype(np.float32) if v is not None and v.dtype == dtype else v for v in given]
        rounded = [v.astype(dtype) if _is_single(v) else v for v in run_fallback(case, single)]
    got = run_fallback(case, given)
    spacing = float(ml_dtypes.finfo(dtype).eps) if dtype != np.float64 else 1e-5
    for index, (mine, want) in enumerate(zip(got, rounded, strict=True)):
        if case.op == "LayerNormalization" and index > 0 and dtype != np.float64:
            assert mine.dtype == np.float32
        else:
            assert mine.dtype == want.dtype
        if mine.dtype.kind in "biu":
            np.testing.assert_array_equal(mine, want)
            continue
        mine, want = mine.astype(np.float64), want.astype(np.float64)
        both = np.isfinite(mine) & np.isfinite(want)
        assert (np.isnan(mine) == np.isnan(want)).all() or dtype == np.float64
        assert both.any()
        largest = np.abs(want[both]).max()
        assert np.abs(mine[both] - want[both]).max() <= 4 * spacing * largest


def _is_single(value: Any) -> bool:
    return value is not None and value.dtype == np.float32
