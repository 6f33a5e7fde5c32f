"""DynamicQuantizeLSTM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cpu_fallback.oracle import ort_node
from tests.ops.harness import (
    Array,
    OpCase,
    arrays,
    case_id,
    check_engine_cpu,
    check_gpu,
    check_infer,
    run_fallback,
    supported,
)
from tests.ops.standard import for_each, on_gpu
from tests.ops.test_prologues import Net, labels

MS = "com.microsoft"
FIXED = (1, 2, 8, 9, 10, 11)


def lstm(
    steps: int,
    sequences: int,
    inputs: int,
    hidden: int,
    *,
    unsigned: bool = False,
    by_column: bool = False,
    initial: bool = True,
    lengths: list[int] | None = None,
    **attrs: Any,
) -> OpCase:
    rng = np.random.default_rng(steps * 1000 + hidden)
    count = 2 if attrs.get("direction") == "bidirectional" else 1
    kind, low, middle = (np.uint8, 0, 128) if unsigned else (np.int8, -128, 0)
    width = (count, 4 * hidden) if by_column else (count,)

    def floats(*shape: int) -> Array:
        return rng.standard_normal(shape, dtype=np.float32)

    values: list[Array | None] = [
        floats(steps, sequences, inputs),
        rng.integers(low, low + 256, (count, inputs, 4 * hidden)).astype(kind),
        rng.integers(low, low + 256, (count, hidden, 4 * hidden)).astype(kind),
        floats(count, 8 * hidden) * np.float32(0.3),
        None if lengths is None else np.array(lengths, np.int32),
        floats(count, sequences, hidden) if initial else None,
        floats(count, sequences, hidden) if initial else None,
        None,
        *(
            made
            for _ in range(2)
            for made in (
                rng.uniform(0.0005, 0.002, width).astype(np.float32),
                np.full(width, middle, kind),
            )
        ),
    ]
    name = f"{steps}x{sequences}x{inputs}x{hidden}-{unsigned}-{by_column}-{initial}"
    return OpCase(
        "DynamicQuantizeLSTM",
        tuple(values),
        {"hidden_size": hidden, **attrs},
        3,
        domain=MS,
        opset=1,
        constants=FIXED,
        oracle="fallback",
        name="-".join([name, *map(str, attrs.values())]),
    )


CASES = [
    lstm(6, 1, 5, 4),
    lstm(1, 1, 3, 1, initial=False),
    lstm(9, 3, 7, 13, unsigned=True, direction="reverse"),
    lstm(7, 2, 5, 70, direction="bidirectional"),
    lstm(5, 2, 6, 8, by_column=True, direction="bidirectional"),
    lstm(8, 3, 6, 9, lengths=[8, 3, 0], initial=False),
    lstm(4, 1, 5, 129, clip=0.4, input_forget=1),
]
PLAIN = [case for case in CASES if "clip" not in case.attrs and case.inputs[4] is None]


test_cpu = for_each(CASES, check_engine_cpu, check_infer)


@pytest.mark.parametrize("case", PLAIN, ids=case_id)
def test_fallback_against_onnxruntime(case: OpCase) -> None:
    # ONNX Runtime takes a single sequence's range
    values = [
        v[:, :1] if i in (0, 5, 6) and v is not None else v for i, v in enumerate(arrays(case))
    ]
    want = ort_node(case.op, values, 3, domain=MS, **case.attrs)
    for mine, theirs in zip(run_fallback(case, values), want, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-3)


test_gpu = on_gpu(CASES)


@pytest.mark.gpu
def test_gpu_with_open_sizes() -> None:
    check_gpu(CASES[3], dynamic=True)


def test_what_is_refused() -> None:
    assert "not constants" in supported(CASES[0].replace(constants=())).reason
    assert "no input" in supported(lstm(0, 1, 5, 4)).reason


@pytest.mark.gpu
def test_steps_are_stored_where_they_belong() -> None:
    case = lstm(6, 3, 5, 8, direction="bidirectional")
    net = Net()
    inputs = [
        ""
        if value is None
        else net.constant(value)
        if i in FIXED
        else net.feed(value, ("n", 3, 5) if i == 0 else ())
        for i, value in enumerate(case.inputs)
    ]
    y = net.add("DynamicQuantizeLSTM", *inputs, domain=MS, **case.attrs)
    turned = net.add("Transpose", y, perm=[0, 2, 1, 3])
    found = labels(net, turned, tolerance=case.definition.tolerance if case.definition else 0)
    assert found == ["DynamicQuantizeLSTM + Transpose"]
