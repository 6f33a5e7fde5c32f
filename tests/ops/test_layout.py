"""Transpose, Expand, Tile, DepthToSpace, SpaceToDepth, Trilu: elements that only move."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine
from cpu_fallback import registry
from engine.errors import ShapeError
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


OPS = "Transpose Expand Tile DepthToSpace SpaceToDepth Trilu".split()


def moved(op: str, shape: tuple[int, ...], kind: str = F, **attrs: Any) -> OpCase:
    return OpCase(op, ((shape, kind),), attrs)


def expanded(shape: tuple[int, ...], *onto: int, kind: str = F) -> OpCase:
    return OpCase("Expand", ((shape, kind), ints(*onto)), name=f"{shape}{onto}{kind}")


def tiled(shape: tuple[int, ...], *repeats: int, kind: str = F) -> OpCase:
    return OpCase("Tile", ((shape, kind), ints(*repeats)), name=f"{shape}{repeats}{kind}")


def triangle(shape: tuple[int, ...], k: int, upper: int, kind: str = F) -> OpCase:
    return OpCase(
        "Trilu",
        ((shape, kind), np.array(k, np.int64)),
        {"upper": upper},
        name=f"{shape}{k}{upper}{kind}",
    )


CASES = [
    moved("Transpose", (37, 113)),
    moved("Transpose", (2, 3, 4, 5, 2, 1, 3, 2), perm=[7, 0, 2, 1, 3, 6, 5, 4]),
    moved("Transpose", (2, 5, 12, 64), perm=[0, 2, 1, 3]),
    moved("Transpose", (2, 3, 4), perm=[-1, 0, 1]).replace(
        oracle=lambda x: np.transpose(x, (2, 0, 1))
    ),
    moved("Transpose", ()),
    moved("Transpose", (0, 3)),
    moved("Transpose", (7, 5), "bool"),
    moved("Transpose", (7, 4, 8), "bool", perm=[1, 0, 2]),
    moved("Transpose", (7, 4, 8), "int64", perm=[1, 0, 2]),
    moved("Transpose", (7, 4, 8), "uint32", perm=[0, 1, 2]),
    moved("Transpose", (1, 37, 1, 5), perm=[2, 3, 0, 1]),
    expanded((3, 1), 2, 3, 8),
    expanded((), 5, 4),
    expanded((3, 1, 8), 3, 1, kind="bool"),
    expanded((3, 1), 0, 3, 1),
    expanded((1, 8), 5, 1),
    expanded((5, 1), 5, 8, kind="bool"),
    expanded((1, 37, 1), 3, 1, 113),
    expanded((4,), 1, kind="int64"),
    tiled((3, 4), 2, 3),
    tiled((3, 4), 2, 1),
    tiled((3, 4), 0, 1),
    tiled((1, 1, 5), 3, 2, 2, kind="int32"),
    tiled((37,), 3, kind="bool"),
    moved("DepthToSpace", (2, 12, 3, 5), blocksize=2),
    moved("DepthToSpace", (2, 12, 3, 5), blocksize=2, mode="CRD"),
    moved("DepthToSpace", (1, 9, 37, 1), blocksize=3),
    moved("SpaceToDepth", (2, 3, 4, 6), blocksize=2),
    moved("SpaceToDepth", (2, 3, 4, 6), "int32", blocksize=2, mode="CRD"),
    triangle((2, 5, 7), 1, 1),
    triangle((5, 7), -2, 0, "int64"),
    triangle((7, 5), 9, 1),
    triangle((37, 37), -40, 0),
    triangle((3, 5), 2**33, 0),
    triangle((3, 5), -(2**31), 1),
    triangle((4, 4), 0, 1, "bool"),
    triangle((0, 4), 0, 1),
    OpCase("Trilu", (((4, 4), F),)),
]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu)
test_infer = for_each(CASES, check_infer)
test_gpu = on_gpu_both_ways(CASES)
test_node_suite = node_suite(*OPS)


@pytest.mark.gpu
def test_more_workgroups_than_one_dimension_has() -> None:
    # one element an invocation, 64 a workgroup, 65,535 workgroups
    check_gpu(moved("Transpose", (65537, 65)))


@pytest.mark.gpu
@settings(max_examples=25)
@given(st.data())
def test_any_permutation(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=5))
    order = data.draw(st.permutations(range(len(shape))))
    check_gpu(moved("Transpose", tuple(shape), perm=list(order)), dynamic=data.draw(st.booleans()))


CONTENTS = [
    OpCase("Transpose", (ints(1, 2, 3, 4, 5, 6).reshape(2, 3),)),
    OpCase("Expand", (ints(7), ints(2, 3))),
    OpCase("Tile", (ints(7, 8), ints(3))),
]


test_contents = for_each(CONTENTS, check_evaluate)


@pytest.mark.parametrize(
    "case",
    [
        moved("Transpose", (2, 3), perm=[0, 0]),
        moved("Transpose", (2, 3), perm=[0]),
        expanded((2, 3), 4),
        tiled((2, 3), 2),
        moved("DepthToSpace", (1, 6, 2, 2), blocksize=2),
        moved("SpaceToDepth", (1, 1, 3, 4), blocksize=2),
        moved("SpaceToDepth", (1, 3, 4), blocksize=2),
    ],
    ids=case_id,
)
def test_wrong_shapes_are_refused(case: OpCase) -> None:
    with pytest.raises(ShapeError, match=case.op):
        inferred(case)


def test_strings_move() -> None:
    words = np.array([["a", "b"], ["c", "d"]], dtype=object)
    got = registry.run("Transpose", "", 25, {}, [words], 1)[0]
    assert isinstance(got, np.ndarray) and got.tolist() == [["a", "c"], ["b", "d"]]
    got = registry.run("Tile", "", 13, {}, [words, ints(1, 2)], 1)[0]
    assert isinstance(got, np.ndarray) and got.tolist() == [list("abab"), list("cdcd")]


FUSED = """
<ir_version: 10, opset_import: ["" : 21]>
moved (float[SHAPE] x, float[LAST] bias) => (float[p, q, r, s] y)
{
  t = Transpose <perm: ints = PERM> (x)
  u = Add (t, bias)
  y = Relu (u)
}
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((2, 8, 3, 12), (0, 2, 3, 1)),
        ((2, 8, 3, 12), (0, 2, 1, 3)),
        ((2, 8, 3, 7), (0, 2, 3, 1)),
        ((2, 8, 3, 7), (3, 2, 1, 0)),
        ((4, 1, 8, 8), (0, 1, 3, 2)),
    ],
)
def test_consumers_fused_into_a_transpose(shape: Any, perm: tuple[int, ...]) -> None:
    last = shape[perm[-1]]
    text = FUSED.replace("PERM", str(list(perm))).replace("LAST", str(last))
    model = onnx.parser.parse_model(text.replace("SHAPE", str(list(shape))[1:-1]))
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype(np.float32)
    bias = rng.standard_normal(last).astype(np.float32)
    with engine.InferenceSession(model, device="gpu", require_gpu=True) as session:
        (got,) = session.run(None, {"x": x, "bias": bias})
        assert len(session.explain().kernels) == 1
    np.testing.assert_array_equal(got, np.maximum(np.transpose(x, perm) + bias, 0))
