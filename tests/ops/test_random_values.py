"""Operators that draw numbers are known as such, whichever ONNX has."""

from __future__ import annotations

import onnx.defs
import pytest

from engine import ops

ON_DEMAND = {"Dropout"}
"""They draw in training only, which an input says."""
DRAWING = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and "seed" in s.attributes}


def test_some_operators_draw() -> None:
    assert DRAWING > ON_DEMAND


@pytest.mark.parametrize("op_type", sorted(DRAWING - ON_DEMAND))
def test_random(op_type: str) -> None:
    op = ops.lookup(op_type)
    assert op is not None and op.random and not op.on_gpu
