"""Gather, GatherElements, GatherND, ScatterElements, ScatterND, OneHot, Compress."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cpu_fallback import registry
from engine.errors import ShapeError
from tests.ops.contents import check_evaluate
from tests.ops.harness import (
    OpCase,
    case_id,
    check_cpu,
    check_engine_cpu,
    check_infer,
    inferred,
    ints,
)
from tests.ops.standard import for_each, node_suite, on_gpu
from tests.runtime.models import parse

F = "float32"


OPS = "Gather GatherElements GatherND ScatterElements ScatterND OneHot Compress".split()
GRID = np.array([[0, -1, 2], [3, 1, -4]])


def drawn(low: int, high: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).integers(low, high, shape)


def along(axis: int) -> Any:
    """The specification of GatherElements, one element at a time."""

    def oracle(x: Any, indices: Any) -> Any:
        y = np.empty(indices.shape, x.dtype)
        for place in np.ndindex(*indices.shape):
            source = list(place)
            source[axis] = indices[place]
            y[place] = x[tuple(source)]
        return y

    return oracle


CASES = [
    OpCase("Gather", (((4, 37), F), GRID)),
    OpCase("Gather", (((5, 4, 8), F), GRID.astype(np.int32)), {"axis": 1}),
    OpCase("Gather", (((5, 4), "bool"), np.array(-2)), {"axis": -1}),
    OpCase("Gather", (((4, 3), F), np.zeros((0, 2), np.int64)), name="none"),
    OpCase("Gather", (((113,), "int64"), drawn(-113, 113, 37))),
    OpCase("Gather", (((1, 2, 1, 2, 1, 3, 4, 4), F), ints(1, 0)), {"axis": 5}),
    OpCase("Gather", (((4, 5, 0), F), ints(1, 0)), {"axis": 1}),
    OpCase("GatherElements", (((3, 4, 5), F), drawn(-4, 4, 2, 7, 5)), {"axis": 1}, oracle=along(1)),
    OpCase("GatherElements", (((5,), "int64"), ints(1, -1, 0))),
    OpCase("GatherElements", (((37, 5), F), drawn(-5, 5, 37, 3)), {"axis": -1}, oracle=along(1)),
    OpCase("GatherND", (((4, 3, 5), F), np.array([[0, 1], [-1, -2], [3, 2]]))),
    OpCase("GatherND", (((2, 4, 3, 5), F), drawn(-3, 3, 2, 6, 2)), {"batch_dims": 1}),
    OpCase("GatherND", (((2, 2, 3), "bool"), np.array([[[1]], [[0]]])), {"batch_dims": 1}),
    OpCase("GatherND", (((37, 4), F), drawn(0, 4, 37, 1)), {"batch_dims": 1}),
    OpCase("OneHot", (GRID, np.array(4), np.array([0.5, 2], np.float32))),
    OpCase("OneHot", (GRID * 2, np.array(5), np.array([0, 2])), {"axis": 1}, name="outside"),
    OpCase(
        "OneHot",
        (np.array(1), np.array(5), np.array([False, True])),
        {"axis": 0},
        oracle=lambda *_: np.arange(5) == 1,
    ),
]
OPEN_SIZES = [case for case in CASES if not case.op.endswith("ND")]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu)
test_infer = for_each([c for c in CASES if not c.op == "GatherND"], check_infer)
test_gpu = on_gpu(CASES)
test_gpu_with_open_sizes = on_gpu(OPEN_SIZES, dynamic=True)
test_node_suite = node_suite(*OPS)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("Gather", [np.zeros((3, 2)), ints(3)]),
        ("Gather", [np.zeros((3, 2)), ints(-4)]),
        ("GatherElements", [np.zeros(3), ints(3)]),
        ("GatherND", [np.zeros(3), ints(-4).reshape(1, 1)]),
        ("ScatterElements", [np.zeros(3), ints(3), np.ones(1)]),
        ("ScatterND", [np.zeros(3), ints(3).reshape(1, 1), np.ones(1)]),
    ],
)
def test_indices_outside_are_errors_on_the_cpu(op: str, inputs: list[Any]) -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        registry.run(op, "", OpCase(op, ()).since, {}, inputs, 1)


def far_indices(op: str, computed: bool) -> Any:
    """A model of one operator over [3] or [3, 2], and indices that lie outside.

    `computed`: the indices are i + 1 instead of i, so that only a kernel sees them.
    """
    import onnx.parser

    shape = "[3]" if op == "GatherElements" else "[3, 2]"
    first = "one = Constant<value = int32[1] {1}>()  j = Add(i, one)" if computed else ""
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 20]>
        g (float{shape} x, int32[k] i) => (float y)
        {{ {first} y = {op}(x, {"j" if computed else "i"}) }}"""
    )


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["Gather", "GatherElements"])
def test_indices_outside_that_a_kernel_makes_give_zero(op: str) -> None:
    import engine

    x = np.arange(1, 4, dtype=np.float32)
    x = x if op == "GatherElements" else np.stack([x, -x], axis=1)
    where = np.array([0, 3, -4, 2**30, -(2**31), 2], np.int32)
    inside = ((where >= -3) & (where < 3)).reshape((-1,) + (1,) * (x.ndim - 1))
    expected = np.where(inside, x[np.clip(where, -3, 2)], 0)
    with np.errstate(over="ignore"):
        given = where - np.int32(1)
    model = far_indices(op, computed=True).SerializeToString()
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        (got,) = session.run(None, {"x": x, "i": given})
    np.testing.assert_array_equal(got, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["Gather", "GatherElements"])
