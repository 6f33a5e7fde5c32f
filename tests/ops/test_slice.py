"""Slice, Split, Concat: cutting and joining along axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import dims
from engine.errors import ShapeError
from engine.ops.slice import axis_slice
from tests.ops.contents import check_evaluate
from tests.ops.harness import (
    OpCase,
    case_id,
    check_cpu,
    check_engine_cpu,
    check_gpu,
    check_infer,
    inferred,
    ints,
)
from tests.ops.standard import for_each, node_suite, on_gpu_both_ways

F = "float32"


OPS = "Slice Split Concat".split()
LAST = 2**63 - 1


def cut(
    shape: tuple[int, ...],
    starts: list[int],
    ends: list[int],
    axes: list[int] | None = None,
    steps: list[int] | None = None,
    kind: str = F,
) -> OpCase:
    rest = tuple(None if v is None else ints(*v) for v in (axes, steps))
    while rest and rest[-1] is None:
        rest = rest[:-1]
    return OpCase(
        "Slice",
        ((shape, kind), ints(*starts), ints(*ends), *rest),
        name=f"{shape}{starts}{ends}{axes}{steps}{kind}".replace(" ", ""),
    )


def joined(axis: int, *shapes: tuple[int, ...], kind: str = F) -> OpCase:
    name = f"{axis}{len(shapes)}{shapes[:3]}{kind}".replace(" ", "")
    return OpCase("Concat", tuple((s, kind) for s in shapes), {"axis": axis}, name=name)


def parts(shape: tuple[int, ...], axis: int, *sizes: int, count: int = 0, kind: str = F) -> OpCase:
    """A Split into `sizes`, or into `count` even parts."""
    inputs = ((shape, kind), ints(*sizes)) if sizes else ((shape, kind),)
    attrs = {"axis": axis} | ({} if sizes else {"num_outputs": count})
    name = f"{shape}{axis}{sizes}{count}{kind}".replace(" ", "")
    return OpCase("Split", inputs, attrs, len(sizes) or count, name=name)


CASES = [
    cut((20, 10, 5), [0, 0], [3, 10], [0, 1], [1, 1]),
    cut((20, 10, 5), [20, 0, 4], [0, 10, 1], [0, 1, 2], [-1, 3, -2]),
    cut((5, 16), [4], [12], [-1]),
    cut((5, 16), [-1], [-LAST - 1], [-1], [-1]),
    cut((5, 16), [1000], [2000], [-1]),
    cut((5, 16), [-7], [LAST], [1], [3], "bool"),
    cut((37, 113), [3, 5], [-2, -4]),
    cut((37,), [-100], [100], kind="int64"),
    cut((0, 4), [0], [5]),
    cut((2, 2, 2, 2, 2, 2, 2, 3), [1, 2], [2, 0], [0, -1], [1, -1]),
    cut((7,), [5], [2]),
    parts((6, 10), 1, count=2),
    parts((7, 10), 0, count=3),
    parts((6, 20), -1, 4, 8, 8, kind="bool"),
    parts((6, 20), -1, *([1] * 20)),
    parts((6, 4, 3), 1, 1, 0, 3),
    parts((37, 113), 0, 36, 1),
    parts((4, 8), 1, count=1),
    parts((0, 8), 1, count=2),
    joined(1, (2, 3), (2, 4)),
    joined(-1, (2, 4), (2, 8)),
    joined(1, *((2, k % 5, 3) for k in range(30))),
    joined(0, *((4, 1) for _ in range(8))),
    joined(0, (0, 3), (2, 3), kind="bool"),
    joined(0, (5,), kind="int64"),
    joined(-3, (1, 37, 4), (2, 37, 4), (3, 37, 4), kind="uint32"),
    joined(7, (1, 2, 1, 2, 1, 2, 1, 3), (1, 2, 1, 2, 1, 2, 1, 2)),
]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu)
test_infer = for_each(CASES, check_infer)
test_gpu = on_gpu_both_ways(CASES)
test_node_suite = node_suite(*OPS)


@pytest.mark.gpu
def test_an_input_may_be_joined_to_itself() -> None:
    import onnx.parser

    import engine

    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        twice (float[3, 5] x) => (float[3, 10] y) { y = Concat <axis: int = 1> (x, x) }"""
    )
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        (y,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, np.concatenate([x, x], 1))


