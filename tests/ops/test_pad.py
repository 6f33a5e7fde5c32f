"""Pad: constant, reflecting, repeating and wrapping borders, and negative ones."""

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
    supported,
)
from tests.ops.standard import for_each, node_suite, on_gpu_both_ways

F = "float32"


OPS = ["Pad"]


def padded(
    shape: tuple[int, ...],
    pads: list[int],
    value: Any = None,
    axes: list[int] | None = None,
    mode: str = "constant",
    kind: str = F,
) -> OpCase:
    fill = None if value is None else np.array(value, kind)
    rest = (fill, None if axes is None else ints(*axes))
    name = f"{shape}{pads}{value}{axes}{mode}{kind}".replace(" ", "")

    def oracle(x: Any, *_: Any) -> Any:
        return reference_pad(x, pads, 0 if value is None else value, axes, mode)

    return OpCase(
        "Pad", ((shape, kind), ints(*pads), *rest), {"mode": mode}, oracle=oracle, name=name
    )


def reference_pad(x: Any, pads: list[int], value: Any, axes: list[int] | None, mode: str) -> Any:
    """One axis and one index at a time: negative pads cut, then the rest is filled."""
    where = list(range(x.ndim)) if axes is None else axes
    for k, axis in enumerate(where):
        before, after = pads[k], pads[k + len(where)]
        x = x.take(range(max(-before, 0), x.shape[axis] - max(-after, 0)), axis=axis)
        n = x.shape[axis]
        places = range(-max(before, 0), n + max(after, 0))
        if mode == "constant":
            shape = [*x.shape]
            shape[axis] = 1
            border = np.full(shape, value, x.dtype)
            pieces = [x.take([p], axis=axis) if 0 <= p < n else border for p in places]
            x = np.concatenate(pieces, axis=axis) if pieces else x
            continue
        x = x.take([folded(p, n, mode) for p in places], axis=axis)
    return x


def folded(place: int, n: int, mode: str) -> int:
    if mode == "edge":
        return min(max(place, 0), n - 1)
    if mode == "wrap":
        return place % n
    while not 0 <= place < n:
        place = -place if place < 0 else 2 * (n - 1) - place
        if n == 1:
            return 0
    return place


CASES = [
    padded((3, 5), [1, 2, 3, 4]),
    padded((3, 5), [1, 2, 3, 4], 2.5),
    padded((3, 5), [0, 0, 0, 0], np.nan),
    padded((3, 5, 4), [-1, 2], None, [-2]),
    padded((3, 5, 4), [-1, -2, 0, -1, 1, -2], 7.0),
    padded((3, 5, 4, 7), [0, 0, 1, 1, 0, 0, 1, 1]),
    padded((37, 113), [0, 3, 1, 0], -np.inf),
    padded((3,), [2, 2], True, kind="bool"),
    padded((0, 3), [2, 0, 1, 1], 7, kind="int64"),
    padded((), [], kind="int32"),
    padded((4, 3), [-2, 0, -2, 0]),
    padded((2, 1, 2, 1, 2, 1, 2, 3), [1, 0, 0, 0, 0, 0, 0, 1] + [0] * 8, kind="uint32"),
    *(padded((3, 5, 4, 7), [0, 2, 1, 6, 0, 1, 3, 0], None, None, m) for m in ("edge", "wrap")),
    padded((3, 5, 4, 7), [0, 2, 1, 6, 0, 1, 3, 0], None, None, "reflect"),
    *(padded((3, 5), [-1, 2, 2, -2], None, None, m) for m in ("edge", "wrap", "reflect")),
    padded((1, 3), [2, 7, 2, 9], None, None, "reflect"),
    padded((4, 3), [5, 9], None, [1], "wrap", "int64"),
    padded((4, 3), [1, 1], None, [0], "edge", "bool"),
]


test_cpu = for_each(CASES, check_cpu, check_engine_cpu)
test_infer = for_each(CASES, check_infer)
test_gpu = on_gpu_both_ways(CASES)
test_node_suite = node_suite(*OPS)


@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect"])
def test_nothing_to_repeat_is_refused(mode: str) -> None:
    case = padded((2, 0), [0, 1, 0, 0], None, None, mode)
    assert "has none" in supported(case).reason
    assert supported(case, dynamic=True).guards
    with pytest.raises(ValueError, match="empty axis"):
        registry.run("Pad", "", 25, {"mode": mode}, [np.zeros((2, 0)), ints(0, 1, 0, 0)], 1)


def test_contents() -> None:
    check_evaluate(OpCase("Pad", (ints(4, 5), ints(1, 2))))
    check_evaluate(OpCase("Pad", (ints(4, 5), ints(1, 0), np.array(9)), constants=(1, 2)))


def test_strings_are_padded_with_empty_ones() -> None:
    words = np.array(["a", "b"], dtype=object)
    got = registry.run("Pad", "", 25, {}, [words, ints(1, 1)], 1)[0]
    assert isinstance(got, np.ndarray) and got.tolist() == ["", "a", "b", ""]


@pytest.mark.parametrize(
    "case",
    [padded((2, 3), [1, 1]), padded((2, 3), [-2, 0, -1, 0]), padded((2, 3), [1, 1], axes=[2])],
    ids=case_id,
)
def test_wrong_shapes_are_refused(case: OpCase) -> None:
    with pytest.raises(ShapeError, match="Pad"):
        inferred(case)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_padding_that_is_cut_again(device: str, size: int) -> None:
    """Two elements more in front, and two less behind, which may be padding themselves."""
    import onnx.parser

    import engine

    text = """<ir_version: 9, opset_import: ["": 20]> g (float[n] x) => (float[n] y)
    {
        p = Constant<value = int64[2] {2, -2}>()
        v = Constant<value = float {9.0}>()
        y = Pad(x, p, v)
    }"""
    x = np.arange(size, dtype=np.float32)
    expected = np.concatenate([np.full(2, 9, np.float32), x])[:size]
    with engine.InferenceSession(
        onnx.parser.parse_model(text).SerializeToString(), device=device
    ) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)