@pytest.mark.parametrize("index", [3, -4, 2**30, -(2**31)])
def test_indices_outside_that_the_host_gives_are_errors(op: str, index: int) -> None:
    import engine
    from engine.errors import EngineError

    x = np.ones((3,) if op == "GatherElements" else (3, 2), np.float32)
    model = far_indices(op, computed=False).SerializeToString()
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        with pytest.raises(EngineError, match=rf"index {index} is outside \[-3, 3\)"):
            session.run(None, {"x": x, "i": np.array([0, index], np.int32)})
        (got,) = session.run(None, {"x": x, "i": np.array([-3, 2], np.int32)})
    assert (got == 1).all()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("nodes", "axis"),
    [
        # the host multiplies, as int32 may not hold the square, and so it casts
        ("square = Mul(i, i) j = Cast <to = 6> (square) y = Gather(x, j)", 0),
        ("j = Reshape(i, pairs) y = GatherND(x, j)", 1),
        ("j = Reshape(i, pairs) y = ScatterND(x, j, new)", 1),
    ],
)
def test_indices_that_the_host_gives_by_another_name(nodes: str, axis: int) -> None:
    import engine
    from engine.errors import EngineError

    model = parse(
        f"""g (float[3, 2] x, int64[2] i) => (float y)
        <int64[2] pairs = {{-1, 2}}, float[1] new = {{5}}> {{ {nodes} }}"""
    )
    with engine.InferenceSession(model, device="gpu") as session:
        with pytest.raises(EngineError, match=rf"index [24] is outside \[-{3 - axis}, "):
            session.run(None, {"x": np.ones((3, 2), np.float32), "i": np.array([0, 2])})


CONTENTS = [
    OpCase("Gather", (ints(4, 5, 6), np.array(-1)), constants=(1,)),
    OpCase("Gather", (ints(4, 5, 6), np.array([[0, 2]])), constants=(1,)),
    OpCase("GatherElements", (ints(4, 5, 6), ints(-1, 0)), constants=(1,)),
    OpCase("GatherND", (ints(4, 5, 6), np.array([[1], [-1]])), constants=(1,)),
]


test_contents = for_each(CONTENTS, check_evaluate)


@pytest.mark.parametrize(
    "case",
    [
        OpCase("Gather", (((3, 2), F), ints(0)), {"axis": 2}),
        OpCase("Gather", (((), F), ints(0))),
        OpCase("GatherND", (((3,), F), np.array([[0, 0]]))),
    ],
    ids=case_id,
)
def test_wrong_shapes_are_refused(case: OpCase) -> None:
    with pytest.raises(ShapeError, match=case.op):
        inferred(case)


def test_compress_takes_what_the_condition_says() -> None:
    case = OpCase("Compress", (((3, 4), F), np.array([True, False, True])), {"axis": 1})
    check_cpu(case)
    check_infer(case)
    check_cpu(OpCase("Compress", (((3, 4), F), np.array([False, True, True, False, True]))))
