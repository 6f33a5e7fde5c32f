"""Types of the com.microsoft operators agree with what their NumPy functions return."""

from __future__ import annotations

from engine.ops import lookup
from tests.cpu_fallback.test_contrib import CASES, MS
from tests.cpu_fallback.test_contrib_attention import CASES as ATTENTION
from tests.ops.harness import OpCase, check_infer
from tests.ops.standard import for_each

TYPED = [
    OpCase(op, tuple(inputs), attrs, domain=MS, opset=1)
    for op, inputs, attrs in CASES
    if lookup(op, 1, MS) is not None
]
TYPED += [
    OpCase(op, tuple(inputs), attrs, outputs, domain=MS, opset=1, name=f"{op}-{number}")
    for number, (op, inputs, attrs, outputs) in enumerate(ATTENTION)
    if lookup(op, 1, MS) is not None
]


test_types = for_each(TYPED, check_infer)


def test_every_typed_operator_has_a_case() -> None:
    assert {"Gelu", "FusedMatMul", "MatMulNBits", "DynamicQuantizeMatMul"} <= {c.op for c in TYPED}