@pytest.mark.gpu
@settings(max_examples=25)
@given(st.data())
def test_any_slice(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    place = st.integers(-12, 12)
    starts = [data.draw(place) for _ in shape]
    ends = [data.draw(place) for _ in shape]
    steps = [data.draw(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in shape]
    case = cut(shape, starts, ends, list(range(len(shape))), steps)
    case = case.replace(oracle=lambda x, *_: reference_slice(x, starts, ends, steps))
    check_cpu(case)
    check_gpu(case, dynamic=data.draw(st.booleans()))


def reference_slice(x: Any, starts: list[int], ends: list[int], steps: list[int]) -> Any:
    """The specification's clamping, one index at a time."""
    for axis, (start, end, step) in enumerate(zip(starts, ends, steps, strict=True)):
        picked = walk(start, end, step, x.shape[axis])
        x = np.take(x, picked, axis=axis)
    return x


def walk(start: int, end: int, step: int, size: int) -> list[int]:
    start, end = (v + size if v < 0 else v for v in (start, end))
    low, high = (0, size) if step > 0 else (0, size - 1)
    at = min(max(start, low), high)
    stop = min(max(end, 0 if step > 0 else -1), high)
    found = []
    while (at < stop) if step > 0 else (at > stop):
        found.append(at)
        at += step
    return found


PLACES = (-(2**63), -7, -3, -2, -1, 0, 1, 2, 3, 7, 2**31 - 1, 2**63 - 1)


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_symbolic_slices_agree_with_known_ones(step: int) -> None:
    size, place = dims.symbol("n"), dims.symbol("p")
    for n in range(5):
        for start in PLACES:
            for end in PLACES:
                picked = walk(start, end, step, n)
                for given_size in (n, size):
                    part = axis_slice(start, end, step, given_size)
                    assert dims.evaluate(part.count, {"n": n}) == len(picked)
                    if picked:
                        assert dims.evaluate(part.start, {"n": n}) == picked[0]
        for shift in range(6):
            part = axis_slice(place - 2, size, abs(step), size)
            picked = walk(shift - 2, n, abs(step), n)
            assert dims.evaluate(part.count, {"n": n, "p": shift}) == len(picked)


def test_common_slices_stay_simple() -> None:
    n = dims.symbol("n")
    assert axis_slice(0, LAST, 1, n).count == n
    assert axis_slice(0, n, 1, n).count == n
    assert axis_slice(-1, -LAST, -1, n).count == n
    assert axis_slice(0, LAST, 2, 2 * n).count == n


CONTENTS = [
    OpCase("Slice", (ints(4, 5, 6, 7), ints(1), ints(3))),
    OpCase("Slice", (ints(4, 5, 6, 7), ints(-1), ints(-LAST), ints(0), ints(-2))),
    OpCase("Split", (ints(4, 5, 6), ints(1, 2)), {}, 2),
    OpCase("Split", (ints(4, 5, 6),), {"num_outputs": 2}, 2),
    OpCase("Concat", (ints(4, 5), ints(6)), {"axis": 0}),
]


@pytest.mark.parametrize("case", CONTENTS, ids=case_id)
def test_contents(case: OpCase) -> None:
    check_evaluate(case, (0, 1) if case.op == "Concat" else (0,))


@pytest.mark.parametrize(
    "case",
    [
        cut((5,), [0], [5], [0], [0]),
        cut((5,), [0, 1], [5]),
        cut((5,), [0], [5], [1]),
        parts((5, 4), 0, 2, 2),
        joined(1, (2, 3), (3, 3)),
        joined(2, (2, 3), (2, 3)),
        joined(0, (2, 3), (2,)),
    ],
    ids=case_id,
)
def test_wrong_shapes_are_refused(case: OpCase) -> None:
    with pytest.raises(ShapeError, match=case.op):
        inferred(case)
